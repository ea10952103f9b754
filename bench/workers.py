#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""workers.py: training by several workers on Fashion-MNIST, what it gives (accuracy) and how long it takes (times).

accuracy   SWAP beside a large and a small minibatch, layer-wise training beside one process
times      images a second, the median of --rounds rounds of all runs, and the time that worker 0 waits, two networks,
           beside the loop; on a machine that is not idle start it by `chrt -f 1`
"""
import argparse
import csv
import datetime
import os
import sys

from machine import surroundings, wants
from pipeline import ROOT, machine, output_of, run

FIELDS = ["date", "commit", "machine", "name", "seed", "test_accuracy", "test_loss", "train_loss", "seconds", "images_per_second",
          "waited_ms", "staleness", "stalest", "gap", "together_accuracy", "apart_accuracies", "together_seconds",
          "apart_seconds", "others", "command"]  # fmt: skip
LOOP = "--method sequential --backward sequential --test-every 0 --json --quiet"
NARROW = f"train resnet --layers 16 --width 32 {LOOP}"
WIDE = f"train resnet --layers 32 --width 128 --batch 256 --limit 5120 --epochs 1 {LOOP}"
SWAP = "--epochs 4 --batch 2048 --rate 0.01 --swap --apart-epochs 4 --apart-batch 64 --apart-rate 0.001 --constant-rate"
CLOCKS = {"1:1": "", "1:2": "--backwards 2", "2:1": "--forwards 2", "3:1": "--forwards 3", "2:4": "--forwards 2 --backwards 4"}


def accuracy_runs():
    for seed in (1, 2, 3):
        yield "large minibatch", f"{NARROW} --threads 1 --seed {seed} --epochs 8 --batch 2048 --rate 0.01"
        yield "small minibatch", f"{NARROW} --threads 1 --seed {seed} --epochs 8 --batch 64"
        yield "swap, 4 workers", f"{NARROW} --threads 1 --seed {seed} {SWAP} --ranks 4"
    for workers in (2, 8):
        yield f"swap, {workers} workers", f"{NARROW} --threads 1 --seed 1 {SWAP} --ranks {workers}"
    for rate in (0.003, 0.006):
        way = SWAP.replace(" --constant-rate", "").replace("0.001", str(rate))
        yield f"swap, 4 workers, rate {rate} to 0", f"{NARROW} --threads 1 --seed 1 {way} --ranks 4"
    yield "loop", f"{NARROW} --threads 1 --epochs 4"
    for clock, options in CLOCKS.items():
        yield f"layer-wise {clock}", f"{NARROW} --threads 1 --epochs 4 --layer-wise {options}".rstrip()
    for _ in range(3):
        yield "layer-wise 1:2 free", f"{NARROW} --threads 1 --epochs 4 --layer-wise --backwards 2 --free-running"


def time_runs():
    for network, train in (("narrow", f"{NARROW} --batch 128 --limit 12800 --epochs 1"), ("wide", WIDE)):
        for threads in (1, 2):
            yield f"{network}, loop, {threads} threads", f"{train} --threads {threads}"
        for workers in (1, 2):
            yield f"{network}, data-parallel, {workers} workers", f"{train} --threads 1 --data-parallel --ranks {workers}"
        yield f"{network}, data-parallel, 2 processes", f"mpirun -np 2 {train} --threads 1 --data-parallel"
        yield f"{network}, pipeline zb-h1, 2 ranks", f"{train} --threads 2 --pipeline zb-h1 --ranks 2"
        yield f"{network}, layer-wise 1:1", f"{train} --threads 1 --layer-wise"
        yield f"{network}, layer-wise 1:1 free", f"{train} --threads 1 --layer-wise --free-running"
    eight = f"{NARROW} --threads 1 --seed 1 --epochs 8"
    yield "large minibatch, 1 thread", f"{eight} --batch 2048 --rate 0.01"
    yield "large minibatch, 2 workers", f"{eight} --batch 2048 --rate 0.01 --data-parallel --ranks 2"
    yield "small minibatch, 1 thread", f"{eight} --batch 64"
    yield "swap, 2 workers", f"{NARROW} --threads 1 --seed 1 {SWAP} --ranks 2"


def row_of(result, name, others, command):
    w = result.get("workers", {})
    row = {"name": name, "seed": result["seed"], "seconds": f"{result['seconds']:.3f}", "command": command,
           "images_per_second": f"{result['images_per_second']:.0f}", "others": f"{others:.3f}"}  # fmt: skip
    row |= {key: f"{result[key]:.5f}" for key in ("test_accuracy", "test_loss", "train_loss")}
    row |= {key: f"{w[key]:.4f}" for key in ("staleness", "gap", "together_accuracy", "together_seconds", "apart_seconds") if key in w}
    if "waited" in w:
        row["waited_ms"] = f"{1e3 * w['waited']:.4f}"
    row["stalest"] = w.get("stalest")
    row["apart_accuracies"] = " ".join(f"{x:.4f}" for x in w.get("apart_accuracies", []))
    return row


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["accuracy", "times"])
    p.add_argument("--program", default=os.path.join(ROOT, "build", "deeppcr"))
    p.add_argument("--only", default="", help="runs whose name has this in it")
    p.add_argument("--rounds", type=int, default=5, help="of times")
    p.add_argument("--csv", help="default: bench/results/workers_WHAT.csv")
    o = p.parse_args()
    path = o.csv or os.path.join(ROOT, "bench", "results", f"workers_{o.what}.csv")
    wants(o.program)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    environment = surroundings()
    environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                       OMPI_MCA_btl_vader_single_copy_mechanism="none")  # fmt: skip
    common = {"date": datetime.date.today().isoformat(), "machine": machine(),
              "commit": output_of("git", "describe", "--always", "--dirty")}  # fmt: skip
    runs = [x for x in (accuracy_runs() if o.what == "accuracy" else time_runs()) if o.only in x[0]]
    if not runs:
        sys.exit(f"workers.py: no run has '{o.only}' in its name")
    rounds = [[] for _ in runs]
    for _ in range(1 if o.what == "accuracy" else o.rounds):
        for (name, command), done in zip(runs, rounds):
            words = command.split()
            words.insert(words.index("train"), o.program)
            result, others = run(words, environment)
            done.append(row_of(result, name, others, command.replace("train", "deeppcr train", 1)))
            print(f"{name:34} {100 * result['test_accuracy']:6.2f} % {result['seconds']:7.2f} s  others {others:.3f}", flush=True)
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, FIELDS, lineterminator="\n")
        table.writeheader()
        for done in rounds:
            middle = sorted(done, key=lambda row: float(row["seconds"]))[len(done) // 2]
            table.writerow(dict(common, **middle))


if __name__ == "__main__":
    sys.exit(main())
