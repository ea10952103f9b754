# SPDX-License-Identifier: MIT
"""What cell_jax.py, cell_torch.py and cell_onnx.py share: the problem, its reference, checking, timing, printing.

The problem, in float32, is the chain that 'deeppcr bench cell', 'bench chain' and 'bench mlp' run:
    tanh     z_l = tanh(W z_{l-1} + x_l)     one W for all steps; dense, or diagonal (elementwise) with --structure
    linear   z_l = A_l z_{l-1} + x_l         every step its own A_l, dense or diagonal
    mlp      z_l = relu(W_l z_{l-1} + b_l)   every step its own W_l and b_l, PyTorch's default initialisation
Forward gives all states. Backward, given the states and g_l = dLoss/dz_l at every step, gives the gradients of the x_l and
of z_0, of an mlp those of W_l, b_l and z_0; that of z_0 is checked.

Import this before numpy, torch or jax, as common.py.
"""
import time

import common

CELLS = ("tanh", "linear", "mlp")
STRUCTURES = ("dense", "diagonal")
DIRECTIONS = ("forward", "backward")
TOLERANCE = 1e-3  # of results, relative to the largest value


def extend(parser):
    parser.add_argument("--cell", choices=CELLS, default="tanh")
    parser.add_argument("--structure", choices=STRUCTURES, default="dense")
    parser.add_argument("--length", type=int, default=65536, help="steps (default 65536)")
    parser.add_argument("--radius", type=float, default=0.9, help="spectral radius of W (default 0.9)")
    parser.add_argument("--input-sd", type=float, default=1, help="standard deviation of x (default 1)")
    parser.set_defaults(width=2, batch=1)
    parser.add_argument("--direction", choices=DIRECTIONS, help="only this one (default both)")


def prepare(description):
    options = common.prepare(description, extend)
    if options.cell == "mlp" and options.structure != "dense":
        common.say("--structure: an mlp's weights are dense")
        raise SystemExit(2)
    if options.length < 1:
        common.say("--length: wanted at least 1")
        raise SystemExit(2)
    return options


def numbers(options):
    """W [w][w] or [w] (linear, mlp: [L] of them), x [L][B][w] (mlp: b [L][1][w]), g [L][B][w], z0 [B][w]."""
    import numpy as np

    random = np.random.default_rng(0)
    L, B, w, R = options.length, options.batch, options.width, options.radius
    dense = options.structure == "dense"
    g = random.standard_normal((L, B, w)).astype("f")
    if options.cell == "mlp":
        W, b = (random.uniform(-(w**-0.5), w**-0.5, shape).astype("f") for shape in ((L, w, w), (L, 1, w)))
        return W, b, g, random.standard_normal((B, w)).astype("f")
    if options.cell == "linear":
        n = w if dense else 1
        W = random.standard_normal((L, w, w) if dense else (L, w)) * R / np.sqrt(n)
    elif dense:
        W = random.standard_normal((w, w))
        W *= R / np.abs(np.linalg.eigvals(W)).max()
    else:
        W = random.uniform(-R, R, w)
    x = options.input_sd * random.standard_normal((L, B, w))
    return W.astype("f"), x.astype("f"), g, np.zeros((B, w), "f")


def reference(options, W, x, g, z0):
    """States [L][B][w] and dz0 [B][w], by loops in double."""
    import numpy as np

    W, x, g = W.astype("d"), x.astype("d"), g.astype("d")
    each, dense = options.cell != "tanh", options.structure == "dense"
    act, slope = {"tanh": (np.tanh, lambda z: 1 - z * z), "linear": (lambda u: u, lambda z: 1.0),
                  "mlp": (lambda u: np.maximum(u, 0), lambda z: z > 0)}[options.cell]  # fmt: skip
    z, states = z0.astype("d"), np.empty_like(g)
    for l in range(options.length):
        A = W[l] if each else W
        u = (z @ A.T if dense else z * A) + x[l]
        z = states[l] = act(u)
    d = np.zeros_like(z)
    for l in reversed(range(options.length)):
        A = W[l] if each else W
        e = (d + g[l]) * slope(states[l])
        d = e @ A if dense else e * A
    return states, d


def wrong(found, wanted):
    """The largest difference relative to the largest value."""
    import numpy as np

    found = np.asarray(found, "d")
    if found.size < wanted.size:  # the last state alone
        wanted = wanted[-1]
    found = found.reshape(wanted.shape)
    return float(np.abs(found - wanted).max() / max(1e-30, np.abs(wanted).max()))


def print_record(options, entry):
    import json

    if options.json:
        print(json.dumps(entry), flush=True)
    elif "skipped" in entry:
        print(f"{entry['library']} {entry['version']}  {entry['direction']:8} {entry['variant']:36} skipped: {entry['skipped']}", flush=True)  # fmt: skip
    else:
        print(f"{entry['library']} {entry['version']}  {entry['direction']:8} {entry['variant']:36} "
              f"{1e3 * entry['seconds']:9.3f} ms (least {1e3 * entry['seconds_min']:.3f}, {entry['processors']:.2f} "
              f"processors)  error {entry['error']:.1e}", flush=True)  # fmt: skip


def run(options, library, version, forward, backward):
    """forward and backward: name -> make, where make() returns (run, result): run() computes, result() gives what it
    left as numpy, states or dz0. What cannot be made is skipped; a wrong result ends the run."""
    import statistics

    W, x, g, z0 = options.numbers
    states, dz0 = reference(options, W, x, g, z0)
    known = {**forward, **backward}
    if options.variants:
        common.wanted(options, known)
    for direction, variants, wanted in (("forward", forward, states), ("backward", backward, dz0)):
        if options.direction not in (None, direction):
            continue
        for name, make in variants.items():
            if options.variants and name not in options.variants.split(","):
                continue
            entry = {"library": library, "version": version, "variant": name, "direction": direction,
                     "kind": {"linear": "chain", "mlp": "mlp"}.get(options.cell, "cell"), "cell": options.cell,
                     "structure": options.structure, "length": options.length, "width": options.width,
                     "batch": options.batch, "threads": options.threads}  # fmt: skip
            start = time.perf_counter()
            try:
                work, result = make()
                work()
                error = wrong(result(), wanted)
            except Exception as problem:  # a compiler may fail in any way
                print_record(options, {**entry, "skipped": f"{type(problem).__name__}: {common.first_line(problem)}"})
                continue
            if not error <= TOLERANCE:
                common.say(f"{library} {name}, {direction}: differs from the loop in double by {error}")
                raise SystemExit(1)
            setup = time.perf_counter() - start
            (times,), processors = common.measure(options.seconds, work)
            print_record(options, {**entry, "seconds": statistics.median(times), "seconds_min": min(times),
                                   "runs": len(times), "processors": processors, "error": error,
                                   "setup_seconds": setup})  # fmt: skip
