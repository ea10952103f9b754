#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_bench.sh BUILD_DIR: what 'deeppcr bench' tells has the documented shape and adds up: ratios, the best of the
# candidates, errors against the loop, grids, the CSV table. Never how long anything takes.
set -u
. "$(dirname "$0")/program.bash"
python3 - "$program" "$folder" <<'PYTHON'
import csv, math, os, signal, subprocess, time

from program import always, answer, calls, path, program, refused, run

always += ["bench"]
METHODS = {"overlap", "newton", "shooting", "diagonal", "block", "picard", "jacobi", "damped", "pcr", "blelloch", "chunked"}


def check_direction(told, most_error):
    all = told["candidates"]
    by_name = {c["name"]: c for c in all}
    loop, auto = all[0], all[1]
    assert (loop["name"], auto["name"]) == ("sequential", "auto") and loop["ran"] == "sequential", all
    assert told["sequential_seconds"] == loop["seconds"] > 0 and told["auto_seconds"] == auto["seconds"] > 0, told
    assert told["auto_method"] == auto["ran"] and same(told["auto_ratio"], loop["seconds"] / auto["seconds"]), told
    assert told["rounds"] >= 5 and loop["rounds"] == told["rounds"] and auto["rounds"] in (3, told["rounds"]), told
    assert loop["max_error"] == 0 and told["auto_max_error"] <= most_error, told
    parallel = [c for c in all[2:] if "skipped" not in c]
    assert parallel and {c["name"] for c in all[2:]} <= METHODS, all
    for c in parallel:
        assert c["max_error"] <= most_error and same(c["ratio"], loop["seconds"] / c["seconds"]), c
        assert c["rounds"] in (0, 3, told["rounds"]) and (c["spread"] is None) == (c["rounds"] == 0), c
    raced = [c for c in parallel if c["rounds"]]
    kept = [c for c in raced if c["reason"] != "fallback"] or raced
    best = min(kept, key=lambda c: c["seconds"])
    assert told["parallel_seconds"] == best["seconds"] and told["parallel_method"] == best["name"], (told, best)
    assert told["max_error"] == best["max_error"] and told["sweeps"] == best["sweeps"], told
    assert same(told["ratio"], told["sequential_seconds"] / told["parallel_seconds"]), told
    assert told["spread"] == max(loop["spread"], auto["spread"], best["spread"]) >= 0, told
    return by_name


def check_point(told, length, width, batch, most_error):
    assert (told["length"], told["width"], told["batch"]) == (length, width, batch), told
    found = [check_direction(told[direction], most_error) for direction in ("forward", "backward")]
    assert told["repetitions"] == min(told["forward"]["rounds"], told["backward"]["rounds"]), told
    return found


def same(x, y):
    return abs(x - y) <= 1e-9 * abs(y)


def bench(line, *shape, most_error=1e-3):
    told = answer(*line.split(), "--seconds", 0)
    assert told["kind"] == line.split()[0] and told["isa"] in ("portable", "avx2", "avx512") and told["machine"], told
    return told, check_point(told, *shape, most_error)


# Every kind at its smallest, both types, one and two threads.
for threads in (1, 2):
    told, _ = bench("mlp --layers 100 --width 3 --batch 2 --threads %d" % threads, 100, 3, 2)
    assert told["threads"] == threads and told["dtype"] == "float32" and told["commit"] is None, told
bench("mlp --layers 40 --width 5 --activation tanh --dtype float64 --loss end", 40, 5, 1, most_error=1e-8)
told, (forward, backward) = bench("resnet --layers 64 --width 4 --batch 3 --dtype float64 --commit abc", 64, 4, 3, most_error=1e-7)
assert told["commit"] == "abc" and {"overlap", "newton", "shooting"} <= set(forward) and {"overlap", "pcr", "chunked"} <= set(backward), told
for structure in ("dense", "diagonal", "block", "scalar"):
    told, found = bench("chain --structure %s --length 200 --width 4 --dtype float64" % structure, 200, 4, 1, most_error=1e-9)
    assert told["structure"] == structure and told["radius"] == 0.9, told
    assert told["fma_latency_seconds"] is None or told["fma_latency_seconds"] > 0, told
    assert told["line_seconds"] is None if told["threads"] == 1 else told["line_seconds"] > 0, told
    for direction in found:
        assert {"pcr", "blelloch", "chunked", "overlap"} <= set(direction), told
        assert direction["sequential"]["depth"] == 200 and direction["pcr"]["depth"] == 8, direction  # ceil(log2 200)
        assert direction["pcr"]["flops"] > direction["chunked"]["flops"] > direction["sequential"]["flops"], direction
    assert told["forward"]["bytes"] == 200 * 8 * (8 + {"dense": 16, "diagonal": 4, "block": 8, "scalar": 1}[structure]), told
