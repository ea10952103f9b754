#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What train_step.sh measured: JSON lines, one a variant, thread count and round.

    train_step_table.py keep RAW LIBRARY THREADS        the variants worth running again, separated by commas
    train_step_table.py table RAW CSV COMMIT COMMAND    appends to the CSV file, prints the table

In the CSV file milliseconds_median, _min and _max are those of the rounds' medians.
"""
import csv
import datetime
import json
import os
import pathlib
import statistics
import sys

from machine import processor

KEPT = 1.5  # a variant slower than this times the best one is not run again
BUSY = 0.9  # processors' time by wall time below which another program was in the way
COLUMNS = ("date", "commit", "machine", "library", "version", "variant", "threads", "layers", "width", "batch",
           "milliseconds_median", "milliseconds_min", "milliseconds_max", "rounds", "command")  # fmt: skip


def read(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def keep(entries, library, threads):
    """By the least times, which a disturbance hardly touches; hand-written backward passes do not drive out autodiff."""
    ran = [e for e in entries if e["library"] == library and e["threads"] == threads and "skipped" not in e]
    if not ran:
        sys.exit(f"train_step_table: no variant of {library} ran")
    best = {}
    for e in ran:
        best[e["autodiff"]] = min(best.get(e["autodiff"], e["milliseconds_min"]), e["milliseconds_min"])
    print(",".join(e["variant"] for e in ran if e["milliseconds_min"] <= KEPT * best[e["autodiff"]]))


def machine():
    return f"{processor()}, {len(os.sched_getaffinity(0))} cores"


def summary(entries, commit, command):
    """One row a library, variant and thread count, with two keys that the CSV file leaves out."""
    groups = {}
    for e in entries:
        if "skipped" not in e:
            groups.setdefault((e["library"], e["variant"], e["threads"]), []).append(e)
    common = {"date": datetime.date.today().isoformat(), "commit": commit, "machine": machine(), "command": command}
    rows = []
    for (library, variant, threads), group in groups.items():
        medians = [e["milliseconds_median"] for e in group]
        rows.append({
            **common, "library": library, "version": group[0].get("version", commit), "variant": variant,
            "threads": threads, "layers": group[0]["layers"], "width": group[0]["width"], "batch": group[0]["batch"],
            "milliseconds_median": round(statistics.median(medians), 4), "milliseconds_min": round(min(medians), 4),
            "milliseconds_max": round(max(medians), 4), "rounds": len(group),
            "autodiff": group[0].get("autodiff"), "by_round": {e["round"]: e["milliseconds_median"] for e in group},
        })  # fmt: skip
    return rows


def append(path, rows):
    path = pathlib.Path(path)
    new = not path.exists() or path.stat().st_size == 0
    with open(path, "a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


def ratios(row, ours):
    """Its time by ours, round by round."""
    return [ms / ours["by_round"][r] for r, ms in row["by_round"].items() if r in ours["by_round"]]


def line(row, ours, text=""):
    each = ratios(row, ours)
    print(f"  {row['library']:8} {row['variant']:42} {row['milliseconds_median']:9.2f} ms  "
          f"({row['milliseconds_min']:.2f} to {row['milliseconds_max']:.2f}, rounds {row['rounds']})  "
          f"{statistics.median(each):6.2f} times ours ({min(each):.2f} to {max(each):.2f}){text}")  # fmt: skip


def print_table(rows):
    for threads in sorted({row["threads"] for row in rows}):
        here = sorted((r for r in rows if r["threads"] == threads), key=lambda r: r["milliseconds_median"])
        ours = next(r for r in here if r["library"] == "deeppcr")
        size = f"{ours['layers']} layers, width {ours['width']}, batch {ours['batch']}"
        print(f"\n{threads} thread{'s' * (threads != 1)}, {size}, {ours['machine']}:")
        for row in here:
            line(row, ours)


def best_rows(rows, library, threads):
    """What the best row is best of, and the row: at this thread count, by autodiff alone, and at fewer threads if faster."""
    allowed = [r for r in rows if r["library"] == library and r["threads"] <= threads]
    same = [r for r in allowed if r["threads"] == threads]
    autodiff = [r for r in same if r["autodiff"]]
    best = [(text, min(found, key=lambda r: r["milliseconds_median"]))
            for text, found in (("", same), (", by autodiff", autodiff), (", at fewer", allowed)) if found]  # fmt: skip
    seen = []
    for text, row in best:
        if all(row is not other for _, other in seen):
            seen.append((text, row))
    return seen


def print_best(rows):
    print("\nbest variant of each peer, and ours at the thread count given:")
    for ours in (r for r in rows if r["library"] == "deeppcr"):
        for library in dict.fromkeys(r["library"] for r in rows if r["library"] != "deeppcr"):
            for text, row in best_rows(rows, library, ours["threads"]):
                line(row, ours, f", threads {ours['threads']}{text}")


def print_remarks(entries):
    for e in entries:
        if "skipped" in e:
            print(f"skipped: {e['library']} {e['variant']}, {e['threads']} threads: {e['skipped']}")
    busy = [e for e in entries if e.get("processors", 1) < BUSY]
    if busy:
        print(f"{len(busy)} of {len(entries)} measurements had less than {BUSY} processors: other programs ran beside them")


def main(arguments):
    if len(arguments) == 4 and arguments[0] == "keep":
        keep(read(arguments[1]), arguments[2], int(arguments[3]))
    elif len(arguments) == 5 and arguments[0] == "table":
        entries = read(arguments[1])
        rows = summary(entries, arguments[3], arguments[4])
        append(arguments[2], rows)
        print_table(rows)
        print_best(rows)
        print_remarks(entries)
        print(f"appended to {arguments[2]}")
    else:
        sys.exit(__doc__)


main(sys.argv[1:])
