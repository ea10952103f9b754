#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_schedule.sh BUILD_DIR: the verb schedule: every action, JSON, CSV in and out, pictures, refusals.
set -u
. "$(dirname "$0")/program.bash"
golden=tests/golden/schedules
always=(schedule)

run() { "$program" schedule "$@" || complain "'$*' gave exit status $?"; }

# ---- tables ----
run generate --schedule zb-h1 --ranks 4 --microbatches 12 --csv - | cmp - $golden/zbh1_p4_m12.csv || complain "zb-h1 is not the golden table"
run generate --schedule zb-h1 --ranks 4 --microbatches 12 | cmp - $golden/zbh1_p4_m12.csv || complain "the table without --csv"
run generate --schedule interleaved-zb --ranks 4 --chunks 4 --microbatches 8 --csv "$folder/t.csv"
cmp "$folder/t.csv" $golden/intzb1p_p4_m8_v4.csv || complain "interleaved-zb is not the golden table"
run lower --schedule interleaved-zb --ranks 2 --microbatches 8 --old-notation |
    diff -w - $golden/torch_zb1p_2rank_2stagep_comms.csv >/dev/null || complain "lower is not PyTorch's"
run generate --schedule dualpipev --ranks 4 --microbatches 8 | run validate --from - >/dev/null
run lower --schedule dualpipe --ranks 4 --microbatches 8 | run validate --from - --schedule dualpipe --ranks 4 --microbatches 8 >/dev/null

# a late schedule's table, with the delays of one of its sizes and times
for name in pipedream pipedream-2bw "layerpipe --times 3,1,1" "dualpipe --microbatches 12"; do
    # shellcheck disable=SC2086 # words
    run generate --ranks 2 --schedule $name | run simulate --from - --schedule ${name%% --m*} >"$folder/read"
    # shellcheck disable=SC2086 # words
    run simulate --ranks 2 --schedule $name | cmp - "$folder/read" || complain "$name read is not $name made"
done
run generate --ranks 2 --csv "$folder/two.csv"
refused 2 "--schedule pipedream of 3 stages beside a table of 2" simulate --from "$folder/two.csv" --schedule pipedream --ranks 3

# ranks without anything to do are ranks
run generate --schedule layerpipe --ranks 4 --stages 1 | run simulate --from - --schedule layerpipe --ranks 4 --json >"$folder/idle.json"
run simulate --schedule layerpipe --ranks 4 --stages 1 --json | cmp - "$folder/idle.json" || complain "a table with an idle rank read is not the one made"

# ---- a signal ends it, whatever it computes, and leaves no file ----
while read -r signal status words; do
    # shellcheck disable=SC2086 # words
    timeout --preserve-status -k 20 -s "$signal" 1 "$program" schedule $words --csv "$folder/stopped.csv" >"$folder/stdout" 2>"$folder/stderr"
    got=$?
    [ $got -eq "$status" ] && [ "$(cat "$folder/stderr")" = "deeppcr schedule: stopped as asked" ] ||
        complain "$signal: '$words' gave exit status $got: $(head -c 300 "$folder/stderr")"
    [ ! -e "$folder/stopped.csv" ] || complain "$signal: '$words' left a file"
done <<'WORDS'
INT 130 generate --schedule best --ranks 256 --microbatches 4000 --hop 1 --times 10,12,8
TERM 143 compare --ranks 2-400
WORDS
# Nobody reads its last line: told again, it goes without.
python3 - "$program" <<'PYTHON' || failed=1
import fcntl, os, signal, subprocess, sys
out, full = os.pipe()
fcntl.fcntl(full, fcntl.F_SETPIPE_SZ, 4096)
os.write(full, bytes(4096))
child = subprocess.Popen([sys.argv[1], "schedule", "compare", "--ranks", "2-400"], stdout=subprocess.DEVNULL, stderr=full)
for attempt in range(40):
    try:
        child.wait(0.5)
        break
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGTERM)
child.kill()
assert child.wait() == -signal.SIGTERM and attempt > 1, (child.returncode, attempt)
PYTHON

