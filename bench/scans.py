# SPDX-License-Identifier: MIT
"""What the benchmarks of scans against PyTorch and JAX share (selective.py, attention.py): a shape, direction and number of threads is a
process of the peers' Python (DEEPPCR_PEERS_VENV, made by bench/peers/setup.sh) on as many processors. All ways go in turn, each after a
pause in which the others' threads fall asleep, and calls that take less than 5 ms as many in a row as take that long; times are medians
over the rounds, `times` is the median of the rounds' ratios to ours.
What does not fit into memory, compiles too long or takes longer than --seconds a call is left out and told."""
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
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Tuple

from machine import commit, processor, surroundings

here = pathlib.Path(__file__).resolve().parent
DIRECTIONS = ("forward", "both")
COMPILE_SECONDS, PAUSE, LEAST = 180, 0.05, 0.005


@dataclass
class Subject:
    name: str  # of bench/NAME.py, docs/NAME.md and its table, and bench/results/NAME.csv
    about: str
    extents: str  # names of a shape's numbers, of which columns are made; those that are not there are left out
    shapes: Dict[str, Tuple[int, ...]]
    ways: Dict[str, str]  # and their heads in the table
    # Arrays and the gradient by the result; ours, and what makes {way: call of tensors or arrays}: of (extents, arrays, both).
    problem: Callable[..., Tuple[Any, ...]]
    ours: Callable[..., Any]
    makers: Callable[..., List[Callable[..., Any]]]
    bytes_of: Callable[..., int]  # that a way wants: of (extents, way, both)

    def columns(self) -> List[str]:
        return f"date commit machine threads shape {self.extents} direction way version ms ms_least ms_largest times rounds difference command".split()


# ---- in a process of its own: one shape and direction ----


class TooLong(BaseException):  # which no compiler makes one of its own
    pass


def too_long(*_):
    raise TooLong


def free_bytes():
    with open("/proc/meminfo", encoding="utf-8") as lines:
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])


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


def timed(call):
    time.sleep(PAUSE)
    begin = end = time.perf_counter()
    calls = 0
    while calls == 0 or end - begin < LEAST:
        call()
        calls, end = calls + 1, time.perf_counter()
    return (end - begin) / calls


def child(subject, a):
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
    sizes = tuple(map(int, a.child.split(",")))
    both, arrays = a.direction == "both", subject.problem(*sizes)
    ours = of_torch(subject.ours(*sizes), arrays, both)
    wanted = [np.array(x) for x in ours()]
    ways, told, found = {"ours": ours}, {}, {}
    for make in subject.makers(*sizes):
        try:
            found.update(make(arrays, both))
        except ImportError as error:
            told[str(error.name)] = str(error)
    signal.signal(signal.SIGALRM, too_long)
    for name, call in found.items():
        needs = subject.bytes_of(sizes, name, both)
        if needs > free_bytes():
            told[name] = f"{needs / 2**30:.1f} GiB of memory wanted"
            continue
        try:
            signal.alarm(COMPILE_SECONDS)
            made = [np.array(x) for x in call()]
            signal.alarm(0)
            off = max(float(np.abs(m - w).max() / max(1, np.abs(w).max())) for m, w in zip(made, wanted))
            seconds = timed(call)
        except TooLong:
            told[name] = f"not through in {COMPILE_SECONDS} s, with compiling"
            continue
        finally:
            signal.alarm(0)
        if not off < 1e-3:
            told[name] = f"differs by {off:.1e}"
            continue
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


