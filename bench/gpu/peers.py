#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What PyTorch and JAX take on the NVIDIA GPU of this machine, beside our tables of the same work. CSV on standard
output.

    peers.py [--part NAME] [--seconds N] [--device cuda|cpu] [--small]

  mlp              z = relu(W_l z + b_l), 1024 layers: eager, graph, compile (16 layers a function, all calls in one
                   graph), jax-scan (jax-scan-16: unrolled by 16)
  recurrent        torch.nn.GRU, LSTM and RNN on cuDNN; gradients of weights and input
  resnet-training  784 inputs, 1024 layers of z + tanh(W_l z + b_l)/32, 10 classes, AdamW: a whole step
  linear           x_t = a_t x_{t-1} + b_t, diagonal and dense: jax-associative, jax-scan
  para             ParaGRU's loop: jax-scan

Medians of runs timed one by one, by the device's events (JAX: by the clock, until the result is ready, inputs on the
device); TF32 is off. The pass `both` is forward and back together; backward runs alone, what forward leaves for it made
outside of the time, but for a peer named -difference: the time of both less that of forward. Rows come in order of importance, parts in
stages, each a process of its own, and have --seconds a part: what does not fit, or fails, is said on standard error,
and the rest goes on. What a part does not take, later ones have. --device cpu --small goes through all rows, tiny,
without CUDA graphs.
"""
import argparse
import csv
import functools
import itertools
import os
import signal
import statistics
import subprocess
import sys
import time

STARTED = time.monotonic()
COLUMNS = "device,driver,software,command,work,width,dtype,length,batch,pass,peer,repetitions,median_us".split(",")
# part -> its stages and their seconds
PARTS = {"mlp": {"torch": 26, "jax": 22, "compile": 12}, "recurrent": {"torch": 42}, "resnet-training": {"torch": 24},
         "linear": {"jax": 14}, "para": {"jax": 8}}  # fmt: skip
LAYERS, COMPILED_LAYERS, INPUTS, CLASSES = 1024, 16, 784, 10
WARM, FEWEST, MOST = 3, 3, 21
ROW_SECONDS = 0.8  # of a row's repetitions, where FEWEST take less
SLOW = 0.25  # seconds of a run after which it needs no more warming up
LEAST = 4  # seconds that a stage is started for
GRACE = 20  # seconds after its own that a stage has to end in

MLPS = [(width, batch) for batch in (1, 64) for width in (32, 2, 256, 8, 64)]
RECURRENT = [(32, 16384, 1), (128, 16384, 1), (512, 16384, 1), (128, 1024, 1), (128, 4096, 1), (32, 1024, 64),
             (128, 1024, 64), (256, 1024, 64), (1024, 16384, 1)]  # fmt: skip
LONG = [(128, 65536, 1), (512, 65536, 1)]
RNNS, LONG_RNNS = [(20, 1000, 16), (20, 10000, 16)], [(20, 30000, 16)]  # of one input
TRAININGS = [(32, 128), (64, 128), (16, 128), (32, 32), (256, 128), (32, 512), (64, 512), (64, 32), (16, 32), (16, 512),
             (256, 32), (256, 512)]  # fmt: skip

torch = jax = jnp = numpy = None  # those that the stage wants: open_torch, open_jax
options = software = device_name = events = None


def say(text):
    print(text, file=sys.stderr, flush=True)


# ---- rows ----


def repeat(once):
    """(median seconds, repetitions) of once() -> seconds of what is timed of it."""
    for _ in range(WARM):
        start = time.monotonic()
        once()
        each = time.monotonic() - start
        if each > SLOW:
            break
    count = FEWEST if options.small else max(FEWEST, min(MOST, int(ROW_SECONDS / max(each, 1e-9))))
    return statistics.median(once() for _ in range(count)), count


def difference(both, forward):
    return both[0] - forward[0], min(both[1], forward[1])


@functools.cache
def driver():
    if options.device == "cpu":
        return "-"
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, timeout=10).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "-"


def late(_signal, _frame):
    raise TimeoutError("took too long")


def row(work, width, length, batch, passing, peer, measure):
    """One line of the table; measure() -> seconds, repetitions and, where it is another, the peer's name."""
    name = f"{work} width {width} length {length} batch {batch} {passing} {peer}"
    left = options.seconds - (time.monotonic() - STARTED)
    if left <= 0:
        say(f"{name}: left out")
        return
    signal.setitimer(signal.ITIMER_REAL, left + GRACE / 2)
    try:
        seconds, count, *named = measure()
    except Exception as problem:  # a peer may fail in any way
        lines = str(problem).strip().splitlines() or ["no reason given"]
        say(f"{name}: {type(problem).__name__}: {lines[0][:200]}")
        return
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    command = " ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]])
    csv.writer(sys.stdout, lineterminator="\n").writerow(
        [device_name, driver(), software, command, work, width, "float32", length, batch, passing,
         named[0] if named else peer, count, f"{1e6 * seconds:.4g}"])  # fmt: skip
    sys.stdout.flush()


