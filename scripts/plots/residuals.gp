# SPDX-License-Identifier: MIT
# Convergence of one parallel solve, from residuals.csv beside this file: residual and locked prefix by sweep.
#   gnuplot residuals.gp   writes residuals.svg and residuals.png
# residuals.csv: sweep,residual,locked,length,tolerance   residual: largest |z - f| / max(1, |z|); locked of `length` steps
# have converged; tolerance: of the solver, a step
set datafile separator comma
set datafile missing ""
set encoding utf8
ink = "#333333"; faint = "#dddddd"
blue = "#0072b2"; green = "#009e73"

set border 3 lc rgb ink lw 1
set tics nomirror scale 0.5 textcolor rgb ink
set grid lc rgb faint lw 1 lt 1
set xlabel "sweep" textcolor rgb ink
stats "residuals.csv" using 1 skip 1 nooutput
last = STATS_max
set xrange [-0.2:last+0.2]
if (last <= 12) { set xtics 1 } else { set xtics autofreq }
stats "residuals.csv" using 4 skip 1 nooutput
steps = STATS_max

do for [form in "svg png"] {
    if (form eq "svg") {
        set terminal svg size 900,380 font "DejaVu Sans,13" background "#ffffff" dynamic
    } else {
        set terminal pngcairo size 1800,760 font "DejaVu Sans,13" fontscale 1.9 linewidth 2 pointscale 2 background "#ffffff"
    }
    set output "residuals." . form
    set multiplot layout 1,2 margins 0.095,0.975,0.16,0.86 spacing 0.125,0

    set title "Largest residual" textcolor rgb ink
    set ylabel "|z_l - f_l(z_{l-1})| / max(1, |z_l|)" textcolor rgb ink offset 0.5,0
    set logscale y
    set format y "10^{%T}"
    set yrange [*:*]
    set key default
    set key top right Left reverse textcolor rgb ink samplen 1.5
    plot "residuals.csv" skip 1 using 1:($2 > 0 ? $2 : NaN) with linespoints pt 7 ps 0.7 lw 2 lc rgb blue title "largest of all steps", \
         "residuals.csv" skip 1 using 1:($5 > 0 ? $5 : NaN) with lines lw 1.5 dt 2 lc rgb ink title "tolerance"
    unset logscale y
    set format y "%g"

    set title "Steps converged from the start"
    set ylabel sprintf("of %d steps", steps) offset 0.5,0
    set yrange [0:steps*1.05]
    set key top left at graph 0.03, 0.88
    plot steps with lines lw 1.5 dt 2 lc rgb ink title "all", \
         "residuals.csv" skip 1 using 1:3 with linespoints pt 7 ps 0.7 lw 2 lc rgb green title "locked prefix"
    unset multiplot
    unset output
}
