#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""pipeline.py: how long runs of training pipelines last, beside what the simulator makes of their tasks' times.

Every combination of network, width, schedule and transport (threads of one process, or processes under mpirun) trains
once on Fashion-MNIST; a run's makespan is the median over the epoch's. Each also as one process by the loop, one thread,
for the speed-up. A training during which other programs took more than --others of the processors is done again, up to
--tries times, and the quietest one counts.
"""
import argparse
import csv
import datetime
import json
import os
import resource
import shutil
import subprocess
import sys
import time

from machine import processor, surroundings, wants

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FIELDS = ["date", "commit", "machine", "network", "layers", "width", "batch", "microbatches", "schedule", "ranks", "stages",
          "transport", "runs", "measured_ms", "simulated_ms", "ratio", "busy_ms", "work_ms", "images_per_second",
          "loop_images_per_second", "others", "command"]


def busy_seconds():
    """Seconds that all processors together worked, since boot."""
    with open("/proc/stat") as file:
        ticks = [int(x) for x in file.readline().split()[1:]]
    return (sum(ticks[:8]) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(command, environment):
    """The result, and the share of all processors' time that others took."""
    busy, own, began = busy_seconds(), own_seconds(), time.monotonic()
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    took = time.monotonic() - began
    others = (busy_seconds() - busy) - (own_seconds() - own)
    return json.loads(done.stdout), max(0.0, others / took / os.cpu_count())


def quietest(command, environment, o):
    best = None
    for _ in range(o.tries):
        result, others = run(command, environment)
        if best is None or others < best[1]:
            best = result, others
        if others <= o.others:
            break
    return best


def output_of(*command):
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.strip()


def machine():
    return f"{processor()}, {os.cpu_count()} cores"


def print_table(path):
    """Measured over simulated makespan, in milliseconds and as a ratio; a row a network, width and transport."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    schedules = list(dict.fromkeys(r["schedule"] for r in rows))
    print("| network, width | ranks are | " + " | ".join(schedules) + " | over the loop, images/s |")
    print("|---" * (len(schedules) + 3) + "|")
    for key in dict.fromkeys((r["network"], r["width"], r["transport"]) for r in rows):
        here = {r["schedule"]: r for r in rows if (r["network"], r["width"], r["transport"]) == key}
        cells = [f"{float(here[s]['measured_ms']):.3g} / {float(here[s]['simulated_ms']):.3g} ({float(here[s]['ratio']):.2f})"
                 if s in here else "" for s in schedules]
        best = max(float(r["images_per_second"]) / float(r["loop_images_per_second"]) for r in here.values())
        ranks = "threads" if key[2] == "threads" else "processes"
        print(f"| {key[0]}, {key[1]} | {ranks} | " + " | ".join(cells) + f" | {best:.2f} |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default=os.path.join(ROOT, "build", "deeppcr"))
    p.add_argument("--networks", nargs="+", default=["mlp", "resnet"])
    p.add_argument("--widths", nargs="+", type=int, default=[128, 256, 512])
    p.add_argument("--schedules", nargs="+", default=["gpipe", "1f1b", "zb-h1", "zb-v", "best", "pipedream"])
    p.add_argument("--transports", nargs="+", default=["threads"], choices=["threads", "mpi"])
    p.add_argument("--layers", type=int, default=16)
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--microbatches", type=int, default=8)
    p.add_argument("--limit", type=int, default=5120, help="images of an epoch")
    p.add_argument("--segment", type=int, default=10, help="updates of an asynchronous run")
    p.add_argument("--others", type=float, default=0.02)
    p.add_argument("--tries", type=int, default=5)
    p.add_argument("--csv", default=os.path.join(ROOT, "bench", "results", "pipeline.csv"))
    p.add_argument("--append", action="store_true", help="to the CSV file, instead of beginning it anew")
    p.add_argument("--table", metavar="CSV", nargs="?", const=os.path.join(ROOT, "bench", "results", "pipeline.csv"),
                   help="print the table of such a file (default: that in bench/results) and run nothing")
    o = p.parse_args()
    if o.table:
        print_table(o.table)
        return

    wants(o.program)
    environment = surroundings()
    environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    if "mpi" in o.transports and not shutil.which("mpirun"):
        sys.exit("pipeline.py: no mpirun")
    common = {"date": datetime.date.today().isoformat(), "machine": machine(),
              "commit": output_of("git", "describe", "--always", "--dirty"),
              "command": "bench/pipeline.py " + " ".join(sys.argv[1:])}
    new = not o.append or not os.path.exists(o.csv)
    os.makedirs(os.path.dirname(os.path.abspath(o.csv)), exist_ok=True)
    path = o.csv + ".part" if new else o.csv  # a new file takes its place once all rows are there
    with open(path, "w" if new else "a", newline="") as file:
        table = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if new:
            table.writeheader()
        for network in o.networks:
            for width in o.widths:
                train = [o.program, "train", network, "--layers", o.layers, "--width", width, "--batch", o.batch,
                         "--limit", o.limit, "--epochs", 1, "--test-every", 0, "--method", "sequential", "--backward",
                         "sequential", "--json", "--quiet"]
                train = [str(x) for x in train]
                loop, _ = quietest(train + ["--threads", "1"], environment, o)
                for transport in o.transports:
                    for schedule in o.schedules:
                        pipeline = ["--pipeline", schedule]
                        if schedule not in ("pipedream", "layerpipe"):
                            pipeline += ["--microbatches", str(o.microbatches)]
                        if schedule in ("pipedream", "pipedream-2bw", "layerpipe"):
                            pipeline += ["--segment", str(o.segment)]
                        if transport == "threads":
                            command = train + pipeline + ["--ranks", str(o.ranks), "--threads", str(o.ranks)]
                        else:
                            command = ["mpirun", "-np", str(o.ranks)] + train + pipeline + ["--threads", "1"]
                        result, others = quietest(command, environment, o)
                        x = result["pipeline"]
                        row = dict(common, network=network, layers=o.layers, width=width, batch=o.batch,
                                   microbatches=x["microbatches"], schedule=schedule, ranks=x["ranks"],
                                   stages=x["stages"], transport=transport, runs=x["runs"],
                                   measured_ms=f"{1e3 * x['makespan']:.4f}",
                                   simulated_ms=f"{1e3 * x['simulated_makespan']:.4f}",
                                   ratio=f"{x['makespan'] / x['simulated_makespan']:.3f}", busy_ms=f"{1e3 * x['busy']:.4f}",
                                   work_ms=f"{1e3 * x['simulated_work']:.4f}",
                                   images_per_second=f"{result['images_per_second']:.0f}",
                                   loop_images_per_second=f"{loop['images_per_second']:.0f}", others=f"{others:.3f}")
                        table.writerow(row)
                        file.flush()
                        print(f"{network:7} {width:4} {schedule:13} {transport:7} measured {row['measured_ms']:>10} ms  "
                              f"simulated {row['simulated_ms']:>10} ms  ratio {row['ratio']}  busy/work "
                              f"{x['busy'] / x['simulated_work']:.3f}  {row['images_per_second']:>7} images/s, loop "
                              f"{row['loop_images_per_second']:>7}  others {row['others']}", flush=True)
    os.replace(path, o.csv)


if __name__ == "__main__":
    main()
