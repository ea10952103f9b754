# SPDX-License-Identifier: MIT
# Denoising steps by parallel methods, from a CSV file of 'deeppcr bench diffusion': quality against sweeps, and time against the
# window.
#   gnuplot -e "name='ddim'; heading='DDIM, 100 steps'" diffusion.gp     reads ddim.csv, writes ddim.svg and ddim.png
# Left: Frechet distance by sweeps, the loop's and its deviation over the seeds as a band; without quality in the file the largest
# difference of a state. Right: how many times as fast as the loop, by window (0, the whole chain, at the right) and number of samples.
set datafile separator comma
set datafile missing ""
set encoding utf8
if (!exists("name")) name = "diffusion"
if (!exists("heading")) heading = name
csv = name . ".csv"
ink = "#333333"; faint = "#dddddd"
array colours[6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"]

rows(condition) = "< awk -F, 'NR > 1 && " . condition . "' " . csv
list(field, condition) = system("awk -F, 'NR > 1 && " . condition . " { print $" . field . " }' " . csv . " | awk '!seen[$0]++' | paste -sd' '")
# sweeps, distance, its deviation (0 of one seed)
quality(method) = "< awk -F, 'NR > 1 && $1 == \"quality\" && $8 == \"" . method . "\" { print $17 \",\" $21 \",\" ($22 == \"\" ? 0 : $22) }' " . csv
methods = list(8, "$8 != \"sequential\"")
counts = list(13, "$1 == \"time\"")
judged = words(list(1, "$1 == \"quality\"")) > 0
steps = int(list(3, "1") + 0)

set border 3 lc rgb ink lw 1
set tics nomirror scale 0.5 textcolor rgb ink
set grid lc rgb faint lw 1 lt 1
set key textcolor rgb ink samplen 1.5
do for [form in "svg png"] {
    if (form eq "svg") {
        set terminal svg size 1000,420 font "DejaVu Sans,13" background "#ffffff" dynamic
    } else {
        set terminal pngcairo size 2000,840 font "DejaVu Sans,13" fontscale 1.9 linewidth 2 pointscale 2 background "#ffffff"
    }
    set output name . "." . form
    set multiplot layout 1,2 title heading textcolor rgb ink margins 0.085,0.975,0.16,0.82 spacing 0.115,0

    set offsets graph 0, graph 0, graph 0.45, graph 0  # room for the keys
    set xlabel "sweeps" textcolor rgb ink
    set xrange [0:*]
    set key top right
    if (judged) {
        stats quality("sequential") using 2 nooutput name "L"
        stats quality("sequential") using 3 nooutput name "D"
        spread = D_max
        set title "Frechet distance" textcolor rgb ink
        set ylabel "classifier's features, no FID" textcolor rgb ink offset 0.5,0
        set object 1 rect from graph 0, first L_min - spread to graph 1, first L_min + spread fc rgb "#eeeeee" fs solid noborder behind
        set yrange [0:*]
        plot L_min with lines lw 1.5 lc rgb ink title "the loop", \
             for [i=1:words(methods)] quality(word(methods, i)) using 1:2:3 with yerrorbars pt 7 ps 0.8 lw 1.5 lc rgb colours[i] title word(methods, i)
        unset object 1
        set yrange [*:*]
    } else {
        set title "largest difference of a state from the loop's" textcolor rgb ink
        set ylabel ""
        set logscale y
        set format y "10^{%T}"
        plot for [i=1:words(methods)] rows("$1 == \"time\" && $8 == \"" . word(methods, i) . "\"") using 17:20 with points pt 7 ps 0.8 lc rgb colours[i] title word(methods, i)
        unset logscale y
        set format y "%h"
    }

    set title "times as fast as the loop" textcolor rgb ink
    set xlabel "window" textcolor rgb ink
    set ylabel ""
    set xrange [*:*]
    set logscale x
    set yrange [0:*]
    set key top right maxrows 4
    window(w) = w > 0 ? w : steps
    # Of the tolerances the loosest that was run.
    plot 1 with lines lw 1.5 lc rgb ink notitle, \
         for [i=1:words(methods)] for [c=1:words(counts)] \
         "< awk -F, 'NR > 1 && $1 == \"time\" && $8 == \"" . word(methods, i) . "\" && $13 == " . word(counts, c) . " { w = $12 ? $12 : $3; if (!(w in t) || $11 > t[w]) { t[w] = $11; r[w] = $16 } } END { for (w in r) print w \",\" r[w] }' " . csv . " | sort -g" \
         using 1:2 with linespoints pt 3+2*c ps 0.7 lw 1.5 lc rgb colours[i] title word(methods, i) . ", " . word(counts, c)
    unset multiplot
    unset offsets
    unset output
    unset logscale
    set yrange [*:*]
}
