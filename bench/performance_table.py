#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""performance_table.py FOLDER [PAGE...]: puts tables made from FOLDER's CSV files into the pages (docs/performance.md and those of
docs/performance/ where none is named), between the lines
    <!-- table: NAME columns... -->   and   <!-- end -->
whose text in between is replaced. A table whose file is not there stays as it is. In a cell "a / b" is forward / backward.
"""
import csv
import json
import math
import pathlib
import re
import sys

DIRECTIONS = ("forward", "backward")


def number(text):
    return float(text) if text else math.nan


def factor(x):
    return "–" if math.isnan(x) else f"{x:.0f}" if x >= 99.5 else f"{x:.1f}" if x >= 9.95 else f"{x:.2f}"


def seconds(x):
    for unit, scale in (("ns", 1e9), ("µs", 1e6), ("ms", 1e3)):
        if x * scale < 999.5:
            return f"{x * scale:.3g} {unit}"
    return f"{x:.3g} s"


def power(text):
    """65536 as 2^16 where that is shorter."""
    n = int(text)
    return f"2^{n.bit_length() - 1}" if n >= 4096 and n & (n - 1) == 0 else text


def pair(values):
    return " / ".join(values)


def joined(names):
    return names[0] if len(set(names)) == 1 else pair(names)


# ---- columns: a heading and what stands in it, given a point's rows, forward and backward ----


def loop(rows):
    return pair([f"{1e9 * number(r['sequential_seconds']) / max(1, int(r['length'])):.2f}" for r in rows])


def method(name):
    return lambda rows: pair([factor(number(r["sequential_seconds"]) / number(r[name + "_seconds"])) for r in rows])


def best(rows):
    return f"**{pair([factor(number(r['ratio'])) for r in rows])}** {joined([told(r) for r in rows])}"


def told(row):
    return row["parallel_method"] + (" (gave up)" if row["reason"] == "fallback" else "")


def auto(rows):
    return f"{pair([factor(number(r['auto_ratio'])) for r in rows])} {joined([r['auto_method'] for r in rows])}"


def error(rows):
    return pair([f"{number(r['max_error']):.0e}" if number(r["max_error"]) else "0" for r in rows])


def sweeps(rows):
    return pair([r["sweeps"] or "–" for r in rows])


def spread(rows):
    return f"{100 * max(number(r['spread']) for r in rows):.0f} %"


def bandwidth(field):
    """Bytes that the work cannot help moving, by time, as a part of the triad's."""
    return lambda rows: pair([f"{100 * number(r['bytes']) / number(r[field]) / number(r['triad_bytes_per_second']):.0f} %" for r in rows])


COLUMNS = {
    "width": ("w", lambda rows: rows[0]["width"]),
    "length": ("length", lambda rows: power(rows[0]["length"])),
    "batch": ("batch", lambda rows: rows[0]["batch"]),
    "threads": ("threads", lambda rows: rows[0]["threads"]),
    "loop": ("loop, ns a step", loop),
    "best": ("best parallel, times the loop", best),
    "auto": ("auto, times the loop", auto),
    "error": ("largest error", error),
    "sweeps": ("sweeps", sweeps),
    "spread": ("spread", spread),
    "loop-bandwidth": ("loop, of the triad", bandwidth("sequential_seconds")),
    "best-bandwidth": ("best parallel, of the triad", bandwidth("parallel_seconds")),
    **{name: (name, method(name)) for name in ("overlap", "newton", "shooting", "chunked", "pcr", "blelloch")},
}


def points(path):
    """Rows of a CSV file of 'deeppcr bench', two by two, by width, length and threads."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = [rows[i : i + 2] for i in range(0, len(rows), 2)]
    for both in found:
        assert tuple(r["direction"] for r in both) == DIRECTIONS, (path, both)
    return sorted(found, key=lambda both: [int(both[0][k]) for k in ("width", "length", "batch", "threads")])


def markdown(head, body):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in body]


def source(rows):
    """Machine, level and commits of a table's rows."""
    commits = list(dict.fromkeys(r["commit"] for r in rows))
    names = [rows[0]["machine"], *([rows[0]["isa"]] if rows[0].get("isa") else []), f"commit{'s' * (len(commits) > 1)} {', '.join(commits)}"]
    return ", ".join(names)


