#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Denoising steps in order, ours, PyTorch's and JAX's, and by picard over the whole chain, in turn: NAME.csv in the folder of
results, and the table NAME of docs/performance/denoising.md.

    bench/diffusion.py [--build build] [--rounds 2] [--seconds 0.5] [--points 0,1] [--peers torch,jax] [--variants A,B]
                       [--windows 8,16,32] [--out bench/results/performance] [--name diffusion]

Needs bench_sampler (cmake -DDEEPPCR_BENCH=ON) and the peers' environment (bench/peers/setup.sh; DEEPPCR_PEERS_VENV). The denoisers
have drawn numbers, the same for all; peers whose samples differ from ours by more than 1e-4 are refused. Each round runs every program once,
kept on as many processors as it has threads. A time is the least of the rounds' least (chains of 100 steps): what else runs on the
machine only adds. Points not asked for stay in the file as they are. --windows: picard with windows of so many steps too, for tables of names
that begin with diffusion-windows."""
import argparse
import csv
import datetime
import os
import pathlib
import subprocess
import sys
import tempfile

from machine import commit, processor, programs, surroundings

# state, hidden, depth, batch, threads; depth - 1 layers are hidden by hidden
POINTS = [(16, 256, 4, 1, 1), (16, 256, 4, 1, 2), (16, 512, 4, 1, 1), (16, 512, 4, 1, 2), (16, 512, 4, 2, 2), (16, 512, 4, 4, 1), (16, 512, 4, 4, 2),
          (784, 512, 4, 1, 2), (16, 1024, 4, 1, 2), (16, 1024, 4, 4, 2), (16, 2048, 4, 1, 1), (16, 2048, 4, 1, 2), (16, 4096, 3, 1, 2),
          (16, 512, 4, 3, 1), (16, 512, 4, 3, 2), (16, 1024, 4, 1, 1), (16, 4096, 3, 1, 1), (16, 2048, 4, 4, 2)]  # fmt: skip
STEPS = 100
here = pathlib.Path(__file__).resolve().parent
KEY = ("width", "hidden", "depth", "batch", "threads")


def measure(a, program, python, point, keep):
    width, hidden, depth, batch, threads = point
    processors = ",".join(str(p) for p in sorted(os.sched_getaffinity(0))[:threads])
    shape = ["--width", width, "--hidden", hidden, "--depth", depth, "--batch", batch, "--steps", STEPS, "--threads", threads, "--seconds", a.seconds]
    shape = [str(s) for s in shape]
    found = {}

    def run(command):
        return subprocess.run(["taskset", "-c", processors, *command], capture_output=True, text=True, env=keep, check=True).stdout.strip().splitlines()

    with tempfile.TemporaryDirectory() as folder:
        files = [f"{folder}/{name}" for name in ("model.safetensors", "start.npy", "samples.npy")]
        run([program, *shape, "--save", files[0], "--start", files[1], "--samples", files[2], "--seconds", "0"])
        for _ in range(a.rounds):
            for way in ("sequential", "picard", "parareal", "auto", *a.windows):
                method = ["--method", way] if isinstance(way, str) else ["--method", "picard", "--window", str(way)]
                row = run([program, *shape, *method])[-1].split(",")
                old = found.get(way)
                if not old or float(row[10]) < float(old[10]):
                    found[way] = row
            for peer in filter(None, a.peers.split(",")):
                row = run([python, str(here / "peers" / f"diffusion_{peer}.py"), "--model", files[0], "--start", files[1], "--samples", files[2],
                           "--steps", str(STEPS), "--threads", str(threads), "--seconds", str(a.seconds), *(["--variants", a.variants] if a.variants else [])])[-1].split(",")  # fmt: skip
                if peer not in found or float(row[4]) < float(found[peer][4]):
                    found[peer] = row
    row = dict(zip(KEY, map(str, point)), steps=STEPS, loop_ns=found["sequential"][10], read_ns=found["sequential"][16], auto_ns=found["auto"][10], auto_method=found["auto"][7],
               parareal_ns=found["parareal"][10], parareal_sweeps=found["parareal"][11], picard_ns=found["picard"][10], picard_sweeps=found["picard"][11], picard_evaluations=found["picard"][13], picard_difference=found["picard"][14])  # fmt: skip
    row |= {f"window_{w}_{what}": found[w][i] for w in a.windows for what, i in (("ns", 10), ("sweeps", 11))}
    for peer in ("torch", "jax"):
        if peer in found:
            row |= {f"{peer}_ns": found[peer][4], f"{peer}_variant": found[peer][1], f"{peer}_difference": found[peer][5]}
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--points", help="numbers of POINTS, separated by commas (default: all)")
    parser.add_argument("--peers", default="torch,jax")
    parser.add_argument("--variants", help="of the peers, only these (default: all, of which torch's compile for half a minute)")
    parser.add_argument("--windows", type=lambda text: [int(w) for w in text.split(",")], default=[])
    parser.add_argument("--name", default="diffusion", help="of the table: one for each machine")
    parser.add_argument("--out", default=str(here / "results" / "performance"))
    a = parser.parse_args()
    program, python = programs(a.build, "bench_sampler")
    keep, machine, at = surroundings(), processor(), commit()
    path = pathlib.Path(a.out) / f"{a.name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = {}
    if path.exists():
        with open(path, newline="") as file:
            rows = {tuple(r[k] for k in KEY): r for r in csv.DictReader(file)}
    fields = ["date", "commit", "machine", *KEY, "steps", "loop_ns", "read_ns", "auto_ns", "auto_method", "picard_ns", "picard_sweeps", "picard_evaluations",
              "picard_difference", "parareal_ns", "parareal_sweeps", *(f"{peer}_{what}" for peer in ("torch", "jax") for what in ("ns", "variant", "difference")),
              *(f"window_{w}_{what}" for w in a.windows for what in ("ns", "sweeps"))]  # fmt: skip
    for i in [int(i) for i in a.points.split(",")] if a.points else range(len(POINTS)):
        row = measure(a, str(program), str(python), POINTS[i], keep) | {"date": datetime.date.today().isoformat(), "commit": at, "machine": machine}
        rows[tuple(row[k] for k in KEY)] = row
        print(*(row[f] for f in fields[3:] if f in row), flush=True)
        with open(path, "w", newline="") as file:
            out = csv.DictWriter(file, fields, restval="")
            out.writeheader()
            out.writerows(rows[k] for k in sorted(rows, key=lambda k: [int(x) for x in k]))
    subprocess.run([sys.executable, str(here / "performance_table.py"), a.out], check=True)


main()
