# SPDX-License-Identifier: MIT
# Regime map of a kind of chain, from a CSV file of 'deeppcr bench': time of the loop and of the best parallel method, and
# how much faster than the loop that method and auto's choice are, over length and width, forward and backward.
#   gnuplot -e "name='mlp'; heading='MLP, batch 1'" map.gp     reads mlp.csv, writes mlp.svg and mlp.png
# Blue cells: parallel is ahead; red: the loop is; white: neither. Under a factor stands what ran.
set datafile separator comma
set datafile columnheaders
set encoding utf8
if (!exists("name")) name = "map"
if (!exists("heading")) heading = name
csv = name . ".csv"
ink = "#333333"

log2(x) = log(x) / log(2)
# Categories side by side whatever their steps: the ranks of the values that occur.
values(field) = system("awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == \"" . field . "\") c = i } NR > 1 { print $c }' " . csv . " | sort -gu | paste -sd' '")
lengths = values("length")
widths = values("width")
rank(list, value) = sum [i=1:words(list)] (int(word(list, i)) < int(value) ? 1 : 0)
nx = words(lengths)
ny = words(widths)

here(direction, value) = (strcol("direction") eq direction ? value : NaN)
duration(s) = s < 9.995e-7 ? sprintf("%.0f ns", s * 1e9) : s < 9.95e-6 ? sprintf("%.1f µs", s * 1e6) \
    : s < 9.995e-4 ? sprintf("%.0f µs", s * 1e6) : s < 9.95e-3 ? sprintf("%.1f ms", s * 1e3) \
    : s < 0.9995 ? sprintf("%.0f ms", s * 1e3) : sprintf("%.1f s", s)
factor(r) = r >= 9.95 ? sprintf("%.0f", r) : r >= 0.995 ? sprintf("%.1f", r) : sprintf("%.2f", r)
named_method(m) = m eq "sequential" ? "loop" : m
parallel_method(reason) = reason eq "fallback" ? "gave up" : strcol("parallel_method")

stats csv using (log10(column("sequential_seconds"))) nooutput name "T"
stats csv using (column("parallel_seconds") > 0 ? log10(column("parallel_seconds")) : NaN) nooutput name "P"
tlow = floor(T_min < P_min ? T_min : P_min)
thigh = ceil(T_max > P_max ? T_max : P_max)

set tics nomirror scale 0 textcolor rgb ink
set border 0
unset key
set xrange [-0.5:nx-0.5]
set yrange [-0.5:ny-0.5]
set xtics () ; set ytics ()
power(n) = int(log2(n) + 0.5)
named(n) = n >= 4096 && 2**power(n) == n ? sprintf("2^{%d}", power(n)) : sprintf("%d", n)
do for [i=1:nx] { set xtics add (named(int(word(lengths, i))) i-1) }
do for [i=1:ny] { set ytics add (word(widths, i) i-1) }
set style fill solid border rgb "#dddddd"

height = 245 + 2 * 54 * ny  # pixels of the SVG
top = 1 - 100.0 / height
bottom = 62.0 / height
gap = 83.0 / height
do for [form in "svg png"] {
    if (form eq "svg") {
        set terminal svg size 1500,height font "DejaVu Sans,12" background "#ffffff" dynamic
    } else {
        set terminal pngcairo size 2250,height*1.5 font "DejaVu Sans,12" fontscale 1.43 linewidth 1.5 background "#ffffff"
    }
    set output name . "." . form
    set multiplot layout 2,4 margins 0.065,0.99,bottom,top spacing 0.035,gap title heading . "\n{/*0.75 median times, and by what factor the loop is slower: blue, parallel is ahead; red, the loop is}" font ",14" textcolor rgb ink
    do for [direction in "forward backward"] {
        set xlabel (direction eq "backward" ? "length" : "") textcolor rgb ink
        set ylabel direction . ": width" textcolor rgb ink offset -0.8,0
        unset colorbox
        set palette defined (0 "#f7fbff", 1 "#9ecae1")
        set cbrange [tlow:thigh]
        set title "the loop" textcolor rgb ink
        plot csv using (here(direction, rank(lengths, column("length")))):(rank(widths, column("width"))):(0.5):(0.5):(log10(column("sequential_seconds"))) with boxxyerror fc palette, \
             csv using (here(direction, rank(lengths, column("length")))):(rank(widths, column("width"))):(duration(column("sequential_seconds"))) with labels font ",10" textcolor rgb ink
        set ylabel ""
        set title "best parallel method"
        plot csv using (here(direction, rank(lengths, column("length")))):(rank(widths, column("width"))):(0.5):(0.5):(log10(column("parallel_seconds"))) with boxxyerror fc palette, \
             csv using (here(direction, rank(lengths, column("length")))):(rank(widths, column("width"))):(duration(column("parallel_seconds"))) with labels font ",10" textcolor rgb ink
        set palette defined (-4 '#e5694f', -2 '#f4a582', -0.5 '#fde3d3', 0 '#ffffff', 0.5 '#deebf7', 2 '#92c5de', 4 '#5aa7d6')
        set cbrange [-4:4]
        set title "loop / best parallel"
        plot csv using (here(direction, rank(lengths, column("length")))):(rank(widths, column("width"))):(0.5):(0.5):(log2(column("ratio"))) with boxxyerror fc palette, \
             csv using (here(direction, rank(lengths, column("length")))):(rank(widths, column("width"))):(factor(column("ratio")) . "\n" . parallel_method(strcol("reason"))) with labels font ",9" textcolor rgb ink
        set title "loop / auto"
        plot csv using (here(direction, rank(lengths, column("length")))):(rank(widths, column("width"))):(0.5):(0.5):(log2(column("auto_ratio"))) with boxxyerror fc palette, \
             csv using (here(direction, rank(lengths, column("length")))):(rank(widths, column("width"))):(factor(column("auto_ratio")) . "\n" . named_method(strcol("auto_method"))) with labels font ",9" textcolor rgb ink
    }
    unset multiplot
    unset output
}
