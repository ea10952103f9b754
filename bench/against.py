#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""One chain, ours against PyTorch, JAX and ONNX Runtime in one run, forward and backward: 'deeppcr bench', then every peer
(bench/peers), then again, in rounds. The first round runs every variant of a peer, the others those within 1.5 times its best.

    bench/against.py cell --cell tanh --length 65536 --width 2 --threads 1 2
    bench/against.py chain --structure dense --length 16384 --width 2
    bench/against.py mlp --length 1024 --width 8

Appends to bench/results/against.csv and prints a table. Peers that are not there are left out, and the run says so.
"""
import argparse
import csv
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys

from machine import commit, surroundings, wants

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEPT = 1.5  # a variant slower than this times its library's best one is not run again
COLUMNS = ("date", "commit", "machine", "kind", "form", "direction", "length", "width", "batch", "threads", "library", "version",
           "variant", "seconds", "seconds_min", "seconds_max", "rounds", "times_loop", "times_parallel", "times_auto", "command")  # fmt: skip


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("cell", "chain", "mlp"))
    parser.add_argument("--cell", default="tanh")
    parser.add_argument("--structure", default="dense")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--width", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a peer's variant and round (default 0.5)")
    parser.add_argument("--peers", nargs="*", default=["torch", "jax", "onnx"])
    parser.add_argument("--build", default="build", help="the folder of the program (default build)")
    parser.add_argument("--out", default=str(ROOT / "bench/results/against.csv"))
    return parser.parse_args()


def say(text):
    print(text, file=sys.stderr, flush=True)


def run_json_lines(command, threads):
    """The objects that a program prints, kept on as many processors as it has threads; none where it fails."""
    allowed = sorted(os.sched_getaffinity(0))[:threads]
    environment = surroundings()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT,
                          preexec_fn=lambda: os.sched_setaffinity(0, allowed))  # fmt: skip
    if done.returncode != 0:
        say(f"{' '.join(map(str, command))}: status {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
        return []
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def ours(given, threads):
    form = {"cell": ["--cell", given.cell], "chain": ["--structure", given.structure]}.get(given.kind, [])
    size = ["--length", given.length, "--width", given.width, "--batch", given.batch, "--threads", threads]
    command = [pathlib.Path(given.build).resolve() / "deeppcr", "bench", given.kind, *form, *size, "--json"]
    told = run_json_lines(list(map(str, command)), threads)
    if not told:
        sys.exit(1)
    entries = []
    for direction in ("forward", "backward"):
        d = told[0][direction]
        kinds = (("loop", "sequential", d["sequential_seconds"]), ("parallel", d["parallel_method"], d["parallel_seconds"]),
                 ("auto", d["auto_method"], d["auto_seconds"]))  # fmt: skip
        entries += [{"library": "deeppcr", "version": "", "variant": kind if kind == "loop" else f"{kind}: {name}",
                     "role": kind, "direction": direction, "seconds": seconds} for kind, name, seconds in kinds]  # fmt: skip
    return entries, told[0]["machine"]


def peers(given, peer, threads, variants):
    python = pathlib.Path(os.environ.get("DEEPPCR_PEERS_VENV", ROOT / "bench/peers/.venv")) / "bin/python"
    script = ROOT / "bench/peers" / f"cell_{peer}.py"
    if not script.exists() or not python.exists():
        say(f"no {peer}: {'no ' + script.name if python.exists() else 'bench/peers/setup.sh makes the environment'}")
        return []
    form = ["--cell", {"chain": "linear", "mlp": "mlp"}.get(given.kind, given.cell), "--structure", given.structure]
    size = ["--length", given.length, "--width", given.width, "--batch", given.batch, "--threads", threads,
            "--seconds", given.seconds]  # fmt: skip
    command = [python, script, *form, *size, "--json"]
    if variants:
        command += ["--variants", ",".join(sorted(variants))]
    return run_json_lines(list(map(str, command)), threads)


def worth_running(entries):
    """By the least times, in each direction."""
    kept = set()
    for direction in ("forward", "backward"):
        ran = [e for e in entries if e["direction"] == direction and "skipped" not in e]
        best = min((e["seconds_min"] for e in ran), default=0)
        kept |= {e["variant"] for e in ran if e["seconds_min"] <= KEPT * best}
    return kept


def measure(given, threads):
    """(library, version, variant, direction) -> seconds by round; what each of ours is, by direction; the machine."""
    times, roles, kept, machine = {}, {}, {}, ""
    for round in range(given.rounds):
        say(f"{given.kind} {given.length} x {given.width}, threads {threads}, round {round + 1} of {given.rounds}")
        entries, machine = ours(given, threads)
        for peer in given.peers:
            if round and not kept[peer]:
                continue
            found = peers(given, peer, threads, kept.get(peer))
            if round == 0:
                kept[peer] = worth_running(found)
            entries += found
        for e in entries:
            if "skipped" in e:
                say(f"skipped: {e['library']} {e['variant']}: {e['skipped']}")
            elif e["seconds"]:
                role = e.get("role")
                key = (e["library"], e["version"], role or e["variant"], e["direction"])
                times.setdefault(key, {})[round] = e["seconds"]
                if role:
                    roles[role, e["direction"]] = e["variant"]
    return times, roles, machine


def rows_of(given, threads, command):
    at = commit()
    times, roles, machine = measure(given, threads)
    form = {"cell": f"{given.cell} {given.structure}", "chain": given.structure}.get(given.kind, "")
    rows = []
    for (library, version, variant, direction), by_round in times.items():
        row = {"date": datetime.date.today().isoformat(), "commit": at, "machine": machine, "kind": given.kind, "form": form,
               "direction": direction, "length": given.length, "width": given.width, "batch": given.batch, "threads": threads,
               "library": library, "version": version,
               "variant": roles[variant, direction] if library == "deeppcr" else variant,
               "seconds": statistics.median(by_round.values()), "seconds_min": min(by_round.values()),
               "seconds_max": max(by_round.values()), "rounds": len(by_round), "command": command}  # fmt: skip
        for role in ("loop", "parallel", "auto"):
            mine = times.get(("deeppcr", "", role, direction), {})
            ratios = [by_round[r] / mine[r] for r in by_round if r in mine]
            row[f"times_{role}"] = statistics.median(ratios) if ratios else ""
        rows.append(row)
    return rows


def rounded(row):
    return {key: float(f"{value:.5g}") if isinstance(value, float) else value for key, value in row.items()}


def append(path, rows):
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists() or path.stat().st_size == 0
    with open(path, "a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(map(rounded, rows))


def print_table(rows):
    for direction in ("forward", "backward"):
        here = sorted((r for r in rows if r["direction"] == direction), key=lambda r: r["seconds"])
        first = here[0]
        print(f"\n{first['kind']} {first['form']}, length {first['length']}, width {first['width']}, batch {first['batch']}, "
              f"{first['threads']} thread{'s' * (first['threads'] != 1)}, {direction}:")  # fmt: skip
        for r in here:
            ratios = "  ".join(f"{r[f'times_{role}']:8.2f}" if r[f"times_{role}"] != "" else " " * 8 for role in ("loop", "parallel", "auto"))
            print(f"  {r['library']:12} {r['variant']:36} {1e6 * r['seconds']:12.1f} us   times our loop, parallel, auto: {ratios}")


def main():
    given = arguments()
    wants(pathlib.Path(given.build).resolve() / "deeppcr")
    command = "bench/against.py " + " ".join(sys.argv[1:])
    for threads in given.threads:
        rows = rows_of(given, threads, command)
        append(given.out, rows)
        print_table(rows)
    print(f"appended to {given.out}")


main()
