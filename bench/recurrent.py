#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Recurrent networks, in turn; a CSV file a table in the folder of results, and the tables of docs/performance/recurrent.md:

    networks   ours by the loop and by auto against PyTorch, JAX and ONNX Runtime                 recurrent.csv
    long       one long sequence, the recurrent part alone: loop, overlap, auto                   recurrent-long.csv
    para       ParaGRU and ParaLSTM, the recurrent part alone: loop, newton, overlap, auto;       recurrent-para.csv
               beside them our GRU's and LSTM's loop and PyTorch's nn.GRU (from its inputs on)
    kept       networks that forget nothing, the recurrent part alone: loop, auto                 recurrent-kept.csv

    bench/recurrent.py [--tables networks long para kept] [--only REGEX] [--threads 1 2] [--rounds 3] [--seconds 0.5] [--build build]
                       [--out bench/results/performance]

--only: points whose "kind width batch threads" it is found in; the others' rows stay as they are. Needs bench_recurrent (cmake
-DDEEPPCR_BENCH=ON) and, for peers, their environment (bench/peers/setup.sh; DEEPPCR_PEERS_VENV). Each round runs every program once,
kept on as many processors as it has threads; times are medians over the rounds, of medians."""
import argparse
import csv
import datetime
import os
import pathlib
import re
import statistics
import subprocess
import sys

from machine import commit, processor, programs, surroundings

here = pathlib.Path(__file__).resolve().parent
NETWORKS = [(kind, width, batch, length) for width, batch, length in ((32, 16, 1024), (128, 16, 1024), (32, 1, 1024), (128, 1, 16384))
            for kind in ("rnn", "gru", "lstm")]
LONG = [("gru", 32, 1, 16384), ("gru", 128, 1, 16384), ("gru", 512, 1, 16384), ("rnn", 2048, 1, 16384), ("rnn", 4096, 1, 16384)]
PARA = [(kind, 256, batch, 2048) for kind in ("paragru", "paralstm") for batch in (1, 8)]
KEPT = [(kind, width, 1, length) for length in (1024, 16384) for kind, width in (("rnn", 32), ("gru", 32), ("gru", 128), ("lstm", 128), ("gru", 512))]
PEERS = ("torch", "jax", "onnx")  # ONNX Runtime has no backward pass: nan
LARGE = 16 << 20  # bytes of weights from which the loop is timed over fewer steps, forward alone


def ours(point, threads, method, *more):
    kind, width, batch, length = point
    return ["--kind", kind, "--hidden", str(width), "--batch", str(batch), "--length", str(length), "--threads", str(threads), "--method", method, *more]


def long_way(point, threads, method):
    kind, width, batch, length = point
    large = 4 * width * width * (3 if kind == "gru" else 1) >= LARGE
    if large and method == "sequential":
        length = length * 512 // width // 8  # each step costs what any does
    way = ours((kind, width, batch, length), threads, method, "--inputs", "0", "--warm-up", "64" if method == "overlap" else "0")
    way += ["--rounds", "2", "--seconds", "0"] if large else []
    way += ["--forward", "1"] if large else ["--backward", {"sequential": "sequential", "overlap": "overlap", "auto": "auto"}[method]]
    return way + ([] if large else ["--check", "1"])


def ways_of(table, point, threads, seconds):
    """name: (program, arguments); ours are run by bench_recurrent."""
    if table == "networks":
        common = ["--inputs", str(point[1]), "--seconds", seconds]
        peer = ["--kind", point[0], "--inputs", str(point[1]), "--hidden", str(point[1]), "--batch", str(point[2]), "--length", str(point[3]),
                "--threads", str(threads), "--seconds", seconds]
        return {"loop": ("", ours(point, threads, "sequential", *common)), "auto": ("", ours(point, threads, "auto", *common)),
                **{p: (f"recurrent_{p}.py", peer) for p in PEERS}}
    if table == "long":
        return {name: ("", ["--seconds", seconds, *long_way(point, threads, method)])
                for name, method in (("loop", "sequential"), ("overlap", "overlap"), ("auto", "auto"))}
    part = ["--inputs", "0", "--seconds", seconds, "--check", "1"]
    if table == "kept":
        return {name: ("", [*ours(point, threads, method, "--backward", method, "--gain", "10"), *part])
                for name, method in (("loop", "sequential"), ("auto", "auto"))}
    same = ("gru" if point[0] == "paragru" else "lstm", *point[1:])
    torch = ["--kind", "gru", "--inputs", str(point[1]), "--hidden", str(point[1]), "--batch", str(point[2]), "--length", str(point[3]),
             "--threads", str(threads), "--seconds", seconds]
    return {"loop": ("", ours(point, threads, "sequential", "--backward", "sequential", *part)),
            "newton": ("", ours(point, threads, "newton", "--scheme", "chunked", "--backward", "chunked", *part)),
            "overlap": ("", ours(point, threads, "overlap", "--backward", "overlap", *part)),
            "auto": ("", ours(point, threads, "auto", *part)),
            "dense": ("", ours(same, threads, "sequential", "--backward", "sequential", *part)),
            "torch": ("recurrent_torch.py", torch)}


def measure(a, table, point, threads, program, python, keep):
    processors = ",".join(str(p) for p in sorted(os.sched_getaffinity(0))[:threads])
    ways = ways_of(table, point, threads, str(a.seconds))
    times, told = {way: [] for way in ways}, {}
    for _ in range(a.rounds):
        for way, (script, arguments) in ways.items():
            command = [str(python), str(here / "peers" / script), *arguments] if script else [str(program), *arguments]
            done = subprocess.run(["taskset", "-c", processors, *command], capture_output=True, text=True, env=keep)
            if done.returncode:
                sys.exit(f"recurrent.py: {' '.join(command)}\n{done.stderr}")
            field = done.stdout.strip().split(",")
            times[way].append((float(field[6]), float(field[7])) if script else (float(field[8]), float(field[10])))
            told[way] = field
    row = dict(zip(("kind", "width", "batch", "length"), point), threads=threads, auto_method=told["auto"][7])
    if table == "kept":
        row |= {"planning_us": told["auto"][15], "planning_again_us": told["auto"][16]}
    elif table != "networks":
        row |= {f"{way}_{what}": told[way][i] for way in ways if not ways[way][0] and way != "dense" for what, i in (("sweeps", 11), ("distance", 12), ("residual", 13))}
    return row | {f"{part}_{way}_ns": f"{statistics.median(t[i] for t in times[way]):.1f}" for i, part in enumerate(("forward", "both")) for way in ways}


def write(path, rows):
    key = lambda r: tuple(str(r[k]) for k in ("kind", "width", "batch", "length", "threads"))  # noqa: E731
    if path.exists():
        with open(path, newline="", encoding="utf-8") as file:
            old = list(csv.DictReader(file))
        new = {key(r): r for r in rows}
        rows = [new.pop(key(r), r) for r in old] + list(new.values())
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, list(rows[-1]), extrasaction="ignore", restval="nan")
        out.writeheader()
        out.writerows(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = {"networks": ("recurrent.csv", NETWORKS), "long": ("recurrent-long.csv", LONG), "para": ("recurrent-para.csv", PARA),
              "kept": ("recurrent-kept.csv", KEPT)}
    parser.add_argument("--tables", nargs="+", choices=tables, default=list(tables))
    parser.add_argument("--only", default="")
    parser.add_argument("--threads", type=int, nargs="+", default=[])
    parser.add_argument("--build", default="build")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--out", default=str(here / "results" / "performance"))
    a = parser.parse_args()
    program, python = programs(a.build, "bench_recurrent")
    pathlib.Path(a.out).mkdir(parents=True, exist_ok=True)
    keep, machine, at = surroundings(), processor(), commit()
    for table in a.tables:
        name, points = tables[table]
        rows = []
        for threads in a.threads or ((1, 2) if table in ("networks", "kept") else (2,)):
            for point in points:
                if not re.search(a.only, f"{point[0]} {point[1]} {point[2]} {threads}"):
                    continue
                rows.append(dict(date=datetime.date.today().isoformat(), commit=at, machine=machine)
                            | measure(a, table, point, threads, program, python, keep))
                print(*list(rows[-1].values())[3:], flush=True)
        if rows:
            write(pathlib.Path(a.out) / name, rows)
    subprocess.run([sys.executable, str(here / "performance_table.py"), a.out], check=True)


main()
