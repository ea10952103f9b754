#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_pipeline.sh BUILD_DIR: measured profiles, and training by pipelines.
set -u
. "$(dirname "$0")/program.bash"

run() { "$program" "$@" || complain "'$*' gave exit status $?"; }

# ---- profiles ----
run schedule profile resnet --layers 9 --width 24 --batch 8 --group 4 --out "$folder/p.json" --quiet
run schedule --json profile mlp --layers 0 --inputs 0 --width 16 --batch 4 >"$folder/q.json"
run schedule --json profile mlp --layers 4 --width 4 --batch 2 --group 9223372036854775807 >"$folder/u.json"
run schedule simulate --profile "$folder/p.json" --schedule zb-h1 --ranks 2 --json >"$folder/s.json"
run schedule partition --profile "$folder/p.json" --ranks 3 --straight --json >"$folder/t.json"
python3 - "$folder" <<'PYTHON' || failed=1
import json, sys
p, q, s, t, u = (json.load(open(f"{sys.argv[1]}/{x}.json")) for x in "pqstu")
layers = p["layers"]
assert [l["name"] for l in layers] == ["encoder", "layers.0-3", "layers.4-7", "layers.8", "head"], layers
assert layers[0]["input"] == 0 and all(l[k] > 0 for l in layers for k in ("forward", "weight"))
assert all(l["input"] > 0 for l in layers[1:])
assert [l["parameter_bytes"] for l in layers] == [4 * n for n in (785 * 24, 4 * 600, 4 * 600, 600, 250)]
assert [l["activation_bytes"] for l in layers] == [8 * 24 * 4] * 4 + [8 * 10 * 4]
assert [l["name"] for l in q["layers"]] == ["head"]
assert [l["name"] for l in u["layers"]] == ["encoder", "layers.0-3", "head"], u
total = sum(l[k] for l in layers for k in ("forward", "input", "weight"))
assert total / 2 * 8 < s["makespan"] < total * 9 and len(t["stages"]) == 3
PYTHON
refused 2 "which network" schedule profile
refused 2 "no network 'gpt'" schedule profile gpt
refused 2 "--group" schedule profile mlp --group 0
refused 2 "nothing to measure" schedule profile mlp --layers 0 --inputs 0 --outputs 0
refused 4 "cannot" schedule profile mlp --layers 1 --out "$folder/none/p.json"

# ---- training ----
data=/usr/share/datasets/fashion-mnist
if [ -d "$data" ]; then
    train() { "$program" train resnet --layers 10 --width 12 --limit 700 --batch 64 --method sequential --backward sequential --quiet "$@"; }
    train --epochs 2 --save "$folder/one.safetensors" || complain "training by one process"
    for p in 1 2 3 4; do
        schedule=zb-h1
        [ $p -ne 3 ] || schedule=zb-v
        [ $p -ne 4 ] || schedule=dualpipev
        train --epochs 2 --pipeline $schedule --ranks $p --microbatches 8 --json --save "$folder/p.safetensors" >"$folder/p$p.json" || complain "$schedule on $p ranks"
        cmp "$folder/one.safetensors" "$folder/p.safetensors" || complain "$schedule on $p ranks made another network"
    done
    for r in gpipe zb-v; do
        train --epochs 2 --pipeline $r --ranks 2 --microbatches 6 --recompute --save "$folder/p.safetensors" || complain "$r recomputing"
        cmp "$folder/one.safetensors" "$folder/p.safetensors" || complain "$r recomputing made another network"
    done
    # no room any more in mid-run: one line, the last checkpoint whole and good to go on from, at once
    if command -v prlimit >/dev/null; then
        rm -f "$folder/run.safetensors"
        "$program" train resnet --layers 10 --width 12 --limit 700 --batch 64 --method sequential --backward sequential --quiet --constant-rate --warm-up 3 \
            --epochs 100000 --pipeline 1f1b --ranks 3 --checkpoint-seconds 0.1 --test-every 0 --save "$folder/run.safetensors" 2>"$folder/err" &
        job=$!
        for _ in $(seq 200); do
            [ -s "$folder/run.safetensors" ] && break
            sleep 0.1
        done
        prlimit --pid $job --fsize=1000
        wait $job
        status=$?
        [ $status -eq 4 ] || complain "a full disk in mid-run gave exit status $status"
        case $(cat "$folder/err") in "deeppcr train: cannot write: "*) ;; *) complain "a full disk in mid-run says $(cat "$folder/err")" ;; esac
        [ "$(wc -l <"$folder/err")" -eq 1 ] || complain "a full disk in mid-run: not one line: $(cat "$folder/err")"
        [ "$(find "$folder" -name 'run.safetensors*' | wc -l)" -eq 1 ] || complain "a full disk in mid-run left a piece of a file"
        run eval "$folder/run.safetensors" --limit 100 --quiet
    fi
    # tied weights: one process's, saved with their tie, evaluated, gone on with, refused where torn apart
    train --epochs 2 --tie 3 --clip 100 --save "$folder/tied.safetensors"
    for r in 1f1b zb-v; do
        train --epochs 2 --tie 3 --pipeline $r --ranks 2 --microbatches 6 --clip 100 --save "$folder/p.safetensors" || complain "$r with tied weights"
        cmp "$folder/tied.safetensors" "$folder/p.safetensors" || complain "$r with tied weights made another network"
    done
    cmp -s "$folder/tied.safetensors" "$folder/one.safetensors" && complain "a tie changes nothing"
    run eval "$folder/p.safetensors" --limit 200 --json --quiet >"$folder/e.json"
    refused 2 "the model's tie is 2" train resnet --layers 10 --width 12 --tie 2 --limit 700 --batch 64 --epochs 3 --resume "$folder/p.safetensors" --method sequential --backward sequential --quiet
    python3 - "$folder" <<'PYTHON' || failed=1
