#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# bitstream.sh PROGRAM FOLDER [T] [SEQUENCES] [EPOCHS] [RATE]: loss curves of BPPSA's bit streams by plain back-propagation
# through time, by the loop with a scan back, by Newton with a scan back and by overlapped chunks:
# FOLDER/bitstream.csv (a row a step, a column a way) and, where gnuplot is there, FOLDER/bitstream.png.
set -eu
program=${1:?usage: bitstream.sh PROGRAM FOLDER [T] [SEQUENCES] [EPOCHS] [RATE]}
folder=${2:?usage: bitstream.sh PROGRAM FOLDER [T] [SEQUENCES] [EPOCHS] [RATE]}
length=${3:-1000} sequences=${4:-3200} epochs=${5:-3} rate=${6:-1e-3}
mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
columns=step
for way in sequential:sequential sequential:blelloch newton:chunked overlap:overlap; do
    "$program" train rnn --data bitstream --length "$length" --limit "$sequences" --epochs "$epochs" --batch 16 --rate "$rate" \
        --method "${way%:*}" --backward "${way#*:}" --log "$work/log" --test-every 0 --json >"$work/$way.json"
    jq -r 'select(.event == "step") | .loss' "$work/log" >"$work/$way"
    [ "$columns" != step ] || jq -r 'select(.event == "step") | .step' "$work/log" >"$work/table"
    paste -d, "$work/table" "$work/$way" >"$work/next"
    mv "$work/next" "$work/table"
    columns=$columns,${way%:*}+${way#*:}
    jq -r --arg way "$way" '"\($way): loss \(.train_loss), \(.seconds) s, forward \(.phases.forward) s, backward \(.phases.backward) s"' "$work/$way.json"
done
{ echo "$columns"; cat "$work/table"; } >"$folder/bitstream.csv"
command -v gnuplot >/dev/null || exit 0
gnuplot <<PLOT
set terminal pngcairo size 900,500
set output "$folder/bitstream.png"
set datafile separator ","
set key autotitle columnhead
set xlabel "update"
set ylabel "mean loss of the epoch so far, nats"
plot for [c=2:5] "$folder/bitstream.csv" using 1:c with lines linewidth (6 - c)
PLOT
