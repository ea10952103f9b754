#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Arguments at random, the same ones every time: whatever the program is given it ends by itself with a documented status
# (never by a signal), says one line when it refuses, and with --json prints one object or nothing.
set -u
command -v python3 >/dev/null || { echo "cli_fuzz: no python3"; exit 77; }
. "$(dirname "$0")/program.bash"
python3 - "$program" "$folder" "${DEEPPCR_FUZZ_CASES:-500}" <<'PYTHON'
import json, os, random, subprocess, sys

program, folder, cases = *sys.argv[1:3], int(sys.argv[3])
random.seed(20240607)
verbs = ["info", "plan", "solve", "check", "gradcheck", "train", "eval", "bench", "schedule", "convert", "", "--help", "--version", "chek", "\xff"]
words = ["mlp", "resnet", "linear", "lorenz", "logistic", "", "-", "--", "\n", "a" * 5000]
names = ["layers", "width", "batch", "method", "scheme", "backward", "tolerance", "guess", "window", "chunk", "run-up", "block",
         "damping", "max-sweeps", "no-fallback", "memory-limit", "json", "seed", "threads", "quiet", "csv", "dtype", "activation",
         "branch", "layer-norm", "scale", "gain", "init", "seeds", "agree", "agree-gradients", "A", "b", "z0", "output", "input",
         "transposed", "data", "epochs", "save", "resume", "log", "load", "limit", "optimiser", "rate", "length", "structure", "lengths", "widths", "batches", "radius", "loss", "limits", "commit",
         "cell", "input-sd", "nothing"]
values = ["0", "1", "2", "7", "16", "-1", "1e3", "1e400", "nan", "inf", "0x10", "9223372036854775807", "9223372036854775808", "1.5", "",
          " 3", "3 ", "newton", "jacobi", "pcr", "auto", "tanh", "float64", "float16", "%s%n", "missing.npy", ".", "/dev/null", "4K", "1G"]
common = ["json", "threads", "quiet", "seed"]
solver = ["method", "scheme", "backward", "tolerance", "guess", "window", "chunk", "run-up", "max-sweeps", "no-fallback", "memory-limit"]
network = ["layers", "width", "batch", "dtype", "activation", "layer-norm", "scale"]
own = {"plan": common + solver + network, "check": common + solver + network + ["gain", "seeds", "agree"],
       "gradcheck": common + network + ["backward"], "train": common + solver + network + ["data", "epochs", "save", "limit"],
       "bench": common + solver + network + ["structure", "cell", "input-sd", "radius", "loss", "lengths", "widths", "batches", "commit"],
       "solve": common + ["A", "b", "output", "scheme"], "eval": common + ["load", "data"], "info": common}
subjects = {"plan": ["mlp", "resnet"], "check": ["mlp", "resnet", "lorenz", "logistic"], "gradcheck": ["mlp", "resnet"],
            "train": ["mlp", "resnet"], "bench": ["mlp", "resnet", "chain", "cell"], "solve": ["linear"], "eval": [], "info": []}
flags = ["json", "quiet", "no-fallback", "layer-norm", "transposed", "limits"]
sane = {"method": ["auto", "sequential", "newton", "diagonal", "picard", "jacobi", "damped", "overlap", "shooting", "newtonn"],
        "scheme": ["auto", "sequential", "pcr", "blelloch", "chunked", "Pcr"], "backward": ["auto", "sequential", "pcr", "chunked", "x"],
        "tolerance": ["1e-6", "0", "1e-3", "-1"], "guess": ["zero", "step", "state", "?"], "window": ["1", "3", "64"],
        "chunk": ["1", "5", "64"], "run-up": ["1", "8"], "max-sweeps": ["1", "2", "50"], "memory-limit": ["1", "64K", "1M"],
        "dtype": ["float32", "float64", "half"], "activation": ["tanh", "relu", "gelu", "selu"], "scale": ["0.1", "1", "1e9"],
        "gain": ["1", "30"], "agree": ["0", "1e-3"], "seed": ["0", "5"], "data": ["fashion-mnist", "nowhere"],
        "save": ["out.safetensors", "no/such/folder/m", "/dev/full"], "load": ["none.safetensors"],
        "layers": ["0", "1", "5", "40"], "width": ["1", "2", "6"], "batch": ["0", "1", "3"], "epochs": ["1"], "limit": ["0", "10"],
        "seeds": ["1", "2"], "threads": ["1", "2"], "length": ["0", "9", "300"], "lengths": ["0,5", "7", "1,,2", "3,x"], "widths": ["1,2", "0"], "batches": ["1,2", "-3"],
        "structure": ["dense", "diagonal", "block", "scalar", "zero", "sparse"], "radius": ["0.5", "nan"], "loss": ["every", "end", "no"],
        "commit": ["abc", "a,b"], "cell": ["tanh", "sigmoid", "gru"], "input-sd": ["0.1", "-1"]}

def argument(verb, wild):
    if wild and random.random() < 0.2: return [random.choice(words)]
    name = random.choice(names if wild or not own.get(verb) else own[verb])
    if name in flags and not (wild and random.random() < 0.3): return ["--" + name]
    value = random.choice(values if wild and random.random() < 0.6 else sane.get(name, values))
    if wild and random.random() < 0.2: return ["--" + name]
    return ["--" + name + "=" + value] if random.random() < 0.3 else ["--" + name, value]

statuses = {}
for case in range(cases):
    verb = random.choice(verbs + 2 * list(own))
    wild = random.random() < 0.35
    arguments = [verb]
    if wild: arguments += [random.choice(words)]
    elif subjects.get(verb): arguments += [random.choice(subjects[verb])]
    for _ in range(random.randrange(5)): arguments += argument(verb, wild)
    # what bounds the run stands last, so that it is in force where the rest is sane
    if verb == "train": arguments += ["--epochs", "1", "--limit", "20", "--data", random.choice(sane["data"])]
    if verb == "bench": arguments += ["--seconds", "0", "--lengths", "5"]
    if verb in ("plan", "check", "gradcheck", "train", "bench") and not wild:
        arguments += ["--layers", random.choice(sane["layers"]), "--width", random.choice(sane["width"]), "--batch", "2"]
    try:
        done = subprocess.run([program] + [a.encode("utf-8", "surrogateescape") for a in arguments], cwd=folder, timeout=120,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except ValueError: continue  # a zero byte cannot be an argument
    except subprocess.TimeoutExpired: sys.exit(f"cli_fuzz: case {case} did not end in 120 s: {arguments!r}")
    statuses[done.returncode] = statuses.get(done.returncode, 0) + 1
    if not 0 <= done.returncode <= 5: sys.exit(f"cli_fuzz: case {case} ended with {done.returncode}: {arguments!r}\n{done.stderr[-500:]!r}")
    if done.returncode >= 2 and done.stdout: sys.exit(f"cli_fuzz: case {case}: refused, yet something on stdout: {arguments!r}")
    if done.returncode >= 2 and not done.stderr: sys.exit(f"cli_fuzz: case {case}: refused without a word: {arguments!r}")
    if done.returncode in (0, 1) and "--json" in arguments and done.stdout.startswith(b"{"): json.loads(done.stdout)
print("cli_fuzz:", cases, "cases, by exit status", dict(sorted(statuses.items())))
if len(statuses) < 4: sys.exit("cli_fuzz: too few kinds of endings to mean anything")
PYTHON
