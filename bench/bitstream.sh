#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# bitstream.sh PROGRAM FOLDER [T] [SEQUENCES] [EPOCHS] [RATE]: loss curves of BPPSA's bit streams by plain back-propagation
# through time, by the loop with a scan back, by Newton with a scan back and by overlapped chunks:
# FOLDER/bitstream.csv (a row a step, a column a way) and, where gnuplot is there, FOLDER/bitstream.png.
set -eu
. "$(dirname "$0")/shared.bash"
program=${1:?usage: bitstream.sh PROGRAM FOLDER [T] [SEQUENCES] [EPOCHS] [RATE]}
folder=${2:?usage: bitstream.sh PROGRAM FOLDER [T] [SEQUENCES] [EPOCHS] [RATE]}
length=${3:-1000} sequences=${4:-3200} epochs=${5:-3} rate=${6:-1e-3}
open_work
for way in sequential:sequential sequential:blelloch newton:chunked overlap:overlap; do
    train_way "$way" rnn --data bitstream --length "$length" --limit "$sequences" --epochs "$epochs" --batch 16 --rate "$rate"
    jq -r --arg way "$way" '"\($way): loss \(.train_loss), \(.seconds) s, forward \(.phases.forward) s, backward \(.phases.backward) s"' "$work/told"
done
write_columns "$folder/bitstream.csv"
plot_columns "$folder/bitstream" "mean loss of the epoch so far, nats" "6 - c"
