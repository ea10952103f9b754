#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Recurrent networks, ours by the loop and by auto against PyTorch, JAX and ONNX Runtime, in turn: recurrent.csv in the folder of results, and the
table of docs/performance.md.

    bench/recurrent.py [--build build] [--rounds 3] [--seconds 0.5] [--out bench/results/performance]

Needs bench_recurrent (cmake -DDEEPPCR_BENCH=ON) and the peers' environment (bench/peers/setup.sh; DEEPPCR_PEERS_VENV). Each
round runs every program once, kept on as many processors as it has threads; times are medians over the rounds, of medians."""
import argparse
import csv
import datetime
import os
import pathlib
import platform
import statistics
import subprocess
import sys

POINTS = [(kind, width, batch, length) for width, batch, length in ((32, 16, 1024), (128, 16, 1024), (32, 1, 1024), (128, 1, 16384))
          for kind in ("rnn", "gru", "lstm")]
PEERS = ("torch", "jax", "onnx")  # ONNX Runtime has no backward pass: nan
here = pathlib.Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--out", default=str(here / "results" / "performance"))
    a = parser.parse_args()
    python = pathlib.Path(os.environ.get("DEEPPCR_PEERS_VENV", here / "peers" / ".venv")) / "bin" / "python"
    program = pathlib.Path(a.build) / "bench_recurrent"
    for path, how in ((program, "cmake -DDEEPPCR_BENCH=ON"), (python, "bench/peers/setup.sh")):
        if not path.exists():
            sys.exit(f"recurrent.py: no {path}: {how} makes it")
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("OPENBLAS_", "MKL_", "OMP_", "DEEPPCR_ISA"))}
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude", "*"], capture_output=True, text=True).stdout.strip()
    machine = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    rows = []
    for threads in (1, 2):
        processors = ",".join(str(p) for p in sorted(os.sched_getaffinity(0))[:threads])
        for kind, width, batch, length in POINTS:
            point = ["--kind", kind, "--inputs", str(width), "--hidden", str(width), "--batch", str(batch), "--length", str(length),
                     "--threads", str(threads), "--seconds", str(a.seconds)]
            ways = {"loop": [str(program), *point, "--method", "sequential"], "auto": [str(program), *point, "--method", "auto"],
                    **{peer: [str(python), str(here / "peers" / f"recurrent_{peer}.py"), *point] for peer in PEERS}}
            times = {way: [] for way in ways}
            method = ""
            for _ in range(a.rounds):
                for way, command in ways.items():
                    done = subprocess.run(["taskset", "-c", processors, *command], capture_output=True, text=True, env=keep, check=True)
                    field = done.stdout.strip().split(",")
                    if way == "auto":
                        method = field[7]
                    times[way].append((float(field[-3 if way in PEERS else -4]), float(field[-2])))
            median = {way: [statistics.median(t[i] for t in times[way]) for i in (0, 1)] for way in ways}
            rows.append([datetime.date.today().isoformat(), commit, machine, threads, kind, width, batch, length, method,
                         *(f"{median[way][i]:.1f}" for i in (0, 1) for way in ways)])
            print(*rows[-1][3:], flush=True)
    with open(pathlib.Path(a.out) / "recurrent.csv", "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["date", "commit", "machine", "threads", "kind", "width", "batch", "length", "auto_method",
                      *(f"{part}_{way}_ns" for part in ("forward", "both") for way in ("loop", "auto", *PEERS))])
        out.writerows(rows)
    subprocess.run([sys.executable, str(here / "performance_table.py"), a.out, str(here.parent / "docs" / "performance.md")], check=True)


main()
