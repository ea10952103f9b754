#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_workers.sh BUILD_DIR: training by several workers: one process's network, resumed by others, paused,
# refusals.
set -u
. "$(dirname "$0")/program.bash"
always=(train resnet --layers 3 --limit 200)

refused 2 "--data-parallel beside --swap" --swap --data-parallel
refused 2 "--swap beside --pipeline" --swap --pipeline gpipe
refused 2 "--enough is for --swap" --enough 0.5
refused 2 "--forwards is for --layer-wise" --data-parallel --forwards 2
refused 2 "--ranks is for --pipeline, --data-parallel" --ranks 3
refused 2 "--segment is for late gradients" --swap --segment 4
refused 2 "wanted --forwards and --backwards" --layer-wise --ranks 2
refused 2 "never has the whole gradient" --layer-wise --clip 1
refused 2 "--microbatches is for --pipeline" --data-parallel --microbatches 2
refused 2 "--enough '3'" --swap --enough 3
refused 2 "wanted more than 0" --swap --enough 0
for kind in "--swap" "--data-parallel" "--layer-wise" "--pipeline gpipe"; do
    # shellcheck disable=SC2086  # words
    refused 2 "${kind% *} trains by --method sequential, not newton" $kind --method newton
done
refused 2 "--swap trains by --backward sequential, not pcr" --swap --backward pcr
refused 2 "--swap takes no --tolerance" --swap --tolerance 0

# A test that fails, whichever of a run's it is, is all that is told: after the epoch together, of the network then, after the
# epoch apart, of a worker's network, of the mean, at the end. Its images alone are many.
if make_faults; then
    python3 - "$program" "$folder" <<'PYTHON'
from program import put_images
for split, count in (("train", 64), ("t10k", 6000)): put_images("few", split, (8, 8), [i * 37 % 256 for i in range(64 * count)], [i % 3 for i in range(count)])
PYTHON
    tests=0
    for at in {1..9}; do
        FAIL_BYTES=1000000 FAIL_LARGE=$at LD_PRELOAD=$folder/faults.so "$program" train mlp --data "$folder/few" --layers 2 --width 4 --epochs 1 --batch 6000 \
            --swap --ranks 1 --quiet --save "$folder/tested.safetensors" 2>"$folder/err"
        status=$?
        [ $status -eq 0 ] || tests=$((tests + 1))
        [ $status -eq 0 ] || { [ $status -eq 4 ] && [ "$(grep -c "no memory for a batch" "$folder/err"),$(wc -l <"$folder/err")" = 1,1 ]; } ||
            complain "a test without memory: exit status $status: $(cat "$folder/err")"
    done
    [ $tests -ge 6 ] || complain "$tests tests failed, of 6"
fi

[ -d /usr/share/datasets/fashion-mnist ] || { echo "cli_workers: no data set"; exit $((failed ? 1 : 77)); }
train() { "$program" train resnet --layers 10 --width 12 --limit 700 --batch 64 --method sequential --backward sequential --quiet "$@"; }
train --epochs 2 --save "$folder/one.safetensors" || complain "training by one process"
for k in 1 2 3; do
    train --epochs 2 --data-parallel --ranks $k --json --save "$folder/k.safetensors" >"$folder/k$k.json" || complain "$k workers"
    cmp "$folder/one.safetensors" "$folder/k.safetensors" || complain "$k workers made another network"