import json, struct, sys
raw = open(f"{sys.argv[1]}/tied.safetensors", "rb").read()
size = struct.unpack("<Q", raw[:8])[0]
header = json.loads(raw[8:8 + size])
assert header["__metadata__"]["deeppcr.tie"] == "3"
def bytes_of(layer):
    a, b = header[f"layers.{layer}.weight"]["data_offsets"]
    return raw[8 + size + a:8 + size + b]
assert bytes_of(0) == bytes_of(3) == bytes_of(9) and bytes_of(0) != bytes_of(1)
at = 8 + size + header["layers.4.weight"]["data_offsets"][0]
open(f"{sys.argv[1]}/torn.safetensors", "wb").write(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1:])
PYTHON
    refused 5 "are tied" eval "$folder/torn.safetensors" --limit 10
    # the last run as it was: every action once, a rank's one after the other, within the makespan's reach
    train --epochs 1 --pipeline 1f1b --ranks 2 --microbatches 4 --trace "$folder/trace.json" --json >"$folder/t1.json" || complain "a trace"
    python3 - "$folder" <<'PYTHON' || failed=1
import json, sys
events = [e for e in json.load(open(f"{sys.argv[1]}/trace.json"))["traceEvents"] if e["ph"] == "X"]
names = sorted(e["name"] for e in events)
assert names == sorted(f"{s}{t}{i}" for s in "01" for t in "FB" for i in range(4)), names
for rank in (0, 1):
    row = sorted((e["ts"], e["dur"]) for e in events if e["pid"] == rank)
    assert len(row) == 8 and all(d > 0 for _, d in row), row
    assert all(a[0] + a[1] <= b[0] * (1 + 1e-9) + 1e-6 for a, b in zip(row, row[1:])), row