assert bench("chain --structure block --block 3 --length 9 --width 6", 9, 6, 1)[0]["forward"]["bytes"] == 9 * 4 * (12 + 18)
for activation in ("tanh", "sigmoid", "relu"):
    told, (forward, _) = bench("cell --cell %s --length 300 --width 3 --radius 0.8 --input-sd 0.5 --dtype float64" % activation, 300, 3, 1, most_error=1e-7)
    assert (told["cell"], told["structure"], told["radius"], told["input_sd"]) == (activation, "dense", 0.8, 0.5) and {"overlap", "newton"} <= set(forward), told
    told, _ = bench("cell --cell %s --structure diagonal --length 300 --width 5 --batch 2 --dtype float64" % activation, 300, 5, 2, most_error=1e-7)
    assert told["structure"] == "diagonal", told
for length in (0, 1, 2):
    bench("cell --length %d --width 2" % length, length, 2, 1)
    bench("mlp --length %d" % length, length, 4, 1)
    bench("chain --length %d" % length, length, 4, 1)

# What was asked for is what ran.
told, (forward, backward) = bench("resnet --layers 50 --width 2 --method newton --scheme pcr --backward chunked", 50, 2, 1)
assert set(forward) == {"sequential", "auto", "newton"} and forward["newton"]["scheme"] == "pcr" and set(backward) == {"sequential", "auto", "chunked"}, told
assert told["forward"]["parallel_method"] == "newton" and told["backward"]["parallel_method"] == "chunked", told
told, (forward, _) = bench("mlp --layers 90 --width 2 --method overlap --tolerance 0", 90, 2, 1)
assert forward["overlap"]["tolerance"] == 0 and told["forward"]["max_error"] == 0, told
told, (forward, backward) = bench("chain --length 50 --width 2 --scheme blelloch", 50, 2, 1)
assert set(forward) == set(backward) == {"sequential", "auto", "blelloch"}, told

# A grid, as JSON and as CSV: the same points, one row a direction.
table = path("grid.csv")
told = answer(*"chain --structure diagonal --widths 1,3 --batches 1,2 --seconds 0 --commit c --csv".split(), table, "--lengths", "5, 70")
shapes = [(length, width, batch) for batch in (1, 2) for width in (1, 3) for length in (5, 70)]
assert len(told["points"]) == len(shapes), told
for point, shape in zip(told["points"], shapes):
    check_point(point, *shape, 1e-4)
with open(table, newline="") as file:
    rows = list(csv.DictReader(file))
assert [(int(r["length"]), int(r["width"]), int(r["batch"]), r["direction"]) for r in rows] == \
    [shape + (direction,) for shape in shapes for direction in ("forward", "backward")], rows
for row, point in zip(rows, [p[d] for p in told["points"] for d in ("forward", "backward")]):
    assert None not in row and None not in row.values(), row
    assert (row["kind"], row["structure"], row["commit"], row["machine"]) == ("chain", "diagonal", "c", told["machine"]), row
    assert float(row["radius"]) == 0.9 and float(row["bytes"]) == point["bytes"], row
    for field in ("sequential_seconds", "parallel_seconds", "auto_seconds", "ratio", "auto_ratio", "max_error", "spread"):
        assert math.isclose(float(row[field]), point[field], rel_tol=1e-4, abs_tol=1e-30), (field, row, point)
    assert (row["parallel_method"], row["auto_method"]) == (point["parallel_method"], point["auto_method"]), row
    assert math.isclose(float(row[point["parallel_method"] + "_seconds"]), point["parallel_seconds"], rel_tol=1e-4), row
# Points that were measured stay where a later one fails, or somebody says stop.
refused(2, "a cell's width is 5000, wanted 1 to", *"cell --width 5000 --length 10 --seconds 0".split())
refused(4, "not enough memory", *"chain --lengths 5,4611686018427387904 --seconds 0 --quiet --csv".split(), path("kept.csv"))
with open(path("kept.csv"), newline="") as file:
    assert [(int(r["length"]), r["direction"]) for r in csv.DictReader(file)] == [(5, "forward"), (5, "backward")]
