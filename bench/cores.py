#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Linear chains on more cores than there are: what 'deeppcr plan linear --cores N' says of every scheme, and what one and two threads of
this machine take where they are what is asked about. A CSV file, and the table of that name in docs/performance/linear.md.

    bench/cores.py [--build build] [--out bench/results/performance/linear-cores.csv] [--seconds 0.3] [--length 16384]
                   [--cores 1 2 8 64 1024] [--chains dense:1 dense:2 ...]"""
import argparse
import csv
import json
import pathlib
import shlex
import subprocess
import sys

from machine import commit, processor, surroundings, wants

here = pathlib.Path(__file__).resolve().parent
MEASURED = (1, 2)  # threads of this machine


def told(command):
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings(), check=True)
    return json.loads(done.stdout)


def measured(a, chain, threads):
    """Seconds of each scheme, its fastest variant, and of the loop."""
    t = told([f"{a.build}/deeppcr", "bench", "chain", *chain, "--threads", str(threads), "--seconds", str(a.seconds), "--json"])
    found = {}
    for c in t["forward"]["candidates"]:
        if c.get("seconds"):
            found[c["name"]] = min(found.get(c["name"], c["seconds"]), c["seconds"])
    return found


def rows_of(a, name):
    structure, width = name.split(":")
    chain = ["--structure", structure, "--length", str(a.length), "--width", width]
    timed = {n: measured(a, chain, n) for n in MEASURED if n in a.cores}
    for cores in a.cores:
        p = told([f"{a.build}/deeppcr", "plan", "linear", *chain, "--batch", "1", "--cores", str(cores), "--json"])
        best = {}
        for c in p["candidates"]:  # the best first
            best.setdefault(c["scheme"], c)
        for scheme, c in best.items():
            yield {"structure": structure, "width": width, "length": a.length, "cores": cores, "scheme": scheme, "chunk": c["chunk"],
                   "predicted_seconds": c["seconds"], "measured_seconds": timed.get(cores, {}).get(scheme, "")}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--out", default="bench/results/performance/linear-cores.csv")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2, 8, 64, 1024])
    parser.add_argument("--chains", nargs="+", default=["dense:1", "dense:2", "dense:4", "dense:8", "dense:16", "diagonal:4", "diagonal:64"])
    a = parser.parse_args()
    wants(f"{a.build}/deeppcr")
    common = {"machine": processor(), "isa": told([f"{a.build}/deeppcr", "info", "--json"])["isa"], "commit": commit(),
              "command": shlex.join([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]])}  # fmt: skip
    rows = [{**common, **row} for name in a.chains for row in rows_of(a, name)]
    out = pathlib.Path(a.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(out, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    subprocess.run([sys.executable, here / "performance_table.py", str(out.parent)], check=True)


main()
