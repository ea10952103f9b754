#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# audio.sh PROGRAM FOLDER [DATA] [OPTION...]: a GRU on recordings, DATA "speakers" or a folder with a folder a class, by
# four ways: the loop and back in order, a Blelloch scan back (BPPSA), Newton with a scan back, overlapped chunks.
# FOLDER/audio.csv: mean loss of the epoch so far, a row every ten updates, a column a way; FOLDER/audio_ways.csv: accuracy and
# times; where gnuplot is there, FOLDER/audio.png. The options are 'deeppcr train gru's.
set -euo pipefail
. "$(dirname "$0")/shared.bash"
usage="usage: audio.sh PROGRAM FOLDER [DATA] [OPTION...]"
program=${1:?$usage}
folder=${2:?$usage}
data=${3:-speakers}
shift 2
[ $# -eq 0 ] || shift
[ "$data" != speakers ] || "$(dirname "$0")/../scripts/install-deps" speakers
open_work
echo "way,train_loss,test_loss,test_accuracy,baseline_test_accuracy,updates,seconds,forward,backward" >"$folder/audio_ways.part"
for way in sequential:sequential sequential:blelloch newton:chunked overlap:overlap; do
    train_way "$way" gru --data "$data" --epochs 20 --rate 3e-3 "$@" --log-every 10
    jq -r --arg way "${way%:*}+${way#*:}" '[$way, .train_loss, .test_loss, .test_accuracy, .baseline_test_accuracy, .steps,
        .seconds, .phases.forward, .phases.backward] | @csv' "$work/told" | tee -a "$folder/audio_ways.part"
done
mv "$folder/audio_ways.part" "$folder/audio_ways.csv"
write_columns "$folder/audio.csv"
plot_columns "$folder/audio" "mean loss of the epoch so far, nats" "6 - c"
