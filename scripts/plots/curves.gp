# SPDX-License-Identifier: MIT
# Training curves, from curves.csv beside this file: training loss by step, accuracy by epoch.
#   gnuplot curves.gp      writes curves.svg and curves.png
# curves.csv: kind,epoch,loss,accuracy    kind step (running means), epoch (training data at its end) or test; empty: none
set datafile separator comma
set datafile missing ""
set encoding utf8
ink = "#333333"; faint = "#dddddd"
blue = "#0072b2"; orange = "#d55e00"

set border 3 lc rgb ink lw 1
set tics nomirror scale 0.5 textcolor rgb ink
set grid lc rgb faint lw 1 lt 1
set xlabel "epoch" textcolor rgb ink
stats "< grep -c ^epoch, curves.csv" using 1 nooutput
set xrange [0:STATS_max]
set xtics 1
if (STATS_max > 10) { set xtics autofreq }

do for [form in "svg png"] {
    if (form eq "svg") {
        set terminal svg size 900,380 font "DejaVu Sans,13" background "#ffffff" dynamic
    } else {
        set terminal pngcairo size 1800,760 font "DejaVu Sans,13" fontscale 1.9 linewidth 2 pointscale 2 background "#ffffff"
    }
    set output "curves." . form
    set multiplot layout 1,2 margins 0.085,0.975,0.16,0.86 spacing 0.115,0

    set title "Training loss" textcolor rgb ink
    set ylabel "cross-entropy" textcolor rgb ink offset 0.5,0
    set yrange [0:*]
    set key top right Left reverse textcolor rgb ink samplen 1.5
    plot "< grep ^step, curves.csv" using 2:3 with lines lw 1.5 lc rgb blue title "mean over the epoch so far", \
         "< grep ^epoch, curves.csv" using 2:3 with points pt 7 ps 0.7 lc rgb blue title "whole epoch"

    set title "Accuracy"
    set ylabel "% of images" offset 0.5,0
    set yrange [*<80:100]
    set key bottom right
    plot "< grep ^epoch, curves.csv" using 2:($4*100) with linespoints pt 7 ps 0.7 lw 2 lc rgb blue title "training images", \
         "< grep ^test, curves.csv" using 2:($4*100) with linespoints pt 5 ps 0.7 lw 2 lc rgb orange title "test images"
    unset multiplot
    unset output
}