refused(4, "not enough memory", *"chain --length 4611686018427387904 --seconds 0 --csv".split(), path("none.csv"))
assert not os.path.exists(path("none.csv"))
# What does not converge and may not fall back is no result: left out, or exit status 3 where it was named.
strict = "mlp --layers 500 --width 4 --activation tanh --init normal --gain 3 --max-sweeps 1 --no-fallback --seconds 0"
told = answer(*strict.split())
assert "told not to fall back" in next(c["skipped"] for c in told["forward"]["candidates"] if c["name"] == "newton"), told
assert told["forward"]["parallel_method"] != "newton" and (told["forward"]["max_error"] or 0) <= 1e-3, told
refused(3, "newton: not converged", *strict.split(), "--method", "newton", "--json")
refused(3, "newton: not converged within the budget", *"cell --length 100 --method newton --no-fallback --max-sweeps 1 --seconds 0".split())
told = answer(*"mlp --layers 9 --width 2 --seconds 0 --commit".split(), "x\udcff")  # a byte that is no UTF-8
assert told["commit"] == "x?", told
# A signal ends what is computed before a race, too.
for line in "cell --width 4000 --length 10", "bppsa --network rnn --length 50000 --width 300 --batch 1", "bppsa --network rnn --length 1 --width 16384 --batch 1":
    for attempt in range(1, 8):
        job = subprocess.Popen([program, *always, *line.split(), "--quiet"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(attempt)
        job.send_signal(signal.SIGINT)
        out, err = job.communicate(timeout=20)  # the last one's weights take a minute to be drawn and sorted
        if job.returncode != -signal.SIGINT: break  # else it came before the program had a handler
    assert (job.returncode, out, err) == (130, b"", b"deeppcr bench: stopped as asked\n"), (line, job.returncode, out, err)
text = run(*"mlp --lengths 9 --width 2 --seconds 0 --csv -".split()).decode()
assert text.startswith("kind,") and text.count("\n") == 3, text
text = run(*"mlp --layers 9 --width 2 --seconds 0".split()).decode()
assert "forward" in text and "backward" in text and "length 9, width 2, batch 1" in text, text

refused(2, "which kind")
refused(2, "no kind of chain 'rnn'", "rnn")
refused(2, "mlp, resnet, chain, cell, planner, bppsa, diffusion", "rnn")
refused(2, "'nosuch', which no case has", "--json", "planner", "--only", "nosuch")  # behind options too
refused(2, "no case is left by --part, --quick and --only", "planner", "--only", "L 16384 w 2 ", "--quick")
refused(2, "no case is left", "planner", "--quick", "--part", "2/80")
for part, said in {"1": "wanted K/N", "2/1": "wanted 1 to 1", "0/3": "wanted 1 to 3", "1/": "a whole number", " 1/4": "a whole number", "1/4x": "a whole number",
                   "5000000000/6000000000": "wanted 1 to"}.items():
    refused(2, said, "planner", "--part", part)
refused(2, "--prune '1'", "--seed", "3", "bppsa", "--prune", "1")
refused(2, "that is of a cell", "mlp", "--cell", "tanh")
refused(2, "that is of a cell", "chain", "--input-sd", "1")
refused(2, "a cell has --cell", "cell", "--activation", "tanh")
refused(2, "identity, relu, tanh", "cell", "--cell", "gru")
refused(2, "wanted dense or diagonal", "cell", "--structure", "block")
refused(2, "wanted a whole number", "mlp", "--lengths", "3,x")
refused(2, "wanted a whole number", "mlp", "--lengths", "3,,4")
refused(2, "wanted at least 1", "mlp", "--widths", "0")
refused(2, "at most 64", "mlp", "--lengths", ",".join("1" * 65))
for plural, single in (("lengths", "length"), ("lengths", "layers"), ("widths", "width"), ("batches", "batch")):
    refused(2, "--%s beside --%s: wanted one of them" % (plural, single), "mlp", "--" + plural, "5", "--" + single, "7")
refused(2, "every, end", "mlp", "--loss", "start")
refused(2, "wanted a parallel one", "mlp", "--method", "sequential")
refused(2, "wanted a parallel one", "mlp", "--backward", "sequential")
refused(2, "wanted a parallel one", "chain", "--scheme", "sequential")
refused(2, "wants --scheme", "chain", "--method", "newton")
for option in "--tie 2", "--layer-norm", "--init he", "--gain 2", "--scale 2", "--branch two-layer", "--hidden 3":
    refused(2, "a linear chain takes no " + option.split()[0], "chain", *option.split())
    refused(2, "a cell takes no " + option.split()[0], "cell", *option.split())
for option in "--window 3", "--guess step", "--damping 0.5", "--no-fallback", "--memory-limit 1", "--backward-chunk 4", "--backward-run-up 4":
    refused(2, "a linear chain takes no " + option.split()[0], "chain", *option.split())
refused(2, "--loss: a linear chain", "chain", "--loss", "end")
refused(2, "that is of a linear chain", "resnet", "--structure", "dense")
refused(2, "that is of a linear chain", "resnet", "--radius", "1")
refused(2, "wanted scalar, diagonal, block or dense", "chain", "--structure", "zero")
refused(2, "wanted a text without", "mlp", "--commit", "a,b")
refused(2, "block", "chain", "--structure", "block", "--width", "5", "--block", "2")
refused(4, "not enough memory", "chain", "--length", 4611686018427387904)
print("cli_bench: %d runs" % calls())
PYTHON
