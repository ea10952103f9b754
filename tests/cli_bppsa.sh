#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_bppsa.sh BUILD_DIR: what 'deeppcr bench bppsa' tells has the documented shape and adds up: gradients equal, flops of
# the levels and of the loop, counts by their formulas, refusals. Never how long anything takes.
set -u
. "$(dirname "$0")/program.bash"
limited=yes
grep -qsE "^DEEPPCR_SANITIZE:STRING=.+" "$build/CMakeCache.txt" && limited=no  # they need the address space
python3 - "$program" "$folder" "$limited" <<'PYTHON'
import csv, json, math, resource, subprocess, sys, time

from program import always, answer, calls, path, refused, run

limited = sys.argv[3]
always += ["bench", "bppsa"]


def bench(line, steps, weights, limit):
    o = answer(*line.split(), "--seconds", 0)
    least, eps = (1e-10, 2**-52) if o["dtype"] == "float64" else (1e-4, 2**-23)
    assert o["agree"] is True and 0 <= o["max_error"] <= max(least, 4 * eps * steps), (line, o)
    longest = max(way["seconds"] for way in o["ways"])
    assert o["rounds"] >= 3 or o["rounds"] == 1 and longest > 2, (line, o)
    assert o["steps"] == steps and o["weights"] == weights, (line, o)
    kept = weights if o["prune"] == 0 else o["weights_kept"]
    assert abs(kept - weights * (1 - o["prune"])) <= 12 and o["weights_kept"] == kept, (line, o)
    dense, loop, scan = o["ways"]
    assert [w["name"] for w in o["ways"]] == ["dense", "loop", "scan"]
    deepest = steps.bit_length()
    levels = deepest if limit is None else min(limit, deepest)
    products = sum(max(0, (steps + 1) // (2 << d) - 1) for d in range(levels))
    for way in dense, loop:
        assert way["levels"] == way["compositions"] == way["patterns"] == way["product_values"] == 0, way
        assert way["applications"] == way["depth"] == steps and way["flops"] == way["critical_flops"] > 0, way
    assert scan["levels"] == levels and scan["compositions"] == products and scan["applications"] == steps, scan
    assert scan["patterns"] <= products and scan["critical_flops"] <= scan["flops"], scan
    assert (loop["flops"] == dense["flops"]) == (o["prune"] == 0) and loop["flops"] <= dense["flops"], o
    told = o["scan_levels"]
    assert sum(l["compositions"] for l in told) == products and sum(l["applications"] for l in told) == steps
    for key in "flops", "critical_flops":
        assert math.isclose(sum(l[key] for l in told), scan[key], rel_tol=1e-12), (key, told)
    assert [(l["phase"], l["level"]) for l in told] == [("up", d) for d in range(levels)] + [
        ("middle", levels)] + [("down", d) for d in reversed(range(levels))], told
    assert math.isclose(o["critical_flops_ratio"], dense["flops"] / scan["critical_flops"], rel_tol=1e-12), o
    assert math.isclose(o["seconds_ratio"], dense["seconds"] / scan["seconds"], rel_tol=1e-12), o
    return o


mlp = 784 * 256 + 2 * 256 * 256 + 2560
lenet = 150 + 2400 + 400 * 120 + 120 * 84 + 840
bench("--network mlp", 7, mlp, 2)
bench("--network mlp --prune 0.97 --batch 3 --level-limit 1", 7, mlp, 1)
bench("--network mlp --divisor 8 --dtype float64 --level-limit none", 7, 784 * 32 + 2 * 32 * 32 + 320, None)
o = bench("--prune 0.9 --batch 5", 11, lenet, 2)
assert o["network"] == "lenet" and o["ways"][1]["flops"] < 0.2 * o["ways"][0]["flops"], o
bench("--network lenet --prune 0.5 --level-limit 0 --threads 1", 11, lenet, 0)
bench("--network lenet --prune 0.97 --batch 1 --level-limit none --dtype float64", 11, lenet, None)
channels = [3, 4, 8, 16, 16, 32, 32, 32, 32]
bench("--network vgg11 --divisor 16 --prune 0.97 --batch 2", 22,
      9 * sum(a * b for a, b in zip(channels, channels[1:])) + 320, 2)
bench("--network vgg11 --divisor 8 --batch 16 --threads 1", 22,  # a call takes seconds
      9 * sum(4 * a * b for a, b in zip(channels[1:], channels[2:])) + 9 * 3 * 8 + 640, 2)
bench("--network rnn --length 2000 --width 64 --batch 1 --level-limit none", 4000, 4096, None)  # loses 1.9e-4
o = bench("--network rnn --length 200 --width 12 --batch 9 --level-limit none", 400, 144, None)
assert o["ways"][2]["patterns"] < 20 and o["critical_flops_ratio"] > 2, o
bench("--network rnn --length 1 --width 1 --batch 1", 2, 1, 2)
run(*"--network rnn --length 10 --seconds 0 --quiet --csv".split(), path("out.csv"))
rows = list(csv.DictReader(open(path("out.csv"))))
assert len(rows) == 1 and rows[0]["network"] == "rnn" and float(rows[0]["max_error"]) <= 1e-4, rows
assert b"flops" in run(*"--network rnn --length 10 --seconds 0".split())
for text, line in (("--network 'x'", "--network x"), ("--prune", "--prune 1"), ("--prune", "--prune -0.1"),
                   ("--level-limit", "--level-limit -1"), ("--level-limit", "--level-limit some"),
                   ("--batch", "--batch 0"), ("--divisor", "--divisor 0"), ("--length", "--length 0"),
                   ("--width", "--width 0"), ("--dtype", "--dtype uint32"), ("argument", "lenet"),
                   ("--divisor: that is of mlp and vgg11, not of lenet", "--divisor 2"),
                   ("--divisor: that is of mlp and vgg11, not of rnn", "--network rnn --divisor 1"),
                   ("--length: that is of rnn, not of lenet", "--length 1000"),
                   ("--width: that is of rnn, not of vgg11", "--network vgg11 --width 20")):
    refused(2, text, *line.split())
if limited == "yes":
    refused(4, "", "--network", "vgg11", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (400000 << 10,) * 2))
# Asked to stop: most likely in the race, whose end it may come after on a machine with other work; half a race is no result.
line = "--network rnn --length 2000 --width 64 --batch 1 --level-limit none --dtype float64 --seconds 3600".split()
start = time.monotonic()
whole = answer(*line)["rounds"]
seconds = time.monotonic() - start
for part in 0.6, 0.3, 0.1, 0.05:
    child = subprocess.Popen([sys.argv[1], *always, *line, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(part * seconds)
    child.terminate()
    out, err = child.communicate(timeout=300)
    if child.returncode:
        assert (child.returncode, out, err) == (143, b"", b"deeppcr bench: stopped as asked\n"), (child.returncode, out, err)
        break
    assert json.loads(out)["rounds"] == whole, out
else:
    raise AssertionError("it never stops")
print("cli_bppsa: %d cases" % calls())
PYTHON