# ---- figures ----
run simulate --schedule zb-h1 --ranks 4 --microbatches 12 --json >"$folder/a.json"
run simulate --from $golden/dualpipev_p4_m8.csv --atomic-pairs --json >"$folder/b.json"
run simulate --schedule pipedream --ranks 4 --microbatches 40 --json >"$folder/c.json"
run simulate --schedule gpipe --times "10, 12 ,8" --hop 1 --json >"$folder/d.json"
run simulate --schedule layerpipe --ranks 7 --stages 8 --microbatches 64 --split --json >"$folder/e.json"
run simulate --schedule best --microbatches 6 --times 5,6,4 --activations 5 --objective steady --json >"$folder/f.json"
run simulate --schedule zb-h1 --profile vgg16 --ranks 8 --microbatches 16 --bandwidth 1e6 --json >"$folder/g.json"
run partition --profile vgg16 --ranks 4 --straight --json >"$folder/h.json"
run compare --profile vgg16 --ranks 2-9 --csv "$folder/i.csv" --json >"$folder/i.json"
run generate --schedule 1f1b --ranks 2 --microbatches 2 --json >"$folder/j.json"
run simulate --schedule layerpipe --ranks 3 --stages 2 --microbatches 8 --json >"$folder/k.json"
run simulate --schedule gpipe --csv "$folder/k.csv" --quiet
python3 - "$folder" <<'PYTHON' || failed=1
import csv, json, sys
a, b, c, d, e, f, g, h, i, j, k = (json.load(open(f"{sys.argv[1]}/{x}.json")) for x in "abcdefghijk")
assert a["makespan"] == 39 and a["work"] == 36 and a["idle"] == 3 and a["steady_state"] == 39 and a["bytes"] == 72
assert a["peak_activations"] == [4, 3, 2, 1] and a["weight_versions"] == [1, 1, 1, 1] and a["staleness"] == [0] * 4
assert b["makespan"] == 54 and b["schedule"] == "table" and b["stages"] == 8
assert c["weight_versions"] == [4, 3, 2, 1] and c["staleness"] == [3, 2, 1, 0] and c["utilisation"] == 1
assert d["makespan"] == 336
assert e["stages"] == 8 and abs(e["work"] / 64 - 24 / 7) < 0.1 and e["semantics"] == "delayed"
assert f["steady_state"] >= 6 * 15 and max(f["peak_memory"]) <= 5
assert g["stages"] == 8 and g["weight_bytes"] == 0 and g["utilisation"] < 1
assert len(h["stages"]) == 4 and h["stages"][-1]["last"] == 15 and abs(h["period"] - 13872.6) < 1 and h["weight_bytes"] == 0
assert [r["ranks"] for r in i["rows"]] == list(range(2, 10)) and 0.2 < i["mean_gain"] < 0.35
for row in i["rows"]:
    assert row["best"]["period"] <= min(row[k]["period"] for k in ("pipedream", "layerpipe", "layerpipe_half"))
    assert row["layerpipe"]["weight_bytes"] > 0 and row["layerpipe_half"]["bytes"] > row["pipedream"]["bytes"] > 0
    assert row["pipedream_replicated"]["period"] <= row["layerpipe_half"]["period"] * (1 + 1e-9)   # nothing to win there
assert len(list(csv.reader(open(f"{sys.argv[1]}/i.csv")))) == 9
assert j["rows"] == [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]
# rank 2: I of stage 1, W of stage 0
assert [k[x] for x in ("peak_activations", "peak_operands", "weight_versions")] == [[2, 1, 1], [2, 1, 3], [2, 1, 2]], k
names, values = csv.reader(open(f"{sys.argv[1]}/k.csv"))
assert dict(zip(names, values))["makespan"] == "33"
PYTHON