def sizes(width, length, batch):
    return (min(width, 4), min(length, 2 * COMPILED_LAYERS), min(batch, 2)) if options.small else (width, length, batch)


# ---- PyTorch ----


def open_torch():
    global torch, software, device_name, events
    import torch as module

    torch = module
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(1)
    software, device_name = f"torch {torch.__version__}", "cpu"
    if options.device == "cuda":
        software += f", cudnn {torch.backends.cudnn.version()}"
        device_name = torch.cuda.get_device_name(0)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    else:
        torch.set_num_threads(1)


def timed(work, prepare=tuple):
    """repeat's, of work(*prepare()) without prepare's time."""

    def once():
        given = prepare()
        if not events:
            start = time.perf_counter()
            work(*given)
            return time.perf_counter() - start
        torch.cuda.synchronize()
        events[0].record()
        kept = work(*given)  # what it made is freed after the time
        events[1].record()
        events[1].synchronize()
        del kept
        return 1e-3 * events[0].elapsed_time(events[1])

    return repeat(once)


def normal(*shape, **how):
    return torch.randn(*shape, device=options.device, **how)


def warm_up(work):
    """As capturing wants it: on a stream beside the current one."""
    if not events:
        raise RuntimeError("skipped: no CUDA graphs on the CPU")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            work()
    torch.cuda.current_stream().wait_stream(side)


def capture(work, pool=None):
    """A graph of work and what it returned, which lies where each replay writes it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        kept = work()
    return graph, kept


def timed_graph(work):
    warm_up(work)
    graph, kept = capture(work)
    return timed(graph.replay)


@functools.lru_cache(maxsize=1)
def mlp_network(width, layers):
    made = [torch.nn.Linear(width, width, device=options.device) for _ in range(layers)]
    return torch.nn.Sequential(*[part for linear in made for part in (linear, torch.nn.ReLU())])


def mlp_forward(width, layers, batch, time_it):
    network, x = mlp_network(width, layers), normal(batch, width)
    with torch.no_grad():
        return time_it(lambda: network(x))


def mlp_gradients(width, layers, batch):
    """forward() -> states, backward(states) -> the gradients of their sum for all parameters."""
    network, x, ones = mlp_network(width, layers), normal(batch, width), torch.ones(batch, width, device=options.device)
    parameters = list(network.parameters())
    return lambda: network(x), lambda z: torch.autograd.grad(z, parameters, ones)


def mlp_backward(width, layers, batch):
    forward, backward = mlp_gradients(width, layers, batch)
    return timed(backward, lambda: (forward(),))


def mlp_backward_graph(width, layers, batch):
    """A graph of backward alone, in the memory of forward's; else by difference."""
    forward, backward = mlp_gradients(width, layers, batch)
    warm_up(lambda: backward(forward()))
    try:
        first, z = capture(forward)
        second, kept = capture(lambda: backward(z), first.pool())
        return timed(second.replay, lambda: first.replay() or ())
    except RuntimeError as problem:
        say(f"mlp width {width} batch {batch}: backward alone is not captured: {str(problem).splitlines()[0][:200]}")
    both = timed_graph(lambda: backward(forward()))
    return *difference(both, mlp_forward(width, layers, batch, timed_graph)), "graph-difference"