done
# one epoch by workers, one by a pipeline, one by the loop
keep="--constant-rate --warm-up 3"
# shellcheck disable=SC2086  # words
{
    train --epochs 3 $keep --save "$folder/a.safetensors"
    train --epochs 1 $keep --save "$folder/b.safetensors" --data-parallel --ranks 3
    train --epochs 2 $keep --resume "$folder/b.safetensors" --pipeline zb-h1 --ranks 2
    train --epochs 3 $keep --resume "$folder/b.safetensors"
}
cmp "$folder/a.safetensors" "$folder/b.safetensors" || complain "a resumed run has other bits"
train --epochs 3 --swap --ranks 3 --enough 0.4 --apart-epochs 2 --apart-batch 20 --json --log "$folder/s.log" --save "$folder/s.safetensors" >"$folder/s.json" || complain "swap"
# late gradients are told a segment at a time, and logged where an Nth step lies in it
train --epochs 2 --layer-wise --segment 4 --log "$folder/n.log" --log-every 5 || complain "layer-wise with a log"
[ "$(grep -c '"event": "step"' "$folder/n.log")" -eq 4 ] || complain "a log of every fifth of 22 steps: $(grep -c '"event": "step"' "$folder/n.log") lines"
for way in "" "--free-running"; do
    # shellcheck disable=SC2086
    train --epochs 2 --layer-wise --backwards 2 --segment 5 $way --json >"$folder/l$way.json" || complain "layer-wise $way"
done
train --epochs 2 --layer-wise --backwards 2 --segment 5 --json >"$folder/l2.json" || complain "layer-wise"
python3 - "$folder" <<'PYTHON' || failed=1
import json, sys
read = lambda name: json.load(open(f"{sys.argv[1]}/{name}.json"))
for k in (1, 2, 3):
    w = read(f"k{k}")["workers"]
    assert w["kind"] == "data-parallel" and w["workers"] == k and w["updates"] == 22 and w["waited"] >= 0, w
s = read("s")
w = s["workers"]
assert 1 <= w["together_epochs"] <= 3 and len(w["apart_accuracies"]) == 3 and w["averaged_accuracy"] == s["test_accuracy"], w
assert s["steps"] == 11 * w["together_epochs"] + 2 * 35, s
log = [json.loads(line) for line in open(f"{sys.argv[1]}/s.log")]
assert [l["step"] for l in log if l["event"] == "step"] == list(range(1, s["steps"] + 1))
l, again, free = read("l"), read("l2"), read("l--free-running")
assert l["test_loss"] == again["test_loss"] and l["workers"]["updates"] == 22 and 0 < l["workers"]["staleness"] <= 3
assert l["workers"]["free_running"] is False and free["workers"]["free_running"] is True and free["test_accuracy"] > 0.3
PYTHON
# paused for longer than the deadline (Ctrl-Z, a frozen container), it goes on: all of it stood still, no thread waits in vain.
# A busy machine may let a thread wait for two seconds: it is tried a few times.
goes_on() {
    local job status
    rm -f "$folder/run.safetensors"
    "$program" train resnet --layers 10 --width 12 --limit 700 --batch 64 --quiet --epochs 1000000 --test-every 0 --checkpoint-seconds 0.1 --deadline 2 \
        --save "$folder/run.safetensors" --data-parallel --ranks 3 >/dev/null 2>"$folder/err" &
    job=$!
    for _ in $(seq 200); do
        if [ -s "$folder/run.safetensors" ] || ! kill -0 $job 2>/dev/null; then break; fi
        sleep 0.1
    done
    kill -STOP $job
    sleep 4
    kill -CONT $job
    sleep 0.7
    kill -TERM $job 2>/dev/null
    wait $job
    status=$?
    [ $status -eq 143 ] && grep -q "stopped as asked" "$folder/err"
}
goes_on || goes_on || goes_on || complain "paused for longer than the deadline: $(cat "$folder/err")"
line=$("$program" train resnet --layers 10 --width 12 --limit 700 --batch 64 --swap --resume "$folder/s.safetensors" 2>&1 >/dev/null)
[ $? -eq 5 ] || complain "an averaged network was gone on from"
case $line in *"no checkpoint to go on from"*"a network alone, such as SWAP leaves"*) ;; *) complain "an averaged network is refused with '$line'" ;; esac

[ $failed -ne 0 ] || echo "cli_workers: workers as one process, swap and layer-wise as told"
exit $failed
