#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""deeppcr bench planner, both modes, part by part, so that a machine is needed for a few minutes at a time only; the parts together as one
run a mode, in a JSON file of results, every case in a CSV file beside it, and the table of that name in docs/performance/planner.md.

    bench/planner.py [--parts 1] [--folder PARTS] [--most N] [--before CMD] [--modes estimate measure] [--threads N] [--build build]
                     [--out bench/results/performance/planner.json]

--before: what each part is run by, such as 'chrt -f 1'. --folder: where parts are kept as they come, so that a run that was stopped goes on
where it was; parts of another commit, number of parts or of threads are left alone. --most: parts to run in this call; the tables are
written once all are there."""
import argparse
import csv
import json
import os
import pathlib
import shlex
import subprocess
import sys

from machine import commit, processor, surroundings, wants

here = pathlib.Path(__file__).resolve().parent


def quantile(values, q):
    values, at = sorted(values), q * (len(values) - 1)
    below = int(at)
    return values[below] + (at - below) * (values[min(below + 1, len(values) - 1)] - values[below])


def together(parts):
    """One run, as the program would tell it of the whole grid."""
    cases = [c for part in parts for c in part["all"]]
    regrets, loops, planning = ([c[k] for c in cases] for k in ("regret", "sequential_regret", "planning_seconds"))
    return {"cases": len(cases), "mode": parts[0]["mode"], "median_regret": quantile(regrets, 0.5), "p95_regret": quantile(regrets, 0.95),
            "max_regret": max(regrets), "always_sequential_median": quantile(loops, 0.5), "always_sequential_max": max(loops),
            "parallel_wins": sum(c["parallel_gain"] >= 1.5 for c in cases), "parallel_loses": sum(c["parallel_gain"] < 1 for c in cases),
            "planning_median_seconds": quantile(planning, 0.5), "planning_max_seconds": max(planning), "planning_seconds": sum(planning),
            "calibration_seconds": max(p["calibration_seconds"] for p in parts), "seconds": sum(p["seconds"] for p in parts),
            "wrong_choices": [c for c in cases if c["regret"] > 0.05]}, cases  # fmt: skip


def part_of(a, mode, k):
    """What the program told of part k, from the folder where it is there."""
    kept = pathlib.Path(a.folder) / f"{mode}-{k}-of-{a.parts}-{a.threads}-{commit()}.json" if a.folder else None
    if kept and kept.exists():
        return json.loads(kept.read_text(encoding="utf-8"))
    if a.most == 0:
        return None
    a.most -= 1
    wants(f"{a.build}/deeppcr")
    command = [f"{a.build}/deeppcr", "bench", "planner", "--mode", mode, "--part", f"{k}/{a.parts}", "--threads", str(a.threads), "--json"]
    done = subprocess.run(shlex.split(a.before) + command, capture_output=True, text=True, env=surroundings(), check=True)
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(done.stdout, encoding="utf-8")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--folder")
    parser.add_argument("--most", type=int, default=-1)
    parser.add_argument("--before", default="")
    parser.add_argument("--modes", nargs="+", choices=("estimate", "measure"), default=["estimate", "measure"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--build", default="build")
    parser.add_argument("--out", default=str(here / "results" / "performance" / "planner.json"))
    a = parser.parse_args()
    if a.most >= 0 and not a.folder:
        parser.error("--most wants a --folder that keeps what was run")
    out = pathlib.Path(a.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    told = {mode: [part_of(a, mode, k) for k in range(1, a.parts + 1)] for mode in a.modes}
    missing = sum(part is None for parts in told.values() for part in parts)
    if missing:
        print(f"{missing} parts are still to be run")
        return
    runs, rows = [], []
    for mode, parts in told.items():
        run, cases = together(parts)
        runs.append(run)
        rows += [{"mode": mode} | c for c in cases]
        print(f"{mode}: {run['cases']} cases, regret median {100 * run['median_regret']:.2f} %, p95 {100 * run['p95_regret']:.2f} %, "
              f"max {100 * run['max_regret']:.1f} %, {run['seconds']:.0f} s")  # fmt: skip
    told = {"machine": processor(), "commit": commit(), "command": f"bench/planner.py --parts {a.parts}", "threads": a.threads, "runs": runs}
    out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    with open(out.with_suffix(".csv"), "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, ["machine", "commit", "threads", *rows[0]])
        table.writeheader()
        table.writerows({k: told[k] for k in ("machine", "commit", "threads")} | r for r in rows)
    subprocess.run([sys.executable, str(here / "performance_table.py"), str(out.parent)], check=True)


main()