# names of files and of layers: columns, text of JSON and lines hold whatever stands in them
layer='"forward": 1, "input": 1, "weight": 1'
printf '{"layers": [{"name": "a\\u001b[31m\\nb", %s}, {%s}, {%s}]}' "$layer" "$layer" "$layer" | tee "$folder/a,b.json" >"$folder/$(printf 'x\377').json"
run partition --profile "$folder/a,b.json" --ranks 1 | grep -q '(a?\[31m?b to layer 2)' || complain "a layer's name goes to the terminal as it is"
run compare --profile "$folder/a,b.json" --ranks 1-3 --csv "$folder/l.csv" --quiet
run compare --profile "$folder/$(printf 'x\377').json" --ranks 1-3 --json >"$folder/l.json"
[ "$(run compare --profile "$folder/$(printf 'x\377').json" --ranks 1-3 | grep -c '^model')" -eq 1 ] || complain "compare has more than one line of names"
# few microbatches without flush have no steady state
run simulate --schedule pipedream --microbatches 3 --json >"$folder/m.json"
run simulate --schedule pipedream --microbatches 3 >"$folder/m.txt"
run draw --schedule pipedream --microbatches 3 >"$folder/m.svg"
! grep -qi nan "$folder/m.txt" "$folder/m.svg" || complain "a steady state that is no number is told"
python3 - "$folder" <<'PYTHON' || failed=1
import csv, json, sys
rows = list(csv.DictReader(open(f"{sys.argv[1]}/l.csv", newline="")))
assert [(r["model"].endswith("/a,b.json"), int(r["ranks"]), None in r) for r in rows] == [(True, n, False) for n in (1, 2, 3)], rows
l, m = (json.load(open(f"{sys.argv[1]}/{x}.json")) for x in "lm")
assert [r["ranks"] for r in l["rows"]] == [1, 2, 3] and list(l["models"]) == [l["rows"][0]["model"]] and l["rows"][0]["model"].endswith("/x?.json"), l
assert m["steady_state"] is None and m["makespan"] == 18
PYTHON

# ---- a network's profile ----
run profile mlp --layers 3 --width 4 --batch 2 --csv "$folder/layers.csv" --out "$folder/layers.json" --quiet
python3 - "$folder" <<'PYTHON' || failed=1
import csv, json, sys
rows = list(csv.DictReader(open(f"{sys.argv[1]}/layers.csv")))
layers = json.load(open(f"{sys.argv[1]}/layers.json"))["layers"]
assert [r["layer"] for r in rows] == [l["name"] for l in layers] and len(rows) == 5
assert all(float(r[k]) == l[k] for r, l in zip(rows, layers) for k in l if k != "name"), (rows, layers)
PYTHON
refused 2 "named twice" profile mlp --csv "$folder/x" --out "$folder/x"
refused 2 "both want standard output" profile mlp --csv - --out -
refused 4 "cannot write the profile" profile mlp --out "$folder/none/x"

