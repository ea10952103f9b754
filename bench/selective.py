#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The selective scan of Mamba's shapes in float32, forward and with all gradients: deeppcr.torch's against PyTorch's loop over time, eagerly
and compiled in blocks of 16 steps, and against JAX's lax.scan and lax.associative_scan, jitted. Mamba-2's against PyTorch's loop and its
products of matrices over chunks of 64 steps, which is what that scan was made for (arXiv 2405.21060), and against JAX's lax.scan.

    bench/selective.py [--only NAME]... [--threads 1 2] [--rounds 5] [--seconds 60] [--build build] [--out bench/results/selective.csv]

Each shape, direction and number of threads is a process of the peers' Python (DEEPPCR_PEERS_VENV, made by bench/peers/setup.sh) on as many
processors. All ways go in turn, each after a pause in which the others' threads fall asleep; times are medians over the rounds, `times` is
the median of the rounds' ratios to ours. What does not fit into memory, compiles too long or takes longer than --seconds a call is left out
and told. Rows of the file that were not run stay. Writes the table of docs/selective.md too (--only none: that alone)."""
import argparse
import csv
import datetime
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time

from machine import commit, processor, surroundings

here = pathlib.Path(__file__).resolve().parent
COLUMNS = "date commit machine threads shape batch channels states length direction way version ms ms_least ms_largest times rounds difference command".split()
# batch, channels, states, length, and Mamba-2's heads
SHAPES = {
    "Mamba-130m, L 2048": (1, 1536, 16, 2048), "Mamba-130m, L 512, batch 8": (8, 1536, 16, 512), "256 channels, L 16384": (1, 256, 16, 16384),
    "Mamba-2.8b, L 1024": (1, 5120, 16, 1024), "Mamba-2 130m, L 2048": (1, 1536, 128, 2048, 24),
}  # fmt: skip
DIRECTIONS = ("forward", "both")
WAYS = {"ours": "ours", "torch": "PyTorch", "torch compiled": "compiled", "torch chunks": "in chunks", "jax scan": "JAX scan", "jax associative": "associative"}
BLOCK, CHUNK, COMPILE_SECONDS, PAUSE = 16, 64, 180, 0.05


# ---- in a process of its own: one shape and direction ----


class TooLong(Exception):
    pass


def too_long(*_):
    raise TooLong


def free_bytes():
    with open("/proc/meminfo", encoding="utf-8") as lines:
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])


def problem(batch, channels, states, length):
    """u, delta, A, B, C, D, z, delta_bias and a gradient by y, as a Mamba layer has them when it begins to learn."""
    import numpy as np

    random = np.random.default_rng(0)
    normal = lambda *shape: random.normal(size=shape).astype(np.float32)  # noqa: E731
    step = np.exp(random.uniform(np.log(1e-3), np.log(0.1), size=channels))
    A = -np.tile(np.arange(1, states + 1, dtype=np.float32), (channels, 1))
    return (normal(batch, channels, length), normal(batch, channels, length), A, normal(batch, states, length), normal(batch, states, length),
            np.ones(channels, np.float32), normal(batch, channels, length), np.log(np.expm1(step)).astype(np.float32), normal(batch, channels, length))  # fmt: skip


def heads_problem(batch, channels, states, length, heads):
    """x, dt, A, B, C, D, z, dt_bias and a gradient by y, of Mamba-2: [batch][L][H][P] and so on."""
    import numpy as np

    random = np.random.default_rng(0)
    normal = lambda *shape: random.normal(size=shape).astype(np.float32)  # noqa: E731
    bias = np.log(np.expm1(np.exp(random.uniform(np.log(1e-3), np.log(0.1), size=heads)))).astype(np.float32)
    whole, shared = (batch, length, heads, channels // heads), (batch, length, 1, states)
    A = -random.uniform(1, 16, size=heads).astype(np.float32)
    return normal(*whole), normal(batch, length, heads), A, normal(*shared), normal(*shared), np.ones(heads, np.float32), normal(*whole), bias, normal(*whole)


def heads_torch_ways(arrays, both):
    import torch
    from torch.nn import functional

    def loop(x, dt, A, B, C, D, z, bias):
        t = functional.softplus(dt + bias)
        keep, tx, h, y = torch.exp(t * A), t[..., None] * x, 0, []
        for k, v, b, c in zip(keep.unbind(1), tx.unbind(1), B.unbind(1), C.unbind(1)):
            h = k[..., None, None] * h + v[..., None] * b[:, :, None]
            y.append((h * c[:, :, None]).sum(-1))
        return (torch.stack(y, 1) + D[:, None] * x) * functional.silu(z)

    def chunks(x, dt, A, B, C, D, z, bias):
        t = functional.softplus(dt + bias)
        cut = lambda m: m.unflatten(1, (-1, CHUNK))  # noqa: E731  [batch][chunk][step]...
        v, b, c, a = cut(t[..., None] * x), cut(B[:, :, 0]), cut(C[:, :, 0]), cut(t * A).cumsum(2)
        ago = a[:, :, :, None] - a[:, :, None]  # [batch][chunk][l][s][H]
        below = torch.ones(CHUNK, CHUNK, dtype=torch.bool).tril()[..., None]
        weights = torch.where(below, ago, -torch.inf).exp() * (c @ b.mT)[..., None]
        y = torch.einsum("bklsh,bkshp->bklhp", weights, v)
        ends = torch.einsum("bksh,bkshp,bksn->bkhpn", (a[:, :, -1:] - a).exp(), v, b)
        h, starts = torch.zeros_like(ends[:, 0]), []
        for e, whole in zip(ends.unbind(1), a[:, :, -1].exp().unbind(1)):
            starts.append(h)
            h = whole[..., None, None] * h + e
        y = y + torch.einsum("bkln,bkhpn,bklh->bklhp", c, torch.stack(starts, 1), a.exp())
        return (y.flatten(1, 2) + D[:, None] * x) * functional.silu(z)

    return {"torch": of_torch(loop, arrays, both), "torch chunks": of_torch(chunks, arrays, both)}


def heads_jax_ways(arrays, both):
    import jax
    import jax.numpy as jnp
    from jax import lax

    def states(t, x, A, B, C):
        def step(h, at):
            t, x, b, c = at
            h = jnp.exp(t * A)[..., None, None] * h + (t[..., None] * x)[..., None] * b[:, :, None]
            return h, (h * c[:, :, None]).sum(-1)

        return lax.scan(step, jnp.zeros((*x.shape[1:], B.shape[-1]), x.dtype), (t, x, B, C))[1]

    def run(x, dt, A, B, C, D, z, bias):
        first = lambda m: jnp.moveaxis(m, 1, 0)  # noqa: E731  time first
        y = states(first(jax.nn.softplus(dt + bias)), first(x), A, first(B), first(C))
        return (jnp.moveaxis(y, 0, 1) + D[:, None] * x) * jax.nn.silu(z)

    return {"jax scan": of_jax(run, arrays, both)}


def of_torch(function, arrays, both):
    """A call of a function of tensors; what it returns are y, or y and all gradients."""
    import torch

    *given, gy = map(torch.from_numpy, arrays)

    def forward():
        with torch.no_grad():
            return [function(*given)]

    def back():
        y = function(*given)
        return [y.detach(), *torch.autograd.grad(y, given, gy)]

    if both:
        for tensor in given:
            tensor.requires_grad_()
    return back if both else forward


def torch_ways(arrays, both):
    import torch
    from torch.nn import functional

    def begin(u, delta, A, B, bias):
        """What each step takes of the past, and adds to it: [batch][channels][L][N]."""
        t = functional.softplus(delta + bias[:, None])
        return torch.exp(t[..., None] * A[:, None]), (t * u)[..., None] * B.mT[:, None]

    def steps(h, keep, add, C):
        y = []
        for k, a, c in zip(keep.unbind(2), add.unbind(2), C.unbind(2)):
            h = k * h + a
            y.append((h * c[:, None]).sum(-1))
        return h, torch.stack(y, 2)

    def end(y, u, D, z):
        return (y + D[:, None] * u) * functional.silu(z)

    def loop(u, delta, A, B, C, D, z, bias):
        keep, add = begin(u, delta, A, B, bias)
        return end(steps(u.new_zeros(*u.shape[:2], A.shape[1]), keep, add, C)[1], u, D, z)

    compiled = [torch.compile(f, dynamic=False) for f in (begin, steps, end)]

    def in_blocks(u, delta, A, B, C, D, z, bias):
        keep, add = compiled[0](u, delta, A, B, bias)
        h, y = u.new_zeros(*u.shape[:2], A.shape[1]), []
        for parts in zip(keep.split(BLOCK, 2), add.split(BLOCK, 2), C.split(BLOCK, 2)):
            h, some = compiled[1](h, *parts)
            y.append(some)
        return compiled[2](torch.cat(y, 2), u, D, z)

    return {"torch": of_torch(loop, arrays, both), "torch compiled": of_torch(in_blocks, arrays, both)}


def of_jax(function, arrays, both):
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_platforms", "cpu")
    *given, gy = map(jnp.asarray, arrays)

    def back(*arguments):
        y, pull = jax.vjp(function, *arguments)
        return [y, *pull(gy)]

    run = jax.jit(back if both else lambda *a: [function(*a)])
    return lambda: jax.block_until_ready(run(*given))


def jax_ways(arrays, both):
    import jax
    import jax.numpy as jnp
    from jax import lax

    def around(states):
        def run(u, delta, A, B, C, D, z, bias):
            t = jax.nn.softplus(delta + bias[:, None])
            first = lambda x: jnp.moveaxis(x, -1, 0)  # noqa: E731  time first
            y = states(first(t), first(u), A, first(B), first(C))
            return (jnp.moveaxis(y, 0, -1) + D[:, None] * u) * jax.nn.silu(z)

        return run

    def scan(unroll):
        def states(t, u, A, B, C):
            def step(h, at):
                t, u, b, c = at
                h = jnp.exp(t[..., None] * A) * h + (t * u)[..., None] * b[:, None]
                return h, (h * c[:, None]).sum(-1)

            return lax.scan(step, jnp.zeros((*u.shape[1:], A.shape[1]), u.dtype), (t, u, B, C), unroll=unroll)[1]

        return around(states)

    def associative(t, u, A, B, C):
        keep, add = jnp.exp(t[..., None] * A), (t * u)[..., None] * B[:, :, None]
        h = lax.associative_scan(lambda i, j: (j[0] * i[0], j[0] * i[1] + j[1]), (keep, add))[1]
        return (h * C[:, :, None]).sum(-1)

    ways = {"jax scan": scan(1), "jax scan, 8 steps unrolled": scan(8), "jax associative": around(associative)}
    return {name: of_jax(way, arrays, both) for name, way in ways.items()}


def timed(call):
    time.sleep(PAUSE)
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def child(a):
    """Prints a JSON line: of each way its version, seconds a round and largest difference from ours; or why it was left out."""
    import importlib.metadata as metadata

    if a.threads[0] == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    import numpy as np
    import torch

    import deeppcr
    import deeppcr.torch

    torch.set_num_threads(a.threads[0])
    deeppcr.set_threads(a.threads[0])
    batch, channels, states, length, *heads = map(int, a.child.split(","))
    both, arrays = a.direction == "both", (heads_problem if heads else problem)(batch, channels, states, length, *heads)
    scan = deeppcr.torch.selective_scan
    if heads:
        scan = lambda x, dt, A, B, C, D, z, bias, softplus: deeppcr.torch.mamba2_scan(x, dt, A, B, C, D, z, bias, dt_softplus=softplus)  # noqa: E731
    ours = of_torch(lambda *given: scan(*given, True), arrays, both)
    wanted = [np.array(x) for x in ours()]
    ways, told, found = {"ours": ours}, {}, {}
    whole = 4 * batch * channels * states * length  # bytes of what each step keeps
    for make in (heads_torch_ways, heads_jax_ways) if heads else (torch_ways, jax_ways):
        try:
            found.update(make(arrays, both))
        except ImportError as error:
            told[make.__name__] = str(error)
    signal.signal(signal.SIGALRM, too_long)
    for name, call in found.items():
        needs = whole * (24 if both else 8 if name == "jax associative" else 4) // (8 if name == "torch chunks" else 1)
        if needs > free_bytes():
            told[name] = f"{needs / 2**30:.1f} GiB of memory wanted"
            continue
        try:
            signal.alarm(COMPILE_SECONDS)
            made = [np.array(x) for x in call()]
            signal.alarm(0)
            off = max(float(np.abs(m - w).max() / max(1, np.abs(w).max())) for m, w in zip(made, wanted))
            assert off < 1e-3, (name, off)
            seconds = timed(call)
        except TooLong:
            told[name] = f"not through in {COMPILE_SECONDS} s, with compiling"
            continue
        finally:
            signal.alarm(0)
        if seconds > a.seconds:
            told[name] = f"{seconds:.0f} s a call"
            continue
        ways[name], told[name] = call, {"seconds": [], "difference": off, "once": seconds}
    unrolled = {n: told[n]["once"] for n in ways if n.startswith("jax scan")}
    for name in unrolled:  # the faster of the two
        if name != min(unrolled, key=unrolled.get):
            del ways[name], told[name]
    told["ours"] = {"seconds": [], "difference": 0.0}
    start = time.monotonic()
    for done in range(a.rounds):
        if done >= 2 and time.monotonic() - start > a.seconds:
            break
        for name, call in ways.items():
            repeat = 5 if told[name].get("once", 0) < 0.1 else 1
            told[name]["seconds"].append(statistics.median(timed(call) for _ in range(repeat)))
    for name in ways:
        told[name]["version"] = "" if name == "ours" else metadata.version(name.split()[0])
    print(json.dumps(told))


# ---- over all of them ----


def measure(a, python, shape, direction, threads):
    sizes = SHAPES[shape]
    command = [str(python), str(here / "selective.py"), "--child", ",".join(map(str, sizes)), "--direction", direction, "--threads", str(threads),
               "--rounds", str(a.rounds), "--seconds", str(a.seconds)]  # fmt: skip
    environment = {**surroundings(), "OMP_NUM_THREADS": str(threads), "DEEPPCR_LIBRARY": str(pathlib.Path(a.build).resolve() / "libdeeppcr.so"),
                   "PYTHONPATH": str(here.parent / "python" / "src"), "JAX_PLATFORMS": "cpu"}  # fmt: skip
    processors = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
    done = subprocess.run(["taskset", "-c", processors, *command], capture_output=True, text=True, env=environment)
    if done.returncode:
        print(f"selective.py: {shape}, {direction}, {threads} threads: {done.stderr.strip()[-500:]}", file=sys.stderr)
        return []
    told, rows = json.loads(done.stdout.splitlines()[-1]), []
    ours = told["ours"]["seconds"]
    for way, what in told.items():
        if isinstance(what, str):
            print(f"{shape}, {direction}, {threads} threads: {way} is left out: {what}", flush=True)
            continue
        ms, ratio = [1e3 * s for s in what["seconds"]], statistics.median(s / o for s, o in zip(what["seconds"], ours))
        rows.append(dict(zip(COLUMNS, [
            datetime.date.today().isoformat(), commit(), processor(), str(threads), shape, *map(str, sizes[:4]), direction, way, what["version"],
            f"{statistics.median(ms):.3f}", f"{min(ms):.3f}", f"{max(ms):.3f}", f"{ratio:.2f}", str(len(ms)), f"{what['difference']:.1e}",
            f"bench/selective.py --only '{shape}' --threads {threads} --rounds {a.rounds} --seconds {a.seconds:g}"])))  # fmt: skip
        print(f"{shape}, {direction}, {threads} threads: {way} {statistics.median(ms):.4g} ms, {ratio:.3g} times ours", flush=True)
    return rows


def write_table(rows):
    """The table of docs/selective.md."""
    lines = [f"| shape | | threads | {' | '.join(WAYS.values())} | times |", "|---|---|---|" + "---|" * (len(WAYS) + 1)]
    for shape in SHAPES:
        for direction in DIRECTIONS:
            for threads in sorted({r["threads"] for r in rows}, key=int):
                own = {r["way"].split(",")[0]: r for r in rows if (r["shape"], r["direction"], r["threads"]) == (shape, direction, threads)}
                if "ours" not in own:
                    continue
                ms = [f"{float(own[w]['ms']):.4g}" if w in own else "-" for w in WAYS]
                peers = [float(r["times"]) for w, r in own.items() if w != "ours"]
                what = "forward" if direction == "forward" else "and gradients"
                lines.append(f"| {shape} | {what} | {threads} | {' | '.join(ms)} | {f'**{min(peers):.3g}**' if peers else '-'} |")
    page, text = here.parent / "docs" / "selective.md", "\n".join(lines)
    found = re.sub(r"(<!-- table: selective -->\n).*?(<!-- end -->)", lambda m: f"{m[1]}{text}\n{m[2]}", page.read_text(), flags=re.S)
    page.write_text(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="shapes whose name has this in it")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--build", default=str(here.parent / "build"))
    parser.add_argument("--out", default=str(here / "results" / "selective.csv"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--direction", choices=DIRECTIONS, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", help="another shape: BATCH,CHANNELS,STATES,LENGTH[,HEADS], printed alone")
    a = parser.parse_args()
    if a.child:
        child(a)
        return
    python = pathlib.Path(os.environ.get("DEEPPCR_PEERS_VENV", here / "peers" / ".venv")) / "bin" / "python"
    if not python.exists():
        sys.exit(f"selective.py: no {python}: bench/peers/setup.sh makes it")
    if a.sizes:  # which is no shape of the file
        a.out = os.devnull
        SHAPES.clear()
        SHAPES[a.sizes] = tuple(map(int, a.sizes.split(",")))
    file, rows = pathlib.Path(a.out), []
    if file.is_file():
        with open(file, newline="", encoding="utf-8") as kept:
            rows = list(csv.DictReader(kept))
    for shape in SHAPES:
        for direction in DIRECTIONS:
            for threads in a.threads:
                if a.only and not any(part in shape for part in a.only):
                    continue
                new = measure(a, python, shape, direction, threads)
                if new:
                    rows = [r for r in rows if (r["shape"], r["direction"], r["threads"]) != (shape, direction, str(threads))] + new
                    file.parent.mkdir(parents=True, exist_ok=True)
                    with open(file, "w", newline="", encoding="utf-8") as out:
                        table = csv.DictWriter(out, COLUMNS)
                        table.writeheader()
                        table.writerows(rows)
    if rows and a.out == parser.get_default("out"):
        write_table(rows)


if __name__ == "__main__":
    main()
