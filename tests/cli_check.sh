#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_check.sh BUILD_DIR: 'deeppcr check' and 'gradcheck' on networks, methods, schemes and dtypes; known sweep counts;
# chaotic maps; disagreement and giving up have their exit codes; threads do not change a bit of what is told.
set -u
. "$(dirname "$0")/program.bash"
python3 - "$program" "$folder" <<'PYTHON'
import os

from program import answer, calls, ended, is_one_line, path, read_json, refused


def run(line, wanted=0, threads=1):
    done = ended(wanted, *line.split(), "--json", "--threads", threads)
    assert is_one_line(done.stderr) if wanted == 3 else done.stderr == b"", (line, done.stderr)
    told = read_json(done.stdout)
    assert wanted == 3 or told["agrees"] is (wanted == 0), (line, told)
    assert told["gave_up"] is (wanted == 3), (line, told)
    return told


# The issue's own case, with every field.
told = run("check resnet --layers 1024 --width 16 --batch 8 --method newton --scheme pcr")
for field in ("max_error", "max_gradient_error", "tolerance", "gradient_tolerance", "sweeps", "reason", "method", "scheme", "backward",
              "seconds", "sequential_seconds", "residual_history", "locked_history", "error_estimate", "sentence", "layers"):
    assert field in told, field
assert (told["method"], told["scheme"], told["backward"], told["reason"]) == ("newton", "pcr", "pcr", "converged"), told
assert told["sweeps"] <= 6 and told["max_error"] <= told["tolerance"] == 1e-4, told
assert len(told["residual_history"]) == len(told["locked_history"]) > 0 and told["locked_history"][-1] == 1024, told

unconfirmed = ("diagonal", "block", "picard", "jacobi", "damped", "parareal", "parataa")
for method in ("sequential", "newton", "overlap", "shooting", "auto") + unconfirmed:
    for dtype in ("float32", "float64"):
        for network in ("mlp --activation tanh", "resnet"):
            told = run("check %s --layers 48 --width 6 --batch 3 --method %s --dtype %s" % (network, method, dtype))
            full = {"float32": 1e-5, "float64": 1e-10}[dtype]
            assert abs(told["solver_tolerance"] / (0.1 * full if method in unconfirmed else full) - 1) < 1e-9, told
assert run("check mlp --layers 48 --width 6 --batch 3 --method newton --tolerance 1e-7")["solver_tolerance"] == 1e-7
assert run("check mlp --layers 48 --width 6 --batch 3 --method newton --tolerance 0")["solver_tolerance"] == 0
for scheme in ("sequential", "pcr", "blelloch", "chunked", "overlap", "auto"):
    for network in ("mlp", "resnet --branch two-layer", "resnet --layer-norm", "mlp --activation gelu --layer-norm"):
        told = run("check %s --layers 100 --width 6 --batch 2 --dtype float64 --scheme %s" % (network, scheme))
        assert told["max_error"] <= 1e-9 and told["max_gradient_error"] <= 1e-8, told
for activation in ("identity", "relu", "tanh", "sigmoid", "gelu", "silu"):
    for width in (1, 5, 16, 33):
        run("check mlp --layers 20 --width %d --batch 2 --activation %s" % (width, activation))
for shape in ("--layers 0", "--layers 1", "--layers 2", "--layers 130 --batch 1 --width 1", "--layers 64 --window 8", "--layers 64 --guess zero"):
    run("check resnet " + shape)
run("check mlp --layers 1024 --width 8 --init normal --activation tanh")  # states that die away
run("check mlp --layers 5 --gain 1e300 --dtype float64")  # leaves the finite numbers, as the loop does

# A way back that gives up is told, and goes in order whatever --no-fallback says.
back = "check resnet --layers 300 --width 8 --batch 2 --method newton --backward overlap --run-up 1 --no-fallback"
told = run(back)
assert (told["reason"], told["backward_reason"]) == ("converged", "fallback"), told
assert b"; back finished in order" in ended(0, *back.split()).stdout
for scheme, reason in (("sequential", "sequential"), ("pcr", "converged")):
    assert run("check mlp --layers 50 --width 4 --backward " + scheme)["backward_reason"] == reason, scheme

# Sweeps as the literature and the reference have them.
for network in ("mlp --activation tanh", "mlp --activation relu"):
    assert run("check %s --layers 1024 --width 8 --batch 2 --seeds 5 --tolerance 1e-4" % network)["sweeps"] <= 5, network
assert run("check resnet --layers 1024 --width 8 --batch 2 --seeds 5 --tolerance 1e-4")["sweeps"] <= 6
assert run("check resnet --layers 64 --width 4 --activation identity --dtype float64")["sweeps"] <= 1  # affine
told = run("check resnet --scale 1 --activation relu --branch two-layer --dtype float64 --layers 200 --width 8")
assert told["reason"] in ("converged", "residual-only", "fallback"), told

# Chaos ends right, by whatever way.
for line in ("lorenz --layers 256", "lorenz --layers 256 --window 32", "logistic --layers 200", "logistic --layers 100 --method jacobi --max-sweeps 10"):
    told = run("check " + line)
assert told["reason"] == "fallback" and told["method"] == "jacobi", told