# ---- pictures ----
run draw --schedule zb-v --ranks 16 --microbatches 32 --svg "$folder/p.svg" --trace "$folder/p.json" --quiet
run draw --schedule gpipe >"$folder/q.svg"
run draw --schedule layerpipe --ranks 3 --stages 8 >"$folder/stages.svg"
run profile mlp --layers 6 --width 8 --batch 4 --out "$folder/seconds.json" --quiet
run draw --profile "$folder/seconds.json" --schedule gpipe --ranks 2 >"$folder/seconds.svg"
python3 - "$folder" <<'PYTHON' || failed=1
import json, re, sys, xml.dom.minidom
p, q = (xml.dom.minidom.parse(f"{sys.argv[1]}/{x}.svg") for x in "pq")
boxes = [r for r in p.getElementsByTagName("rect") if r.getElementsByTagName("title")]
assert len(boxes) == 16 * 32 * 6 and float(p.documentElement.getAttribute("width")) < 12200
assert all(float(r.getAttribute("width")) > 18 for r in boxes)             # three digits fit
assert len([r for r in q.getElementsByTagName("rect") if r.getElementsByTagName("title")]) == 4 * 8 * 2
w, s = (open(f"{sys.argv[1]}/{x}.svg").read() for x in ("stages", "seconds"))
assert "darker: the rank" in w and "darker" not in s, w[-300:]  # a rank has three shades of some task at least
assert len(set(re.findall('fill="(#[0-9a-f]{6})"', w))) >= 3 * 3 + 2, w[-300:]
assert re.search(r"makespan [0-9.e-]+ s, idle of the busiest rank [0-9.]+ %, of all [0-9.]+ %", s), s[:600]
events = json.load(open(f"{sys.argv[1]}/p.json"))["traceEvents"]
timed = [x for x in events if x["ph"] == "X"]
assert len(timed) == 16 * 32 * 6 and max(x["ts"] + x["dur"] for x in timed) == 192 + 15 and {x["pid"] for x in timed} == set(range(16))
PYTHON
if command -v gnuplot >/dev/null; then
    run draw --schedule zb-h1 --png "$folder/it's.png" --quiet
    [ "$(head -c 4 "$folder/it's.png" | tail -c 3)" = PNG ] || complain "--png made no PNG"
    refused 2 "1256 ranks; wanted at most 1255, or --svg" draw --ranks 1256 --microbatches 1 --png "$folder/tall.png"
    "$program" schedule draw --png /dev/full 2>"$folder/err"
    [ $? -eq 4 ] && grep -q "No space left" "$folder/err" || complain "--png on a full disk: $(cat "$folder/err")"
fi
refused 2 "does not end in .svg" draw --png "$folder/x.svg"
PATH=/nonexistent "$program" schedule draw --png "$folder/x.png" 2>"$folder/err"
[ $? -eq 4 ] && grep -q gnuplot "$folder/err" || complain "--png without gnuplot: $(cat "$folder/err")"

# layers that ranks do not divide, also where the search chooses
run generate --schedule layerpipe --ranks 2 --stages 5 --microbatches 4 >/dev/null
run generate --schedule best --semantics delayed --ranks 2 --stages 5 --microbatches 4 >/dev/null

# ---- refusals ----
printf '0F0,0B0\n1F0,1X0\n' >"$folder/bad.csv"
refused 2 "wanted one of generate" nonsense
refused 2 "wanted one of generate"
refused 2 "--schedule 'x': wanted one of gpipe" generate --schedule x
refused 2 "dualpipev: 4 microbatches" generate --schedule dualpipev --microbatches 4
refused 2 "gpipe: 2 stages a rank" generate --schedule gpipe --chunks 2
refused 2 "pipedream: 2 stages a rank; it is made for 1" simulate --schedule best --semantics stashed --chunks 2
refused 2 "recomputing wants them on one" simulate --schedule layerpipe --ranks 3 --stages 1 --microbatches 2 --recompute
refused 2 "with dualpipe: its two chains hold the same stages" simulate --schedule dualpipe --profile vgg16 --ranks 2
refused 2 "with dualpipe: its two chains hold the same stages" simulate --from "$folder/two.csv" --schedule dualpipe --profile vgg16
refused 2 "layerpipe: 5 stages on 2 ranks with 2 each; wanted 4" generate --schedule layerpipe --ranks 2 --stages 5 --chunks 2
refused 2 "wanted three numbers" simulate --times 1,1
refused 2 "wanted three numbers" simulate --times 1,1,1,1
refused 2 "at least one above 0" simulate --times 0,0,0
refused 2 "both give the times" simulate --times 1,1,1 --profile vgg16
refused 2 "a range is for compare" simulate --ranks 2-4
refused 2 "needs --profile" partition
refused 2 "compare: 5000 ranks; wanted at most 4096" compare --ranks 4095-5000 --profile equal-2
# Options that would do nothing, the names of files among them.
refused 2 "both want standard output" draw --svg - --trace -
refused 2 "a stage's tasks may lie on several ranks" lower --schedule layerpipe --ranks 1 --microbatches 1
run compare --ranks 2-3 --json | grep -q '"max_gain_7_to_9_ranks": null' || complain "compare tells of ranks that were not asked for"
run compare --ranks 2-3 | grep -q "on 7 to 9 ranks not asked for" || complain "compare's text tells of ranks that were not asked for"
refused 2 "--svg is for draw, not simulate" simulate --svg "$folder/idle"
refused 2 "--trace is for draw, not simulate" simulate --trace "$folder/idle"
refused 2 "--svg is for draw, not lower" lower --svg "$folder/idle"
refused 2 "--svg is for draw, not partition" partition --profile vgg16 --svg "$folder/idle" --trace "$folder/idle2"
refused 2 "--png is for draw, not compare" compare --profile vgg16 --ranks 2 --png "$folder/idle"
refused 2 "--transfers is for partition, not validate" validate --transfers
refused 2 "--fewer is for partition, not generate" generate --fewer
refused 2 "--straight is for partition, not draw" draw --straight
refused 2 "--split is for generate, validate, lower, simulate and draw, not compare" compare --split
refused 2 "--hop is for generate, validate, lower, simulate and draw, not partition" partition --profile vgg16 --hop 1
refused 2 "--split is for layerpipe, not 1f1b" generate --split
refused 2 "--split is for layerpipe, not best" generate --schedule best --split
refused 2 "--semantics is for best, not 1f1b" generate --semantics stashed
refused 2 "--objective is for best, not 1f1b" generate --objective steady
refused 2 "--activations is for zb-h2, best and validate, not 1f1b" generate --activations 3
refused 2 "--accumulate is for pipedream-2bw, not gpipe" generate --schedule gpipe --accumulate 3
refused 2 "--ranks beside --from" generate --from $golden/gpipe_p4_m8.csv --ranks 5
refused 2 "--microbatches beside --from" draw --from $golden/gpipe_p4_m8.csv --microbatches 3
refused 2 "--activations beside --from" simulate --from $golden/gpipe_p4_m8.csv --activations 3
# beside a kind that says no more than the table
refused 2 "--ranks beside --from: the table says it, and --schedule zb-h1 adds nothing" validate --from "$folder/two.csv" --schedule zb-h1 --ranks 77
refused 2 "--microbatches beside --from: the table says it, and --schedule best" generate --from "$folder/two.csv" --schedule best --microbatches 999
refused 2 "--activations beside --from: the table says it, and --schedule zb-h2" simulate --from "$folder/two.csv" --schedule zb-h2 --activations 3
refused 5 "makes it hold 4 activations" validate --from $golden/gpipe_p4_m8.csv --schedule zb-h2 --activations 3
run simulate --from "$folder/two.csv" --schedule zb-h2 --quiet
# no file's fault
refused 2 "--bandwidth '1e-200': wanted 0 (unlimited) or at least 1e-100" simulate --bandwidth 1e-200 --ranks 2
refused 2 "--bandwidth '1e-200'" simulate --bandwidth 1e-200 --from "$folder/two.csv"
refused 2 "--replicas '1.5': wanted a whole number" simulate --replicas 1.5
refused 2 "--profile of 3 layers for 4 stages; wanted a layer a stage at least" generate --profile equal-3 --ranks 4
[ ! -e "$folder/idle" ] || complain "a refused call left a file"
run generate --schedule best --semantics delayed --split --ranks 2 --stages 3 --microbatches 2 --quiet
run generate --schedule best --semantics double-buffered --accumulate 4 --ranks 2 --quiet
refused 2 "both want standard output" draw --json
refused 2 "both want standard output" draw --csv -
refused 2 "wanted a file" draw --png /dev/stdout
# before anything is computed or written
for last in svg png trace; do
    first=svg
    [ $last != svg ] || first=trace
    refused 4 "cannot write the" draw --schedule best --ranks 256 --microbatches 4000 --hop 1 --times 10,12,8 --$first "$folder/idle" --$last "$folder/none/x"
done
[ ! -e "$folder/idle" ] || complain "a picture stays beside one that cannot be written"
refused 5 "line 2, cell 2 '1X0'" validate --from "$folder/bad.csv"
for action in validate simulate lower; do
    printf '1F0,0F0,1B0,0B0\n' >"$folder/dead.csv"
    refused 5 "wait for each other" $action --from "$folder/dead.csv"
    printf '0B0,0F0\n' >"$folder/dead.csv"
    refused 5 "dead.csv': " $action --from "$folder/dead.csv"
done
refused 2 "objective beside --from: the table is made already" simulate --from $golden/gpipe_p4_m8.csv --objective steady
refused 2 "a limit of activations is for stages on one rank each, and stage 1 lies on ranks 1 and 2" validate --schedule layerpipe --ranks 3 --stages 2 --microbatches 8 --activations 3
refused 5 "0F3 makes it hold 4 activations" validate --from $golden/gpipe_p4_m8.csv --activations 3
refused 2 "makes it hold 2 activations" validate --schedule gpipe --ranks 4 --microbatches 8 --activations 1
printf '\357\273\2770F0,0B0\r\n1F0,1B0\r\n' >"$folder/marked.csv"
run validate --from "$folder/marked.csv" --quiet
printf '\357\273\277{"layers": [{"forward": 1, "input": 1, "weight": 1}]}' >"$folder/marked.json"
run partition --profile "$folder/marked.json" --ranks 1 --quiet
printf 'node1 -- a -- forward_compute_time=1\0002, backward_compute_time=1, activation_size=1, parameter_size=1\n' >"$folder/zeros.txt"
refused 5 "line 1: wanted forward_compute_time" partition --profile "$folder/zeros.txt"
printf '{"layers": [{"forward": 1e200, "input": 1, "weight": 1}]}' >"$folder/far.json"
for action in simulate partition compare; do refused 5 "far.json': profile: layer 0: 1e+200; wanted times and bytes of at most 1e+100" $action --ranks 1 --profile "$folder/far.json"; done
refused 5 "cannot read the schedule" validate --from "$folder/none.csv"
refused 5 "cannot read the profile" simulate --profile "$folder/none.json"
echo '{"layers": [{"forward": 0, "input": 0, "weight": 0}]}' >"$folder/zero.json"
for action in simulate partition compare; do refused 5 "wanted a time above 0" $action --ranks 1 --profile "$folder/zero.json"; done
refused 5 "line 1" simulate --profile "$folder/bad.csv"
# ---- whatever allocation fails: what is written is whole, or what was there ----
if make_faults; then
    written=(json svg trace csv)
    # failing N: the run whose Nth allocation fails, among files that are there; 0: none
    failing() {
        for name in "${written[@]}"; do echo old >"$folder/written.$name"; done
        FAIL_ALLOCATION=$1 LD_PRELOAD=$folder/faults.so "$program" schedule draw --schedule 1f1b --ranks 2 --json --svg "$folder/written.svg" \
            --trace "$folder/written.trace" --csv "$folder/written.csv" >"$folder/written.json" 2>"$folder/stderr"
    }
    failing 0 || complain "a run without a failing allocation: $(cat "$folder/stderr")"
    for name in "${written[@]}"; do mv "$folder/written.$name" "$folder/whole.$name"; done
    refusals=0
    for n in {1..100}; do
        failing "$n"
        status=$?
        [ $status -eq 0 ] || refusals=$((refusals + 1))
        [ $status -eq 0 ] || { [ $status -eq 4 ] && grep -q '^deeppcr schedule: ' "$folder/stderr"; } || complain "allocation $n: exit status $status: $(cat "$folder/stderr")"
        for name in "${written[@]}"; do
            cmp -s "$folder/written.$name" "$folder/whole.$name" ||
                { [ $status -eq 4 ] && { [ ! -s "$folder/written.$name" ] || [ "$(cat "$folder/written.$name")" = old ]; }; } ||
                complain "allocation $n: $name is neither whole nor as it was, exit status $status"
        done
    done
    [ $refusals -gt 20 ] || complain "$refusals refusals of 100 allocations that failed"
    # what is read and there is no memory for is not called wrong
    "$program" schedule generate --schedule 1f1b --ranks 2 >"$folder/table.csv" || complain "a table to read"
    printf '{"layers": [{"name": "a name that is long", "forward": 1, "input": 1, "weight": 1}]}' >"$folder/profile.json"
    for given in "validate --from $folder/table.csv" "simulate --ranks 1 --profile $folder/profile.json"; do
        refusals=0
        # shellcheck disable=SC2086 # words
        for n in {1..60}; do
            FAIL_ALLOCATION=$n LD_PRELOAD=$folder/faults.so "$program" schedule $given >"$folder/stdout" 2>"$folder/stderr"
            status=$?
            [ $status -eq 0 ] || refusals=$((refusals + 1))
            [ $status -eq 0 ] || { [ $status -eq 4 ] && grep -qi memory "$folder/stderr"; } || complain "allocation $n, $given: exit status $status: $(cat "$folder/stderr")"
        done
        [ $refusals -ge 3 ] || complain "$refusals refusals of '$given' without memory"
    done
fi
[ $failed -ne 0 ] || echo "cli_schedule: all as it should be"
exit $failed
