#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""table.py FOLDER PAGE: puts the tables made from FOLDER's CSV files (bench/gpu/run.sh's) into the page, between the lines
    <!-- gpu: NAME -->   and   <!-- end -->
whose text in between is replaced. Of a row that was measured more than once the last one counts; a table of which no row
is there stays as it is, is named, and the exit status is 1. Times are medians; a ratio is a peer's time, or the loop's, over ours.
"""
import csv
import pathlib
import re
import sys


def read(folder, name, *key):
    """The rows of a file by the columns of `key`, numbers as numbers; in float32 where the key does not tell."""
    path = folder / f"{name}.csv"
    rows = {}
    for row in csv.DictReader(path.open()) if path.exists() else ():
        for column in ("width", "length", "layers", "batch", "transposed", "steps"):
            if column in row:
                row[column] = int(row[column])
        row["us"] = float(row["median_us"])
        if "dtype" not in key and row.get("dtype", "float32") != "float32":
            continue
        rows[tuple(row[k] for k in key)] = row
    return rows


def time(row):
    """In the unit that fits."""
    if row is None:
        return "–"
    x = row["us"]
    return f"{x:.3g} µs" if x < 999.5 else f"{x / 1e3:.3g} ms" if x < 999500 else f"{x / 1e6:.3g} s"


def times(slow, fast):
    if slow is None or fast is None:
        return "–"
    x = slow["us"] / fast["us"]
    return f"{x:.0f}" if x >= 9.95 else f"{x:.1f}"


def power(n):
    return f"2^{n.bit_length() - 1}" if n >= 1024 and n & (n - 1) == 0 else str(n)


def best(rows):
    """The fastest; what gave up is none of a method's."""
    there = [row for row in rows if row is not None and row.get("reason") != "fallback"]
    return min(there, key=lambda row: row["us"]) if there else None


def table(heads, lines):
    return ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)] + ["| " + " | ".join(line) + " |" for line in lines]


def mlp(folder):
    layers = read(folder, "layers", "network", "width", "layers", "batch", "pass", "method")
    peers = read(folder, "peers", "work", "width", "length", "batch", "pass", "peer")
    lines = []
    for back in ("forward", "backward"):
        for batch in (1, 64):
            for width in (2, 8, 32, 64, 256):
                ours = {m: layers.get(("mlp", width, 1024, batch, back, m)) for m in ("sequential", "overlap", "newton")}
                peer = {p: peers.get(("mlp", width, 1024, batch, back, p)) for p in ("eager", "graph", "jax-scan")}
                fast = best(ours.values())
                if fast is None:
                    continue
                lines.append([back, str(batch), str(width), *(time(ours[m]) for m in ours), *(time(peer[p]) for p in peer),
                              times(peer["eager"], fast), times(peer["graph"], fast)])  # fmt: skip
    return table(["pass", "batch", "width", "loop", "overlap", "newton", "PyTorch eager", "captured", "JAX scan",
                  "best over eager", "best over captured"], lines)  # fmt: skip


def maps(folder, network, batch):
    layers = read(folder, "layers", "network", "width", "layers", "batch", "pass", "method")
    lengths = sorted({k[2] for k in layers if k[0] == network and k[3] == batch and k[1] <= 64})
    lines = []
    for width in (2, 4, 8, 16, 32, 64):
        cells = []
        for length in lengths:
            row = {m: layers.get((network, width, length, batch, "forward", m)) for m in ("sequential", "overlap", "newton")}
            cells.append(" / ".join("(gave up)" if row[m] and row[m]["reason"] == "fallback" else times(row["sequential"], row[m])
                                    for m in ("overlap", "newton")))  # fmt: skip
        lines.append([str(width), *cells])
    return table(["width", *map(power, lengths)], lines)


def training(folder):
    ours = read(folder, "training", "network", "width", "batch")
    peers = read(folder, "peers", "work", "width", "length", "batch", "pass", "peer")
    lines = []
    for (network, width, batch), row in sorted(ours.items(), key=lambda item: (item[0][0], item[0][2], item[0][1])):
        peer = {p: peers.get(("resnet-training", width, 1024, batch, "step", p)) for p in ("eager", "eager-fused", "graph")}
        if network != "resnet":
            peer = dict.fromkeys(peer)
        slow = best([peer["eager"], peer["eager-fused"]])
        lines.append([network, str(width), str(batch), time(row), time(slow), time(peer["graph"]), times(slow, row),
                      times(peer["graph"], row)])  # fmt: skip
    return table(["network", "width", "batch", "a step", "PyTorch eager", "captured", "over eager", "over captured"], lines)


def samplers(folder):
    ours = read(folder, "sampler", "sampler", "steps", "batch", "method")
    peers = read(folder, "peers_sampler", "sampler", "steps", "batch", "peer")
    lines = []
    for sampler, steps, batch in dict.fromkeys(key[:3] for key in ours):
        row = {m: ours.get((sampler, steps, batch, m)) for m in ("sequential", "picard", "parataa")}
        peer = {p: peers.get((sampler, steps, batch, p)) for p in ("eager", "graph")}
        fast = best(row.values())
        lines.append([f"{sampler} {steps}", str(batch), *(time(row[m]) for m in row), time(peer["eager"]), time(peer["graph"]),
                      times(peer["eager"], fast), times(peer["graph"], fast)])  # fmt: skip
    return table(["sampler", "batch", "loop", "picard", "parataa", "PyTorch eager", "captured", "best over eager",
                  "best over captured"], lines)  # fmt: skip


