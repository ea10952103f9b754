#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The Python package against what its users have now, calls included: PyTorch's modules, JAX's scans, SciPy's filters.

    bench/python.py [--only NAME]... [--threads 2] [--rounds 5] [--seconds 30] [--out bench/results/python.csv]

To be run by a Python that has the package and the peers (scripts/python torch jax scipy makes build-python/venv). Ours and each
peer's call alternate, on as many processors as there are threads; times are medians over the rounds, a ratio is the median of the rounds' ratios. A row stops early after
--seconds, with at least two rounds. Rows of the file that were not run stay. Writes the table of docs/python.md too (--only none: that alone)."""
import argparse
import csv
import datetime
import os
import pathlib
import re
import statistics
import subprocess
import time

import numpy as np
from machine import processor

here = pathlib.Path(__file__).resolve().parent
COLUMNS = "date commit machine threads work peer peer_version peer_ms ours_ms ratio ratio_least ratio_largest rounds target".split()


def networks(name, inputs, hidden, batch, length, training):
    """{"ours", "torch"}: a call each; forward without gradients, or a training step with Adam."""
    import torch

    import deeppcr.torch

    torch.manual_seed(0)
    theirs = getattr(torch.nn, name)(inputs, hidden)
    x, target = torch.randn(length, batch, inputs), torch.randn(length, batch, hidden)

    def step_of(module):
        optimiser = torch.optim.Adam(module.parameters(), lr=1e-6)

        def step():
            optimiser.zero_grad()
            (module(x)[0] * target).sum().backward()
            optimiser.step()

        def forward():
            with torch.no_grad():
                module(x)

        return step if training else forward

    import copy

    return {"ours": step_of(copy.deepcopy(deeppcr.torch.from_torch(theirs))), "torch": step_of(theirs)}


def linear(width, length):
    """States and the gradients of A, b, z0, for one sequence in float32."""
    import jax
    import jax.numpy as jnp

    import deeppcr

    rng = np.random.default_rng(0)
    A = (rng.normal(size=(length, width, width)) * 0.9 / np.sqrt(width)).astype(np.float32)
    b, z0, g = (rng.normal(size=s).astype(np.float32) for s in ((length, width), (width,), (length, width)))

    def ours():
        z = deeppcr.linear_chain(A, b, z0)
        return z, deeppcr.linear_chain_vjp(A, z, g, z0)

    def scan(A, b, z0):
        return jax.lax.scan(lambda z, step: ((n := step[0] @ z + step[1]), n), z0, (A, b))[1]

    def associative(A, b, z0):
        products, sums = jax.lax.associative_scan(
            lambda i, j: (j[0] @ i[0], (j[0] @ i[1][..., None])[..., 0] + j[1]), (A, b))
        return (products @ z0) + sums

    def call(function):
        def both(A, b, z0):
            z, back = jax.vjp(function, A, b, z0)
            return z, back(gj)

        arrays, gj = tuple(map(jnp.asarray, (A, b, z0))), jnp.asarray(g)
        compiled = jax.jit(both)
        return lambda: jax.block_until_ready(compiled(*arrays))

    peers = {"ours": ours, "jax lax.scan": call(scan), "jax associative_scan": call(associative)}
    wanted = peers["jax lax.scan"]()
    for mine, theirs in zip((ours()[0], *ours()[1]), (wanted[0], *wanted[1])):
        assert np.allclose(mine, theirs, rtol=1e-3, atol=1e-3)
    return peers


def filters(order):
    from scipy import signal

    import deeppcr.signal

    sos = signal.butter(order, 0.1, output="sos")
    x = np.random.default_rng(0).normal(size=60 * 48000)
    assert np.allclose(deeppcr.signal.sosfilt(sos, x), signal.sosfilt(sos, x), atol=1e-10)
    return {"ours": lambda: deeppcr.signal.sosfilt(sos, x), "scipy": lambda: signal.sosfilt(sos, x)}


def stack(layers, width, batch):
    import torch

    import deeppcr.torch

    torch.manual_seed(0)
    chain = deeppcr.torch.Chain(width, layers)
    theirs = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))
    z0, target = torch.randn(batch, width), torch.randn(batch, width)

    def eager():
        z = z0
        for layer in theirs:
            z = z + layers**-0.5 * torch.tanh(layer(z))
        return z

    def step_of(forward, parameters):
        optimiser = torch.optim.AdamW(parameters, lr=1e-6, fused=True)

        def step():
            optimiser.zero_grad()
            (forward() * target).sum().backward()
            optimiser.step()

        return step

    return {"ours": step_of(lambda: chain(z0), chain.parameters()), "torch": step_of(eager, theirs.parameters())}


ROWS = {
    **{f"{name} {H} {'training step' if t else 'forward'}, T = 16384, batch 1": (lambda n=name, H=H, t=t: networks(n, H, H, 1, 16384, t), goal)
       for t, goals in ((False, (25, 8, 8)), (True, (15, 6, 5)))
       for (name, H), goal in zip((("GRU", 128), ("GRU", 512), ("LSTM", 128)), goals)},
    "GRU 32 training step, T = 1024, batch 16": (lambda: networks("GRU", 32, 32, 16, 1024, True), 30),
    "LSTM 32 training step, T = 1024, batch 16": (lambda: networks("LSTM", 32, 32, 16, 1024, True), 2.5),
    "linear_chain with gradient, w = 2, 65536 steps": (lambda: linear(2, 65536), 8),
    "sosfilt order 2, 60 s at 48 kHz": (lambda: filters(2), 9),
    "sosfilt order 8, 60 s at 48 kHz": (lambda: filters(8), 3),
    "1024 residual layers, width 32, batch 128, training step": (lambda: stack(1024, 32, 128), 12),
}


def write_table(rows):
    """The table of docs/python.md."""
    lines = ["| work | threads | peer | peer, ms | ours, ms | times | from .. to | wanted |", "|---|---|---|---|---|---|---|---|"]
    for r in rows:
        lines.append(f"| {r['work']} | {r['threads']} | {r['peer']} {r['peer_version']} | {float(r['peer_ms']):.4g} | "
                     f"{float(r['ours_ms']):.4g} | **{float(r['ratio']):.3g}** | {float(r['ratio_least']):.3g} .. "
                     f"{float(r['ratio_largest']):.3g} | {r['target']} |")
    page = here.parent / "docs" / "python.md"
    text = "\n".join(lines)
    found = re.sub(r"(<!-- table: python -->\n).*?(<!-- end -->)", lambda m: f"{m[1]}{text}\n{m[2]}", page.read_text(), flags=re.S)
    page.write_text(found)


def timed(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def measure(calls, rounds, seconds):
    for _ in range(2):
        calls["ours"]()
    start, times = time.monotonic(), {name: [] for name in calls}
    for name in calls:
        if name != "ours" and timed(calls[name]) < seconds / 4:  # a slow peer is warm after its first round
            calls[name]()
    while len(times["ours"]) < rounds and (len(times["ours"]) < 2 or time.monotonic() - start < seconds):
        for name, call in calls.items():
            # Short calls go several times, and the median of those counts.
            repeat = max(1, min(20, int(0.2 / max(times[name][0], 1e-6)))) if times[name] else 1
            times[name].append(statistics.median(timed(call) for _ in range(repeat)))
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="rows whose name has this in it")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--out", default=str(here / "results" / "python.csv"))
    a = parser.parse_args()
    import importlib.metadata as metadata

    threads = min(a.threads, len(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])  # before any library counts them
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude", "*"], capture_output=True, text=True).stdout.strip()
    machine = processor()
    file, rows = pathlib.Path(a.out), []
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists():
        rows = list(csv.DictReader(file.open()))
    for work, (make, target) in ROWS.items():
        if a.only and not any(part in work for part in a.only):
            continue
        times = measure(make(), a.rounds, a.seconds)
        for peer in times:
            if peer == "ours":
                continue
            ratios = [p / o for p, o in zip(times[peer], times["ours"])]
            row = dict(zip(COLUMNS, [
                datetime.date.today().isoformat(), commit, machine, threads, work, peer, metadata.version(peer.split()[0]),
                f"{1e3 * statistics.median(times[peer]):.3f}", f"{1e3 * statistics.median(times['ours']):.3f}",
                f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f}", f"{max(ratios):.2f}", len(ratios), target]))
            rows = [r for r in rows if (r["threads"], r["work"], r["peer"]) != (str(threads), work, peer)]
            rows.append({**row, "threads": str(threads)})
            print(f"{work}: {peer} {row['peer_ms']} ms, ours {row['ours_ms']} ms, {row['ratio']} times "
                  f"({row['ratio_least']}..{row['ratio_largest']}, wanted {target})", flush=True)
            order = list(ROWS)
            rows.sort(key=lambda r: (r["threads"], order.index(r["work"]) if r["work"] in order else len(order)))
            with file.open("w", newline="") as out:
                writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
    write_table(rows)


main()
