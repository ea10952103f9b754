#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# audio.sh PROGRAM FOLDER [DATA] [OPTION...]: a GRU on recordings, DATA "speakers" or a folder with a folder a class, by
# four ways: the loop and back in order, a Blelloch scan back (BPPSA), Newton with a scan back, overlapped chunks.
# FOLDER/audio.csv: mean loss of the epoch so far, a row every ten updates, a column a way; FOLDER/audio_ways.csv: accuracy and
# times; where gnuplot is there, FOLDER/audio.png. The options are 'deeppcr train gru's.
set -eu
usage="usage: audio.sh PROGRAM FOLDER [DATA] [OPTION...]"
program=${1:?$usage}
folder=${2:?$usage}
data=${3:-speakers}
shift 2
[ $# -eq 0 ] || shift
[ "$data" != speakers ] || "$(dirname "$0")/../scripts/install-deps" speakers
mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
columns=step
echo "way,train_loss,test_loss,test_accuracy,baseline_test_accuracy,updates,seconds,forward,backward" >"$folder/audio_ways.csv"
for way in sequential:sequential sequential:blelloch newton:chunked overlap:overlap; do
    "$program" train gru --data "$data" --epochs 20 --rate 3e-3 "$@" --method "${way%:*}" --backward "${way#*:}" \
        --log "$work/log" --log-every 10 --test-every 0 --json >"$work/$way.json"
    jq -r 'select(.event == "step") | .loss' "$work/log" >"$work/$way"
    [ "$columns" != step ] || jq -r 'select(.event == "step") | .step' "$work/log" >"$work/table"
    paste -d, "$work/table" "$work/$way" >"$work/next"
    mv "$work/next" "$work/table"
    columns=$columns,${way%:*}+${way#*:}
    jq -r --arg way "${way%:*}+${way#*:}" '[$way, .train_loss, .test_loss, .test_accuracy, .baseline_test_accuracy, .steps,
        .seconds, .phases.forward, .phases.backward] | @csv' "$work/$way.json" | tee -a "$folder/audio_ways.csv"
done
{ echo "$columns"; cat "$work/table"; } >"$folder/audio.csv"
command -v gnuplot >/dev/null || exit 0
gnuplot <<PLOT
set terminal pngcairo size 900,500
set output "$folder/audio.png"
set datafile separator ","
set key autotitle columnhead
set xlabel "update"
set ylabel "mean loss of the epoch so far, nats"
plot for [c=2:5] "$folder/audio.csv" using 1:c with lines linewidth (6 - c)
PLOT