def bench_table(path, columns):
    found = points(path)
    body = [[COLUMNS[c][1](both) for c in columns] for both in found]
    first = found[0][0]
    limits = []
    for threads in sorted({both[0]["threads"] for both in found}):
        row = next(b[0] for b in found if b[0]["threads"] == threads)
        if row["triad_bytes_per_second"]:
            limits.append(f"triad {number(row['triad_bytes_per_second']) / 1e9:.0f} GB/s with {threads} thread{'s' * (threads != '1')}")
    if first["fma_latency_seconds"]:
        limits.append(f"a dependent fma {1e9 * number(first['fma_latency_seconds']):.2f} ns")
    passing = [1e9 * number(b[0]["line_seconds"]) for b in found if b[0].get("line_seconds")]
    if passing:
        limits.append(f"a line from thread to thread {min(passing):.0f} ns")
    return markdown([COLUMNS[c][0] for c in columns], body) + ["", f"{source([b[0] for b in found])}; {', '.join(limits)}."]


# name of a map, what it is of
MAPS = (("cell-tanh", "tanh(W z + x), one W"), ("mlp", "MLP, ReLU, every layer its W"), ("mlp-batch16", "the same, batch 16"),
        ("resnet", "z + tanh(W z + b) / sqrt(L), every layer its W"), ("resnet-batch16", "the same, batch 16"),
        ("chain-dense", "linear, every step its dense A"), ("chain-diagonal", "linear, every step its diagonal A"))  # fmt: skip
AHEAD = 1.1  # times the loop, from which a method counts as ahead


def pays_table(folder):
    """From which length on the best parallel method is ahead of the loop, and by how much there and at the greatest length."""
    widths, body, runs = [1, 2, 4, 8, 16, 32, 64], [], []
    for name, what in MAPS:
        with open(folder / f"{name}.csv", encoding="utf-8", newline="") as file:
            rows = sorted(csv.DictReader(file), key=lambda r: int(r["length"]))
        runs += rows
        for direction in DIRECTIONS:
            cells = []
            for width in widths:
                ran = [r for r in rows if r["direction"] == direction and int(r["width"]) == width]
                behind = [i for i, r in enumerate(ran) if number(r["ratio"]) < AHEAD]
                ahead = ran[behind[-1] + 1 :] if behind else ran
                gains = [factor(number(r["ratio"])) for r in (*ahead[:1], *ahead[1:][-1:])]
                cells.append(f"{power(ahead[0]['length'])}: {' to '.join(gains)} {ahead[-1]['parallel_method']}" if ahead else "–" if ran else "")
            body.append([f"{what} (to {power(rows[-1]['length'])})" if direction == "forward" else "", direction, *cells])
    head = ["chain (longest measured)", "", *(f"w = {w}" for w in widths)]
    return markdown(head, body) + ["", f"{source(runs)}, {runs[0]['threads']} threads."]


# what, its table, its length
CORES = (("tanh(W z + x), one W", "cell-tanh", 65536), ("tanh(W z + b), every layer its W", "own-weights", 65536),
         ("z + tanh(W z + b) / sqrt(L), every layer its W", "residual", 1024), ("the same", "residual", 65536),
         ("linear, every step its dense A", "linear-dense", 65536), ("the same without AVX-512", "linear-dense-avx2", 65536))  # fmt: skip


def cores_table(folder):
    """The best parallel method by one thread and by two: rows of other tables."""
    widths, body = [1, 2, 4, 8], []
    for what, name, length in CORES:
        found = [p for p in points(folder / f"{name}.csv") if int(p[0]["length"]) == length]
        for threads in ("1", "2"):
            cells = [next((best(p) for p in found if int(p[0]["width"]) == w and p[0]["threads"] == threads), "") for w in widths]
            body.append([f"{what}, {power(str(length))} steps" if threads == "1" else "", threads, *cells])
    return markdown(["chain", "threads", *(f"w = {w}" for w in widths)], body)


def schemes_table(path):
    told = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    body = []
    for p in told["points"]:
        for c in p["forward"]["candidates"]:
            if c["name"] == "auto" or "skipped" in c:
                continue
            body.append([power(str(p["length"])), c["name"], str(c["depth"]), f"{c['flops'] / p['length']:.1f}", seconds(c["seconds"]),
                         factor(c["ratio"])])  # fmt: skip
    head = ["length", "scheme", "dependent steps", "flops a step", "time", "times the loop"]
    return markdown(head, body) + ["", f"{source([told])}, width 2, {told['threads']} thread."]


