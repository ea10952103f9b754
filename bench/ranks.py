#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Strong and weak scaling of `deeppcr solve` over the ranks of mpirun, beside the model of `deeppcr plan --ranks`.

    bench/ranks.py build/deeppcr [FILE.csv]

Smallest of a few runs each; times are the program's own (`seconds`: from the parts read to all states there).
"""
import csv, json, os, subprocess, sys, tempfile

import numpy as np
from machine import processor, wants

RANKS, RUNS = (1, 2, 3, 4), 3
CORES = len(os.sched_getaffinity(0))
CHAINS = [  # structure, width, batch, steps
    ("diagonal", 64, 1, 200000),
    ("dense", 4, 1, 400000),
    ("dense", 32, 1, 16000),
]
GRU = (32, 32, 1, 60000)  # inputs, hidden, batch, steps


def run(program, ranks, *arguments):
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                       OMPI_MCA_btl_vader_single_copy_mechanism="none")
    best = None
    for _ in range(RUNS):
        out = subprocess.run(["mpirun", "--oversubscribe", "-np", str(ranks), program, *arguments, "--threads", "1", "--json"],
                             check=True, capture_output=True, text=True, env=environment).stdout
        result = json.loads(out)
        if best is None or result["seconds"] < best["seconds"]:
            best = result
    return best


def write_chain(folder, structure, width, batch, steps):
    rng = np.random.default_rng(1)
    a = rng.standard_normal((steps, batch) + ((width, width) if structure == "dense" else (width,)), dtype="f4")
    a *= np.float32(0.9 / (width ** 0.5 if structure == "dense" else 2))
    np.save(f"{folder}/a.npy", a)
    np.save(f"{folder}/b.npy", rng.standard_normal((steps, batch, width), dtype="f4"))


def write_gru(folder, inputs, hidden, batch, steps):
    rng = np.random.default_rng(1)
    header, data = {}, b""
    for name, shape in (("weight_ih_l0", (3 * hidden, inputs)), ("weight_hh_l0", (3 * hidden, hidden)),
                        ("bias_ih_l0", (3 * hidden,)), ("bias_hh_l0", (3 * hidden,))):
        raw = rng.uniform(-hidden ** -0.5, hidden ** -0.5, shape).astype("f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(f"{folder}/gru.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
    np.save(f"{folder}/x.npy", rng.standard_normal((steps, batch, inputs), dtype="f4"))


def predicted(program, structure, width, batch, steps, ranks):
    out = subprocess.run([program, "plan", "linear", "--structure", structure, "--width", str(width), "--batch", str(batch),
                          "--length", str(steps), "--ranks", str(ranks), "--side-by-side", str(min(ranks, CORES)), "--json"],
                         check=True, capture_output=True, text=True).stdout
    return json.loads(out)["ranks"][-1]


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    program = os.path.abspath(sys.argv[1])
    wants(program)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for structure, width, batch, steps in CHAINS:
            for scaling in ("strong", "weak"):
                for ranks in RANKS:
                    length = steps if scaling == "strong" else steps // 4 * ranks
                    if scaling == "weak" or ranks == 1:
                        write_chain(folder, structure, width, batch, length)
                    files = ["solve", "linear", "--A", f"{folder}/a.npy", "--b", f"{folder}/b.npy", "--output", f"{folder}/z.npy"]
                    got = run(program, ranks, *files, "--scheme", "distributed", "--ranks", str(ranks))
                    model = predicted(program, structure, width, batch, length, ranks)
                    rows.append([scaling, f"{structure} {width}", length, ranks, got["seconds"], got["seconds_reduce"],
                                 got["seconds_scan"], got["seconds_apply"], model["seconds"]])
                    print(*rows[-1], flush=True)
        inputs, hidden, batch, steps = GRU
        for scaling in ("strong", "weak"):
            for ranks in RANKS:
                length = steps if scaling == "strong" else steps // 4 * ranks
                write_gru(folder, inputs, hidden, batch, length)
                got = run(program, ranks, "solve", "gru", "--weights", f"{folder}/gru.safetensors", "--input", f"{folder}/x.npy",
                          "--output", f"{folder}/y.npy", "--ranks", str(ranks))
                rows.append([scaling, f"gru {hidden} overlap", length, ranks, got["seconds"], "", "", "", ""])
                print(*rows[-1], flush=True)
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w", newline="") as file:
            file.write(f"# {processor()}, {CORES} cores; commit {commit}; bench/ranks.py\n")
            writer = csv.writer(file)
            writer.writerow("scaling,chain,steps,ranks,seconds,reduce,scan,apply,predicted".split(","))
            writer.writerows(rows)


main()
