#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_plan.sh BUILD_DIR: plan's candidates, wisdom, cache and other machines; the short grid of bench planner.
set -u
. "$(dirname "$0")/program.bash"
export XDG_CACHE_HOME=$folder/cache
mkdir "$XDG_CACHE_HOME"

small=(plan mlp --layers 300 --width 4 --batch 1)
python3 - "$folder" <<'PYTHON' || complain "the files were not made"
import json, random, struct, sys
draw = random.Random(1).uniform
def npy(name, shape, kind="<f4"):
    count = 1
    for n in shape: count *= n
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(f"{sys.argv[1]}/{name}.npy", "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode())
        f.write(struct.pack(f"<{count}f", *(draw(-0.4, 0.4) for _ in range(count))))
npy("A", (3000, 1, 4, 4)); npy("x", (5, 2, 3)); npy("wrong", (10, 1, 4, 3))
tensors = {"rnn.weight_ih_l0": (16, 3), "rnn.weight_hh_l0": (16, 4), "rnn.bias_ih_l0": (16,), "rnn.bias_hh_l0": (16,)}
head, data = {}, b""
for name, shape in tensors.items():
    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
    head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
    data += struct.pack(f"<{count}f", *(draw(-0.4, 0.4) for _ in range(count)))
head = json.dumps(head).encode()
head += b" " * (-len(head) % 8)
open(f"{sys.argv[1]}/lstm.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + data)
PYTHON

# ---- what is told ----
"$program" "${small[@]}" --json >"$folder/a.json" || complain "plan failed"
"$program" "${small[@]}" --json --measure --budget 0.05 --wisdom "$folder/w" >"$folder/b.json" || complain "measure failed"
"$program" "${small[@]}" --json --planning wisdom --wisdom "$folder/w" >"$folder/c.json" || complain "wisdom failed"
"$program" plan logistic --length 3000 --batch 1 --json >"$folder/d.json" || complain "plan logistic failed"
"$program" plan mlp --layers 65536 --width 2 --batch 1 --json --cores 1 --bandwidth 20 >"$folder/e.json" || complain "1 core"
"$program" plan mlp --layers 65536 --width 2 --batch 1 --json --cores 4096 --region 2 >"$folder/f.json" || complain "4096 cores"
"$program" plan resnet --layers 1024 --width 32 --batch 128 --json --cores 1 >"$folder/alone.json" || complain "nothing to choose from"
for caches in "64K 128K" "64K 1G" "64M 1G"; do
    set -- $caches
    "$program" plan mlp --layers 256 --width 16 --batch 4 --json --cores 4 --l2 $1 --l3 $2 >"$folder/caches-$1-$2.json" || complain "caches of $caches"
done
python3 - "$folder" <<'PYTHON' || failed=1
import json, sys
a, b, c, d, e, f = (json.load(open(f"{sys.argv[1]}/{x}.json")) for x in "abcdef")
def best(plan, direction):
    of = [x for x in plan["candidates"] if x["direction"] == direction]
    assert of, direction
    return of[0], of
for plan in (a, b, c, d, e, f):
    for key in ("sentence", "method", "backward", "workspace_bytes", "memory_bytes", "memory", "contraction_rate", "planning_seconds",
                "machine", "pinned", "calibration_seconds"):
        assert key in plan, key
    assert plan["memory_bytes"] >= plan["states_bytes"] + plan["workspace_bytes"]
    for direction in ("forward", "backward"):
        first, all_of = best(plan, direction)
        assert any(x["method"] == "sequential" for x in all_of), direction
        for x in all_of: assert x["seconds"] > 0 and x["sweeps"] >= 0 and x["workspace_bytes"] >= 0, x
assert not a["calibration_cached"] and b["calibration_cached"] and a["calibration_seconds"] > 0
assert a["memory"] == "forgets" and 0 < a["forgets_in_steps"] < 300 and a["contraction_rate"] < 0
assert d["memory"] == "is chaotic" and d["contraction_rate"] > 0.1, d["memory"]
alone = json.load(open(f"{sys.argv[1]}/alone.json"))
assert len(alone["candidates"]) == 2 and alone["sentence"].startswith("sequential: the only candidate; overlap does not pay: "), alone
assert all(x["measured_seconds"] is None for x in best(a, "forward")[1])
assert best(b, "forward")[0]["measured_seconds"] > 0 and best(b, "forward")[0]["method"] == b["method"]
assert c["method"] == b["method"] and c["backward"] == b["backward"] and c["pinned"] == b["pinned"] and "known" in c["sentence"]
assert e["machine"]["cores"] == 1 and e["machine"]["bytes_per_second"] == 20e9 and e["machine"]["thread_bytes_per_second"] > 0 and e["machine"]["described"]
assert f["machine"]["cores"] == 4096 and not a["machine"]["described"]
small, third, second = (json.load(open(f"{sys.argv[1]}/caches-{x}.json")) for x in ("64K-128K", "64K-1G", "64M-1G"))
far, near, nearest = ([x["seconds"] for x in best(p, "forward")[1] if x["method"] == "newton"][0] for p in (small, third, second))
assert far > 1.2 * near and far > 1.2 * nearest, (far, near, nearest)  # Jacobians that memory, the third cache and the second hold
assert [c["bytes"] for c in third["machine"]["caches"][1:]] == [64 << 10, 1 << 30] and third["machine"]["described"]
one, many = best(e, "forward")[0]["seconds"], best(f, "forward")[0]["seconds"]
assert many < one, (one, many)                          # 65536 steps that forget: thousands of cores help
loops = [[x["seconds"] for x in p["candidates"] if x["method"] == "sequential" and x["direction"] == "forward"] for p in (e, f)]
assert loops[0] == loops[1]                             # but not the loop
PYTHON

# What it pins is taken, and gives the same choice.
pinned=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["pinned"])' "$folder/b.json")
# shellcheck disable=SC2086
"$program" "${small[@]}" $pinned --json >"$folder/g.json" || complain "the pinned options '$pinned' are refused"
python3 - "$folder" <<'PYTHON' || failed=1
import json, sys
b, g = (json.load(open(f"{sys.argv[1]}/{x}.json")) for x in "bg")
assert (g["method"], g["backward"], g["pinned"]) == (b["method"], b["backward"], b["pinned"]), (b["pinned"], g["pinned"])
PYTHON
for tolerance in 0.001 0; do
    "$program" "${small[@]}" --method newton --tolerance $tolerance | grep -qE "^the same again: .* --tolerance $tolerance( |\$)" || complain "--tolerance $tolerance is not pinned"
done
for method in sequential newton diagonal block picard jacobi damped overlap shooting parareal parataa; do
    pinned=$("$program" "${small[@]}" --method $method | sed -n 's/^the same again: //p')
    # shellcheck disable=SC2086
    [ "$("$program" "${small[@]}" $pinned | sed -n 's/^the same again: //p')" = "$pinned" ] || complain "the pinned options '$pinned' are another plan"
done
"$program" "${small[@]}" --method sequential --backward overlap --chunk 70 --backward-chunk 50 |
    grep -q "the same again: .*--chunk 70 --backward-chunk 50" || complain "--backward-chunk is not what is pinned"
"$program" "${small[@]}" --method overlap --backward overlap --run-up 70 --backward-run-up 9 |
    grep -q "the same again: .*--run-up 70 --backward-run-up 9" || complain "--backward-run-up is not what is pinned"
"$program" "${small[@]}" --method overlap --join-tolerance 0 | grep -q "the same again: .* --join-tolerance 0" ||
    complain "--join-tolerance is not what is pinned"
for words in "block --block 2" "damped --damping 0.25" "newton --guess state"; do
    # shellcheck disable=SC2086
    "$program" "${small[@]}" --method $words | grep -q "the same again: .* ${words#* }" || complain "--method $words is not what is pinned"
done
refused 2 "--join-tolerance" "${small[@]}" --join-tolerance -1
refused 2 "--join-tolerance" "${small[@]}" --join-tolerance nan
"$program" "${small[@]}" --method sequential --backward-chunk 50 --json >"$folder/h.json" || complain "a chunk of the way back is refused"
python3 - "$folder" <<'PYTHON' || failed=1
import json, sys
h = json.load(open(f"{sys.argv[1]}/h.json"))
chunks = [x["chunk"] for x in h["candidates"] if x["direction"] == "backward" and x["scheme"] == "overlap"]
assert chunks and set(chunks) == {50}, chunks           # the caller's, in every one that is weighed
PYTHON
refused 2 "--backward-chunk" "${small[@]}" --backward-chunk 0
"$program" "${small[@]}" | grep -q "the same again: --method" || complain "the text does not tell how to pin the choice"

# Where there is one way, nothing was measured and nothing need be known.
"$program" plan mlp --layers 20 --batch 1 --width 4 --measure --budget 0.05 --wisdom "$folder/w" --quiet || complain "a short network cannot be measured"
"$program" plan mlp --layers 20 --batch 1 --width 4 --planning wisdom --wisdom "$folder/w" --quiet || complain "a short network has no wisdom"

# ---- wisdom's files ----
# What processes side by side measure is all kept, and no lock lies about.
mkdir "$folder/beside"
children=()
for layers in 32 64 96 128 160; do
    "$program" plan mlp --layers $layers --width 4 --measure --budget 0.05 --wisdom "$folder/beside/w" --quiet &
    children+=($!)
done
wait "${children[@]}"
for layers in 32 64 96 128 160; do
    "$program" plan mlp --layers $layers --width 4 --planning wisdom --wisdom "$folder/beside/w" --quiet || complain "wisdom of $layers layers was lost"
done
[ "$(ls -A "$folder/beside")" = w ] || complain "left beside the wisdom: $(ls -A "$folder/beside")"
head -c 100 "$folder/w" >"$folder/short"
refused 5 damaged "${small[@]}" --wisdom "$folder/short"
sed 's/^version .*/version 0.0.0/' "$folder/w" >"$folder/edited"
refused 5 damaged "${small[@]}" --wisdom "$folder/edited"
echo hello >"$folder/hello"
refused 5 "no wisdom" "${small[@]}" --wisdom "$folder/hello"
refused 5 "cannot read" "${small[@]}" --wisdom "$folder/none" --planning wisdom
refused 4 "cannot write" "${small[@]}" --wisdom "$folder/none/w" --measure
refused 2 "needs --wisdom" "${small[@]}" --planning wisdom
refused 2 "wanted a file" "${small[@]}" --wisdom - --measure --json
: >"$folder/empty"
"$program" "${small[@]}" --json --wisdom "$folder/empty" >/dev/null || complain "an empty file is not taken as no wisdom"
"$program" "${small[@]}" --json --wisdom /dev/null --measure >/dev/null || complain "/dev/null is not taken as no wisdom"
refused 2 "times this machine" "${small[@]}" --measure --cores 64
refused 2 "was timed on it" "${small[@]}" --planning wisdom --wisdom "$folder/w" --cores 64
refused 2 "--cores" "${small[@]}" --cores 0
refused 2 "at least 1 byte" "${small[@]}" --l2 0
refused 2 "times this machine" "${small[@]}" --measure --l3 64M
refused 2 "takes no --l2" plan linear --length 64 --width 2 --batch 1 --l2 1M
refused 2 "--planning" "${small[@]}" --planning guess
cmp -s "$folder/w" <(cat "$folder/w") || complain "the wisdom was changed by a refusal"

# ---- the cache: damaged it is measured again; where it cannot be written nothing is lost ----
for file in "$XDG_CACHE_HOME"/deeppcr/*; do echo broken >"$file"; done
"$program" "${small[@]}" --json | grep -q '"calibration_cached": false' || complain "a damaged cache was believed"
"$program" "${small[@]}" --json | grep -q '"calibration_cached": true' || complain "a damaged cache was not replaced"
"$program" "${small[@]}" --json --calibrate | grep -q '"calibration_cached": false' || complain "--calibrate took the cache"
XDG_CACHE_HOME=/proc/nowhere "$program" "${small[@]}" >/dev/null || complain "plan failed without a cache"
# Rates that --calibrate measures count, not those that the file has, whether or not the cache can be written.
for cache in "$XDG_CACHE_HOME" /proc/nowhere; do
    cp "$folder/w" "$folder/old" && python3 - "$folder/old" <<'PYTHON' || complain "the wisdom holds no rates"
import re, sys
text = open(sys.argv[1]).read().rsplit("sum ", 1)[0]
text, found = re.subn(r"(rates[^\n]*)bandwidth [0-9.e+]+", r"\1bandwidth 12345", text)
assert found, text
total = 0xcbf29ce484222325
for byte in text.encode(): total = (total ^ byte) * 0x100000001b3 % 2**64
open(sys.argv[1], "w").write(text + f"sum {total:016x}\n")
PYTHON
    XDG_CACHE_HOME=$cache "$program" "${small[@]}" --json --calibrate --wisdom "$folder/old" >"$folder/fresh.json" || complain "--calibrate --wisdom failed"
    python3 -c 'import json, sys; m = json.load(open(sys.argv[1]))["machine"]; assert m["bytes_per_second"] > 1e6, m' "$folder/fresh.json" ||
        complain "--calibrate with the cache in $cache: the rates of --wisdom replace what was measured"
done
for file in "$XDG_CACHE_HOME"/deeppcr/*; do rm "$file" && mkfifo "$file"; done
timeout -s KILL 60 "$program" "${small[@]}" --json | grep -q '"calibration_cached": false' || complain "a pipe in the cache's place is not passed over"
rm "$XDG_CACHE_HOME"/deeppcr/*

# ---- bench planner ----
"$program" bench planner --quick --json --budget 0.02 >"$folder/all.json" || complain "bench planner --mode measure failed"
for part in 1 2; do
    "$program" bench planner --quick --mode estimate --json --part $part/2 >"$folder/part$part.json" || complain "bench planner --part $part/2 failed"
done
python3 - "$folder" <<'PYTHON' || failed=1
import json, sys
names = {}
for name, mode, least in ("part1", "estimate", 4), ("part2", "estimate", 4), ("all", "measure", 10):
    r = json.load(open(f"{sys.argv[1]}/{name}.json"))
    names[name] = sorted(x["case"] for x in r["all"])
    assert r["mode"] == mode and r["cases"] >= least and r["cases"] == len(r["all"])
    regrets = sorted(x["regret"] for x in r["all"])
    assert regrets[0] >= 0 and regrets[-1] == r["max_regret"] and r["median_regret"] <= r["p95_regret"] <= r["max_regret"]
    assert {x["case"] for x in r["wrong_choices"]} == {x["case"] for x in r["all"] if x["regret"] > 0.05}
    assert r["always_sequential_max"] >= r["always_sequential_median"] >= 0
    for x in r["all"]: assert x["best_seconds"] <= x["seconds"] and x["planning_seconds"] >= 0 and x["sentence"]
    if name == "all": assert {"inference", "training"} <= {x["case"].split()[-1] for x in r["all"]}
assert sorted(names["part1"] + names["part2"]) == names["all"], "the parts are not the whole"
PYTHON
"$program" bench planner --mode estimate --json --only "w 2 B 1 back" >"$folder/only.json" || complain "bench planner --only failed"
python3 -c 'import json, sys
cases = [x["case"] for x in json.load(open(f"{sys.argv[1]}/only.json"))["all"]]
assert len(cases) > 3 and all("w 2 B 1 back" in case for case in cases), cases' "$folder" || complain "bench planner --only took other cases"
refused 2 "no case" bench planner --only "w 7 B 7"
refused 2 "--part" bench planner --part 3/2
refused 2 "--mode" bench planner --mode perhaps
refused 2 "--budget beside mode estimate" bench planner --mode estimate --budget 1
refused 2 "unexpected" bench planner mlp

# ---- chains over ranks ----
"$program" plan linear --length 0 --width 4 --ranks 3 --json >"$folder/ranks.json" && python3 -c 'import json, sys; r = json.load(open(sys.argv[1]))["ranks"]; assert [x["ranks"] for x in r] == [1, 2, 3] and r[0]["speed_up"] == 1, r' "$folder/ranks.json" || complain "a chain of no steps over ranks"
"$program" plan linear --length 65536 --width 2 --batch 1 --structure dense --json >"$folder/linear.json" && python3 - "$folder/linear.json" <<'CHECK' || complain "the schemes of a linear chain"
import json, sys
found = json.load(open(sys.argv[1]))
ways = {c["scheme"]: c for c in found["candidates"]}
assert sorted(ways) == ["blelloch", "chunked", "overlap", "pcr", "sequential"], ways
times = [c["seconds"] for c in found["candidates"]]
assert times == sorted(times) and times[0] > 0, times
assert found["candidates"][0]["scheme"] == found["scheme"] == "chunked", found
assert ways["sequential"]["workspace_bytes"] == 0 < ways["chunked"]["workspace_bytes"] < ways["pcr"]["workspace_bytes"], ways
assert ways["overlap"]["run_up"] > 0 and ways["pcr"]["run_up"] == ways["pcr"]["chunk"] == 0, ways
CHECK
for cores in 1 2 64; do "$program" plan linear --length 65536 --width 2 --batch 1 --cores $cores --json >"$folder/linear-$cores.json" || complain "a linear chain on $cores cores"; done
"$program" plan linear --length 268435456 --width 2 --batch 1 --cores 64 --bandwidth 1 --json >"$folder/linear-far.json" || complain "a linear chain beyond the caches"
"$program" plan linear --length 268435456 --width 2 --batch 1 --cores 64 --bandwidth 1 --l3 16G --json >"$folder/linear-near.json" || complain "a linear chain within a third-level cache that is described"
python3 - "$folder" <<'CHECK' || complain "a linear chain on a machine that is described"
import json, sys
one, two, many, far, near = (json.load(open(f"{sys.argv[1]}/linear-{x}.json")) for x in ("1", "2", "64", "far", "near"))
def seconds(plan, scheme): return [c["seconds"] for c in plan["candidates"] if c["scheme"] == scheme]
assert many["machine"]["described"] and many["machine"]["cores"] == 64 and "64 threads" in many["sentence"], many["sentence"]
assert seconds(one, "sequential") == seconds(two, "sequential") == seconds(many, "sequential")
assert min(seconds(many, "chunked")) < min(seconds(two, "chunked")) < min(seconds(one, "chunked"))
assert len(seconds(many, "overlap")) == 2, seconds(many, "overlap")            # its own chunks, and eight for each core
for plan in (one, two, many, far): assert [c["seconds"] for c in plan["candidates"]] == sorted(c["seconds"] for c in plan["candidates"])
assert abs(seconds(far, "sequential")[0] / (268435456 * 32 / 1e9) - 1) < 1e-6, seconds(far, "sequential")  # its bytes at 1 GB/s
assert near["machine"]["caches"][2]["bytes"] == 16 << 30 and near["machine"]["caches"][1] == far["machine"]["caches"][1], near["machine"]
assert seconds(near, "sequential")[0] < seconds(far, "sequential")[0] / 2, seconds(near, "sequential")  # no memory in it
CHECK
for planning in measure wisdom; do refused 2 "times this machine" plan linear --length 4096 --width 2 --batch 1 --planning $planning --wisdom "$folder/w" --cores 64; done
"$program" plan linear --structure csr --length 64 --width 2 --batch 1 >/dev/null 2>&1 && complain "a csr chain without a pattern is planned"
refused 2 "more than can be numbered" plan linear --length 100000000000000000 --width 1 --batch 1 --structure diagonal --ranks 1000

"$program" plan linear --length 4096 --width 2 --batch 1 --measure --budget 0.05 --wisdom "$folder/lw" --json >"$folder/timed.json" || complain "a linear chain is not timed"
"$program" plan linear --length 4096 --width 2 --batch 1 --planning wisdom --wisdom "$folder/lw" --json >"$folder/known.json" || complain "what was timed is not known"
refused 2 "nothing is known" plan linear --length 4095 --width 2 --batch 1 --planning wisdom --wisdom "$folder/lw"
"$program" plan linear --A "$folder/A.npy" --measure --budget 0.05 --json >"$folder/file.json" || complain "a file's chain is not timed"
"$program" plan linear --A "$folder/A.npy" --transposed --batch 3 --json >"$folder/shared.json" || complain "one A for three sequences"
python3 - "$folder" <<'CHECK' || failed=1
import json, sys
timed, known, of_file, shared = (json.load(open(f"{sys.argv[1]}/{x}.json")) for x in ("timed", "known", "file", "shared"))
for plan in timed, of_file:
    first, *others = plan["candidates"]
    assert first["scheme"] == plan["scheme"] and plan["sentence"].startswith(plan["scheme"] + ": measured"), plan
    assert first["measured_seconds"] > 0 and [x["measured_seconds"] for x in others] == sorted(x["measured_seconds"] for x in others), plan
    assert any(x["scheme"] == "sequential" for x in plan["candidates"]), plan
assert known["scheme"] == timed["scheme"] and "known" in known["sentence"] and all(x["measured_seconds"] is None for x in known["candidates"]), known
assert (of_file["length"], of_file["batch"], of_file["width"], of_file["structure"], of_file["dtype"]) == (3000, 1, 4, "dense", "float32"), of_file
assert any(x["scheme"] == "overlap" for x in of_file["candidates"]), of_file  # it forgets, which its numbers say
assert not any(x["scheme"] == "overlap" for x in timed["candidates"]), timed  # of a shape alone nobody knows
assert (shared["length"], shared["batch"], shared["transposed"]) == (3000, 3, True), shared
CHECK
for given in "--length 3" "--layers 3" "--width 4" "--dtype float64" "--structure dense"; do refused 2 "beside --A" plan linear --A "$folder/A.npy" $given; done
refused 2 "of 2 sequences" plan linear --A "$folder/x.npy" --batch 3
refused 5 "[w][w]" plan linear --A "$folder/wrong.npy"
refused 5 "cannot read" plan linear --A "$folder/none.npy"
refused 2 "of a linear chain" plan mlp --A "$folder/A.npy"
refused 2 "of a linear chain" plan gru --transposed

# ---- recurrent networks ----
gru=(plan gru --hidden 24 --length 6000)
"$program" "${gru[@]}" --json >"$folder/gru.json" || complain "plan gru failed"
"$program" "${gru[@]}" --inference --layers 2 --bidirectional --measure --budget 0.02 --wisdom "$folder/rw" --json >"$folder/both.json" || complain "plan gru --measure failed"
"$program" "${gru[@]}" --inference --cores 4096 --region 2 --json >"$folder/cores.json" || complain "plan gru --cores failed"
"$program" plan lstm --weights "$folder/lstm.safetensors" --prefix rnn. --input "$folder/x.npy" --json >"$folder/lstm.json" || complain "plan lstm of files failed"
for kind in rnn rnn-relu paragru paralstm mingru; do
    "$program" plan $kind --length 300 --batch 2 --json | python3 -c 'import json, sys
plan = json.load(sys.stdin); chain, = plan["chains"]
assert plan["chain"] == sys.argv[1] and plan["batch"] == 2 and chain["candidates"] and plan["loop_seconds"] > 0' $kind || complain "plan $kind"
done
python3 - "$folder" <<'CHECK' || failed=1
import json, sys
gru, both, cores, lstm = (json.load(open(f"{sys.argv[1]}/{x}.json")) for x in ("gru", "both", "cores", "lstm"))
chain, = gru["chains"]
assert (gru["length"], gru["batch"], gru["width"], gru["inputs"], gru["layers"]) == (6000, 1, 24, 24, 1), gru
assert chain["memory"] == "forgets" and 0 < chain["forgets_in_steps"] < 300 and chain["method"] == chain["backward"] == "overlap", chain
assert gru["training"] and gru["tape_bytes"] > 0 and {x["direction"] for x in chain["candidates"]} == {"forward", "backward"}, gru
best = {d: [x for x in chain["candidates"] if x["direction"] == d][0]["seconds"] for d in ("forward", "backward")}
assert (gru["seconds"], gru["backward_seconds"]) == (best["forward"], best["backward"]), gru
assert gru["loop_seconds"] > gru["seconds"] and gru["backward_loop_seconds"] > gru["backward_seconds"], gru
assert [(x["layer"], x["direction"]) for x in both["chains"]] == [(0, "forward"), (0, "reverse"), (1, "forward"), (1, "reverse")], both
assert both["tape_bytes"] == 0 and not both["training"] and "backward_seconds" not in both and both["chains"][0]["candidates"][0]["measured_seconds"] > 0, both
assert not any(x["direction"] == "backward" for y in both["chains"] for x in y["candidates"]), both
assert cores["seconds"] < gru["seconds"] / 4 and cores["machine"]["cores"] == 4096, cores
assert (lstm["length"], lstm["batch"], lstm["inputs"], lstm["width"], lstm["layers"]) == (5, 2, 3, 4, 1), lstm
CHECK
pinned=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["chains"][0]["pinned"])' "$folder/gru.json")
# shellcheck disable=SC2086
"$program" "${gru[@]}" $pinned --json | python3 -c 'import json, sys
again = json.load(sys.stdin)["chains"][0]
assert again["pinned"] == sys.argv[1], again["pinned"]' "$pinned" || complain "the pinned options '$pinned' of a gru are another plan"
"$program" "${gru[@]}" --layers 2 | grep -q "^layer 1: " || complain "the text does not tell layers apart"
for given in "--layers 1" "--hidden 4" "--dtype float32" "--inputs 3" --bidirectional; do refused 2 "beside --weights" plan lstm --weights "$folder/lstm.safetensors" $given; done
for given in "--length 1" "--batch 4" "--inputs 3"; do refused 2 "beside --input" plan lstm --input "$folder/x.npy" $given; done
refused 5 "wanted [T][B][3]" plan lstm --weights "$folder/lstm.safetensors" --prefix rnn. --input "$folder/A.npy"
refused 5 "wanted the same" plan gru --input "$folder/x.npy" --dtype float64
refused 2 "takes no --width" plan gru --width 3
refused 2 "at least 1" plan gru --layers 0
refused 2 "--prefix" plan gru --prefix x
refused 2 "has 300 bytes, wanted at most 255" plan gru --weights "$folder/lstm.safetensors" --prefix "$(printf '%0300d' 0)"
pinned=$("$program" plan gru --inference --length 50 | sed -n 's/^the same again: //p')
# shellcheck disable=SC2086
"$program" plan gru --inference --length 50 $pinned >/dev/null || complain "the pinned options '$pinned' of a pass forward are refused"
for option in '--backward pcr' '--backward-chunk 3' '--backward-run-up 3'; do
    # shellcheck disable=SC2086
    refused 2 "${option% *} is of going back: --inference is the pass forward alone" plan gru --inference $option
done
refused 2 "of a recurrent network" plan mlp --inference
refused 2 "of a recurrent network" plan linear --weights x
refused 5 "cannot read" plan gru --weights "$folder/none"
refused 5 "" plan gru --weights "$folder/lstm.safetensors" --prefix rnn.
refused 2 "" plan lstm --weights "$folder/lstm.safetensors" --prefix rnn. --csv "$folder/lstm.safetensors"
refused 4 "not enough memory" plan gru --batch 1000000000000

[ $failed -ne 0 ] || echo "cli_plan: as it should be"
exit $failed