def mlp_torch():
    for width, batch in MLPS:
        n = width, layers, batch = sizes(width, LAYERS, batch)
        row("mlp", *n, "forward", "graph", lambda: mlp_forward(*n, timed_graph))
        row("mlp", *n, "backward", "graph", lambda: mlp_backward_graph(*n))
        row("mlp", *n, "forward", "eager", lambda: mlp_forward(*n, timed))
        row("mlp", *n, "backward", "eager", lambda: mlp_backward(*n))


def mlp_compiled(width, layers, batch):
    def block(z, W, b):
        for i in range(COMPILED_LAYERS):
            z = torch.relu(torch.addmm(b[i], z, W[i]))
        return z

    block = torch.compile(block, dynamic=False)
    W, b = (torch.empty(layers, *shape, device=options.device).uniform_(-(width**-0.5), width**-0.5)
            for shape in ((width, width), (width,)))  # fmt: skip
    z0 = normal(batch, width)

    def forward():
        z = z0
        for weights, biases in zip(W.split(COMPILED_LAYERS), b.split(COMPILED_LAYERS)):
            z = block(z, weights, biases)
        return z

    with torch.no_grad():
        return timed_graph(forward)


def mlp_compile():
    for width in (32, 256, 2):
        n = sizes(width, LAYERS, 1)
        row("mlp", *n, "forward", "compile", lambda: mlp_compiled(*n))


def recurrent_pass(work, hidden, length, batch, passing):
    inputs = 1 if work == "rnn" else hidden
    kind = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM, "rnn": torch.nn.RNN}[work]
    network = kind(inputs, hidden, device=options.device)
    x, g = normal(length, batch, inputs), normal(length, batch, hidden)
    if passing == "forward":
        network.eval()  # keeps nothing for a backward pass
        with torch.no_grad():
            return timed(lambda: network(x))
    wanted = [x.requires_grad_(), *network.parameters()]
    if passing == "both":
        return timed(lambda: torch.autograd.grad(network(x)[0], wanted, g))
    return timed(lambda y: torch.autograd.grad(y, wanted, g), lambda: network(x)[:1])


def recurrent_torch():
    gated, plain, passes = ("gru", "lstm"), ("rnn",), ("forward", "backward", "both")
    for networks, shapes, wanted in (
        (gated, RECURRENT, ("forward",)), (plain, RNNS, passes), (gated, RECURRENT, ("both",)),
        (gated, LONG, ("forward",)), (plain, LONG_RNNS, passes), (gated, LONG, ("both",)),
    ):  # fmt: skip
        for n, work, passing in itertools.product(shapes, networks, wanted):
            n = sizes(*n)
            row(work, *n, passing, "cudnn" if events else "cpu", lambda: recurrent_pass(work, *n, passing))


def training_step(width, layers, batch, peer):
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = torch.nn.Linear(INPUTS, width)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))
            self.head = torch.nn.Linear(width, CLASSES)

        def forward(self, x):
            z = self.encoder(x)
            for layer in self.layers:
                z = torch.add(z, torch.tanh(layer(z)), alpha=layers**-0.5)
            return self.head(z)

    with torch.device(options.device):
        network = Network()
        x, labels = torch.randn(batch, INPUTS), torch.randint(CLASSES, (batch,))
    how = {"eager": {}, "eager-fused": {"fused": True}, "graph": {"fused": True, "capturable": True}}[peer]
    optimiser = torch.optim.AdamW(network.parameters(), **how)

    def step():
        optimiser.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(network(x), labels).backward()
        optimiser.step()

    if peer != "graph":
        return timed(step)
    warm_up(step)
    optimiser.zero_grad(set_to_none=True)
    graph, _ = capture(step)
    return timed(graph.replay)


