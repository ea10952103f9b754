#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# bitstream_sweep.sh PROGRAM FOLDER [UPDATES]: BPPSA's sweeps over its bit streams, hidden 20: T = 10 .. 30000 at batch 16,
# batch 2 .. 256 at T = 1000; milliseconds an update, forward and backward, of the loop, of a scan back (BPPSA), of
# Newton with a scan back, of overlapped chunks and of what auto chooses; the loss after the last update, which is
# the same: FOLDER/bitstream_sweep.csv, or, where runs failed, exit status 1 and the rows of the others in bitstream_sweep.part.
set -euo pipefail
. "$(dirname "$0")/shared.bash"
usage="usage: bitstream_sweep.sh PROGRAM FOLDER [UPDATES]"
program=${1:?$usage}
folder=${2:?$usage}
updates=${3:-10}
open_work
rows=$folder/bitstream_sweep.part failed=0
{
    tell_machine "$("$program" info --json | jq -r .threads)" "bench/bitstream_sweep.sh PROGRAM FOLDER $updates"
    echo "length,batch,way,method,backward_scheme,updates,loss,forward_ms,backward_ms"
} >"$rows"
for size in 10:16 30:16 100:16 300:16 1000:16 3000:16 10000:16 30000:16 1000:2 1000:4 1000:8 1000:32 1000:64 1000:128 1000:256; do
    length=${size%:*} batch=${size#*:}
    for way in sequential:sequential sequential:blelloch newton:chunked overlap:overlap auto:; do
        back=${way#*:}
        "$program" train rnn --data bitstream --length "$length" --limit $((updates * batch)) --epochs 1 --batch "$batch" \
            --method "${way%:*}" ${back:+--backward "$back"} --test-every 0 --json >"$work/r" 2>"$work/e" || {
            echo "T $length, B $batch, $way: $(cat "$work/e")" >&2
            failed=$((failed + 1))
            continue
        }
        jq -r --arg way "${way%:*}+${back:-auto}" --arg T "$length" --arg B "$batch" '[$T, $B, $way, .method, .backward, .steps, .train_loss,
            1000 * .phases.forward / .steps, 1000 * .phases.backward / .steps] | join(",")' "$work/r" | tee -a "$rows"
    done
done
[ $failed -eq 0 ] || { echo "bitstream_sweep.sh: $failed runs failed; the others' rows are in $rows" >&2; exit 1; }
mv "$rows" "$folder/bitstream_sweep.csv"