def more_cores_table(path):
    """How many times the loop the best scheme is told to be, on cores that there are not too, and was where they were measured."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    cores = sorted({int(r["cores"]) for r in rows})
    body = []
    for chain in dict.fromkeys((r["structure"], r["width"]) for r in rows):
        for best_of, what in ((lambda r: r["scheme"] != "sequential", ""), (lambda r: r["scheme"] == "pcr", "pcr alone")):
            cells = []
            for n in cores:
                at = {r["scheme"]: r for r in rows if (r["structure"], r["width"]) == chain and int(r["cores"]) == n}
                ways = [r for r in at.values() if best_of(r)]
                if not ways:
                    cells.append("")
                    continue
                least = min(ways, key=lambda r: number(r["predicted_seconds"]))
                times = [number(at["sequential"][k]) / number(least[k]) for k in ("predicted_seconds", "measured_seconds")]
                measured = f" ({factor(times[1])})" if least["measured_seconds"] else ""
                cells.append(f"{factor(times[0])}{measured}{'' if what else ' ' + least['scheme']}")
            body.append([what or f"{chain[0]}, w = {chain[1]}", *cells])
    return markdown(["chain", *(f"{n} core{'s' * (n > 1)}" for n in cores)], body) + ["", f"{source(rows)}, {power(rows[0]['length'])} steps, float, batch 1."]


def planner_table(path):
    """How much slower than the best way what auto chose was, over the cases of 'deeppcr bench planner'."""
    told = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    percent = lambda x: f"{100 * x:.1f} %"
    fields = ("median_regret", "p95_regret", "max_regret")
    body = [[r["mode"], str(r["cases"]), *(percent(r[f]) for f in fields), str(len(r["wrong_choices"])),
             f"{seconds(r['planning_median_seconds'])} / {seconds(r['planning_max_seconds'])}"] for r in told["runs"]]  # fmt: skip
    r = told["runs"][0]
    body.append(["the loop always", str(r["cases"]), percent(r["always_sequential_median"]), "", percent(r["always_sequential_max"]), "", ""])
    head = ["mode", "cases", "median", "95th percentile", "largest", "wrong by more than 5 %", "planning, median / largest"]
    return markdown(head, body) + [
        "", f"{source([told])}; a parallel method wins by 1.5x in {r['parallel_wins']} cases and loses in {r['parallel_loses']}."]  # fmt: skip


def against_table(path):
    """The loop, the best parallel method and auto, and each peer's fastest variant by how many times auto it takes."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    groups = {}
    for r in rows:
        groups.setdefault((r["form"], int(r["width"]), int(r["length"]), int(r["batch"]), int(r["threads"]), r["direction"]), []).append(r)
    peers = list(dict.fromkeys(r["library"] for r in rows if r["library"] != "deeppcr"))
    body = []
    for (_, width, length, batch, threads, direction), group in sorted(groups.items(), key=lambda g: (g[0][:5], g[0][5] != "forward")):
        mine = {r["variant"].split(":")[0]: r for r in group if r["library"] == "deeppcr"}
        cells = [str(width), power(str(length)), str(batch), str(threads), direction, seconds(number(mine["loop"]["seconds"]))]
        cells += [f"{seconds(number(mine[k]['seconds']))} {mine[k]['variant'].split(': ')[1]}" if k in mine else "–" for k in ("parallel", "auto")]
        for peer in peers:
            ran = [r for r in group if r["library"] == peer]
            fast = min(ran, key=lambda r: number(r["seconds"]), default=None)
            times = "times_parallel" if fast and fast["times_parallel"] else "times_auto"
            cells.append(f"{seconds(number(fast['seconds']))}: **{factor(number(fast[times]))}**, {factor(number(fast['times_auto']))}" if fast else "–")  # fmt: skip
        body.append(cells)
    head = ["w", "length", "batch", "threads", "", "our loop", "best parallel", "auto"]
    head += [f"{peer}: times our best parallel, auto" for peer in peers]
    versions = ", ".join(dict.fromkeys(f"{r['library']} {r['version']}" for r in rows if r["version"]))
    return markdown(head, body) + ["", f"{source(rows)}; {versions}, each in its fastest variant."]