def measure(subject, a, python, shape, direction, threads):
    sizes = subject.shapes[shape]
    script = f"{subject.name}.py"
    command = [str(python), str(here / script), "--child", ",".join(map(str, sizes)), "--direction", direction, "--threads", str(threads),
               "--rounds", str(a.rounds), "--seconds", str(a.seconds)]  # fmt: skip
    environment = {**surroundings(), "OMP_NUM_THREADS": str(threads), "DEEPPCR_LIBRARY": str(pathlib.Path(a.build).resolve() / "libdeeppcr.so"),
                   "PYTHONPATH": str(here.parent / "python" / "src"), "JAX_PLATFORMS": "cpu"}  # fmt: skip
    processors = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
    done = subprocess.run(["taskset", "-c", processors, *command], capture_output=True, text=True, env=environment)
    if done.returncode:
        print(f"{script}: {shape}, {direction}, {threads} threads: {done.stderr.strip()[-500:]}", file=sys.stderr)
        return []
    told, rows = json.loads(done.stdout.splitlines()[-1]), []
    ours = told["ours"]["seconds"]
    for way, what in told.items():
        if isinstance(what, str):
            print(f"{shape}, {direction}, {threads} threads: {way} is left out: {what}", flush=True)
            continue
        ms, ratio = [1e3 * s for s in what["seconds"]], statistics.median(s / o for s, o in zip(what["seconds"], ours))
        rows.append(dict(zip(subject.columns(), [
            datetime.date.today().isoformat(), commit(), processor(), str(threads), shape, *map(str, sizes[:len(subject.extents.split())]), direction,
            way, what["version"], f"{statistics.median(ms):.3f}", f"{min(ms):.3f}", f"{max(ms):.3f}", f"{ratio:.2f}", str(len(ms)),
            f"{what['difference']:.1e}", f"bench/{script} --only '{shape}' --threads {threads} --rounds {a.rounds} --seconds {a.seconds:g}"])))  # fmt: skip
        print(f"{shape}, {direction}, {threads} threads: {way} {statistics.median(ms):.4g} ms, {ratio:.3g} times ours", flush=True)
    return rows


def write_table(subject, rows):
    """The table of docs/NAME.md."""
    lines = [f"| shape | | threads | {' | '.join(subject.ways.values())} | times |", "|---|---|---|" + "---|" * (len(subject.ways) + 1)]
    for shape in subject.shapes:
        for direction in DIRECTIONS:
            for threads in sorted({r["threads"] for r in rows}, key=int):
                own = {r["way"].split(",")[0]: r for r in rows if (r["shape"], r["direction"], r["threads"]) == (shape, direction, threads)}
                if "ours" not in own:
                    continue
                ms = [f"{float(own[w]['ms']):.4g}" if w in own else "-" for w in subject.ways]
                peers = [float(r["times"]) for w, r in own.items() if w != "ours"]
                what = "forward" if direction == "forward" else "and gradients"
                lines.append(f"| {shape} | {what} | {threads} | {' | '.join(ms)} | {f'**{min(peers):.3g}**' if peers else '-'} |")
    page, text = here.parent / "docs" / f"{subject.name}.md", "\n".join(lines)
    found = re.sub(rf"(<!-- table: {subject.name} -->\n).*?(<!-- end -->)", lambda m: f"{m[1]}{text}\n{m[2]}", page.read_text(), flags=re.S)
    page.write_text(found)


def run(subject):
    parser = argparse.ArgumentParser(description=subject.about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="shapes whose name has this in it")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--build", default=str(here.parent / "build"))
    parser.add_argument("--out", default=str(here / "results" / f"{subject.name}.csv"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--direction", choices=DIRECTIONS, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", help=f"another shape, numbers with commas between them: {subject.extents}; printed alone")
    a = parser.parse_args()
    if a.child:
        child(subject, a)
        return
    python = pathlib.Path(os.environ.get("DEEPPCR_PEERS_VENV", here / "peers" / ".venv")) / "bin" / "python"
    if not python.exists():
        sys.exit(f"{subject.name}.py: no {python}: bench/peers/setup.sh makes it")
    library = pathlib.Path(a.build) / "libdeeppcr.so"
    if not library.is_file():
        sys.exit(f"{subject.name}.py: no {library}: cmake --build makes it")
    if a.sizes:  # which is no shape of the file
        a.out = os.devnull
        subject.shapes.clear()
        subject.shapes[a.sizes] = tuple(map(int, a.sizes.split(",")))
    file, rows = pathlib.Path(a.out), []
    if file.is_file():
        with open(file, newline="", encoding="utf-8") as kept:
            rows = list(csv.DictReader(kept))
    for shape in subject.shapes:
        for direction in DIRECTIONS:
            for threads in a.threads:
                if a.only and not any(part in shape for part in a.only):
                    continue
                new = measure(subject, a, python, shape, direction, threads)
                if new:
                    rows = [r for r in rows if (r["shape"], r["direction"], r["threads"]) != (shape, direction, str(threads))] + new
                    file.parent.mkdir(parents=True, exist_ok=True)
                    with open(file, "w", newline="", encoding="utf-8") as out:
                        table = csv.DictWriter(out, subject.columns())
                        table.writeheader()
                        table.writerows(rows)
    if rows and a.out == parser.get_default("out"):
        write_table(subject, rows)