# Layers without biases, whose states shrink to nothing, die or come back: no run-up makes others of them.
freely = " --init %s --method auto --scheme auto --backward auto --seed %d"
for line in ("mlp --layers 3000 --width 16 --batch 1" + freely % ("he", 1), "mlp --layers 3000 --width 16 --batch 1" + freely % ("he", 2),
             "mlp --layers 8192 --width 2 --batch 5 --activation silu --gain 3.42 --dtype float64" + freely % ("normal", 89),
             "mlp --layers 8192 --width 3 --batch 2 --activation gelu --gain 3.16" + freely % ("he", 786)):
    assert run("check " + line)["agrees"], line

# Of several seeds the weakest claim is told, wherever it comes; by the kernels whose bits are every machine's.
mixed = "check mlp --layers 400 --width 2 --batch 1 --activation tanh --method overlap --chunk 50 --run-up 6 --tolerance 1e-4".split()
portable = {**os.environ, "DEEPPCR_ISA": "portable"}
reasons = [answer(*mixed, "--seed", seed, env=portable)["reason"] for seed in range(1, 6)]
assert reasons == ["exact", "exact", "converged", "converged", "exact"], reasons
assert answer(*mixed, "--seeds", 5, env=portable)["reason"] == "converged"

# Disagreement, giving up.
assert run("check resnet --layers 64 --agree 1e-30 --agree-gradients 1e-30 --tolerance 1e-3 --dtype float64", wanted=1)["tolerance"] == 1e-30
told = run("check resnet --layers 200 --width 8 --method jacobi --max-sweeps 2 --no-fallback", wanted=3)
assert told["reason"] == "not-converged" and told["agrees"] is False, told
assert b": not converged after 2 sweeps" in ended(3, *"check resnet --layers 200 --method jacobi --max-sweeps 2 --no-fallback --quiet".split()).stderr

# What a kind of chain does not use is refused.
for line, text in (("check lorenz --layer-norm --tie 3", "lorenz takes no --layer-norm"), ("check logistic --width 4", "logistic takes no --width"),
                   ("check mlp --scale 2", "--scale: that is of a resnet"), ("gradcheck mlp --branch linear", "--branch: that is of a resnet"),
                   ("check resnet --hidden 3", "--hidden: that is of --branch two-layer")):
    refused(2, text, *line.split())

# Gradients against finite differences.
for line in ("mlp", "mlp --activation tanh --layer-norm", "resnet", "resnet --branch two-layer --hidden 7", "resnet --activation silu --layer-norm",
             "resnet --backward chunked", "resnet --backward blelloch --layers 20", "mlp --activation sigmoid --method sequential --backward sequential",
             # states that die away, with kinks nearer than a difference's step, or at them
             "mlp --layers 40 --width 8 --init normal --seed 40", "mlp --layers 40 --width 8 --init normal --seed 40 --tie 3 --samples 20 --method sequential"):
    told = run("gradcheck " + line)
    assert told["compared"] > 50 and told["callbacks_agree"] and told["max_gradient_error"] <= told["tolerance"] == 1e-6, told
run("gradcheck mlp --activation tanh --agree 1e-30", wanted=1)
assert run("gradcheck mlp --method picard --max-sweeps 1 --no-fallback", wanted=3)["agrees"] is False
assert run("gradcheck mlp --method picard --max-sweeps 1 --no-fallback --agree 1e9", wanted=3)["agrees"] is True
# Right by the numbers, and without a confirmation.
# Shooting in windows counts no sweeps of the whole chain, however large its budget.
refused(3, "not converged within the budget", *"check mlp --layers 2000 --width 2 --activation tanh --gain 6 --method shooting --no-fallback --max-sweeps 20 --threads 1 --quiet".split())
early = "check mlp --layers 20 --width 4 --batch 2 --max-sweeps 3 --no-fallback"
told = run(early, wanted=3)
assert told["agrees"] is True and told["max_error"] <= told["tolerance"], told
done = ended(3, *early.split())
assert b"\nagrees with the loop, but had not converged within its budget\n" in done.stdout, done.stdout
assert b" backward, 1 sweep, not-converged\n" in ended(3, *early.split(), "--max-sweeps", 1).stdout
assert b": not converged after 1 sweep, and told" in ended(3, *early.split(), "--max-sweeps", 1, "--quiet").stderr

# Same bits for any number of threads.
same = ("max_error", "max_gradient_error", "residual_history", "locked_history", "sweeps", "error_estimate")
for line in ("check resnet --layers 300 --width 8 --batch 5", "check mlp --layers 300 --width 8 --batch 5 --method overlap --scheme chunked"):
    one, three = run(line, threads=1), run(line, threads=3)
    assert all(one[field] == three[field] for field in same), (line, one, three)
    assert one["max_error"] == run(line)["max_error"]

csv = path("sweeps.csv")
told = run("check mlp --layers 100 --csv " + csv)
with open(csv) as file:
    rows = [row.split(",") for row in file.read().splitlines()]
assert rows[0] == ["sweep", "residual", "locked"] and len(rows) == len(told["residual_history"]) + 1, rows
assert [float(row[1]) for row in rows[1:]] == told["residual_history"] and int(rows[-1][2]) == 100, rows
print("cli_check: %d comparisons" % calls())
PYTHON