def recurrent_table(path):
    """Networks of bench/recurrent.py: our loop, auto and the peers, forward / forward and backward."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    peers = {name: key for name, key in (("PyTorch", "torch"), ("JAX", "jax"), ("ONNX Runtime", "onnx")) if f"forward_{key}_ns" in rows[0]}
    body = []
    for r in rows:
        times = lambda way: [1e-9 * number(r[f"{part}_{way}_ns"]) for part in ("forward", "both")]  # noqa: B023
        told = lambda values, write: pair([write(v) for v in values if v == v])  # not a number: it was not measured
        cells = [r["kind"], r["width"], r["batch"], power(r["length"]), r["threads"], told(times("loop"), seconds)]
        cells.append(f"{told(times('auto'), seconds)} {r['auto_method']}")
        for key in peers.values():
            by = [told([p / o for p, o in zip(times(key), times(way))], factor) for way in ("loop", "auto")]
            cells.append(f"{told(times(key), seconds)}: {by[0]}, **{by[1]}**")
        body.append(cells)
    head = ["network", "inputs, hidden", "batch", "steps", "threads", "our loop, a step", "auto", *(f"{name}: times our loop, auto" for name in peers)]
    return markdown(head, body) + ["", f"{source(rows)}."]


def diffusion_table(path):
    """Denoising steps of bench/diffusion.py: the loop, picard, the peers."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    body = []
    for r in rows:
        loop, weights = number(r["loop_ns"]), (int(r["depth"]) - 1) * int(r["hidden"]) ** 2 + 2 * int(r["width"]) * int(r["hidden"])
        cells = [r[k] for k in ("width", "hidden", "depth", "batch", "threads")] + [seconds(1e-9 * loop), f"{4e-9 * weights / (1e-9 * loop):.0f}" if loop else "–"]
        cells.append(f"{100 * number(r['read_ns']) / loop:.0f} %" if r.get("read_ns") else "–")
        cells.append(f"{seconds(1e-9 * number(r['picard_ns']))} ({factor(loop / number(r['picard_ns']))}), {r['picard_sweeps']} sweeps")
        cells.append(f"{factor(loop / number(r['parareal_ns']))}, {r['parareal_sweeps']} sweeps" if r.get("parareal_ns") else "–")
        cells.append(f"{factor(loop / number(r['auto_ns']))} {r['auto_method']}")
        for peer in ("torch", "jax"):
            ns = number(r[f"{peer}_ns"])
            cells.append(f"{seconds(1e-9 * ns)} {r[f'{peer}_variant']}: **{factor(ns / loop)}**" if ns == ns else "–")
        body.append(cells)
    head = ["state", "hidden", "depth", "batch", "threads", "our loop, a step", "weights, GB/s", "of a loop that only reads them", "picard (times the loop)", "parareal, times the loop", "auto, times the loop", "PyTorch: times our loop", "JAX: times our loop"]
    return markdown(head, body) + ["", f"{source(rows)}."]


def windows_table(path):
    """Picard by window, of bench/diffusion.py --windows: a step, and times our loop, PyTorch, JAX."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    windows = [int(name.split("_")[1]) for name in rows[0] if re.fullmatch(r"window_\d+_ns", name)]
    body = []
    for r in rows:
        others = [number(r[f"{way}_ns"]) for way in ("loop", "torch", "jax")]
        cells = [r[k] for k in ("hidden", "batch", "threads")] + [seconds(1e-9 * ns) for ns in others]
        for ns in [number(r[f"window_{w}_ns"]) for w in windows] + [number(r["picard_ns"])]:
            cells.append(f"{seconds(1e-9 * ns)}: {' / '.join(factor(other / ns) for other in others)}")
        body.append(cells)
    head = ["hidden", "samples", "threads", "our loop, a step", "PyTorch", "JAX", *(f"window {w}" for w in windows), f"all {rows[0]['steps']}"]
    return markdown(head, body) + ["", f"{source(rows)}."]


def recurrent_part_table(path, ways, others):
    """The recurrent part alone: ways of ours against the loop, others' times against auto's; forward / forward and backward."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    body = []
    for r in rows:
        times = lambda way: [1e-9 * number(r[f"{part}_{way}_ns"]) for part in ("forward", "both")]  # noqa: B023
        told = lambda values, write: pair([write(v) for v in values if v == v and v > 0])  # noqa: E731
        ratio = lambda way, to: told([p / o if o > 0 else 0 for p, o in zip(times(to), times(way))], factor)  # noqa: B023,E731
        cells = [r["kind"], r["width"], r["batch"], power(r["length"]), r["threads"], told(times("loop"), seconds)]
        cells += [f"{told(times(way), seconds)}: **{ratio(way, 'loop')}**" for way in ways]
        cells.append(f"{told(times('auto'), seconds)} {r['auto_method']}: **{ratio('auto', 'loop')}**")
        best = min(ways, key=lambda way: times(way)[0])  # noqa: B023
        cells += [f"{told(times(way), seconds)}: {ratio('auto', way)}" for way in others]
        body.append([*cells, f"{r[f'{best}_residual']} / {r[f'{best}_distance']}"])
    head = ["network", "hidden", "batch", "steps", "threads", "loop, a step", *(f"{way}: times the loop" for way in ways), "auto: times the loop",
            *(f"{name}: times auto" for name in others.values()), f"{'best parallel: ' if len(ways) > 1 else ''}defect / distance from the loop"]
    return markdown(head, body) + ["", f"{source(rows)}."]