def training_torch():
    for width, batch in TRAININGS:
        n = sizes(width, LAYERS, batch)
        for peer in ("graph", "eager", "eager-fused"):
            row("resnet-training", *n, "step", peer, lambda: training_step(*n, peer))


# ---- JAX ----


def open_jax():
    global jax, jnp, numpy, software, device_name
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if options.device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    import jax as module
    import numpy as arrays

    jax, jnp, numpy = module, module.numpy, arrays
    jax.config.update("jax_default_matmul_precision", "highest")
    if options.device == "cuda" and jax.default_backend() != "gpu":
        raise RuntimeError(f"JAX has no GPU here, its backend is {jax.default_backend()}")
    software, device_name = f"jax {jax.__version__}", "cpu" if options.device == "cpu" else jax.devices()[0].device_kind


def uniform(scale, *shape):
    numbers = numpy.random.default_rng(1).random(shape, "f")
    return jax.device_put(scale * (2 * numbers - 1))


def timed_jit(function, *arguments):
    compiled = jax.jit(function).lower(*arguments).compile()

    def once():
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        return time.perf_counter() - start

    return repeat(once)


@functools.lru_cache(maxsize=1)
def mlp_numbers(width, layers, batch):
    scale = width**-0.5
    return (uniform(scale, layers, width, width), uniform(scale, layers, width)), uniform(1, batch, width)


def mlp_scan(unroll):
    def layer(z, p):
        W, b = p
        return jax.nn.relu(z @ W + b), None

    return lambda p, x: jax.lax.scan(layer, x, p, unroll=unroll)[0]


def mlp_jax_forward(n, unroll):
    return timed_jit(mlp_scan(unroll), *mlp_numbers(*n))


def mlp_jax_both(n):
    return timed_jit(jax.value_and_grad(lambda p, x: mlp_scan(1)(p, x).sum()), *mlp_numbers(*n))


def mlp_jax():
    for width, batch in MLPS:
        n = sizes(width, LAYERS, batch)
        row("mlp", *n, "forward", "jax-scan", lambda: mlp_jax_forward(n, 1))
        row("mlp", *n, "both", "jax-scan", lambda: mlp_jax_both(n))
    for width, batch in MLPS:
        n = sizes(width, LAYERS, batch)
        row("mlp", *n, "forward", "jax-scan-16", lambda: mlp_jax_forward(n, 16))


def linear_numbers(width, length, dense):
    states = (length,) if width == 1 else (length, width)
    return uniform(0.5, *states, width) if dense else uniform(1, *states), uniform(1, *states)


def linear_associative(width, length, dense):
    def diagonal_pair(first, second):
        (a, b), (c, d) = first, second
        return a * c, c * b + d

    def product(A, B):  # written out: such small ones are no work for a library
        return (A[..., :, :, None] * B[..., None, :, :]).sum(-2)

    def dense_pair(first, second):
        (A, b), (C, d) = first, second
        return product(C, A), product(C, b[..., None])[..., 0] + d

    pair = dense_pair if dense else diagonal_pair
    return timed_jit(lambda a, b: jax.lax.associative_scan(pair, (a, b))[1], *linear_numbers(width, length, dense))


def linear_scan(width, length):
    def step(x, p):
        x = p[0] * x + p[1]
        return x, x

    a, b = linear_numbers(width, length, False)
    return timed_jit(lambda a, b: jax.lax.scan(step, jnp.zeros_like(b[0]), (a, b))[1], a, b)


def linear_jax():
    for width, power, dense in ((64, 20, False), (1, 26, False), (2, 22, True), (1024, 16, False)):
        n = width, length, _ = sizes(width, 1 << power, 1)
        row("linear-dense" if dense else "linear-diagonal", *n, "forward", "jax-associative",
            lambda: linear_associative(width, length, dense))  # fmt: skip
    n = sizes(64, 1 << 16, 1)
    row("linear-diagonal", *n, "forward", "jax-scan", lambda: linear_scan(*n[:2]))