def gates(folder):
    ours = read(folder, "nonlinear", "what", "width", "length", "batch", "pass", "method")
    peers = read(folder, "peers", "work", "width", "length", "batch", "pass", "peer")
    lines = []
    for kind in ("gru", "lstm"):
        for width, length, batch in sorted({key[1:4] for key in ours if key[0] == kind}, key=lambda k: (k[2], k[1], k[0])):
            line = [kind.upper(), str(width), power(length), str(batch)]
            for back in ("forward", "both"):
                row = {m: ours.get((kind, width, length, batch, back, m)) for m in ("sequential", "overlap")}
                peer = peers.get((kind, width, length, batch, back, "cudnn"))
                line += [time(row["sequential"]), time(row["overlap"]), time(peer), times(peer, best(row.values()))]
            lines.append(line)
    heads = ["kind", "hidden", "steps", "batch"] + 2 * ["loop", "overlap", "cuDNN", "over cuDNN"]
    return table(heads[:4] + [f"{h}" for h in heads[4:8]] + [f"{h}, and back" for h in heads[8:]], lines)


def para(folder):
    ours = read(folder, "nonlinear", "what", "width", "length", "batch", "pass", "method")
    lines = []
    for kind in ("paragru", "paralstm", "mingru"):
        for width, length, batch in sorted({key[1:4] for key in ours if key[0] == kind}, key=lambda k: (k[2], k[0], k[1])):
            line = [kind, str(width), power(length), str(batch)]
            for back in ("forward", "both"):
                row = {m: ours.get((kind, width, length, batch, back, m)) for m in ("sequential", "overlap", "newton")}
                line += [time(row["sequential"]), times(row["sequential"], row["overlap"]),
                         times(row["sequential"], row["newton"])]  # fmt: skip
            lines.append(line)
    return table(["kind", "hidden", "steps", "batch", "loop", "overlap over it", "newton over it", "loop, and back",
                  "overlap over it", "newton over it"], lines)  # fmt: skip


def bitstream(folder):
    ours = read(folder, "nonlinear", "what", "width", "length", "batch", "pass", "method")
    peers = read(folder, "peers", "work", "width", "length", "batch", "pass", "peer")
    lines = []
    for length in sorted({key[2] for key in ours if key[0] == "rnn"}):
        for back in ("forward", "backward", "both"):
            row = {m: ours.get(("rnn", 20, length, 16, back, m)) for m in ("sequential", "overlap")}
            peer = peers.get(("rnn", 20, length, 16, back, "cudnn"))
            lines.append([str(length), back, time(row["sequential"]), time(row["overlap"]), time(peer),
                          times(row["sequential"], row["overlap"]), times(peer, best(row.values()))])  # fmt: skip
    return table(["steps", "pass", "loop", "overlap", "cuDNN", "over our loop", "over cuDNN"], lines)


def cells(folder):
    ours = read(folder, "nonlinear", "what", "width", "length", "batch", "pass", "method")
    lines = []
    for width, length, batch in sorted({key[1:4] for key in ours if key[0] == "cell"}, key=lambda k: (k[2], k[0], k[1])):
        row = {m: ours.get(("cell", width, length, batch, "forward", m)) for m in ("sequential", "overlap", "newton")}
        gave_up = row["newton"] and row["newton"]["reason"] == "fallback"
        lines.append([str(width), power(length), str(batch), *(time(row[m]) for m in row),
                      times(row["sequential"], row["overlap"]),
                      times(row["sequential"], row["newton"]) + (" (gave up)" if gave_up else "")])  # fmt: skip
    return table(["width", "steps", "batch", "loop", "overlap", "newton", "overlap over it", "newton over it"], lines)


def bandwidth(folder):
    rows = read(folder, "chains", "structure", "width", "scheme", "dtype", "batch", "transposed")
    lines = []
    for structure, width, scheme, dtype, batch in dict.fromkeys(key[:5] for key in rows if key[4] and key[0] != "copy"):
        both = [rows.get((structure, width, scheme, dtype, batch, t)) for t in (0, 1)]
        if scheme == "chunked":
            lines.append([structure, str(width), dtype, str(batch), *(f"{float(r['gb_per_s']):.0f}" if r else "–" for r in both),
                          *(f"{100 * float(r['of_copy']):.0f} %" if r else "–" for r in both)])  # fmt: skip
    return table(["structure", "width", "numbers", "batch", "GB/s", "transposed", "of a copy", "transposed"], lines)


TABLES = {
    "mlp": mlp,
    "map mlp 1": lambda folder: maps(folder, "mlp", 1),
    "map mlp 64": lambda folder: maps(folder, "mlp", 64),
    "map resnet 1": lambda folder: maps(folder, "resnet", 1),
    "map resnet 64": lambda folder: maps(folder, "resnet", 64),
    "training": training,
    "samplers": samplers,
    "gates": gates,
    "para": para,
    "bitstream": bitstream,
    "cells": cells,
    "bandwidth": bandwidth,
}


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    folder, page = map(pathlib.Path, sys.argv[1:3])
    text = page.read_text()
    missing = []

    def made(match):
        lines = TABLES[match[1]](folder)
        if len(lines) < 3:
            missing.append(match[1])
            return match[0]
        return f"<!-- gpu: {match[1]} -->\n\n" + "\n".join(lines) + "\n\n<!-- end -->"

    page.write_text(re.sub(r"<!-- gpu: ([a-z0-9 ]+) -->\n.*?<!-- end -->", made, text, flags=re.DOTALL))
    if missing:
        sys.exit(f"table.py: {folder} has no rows of: {', '.join(missing)}")


if __name__ == "__main__":
    main()