def kept_table(path):
    """Networks that forget nothing: loop and auto, forward / forward and backward, and what auto's plan took."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    body = []
    for r in rows:
        loop, auto = ([1e-9 * number(r[f"{part}_{way}_ns"]) for part in ("forward", "both")] for way in ("loop", "auto"))
        plan, again = (1e-6 * number(r[f"planning_{which}us"]) for which in ("", "again_"))
        body.append([r["kind"], r["width"], power(r["length"]), r["threads"], pair([seconds(v) for v in loop]), r["auto_method"],
                     pair([factor(p / a) for p, a in zip(loop, auto)]), seconds(plan), f"{seconds(again)}: {100 * again / loop[0] / int(r['length']):.1f} %"])  # fmt: skip
    head = ["network", "hidden", "steps", "threads", "loop, a step", "auto", "times the loop", "a process's first plan", "the next: of one pass of the loop"]
    return markdown(head, body) + ["", f"{source(rows)}."]


def table(folder, name, columns):
    if name == "pays":
        return pays_table(folder.parent / "maps")
    if name == "cores":
        return cores_table(folder)
    if name == "schemes":
        return schemes_table(folder / "schemes.json")
    if name == "linear-cores":
        return more_cores_table(folder / f"{name}.csv")
    if name.startswith("planner"):
        return planner_table(folder / f"{name}.json")
    if name.startswith("peers-"):
        return against_table(folder / f"{name}.csv")
    if name == "recurrent-long":
        return recurrent_part_table(folder / f"{name}.csv", ["overlap"], {})
    if name == "recurrent-kept":
        return kept_table(folder / f"{name}.csv")
    if name == "recurrent-para":
        others = {"dense": "our GRU's or LSTM's loop", "torch": "PyTorch's nn.GRU"}
        return recurrent_part_table(folder / f"{name}.csv", ["newton", "overlap"], others)
    if name in ("recurrent", "recurrent-xeon", "recurrent-zen4"):
        return recurrent_table(folder / f"{name}.csv")
    if name.startswith("diffusion-windows"):
        return windows_table(folder / f"{name}.csv")
    if name.startswith("diffusion"):
        return diffusion_table(folder / f"{name}.csv")
    return bench_table(folder / f"{name}.csv", columns)


def main(folder, *pages):
    folder, docs = pathlib.Path(folder), pathlib.Path(__file__).resolve().parent.parent / "docs"
    done, kept = [], []

    def place(match):
        name, *columns = match[1].split()
        try:
            text = "\n".join(table(folder, name, columns))
        except FileNotFoundError:
            kept.append(name)
            return match[0]
        done.append(name)
        return f"<!-- table: {match[1]} -->\n{text}\n<!-- end -->"

    for page in [pathlib.Path(p) for p in pages] or [docs / "performance.md", *sorted(docs.glob("performance/*.md"))]:
        text = page.read_text(encoding="utf-8")
        page.write_text(re.sub(r"<!-- table: ([^>]*?) -->\n.*?<!-- end -->", place, text, flags=re.S), encoding="utf-8")
    print(f"{len(done)} tables{', as they were: ' + ' '.join(kept) if kept else ''}")


if len(sys.argv) < 2:
    sys.exit(__doc__)
main(*sys.argv[1:])