def paragru(hidden, length, batch, unroll):
    """Gates in the order z, r, q; a unit's recurrence is its own, with a weight a gate."""
    W, b = uniform(hidden**-0.5, hidden, 3 * hidden), uniform(hidden**-0.5, 3 * hidden)
    a, x = uniform(0.5, 3, hidden), uniform(1, length, batch, hidden)

    def step(h, u, a):
        z = jax.nn.sigmoid(u[:, :hidden] + a[0] * h)
        r = jax.nn.sigmoid(u[:, hidden : 2 * hidden] + a[1] * h)
        q = jnp.tanh(u[:, 2 * hidden :] + a[2] * r * h)
        h = h + z * (q - h)
        return h, h

    def forward(W, b, a, x):
        return jax.lax.scan(lambda h, u: step(h, u, a), jnp.zeros_like(x[0]), x @ W + b, unroll=unroll)[1]

    return timed_jit(forward, W, b, a, x)


def para_jax():
    n = sizes(64, 16384, 1)
    row("paragru", *n, "forward", "jax-scan", lambda: paragru(*n, 1))
    row("paragru", *n, "forward", "jax-scan-16", lambda: paragru(*n, 16))


# ---- stages ----

ROWS = {("mlp", "torch"): mlp_torch, ("mlp", "jax"): mlp_jax, ("mlp", "compile"): mlp_compile,
        ("recurrent", "torch"): recurrent_torch, ("resnet-training", "torch"): training_torch,
        ("linear", "jax"): linear_jax, ("para", "jax"): para_jax}  # fmt: skip


def run_stage():
    signal.signal(signal.SIGALRM, late)
    try:
        (open_jax if options.stage == "jax" else open_torch)()
    except Exception as problem:
        say(f"{options.part}, {options.stage}: skipped: {type(problem).__name__}: {str(problem).splitlines()[0][:200]}")
        return
    ROWS[options.part, options.stage]()


def start_stage(part, stage, seconds):
    """In a process of its own, which ends in time even where a library hangs."""
    command = [sys.executable, os.path.abspath(__file__), "--part", part, "--stage", stage,
               "--seconds", f"{seconds:.0f}", "--device", options.device] + ["--small"] * options.small  # fmt: skip
    environment = {**os.environ, "NVIDIA_TF32_OVERRIDE": "0", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    try:
        status = subprocess.run(command, env=environment, timeout=seconds + GRACE).returncode
        if status:
            say(f"{part}, {stage}: ended with status {status}; its rows end there")
    except subprocess.TimeoutExpired:
        say(f"{part}, {stage}: ended after {seconds + GRACE:.0f} s; its rows end there")


def main():
    global options
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, help="only this one")
    parser.add_argument("--seconds", type=float, help="of each part (default: " + ", ".join(
        f"{part} {sum(stages.values())}" for part, stages in PARTS.items()) + ")")  # fmt: skip
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes: a trial, not a measurement")
    parser.add_argument("--stage", choices=("torch", "jax", "compile"), help="only this one, here, no header")
    options = parser.parse_args()
    if options.stage:
        if (options.part, options.stage) not in ROWS or not options.seconds:
            parser.error("--stage wants --seconds and a --part that has it")
        return run_stage()
    print(",".join(COLUMNS), flush=True)
    deadline = 0
    for part, stages in PARTS.items():
        if options.part not in (None, part):
            continue
        share = options.seconds / sum(stages.values()) if options.seconds else 1
        for stage, seconds in stages.items():
            deadline += share * seconds
            left = deadline - (time.monotonic() - STARTED)
            if left < LEAST:
                say(f"{part}, {stage}: left out")
            else:
                start_stage(part, stage, left)


if __name__ == "__main__":
    main()