end = {e["name"]: e["ts"] + e["dur"] for e in events}
start = {e["name"]: e["ts"] for e in events}
assert min(start.values()) == 0 and all(start[f"1F{i}"] > start[f"0F{i}"] and end[f"0B{i}"] > start[f"1B{i}"] for i in range(4))
p = json.load(open(f"{sys.argv[1]}/t1.json"))["pipeline"]
assert 0 < p["simulated_work"] <= p["simulated_makespan"], p
PYTHON
    # fewer images than a minibatch's are one; where there is no run, the result is told first
    "$program" train resnet --layers 3 --limit 20 --batch 64 --epochs 1 --pipeline gpipe --trace "$folder/few.json" --json >"$folder/few" 2>"$folder/err" || complain "a trace of few images: $(cat "$folder/err")"
    python3 -c 'import json, sys; p = json.load(open(sys.argv[1]))["pipeline"]; assert p["runs"] == 1 and p["makespan"] > 0, p' "$folder/few" || complain "the figures of few images"
    none=(train resnet --layers 3 --limit 100 --epochs 1 --pipeline gpipe --trace "$folder/none.json" --resume)
    "$program" train resnet --layers 3 --limit 100 --batch 64 --epochs 1 --quiet --save "$folder/done.safetensors" || complain "training to be gone on with"
    refused 2 "was complete, so no run was made" "${none[@]}" "$folder/done.safetensors" --batch 64 --quiet
    "$program" "${none[@]}" "$folder/done.safetensors" --batch 64 --json >"$folder/none" 2>"$folder/err"
    [ $? -eq 2 ] && grep -q '"test_accuracy"' "$folder/none" && [ ! -e "$folder/none.json" ] || complain "a result that has no trace is not told: $(cat "$folder/none" "$folder/err")"
    # stopped after an epoch, gone on with by other ranks, then by one process
    train --epochs 3 --constant-rate --warm-up 3 --save "$folder/a.safetensors"
    train --epochs 1 --constant-rate --warm-up 3 --save "$folder/b.safetensors" --pipeline gpipe --ranks 2 --microbatches 3
    train --epochs 2 --constant-rate --warm-up 3 --resume "$folder/b.safetensors" --pipeline interleaved-zb --ranks 3 --microbatches 6
    train --epochs 3 --constant-rate --warm-up 3 --resume "$folder/b.safetensors"
    cmp "$folder/a.safetensors" "$folder/b.safetensors" || complain "a resumed run has other bits"
    # what left the method open ran the loop: who names that asks for the same, and nobody for another
    open=(train resnet --layers 10 --width 12 --limit 700 --batch 64 --constant-rate --warm-up 3 --quiet)
    run "${open[@]}" --epochs 1 --pipeline gpipe --ranks 2 --save "$folder/c.safetensors"
    cp "$folder/c.safetensors" "$folder/d.safetensors"
    refused 2 "solve.method is newton, wanted auto" "${open[@]}" --epochs 2 --resume "$folder/c.safetensors" --method newton
    run "${open[@]}" --epochs 2 --resume "$folder/c.safetensors" --method sequential --backward sequential
    run "${open[@]}" --epochs 2 --resume "$folder/d.safetensors"
    cmp "$folder/c.safetensors" "$folder/d.safetensors" || complain "a pipeline's run goes on by the loop that is named to other bits"
    for late in "pipedream --reconstruct --clip 1" "pipedream-2bw --reconstruct --compensate rate" "pipedream --compensate rate" "pipedream-2bw --accumulate 4" "layerpipe --stages 5 --split"; do
        # shellcheck disable=SC2086  # words
        train --epochs 1 --pipeline $late --ranks 3 --segment 4 --json >"$folder/l.json" || complain "$late"
        python3 -c 'import json, sys; p = json.load(open(sys.argv[1]))["pipeline"]; assert p["updates_a_run"] == 4 and p["runs"] == 2 and p["makespan"] > 0, p
assert p["microbatches"] == (4 if "--accumulate" in sys.argv[2] else 8 if "2bw" in sys.argv[2] else 1), p' "$folder/l.json" "$late" ||
            complain "the figures of $late"
    done
    python3 - "$folder" <<'PYTHON' || failed=1
import json, sys
for ranks in range(1, 5):
    r = json.load(open(f"{sys.argv[1]}/p{ranks}.json"))
    p = r["pipeline"]
    assert p["ranks"] == ranks and len(p["first_units"]) - 1 == p["stages"] and p["first_units"][-1] == 12
    assert 0 < p["busy"] <= p["makespan"] and p["simulated_work"] <= p["simulated_makespan"] * (1 + 1e-9) and p["runs"] == 20
PYTHON
    small="train resnet --layers 3 --limit 200"
    # shellcheck disable=SC2086
    {
        refused 2 "is for --pipeline" $small --microbatches 4
        refused 2 "wanted one of" $small --pipeline fast
        refused 2 "--segment is for late gradients" $small --pipeline gpipe --segment 3
        refused 2 "--accumulate is for pipedream-2bw" $small --pipeline pipedream --accumulate 3
        refused 2 "--split is for layerpipe" $small --pipeline zb-h1 --split
        refused 2 "--microbatches 4: pipedream takes whole minibatches" $small --pipeline pipedream --microbatches 4
        refused 2 "--microbatches 5 beside --accumulate 3" $small --pipeline pipedream-2bw --microbatches 5 --accumulate 3
        refused 2 "wanted twice" $small --pipeline gpipe --trace - --json
        "$program" $small --pipeline gpipe --trace - | python3 -c "import json, sys; json.load(sys.stdin)" || complain "a trace with more beside it"
        refused 4 "cannot write the trace" $small --pipeline gpipe --trace "$folder/none/t.json"
        refused 2 "6 stages of a network of 5 layers" $small --pipeline gpipe --ranks 6
        refused 2 "wanted at least as many as stages" $small --pipeline dualpipev --ranks 2 --microbatches 3
        refused 2 "weights are tied" $small --tie 1 --layer-wise
        refused 2 "want the sum over all stages" $small --tie 1 --pipeline pipedream
        refused 2 "recomputing wants them on one" $small --pipeline layerpipe --stages 5 --ranks 3 --recompute
        refused 2 "recomputing wants the weights" $small --pipeline pipedream --recompute --reconstruct
        refused 2 "lie on several ranks" $small --pipeline layerpipe --stages 5 --ranks 3 --reconstruct
    }
fi

[ $failed -ne 0 ] || echo "cli_pipeline: profiles and trainings as they should be"
exit $failed
