#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Pictures of the tables that bench/gpu/run.sh and peers.py leave: layers.csv, nonlinear.csv and peers.csv.

    pictures.py [--results bench/results/gpu] [--out FOLDER] [--all]

  map-NETWORK.png    by what factor the loop is slower than overlap and newton, width by length, of each batch; a heavy
                     line where it is as fast, and in words where a solve was not the method's own (fallback and so on)
  lines-NETWORK.png  time against length of the loop, overlap, newton and peers, of each width and batch

Those of docs/performance/gpu.md; --all: of every network in the tables. Where a table has a row twice, the later one counts; a table that is not there has no pictures. Wants matplotlib.
"""
import argparse
import csv
import math
import os
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  after its backend

HERE = os.path.dirname(os.path.abspath(__file__))
METHODS = ("overlap", "newton")
SHOWN = {"maps": ("mlp", "resnet", "cell"), "lines": ("gru", "lstm", "paragru")}  # on docs/performance/gpu.md
FAILED = ("fallback", "not-converged", "nonfinite")
INK, LIMIT = "#2b2b2b", 6  # colours end at factors of 2^-LIMIT and 2^LIMIT
STYLES = {"the loop": ("#555555", "o-"), "overlap": ("#0072b2", "s-"), "newton": ("#d55e00", "^-"),
          "cudnn": ("#009e73", "D--"), "jax-scan": ("#cc79a7", "v--"), "jax-scan-16": ("#e69f00", "v:")}  # fmt: skip


def read(folder, name):
    """Rows of a table; a column of the network and one of the length have these names in all of them."""
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        print(f"pictures.py: no {path}", file=sys.stderr)
        return []
    other = {"what": "network", "work": "network", "layers": "length"}
    with open(path, newline="") as file:
        rows = [{other.get(key, key): value for key, value in row.items()} for row in csv.DictReader(file)]
    for row in rows:
        row.update({key: int(row[key]) for key in ("width", "length", "batch")}, us=float(row["median_us"]))
    return rows


def by_place(rows, **wanted):
    """(batch, width, length) -> the last row there that has what is wanted."""
    return {(row["batch"], row["width"], row["length"]): row for row in rows
            if all(row[key] == value for key, value in wanted.items())}  # fmt: skip


def power(n):
    return str(n) if n <= 1024 or n & (n - 1) else f"$2^{{{n.bit_length() - 1}}}$"


def factor(x):
    return f"{x:.2f}" if x < 0.995 else f"{x:.1f}" if x < 9.95 else f"{x:.0f}"


def save(figure, folder, name):
    path = os.path.join(folder, name)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    print(path)


def grid(rows, columns, width, height, title, note, share=False):
    size = (width * columns + 1, height * rows + 1)
    figure, axes = plt.subplots(rows, columns, squeeze=False, sharex=share, sharey=share, figsize=size,
                                layout="constrained")  # fmt: skip
    figure.suptitle(f"{title}\n{note}", fontsize=11, color=INK)
    return figure, axes


# ---- maps ----


def draw_map(ax, cells, widths, lengths):
    """cells: (width, length) -> row."""
    faster = {}
    shades = [[math.nan] * len(lengths) for _ in widths]
    for i, width in enumerate(widths):
        for k, length in enumerate(lengths):
            row = cells.get((width, length))
            if not row:
                continue
            times = float(row["times_the_loop"])
            shades[i][k] = max(-LIMIT, min(LIMIT, math.log2(times)))
            faster[i, k] = times >= 1
            words = factor(times) + (f"\n{row['reason']}" if row["reason"] in FAILED else "")
            ink = "white" if abs(shades[i][k]) > 0.5 * LIMIT else INK
            ax.text(k, i, words, ha="center", va="center", fontsize=7 if "\n" in words else 9, color=ink)
    image = ax.imshow(shades, cmap="RdBu", vmin=-LIMIT, vmax=LIMIT, origin="lower", aspect="auto")
    for (i, k), here in faster.items():  # an edge between two cells of which one is faster
        if faster.get((i, k + 1), here) != here:
            ax.plot([k + 0.5, k + 0.5], [i - 0.5, i + 0.5], color="black", lw=2.5, solid_capstyle="round")
        if faster.get((i + 1, k), here) != here:
            ax.plot([k - 0.5, k + 0.5], [i + 0.5, i + 0.5], color="black", lw=2.5, solid_capstyle="round")
    ax.set_xticks(range(len(lengths)), map(power, lengths))
    ax.set_yticks(range(len(widths)), widths)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return image


def draw_maps(folder, network, rows):
    found = {method: by_place(rows, method=method) for method in METHODS}
    methods = [method for method in METHODS if found[method]]
    places = [place for method in methods for place in found[method]]
    batches, widths, lengths = (sorted({place[i] for place in places}) for i in range(3))
    figure, axes = grid(len(methods), len(batches), 0.62 * len(lengths) + 1, 0.42 * len(widths) + 0.5,
                        f"{network}, forward: {rows[0]['device']}, {rows[0]['dtype']}",
                        "by what factor the loop is slower; heavy line: as fast")  # fmt: skip
    for line, method in zip(axes, methods):
        for ax, batch in zip(line, batches):
            cells = {place[1:]: row for place, row in found[method].items() if place[0] == batch}
            image = draw_map(ax, cells, widths, lengths)
            ax.set_title(f"{method}, batch {batch}", fontsize=10, color=INK)
        line[0].set_ylabel("width")
    for ax in axes[-1]:
        ax.set_xlabel("length")
    bar = figure.colorbar(image, ax=axes, ticks=range(-LIMIT, LIMIT + 1, 2), shrink=0.8, aspect=30)
    bar.ax.set_yticklabels([f"1/{2**-n}" if n < 0 else str(2**n) for n in range(-LIMIT, LIMIT + 1, 2)])
    bar.outline.set_visible(False)
    save(figure, folder, f"map-{network}.png")


# ---- lines ----


def draw_lines(folder, network, rows, peers):
    lines = {name: by_place(rows, method=method) for name, method in
             (("the loop", "sequential"), ("overlap", "overlap"), ("newton", "newton"))}  # fmt: skip
    for peer in sorted({row["peer"] for row in peers}):
        lines[peer] = by_place(peers, peer=peer)
    panels = {place[:2] for place in lines["the loop"]}
    batches, widths = (sorted({panel[i] for panel in panels}) for i in range(2))
    figure, axes = grid(len(batches), len(widths), 3, 2.6,
                        f"{network}, forward: {rows[0]['device']}, {rows[0]['dtype']}",
                        "median time; hollow: the solve was not the method's own", share=True)  # fmt: skip
    for line, batch in zip(axes, batches):
        for ax, width in zip(line, widths):
            if (batch, width) not in panels:
                ax.set_axis_off()
                continue
            for name, places in lines.items():
                points = [(place[2], row) for place, row in sorted(places.items()) if place[:2] == (batch, width)]
                if not points:
                    continue
                colour, style = STYLES.get(name, ("#56b4e9", "x:"))
                x, y = [length for length, _ in points], [row["us"] for _, row in points]
                ax.plot(x, y, style, color=colour, label=name, ms=5, lw=1.5)
                hollow = [n for n, (_, row) in enumerate(points) if row.get("reason") in FAILED]
                ax.plot([x[n] for n in hollow], [y[n] for n in hollow], style[0], color=colour, mfc="white", ms=5)
            ax.set_xscale("log", base=2)
            ax.set_yscale("log")
            ax.grid(color="#e0e0e0", lw=0.6)
            ax.set_title(f"width {width}, batch {batch}", fontsize=10, color=INK)
        line[0].set_ylabel("microseconds")
    for ax in axes[-1]:
        ax.set_xlabel("length")
    handles = {label: handle for ax in axes.flat for handle, label in zip(*ax.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False)
    save(figure, folder, f"lines-{network}.png")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", default=os.path.join(HERE, "../results/gpu"), help="the tables' folder")
    parser.add_argument("--out", help="the pictures' folder (default: that of the tables)")
    parser.add_argument("--all", action="store_true", help="of every network in the tables")
    options = parser.parse_args()
    folder = os.path.normpath(options.out or options.results)
    layers, nonlinear, peers = (read(options.results, f"{name}.csv") for name in ("layers", "nonlinear", "peers"))
    plt.rcParams.update({"text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK})
    nonlinear = [row for row in nonlinear if row["pass"] == "forward"]
    forward = [row for row in layers if row["pass"] == "forward"] + nonlinear
    for network in dict.fromkeys(row["network"] for row in forward):
        rows = [row for row in forward if row["network"] == network]
        if any(row["method"] in METHODS for row in rows) and (options.all or network in SHOWN["maps"]):
            draw_maps(folder, network, rows)
    for network in dict.fromkeys(row["network"] for row in nonlinear if row["network"] != "cell"):
        if not options.all and network not in SHOWN["lines"]:
            continue
        draw_lines(folder, network, [row for row in nonlinear if row["network"] == network],
                   [row for row in peers if row["network"] == network and row["pass"] == "forward"])  # fmt: skip


if __name__ == "__main__":
    main()
