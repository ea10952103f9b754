# SPDX-License-Identifier: MIT
"""What diffusion_torch.py and diffusion_jax.py share: the denoiser that bench_sampler saves, its sampler as coefficients, checking,
timing, printing. Import this before torch or jax, as common.py.

The problem, in float32: DDIM, eta 0, leading spacing, of a denoiser that predicts v:
    h = silu(W_in x + s_1(t));  h += silu(W_l h + s_l(t)), l = 2..D;  m = W_out h + b_out;  x' = p_l x + q_l m
The shifts s(t) of all steps are computed before the timing, as ours are, and p_l, q_l hold the whole step's arithmetic.
"""
import argparse
import json
import statistics
import sys

import common

TOLERANCE = 1e-4  # of the samples, relative to max(1, |x|)


def prepare(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True, help="safetensors of bench_sampler --save or of 'train denoiser'")
    parser.add_argument("--start", required=True, help="npy [batch][width]: where the pictures start (bench_sampler --start)")
    parser.add_argument("--samples", help="npy [batch][width]: where they must end")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1, help="measured time of each variant")
    parser.add_argument("--variants", help="only these, separated by commas")
    options = parser.parse_args()
    common.clear_presets()
    common.keep_to(options.threads)
    return options


def read(path):
    """Tensors by name and the metadata of a safetensors file."""
    import numpy as np

    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    meta = header.pop("__metadata__", {})
    return {name: np.frombuffer(data[slice(*t["data_offsets"])], "<f4").reshape(t["shape"])
            for name, t in header.items() if t["dtype"] == "F32"}, meta  # fmt: skip


def problem(options):
    """x [B][w], weights and shifts of every layer, p and q [N]; W of a layer lies [out][in], a shift [N][out]."""
    import numpy as np

    tensors, meta = read(options.model)
    get = lambda key: meta["deeppcr.denoiser." + key]  # noqa: E731
    T, N, depth = int(get("steps")), options.steps, int(get("depth"))
    if get("prediction") != "v" or get("schedule") != "linear" or int(get("classes")):
        sys.exit("wanted a model without classes that predicts v, with the linear schedule")
    beta = float(get("beta_first")) + (float(get("beta_last")) - float(get("beta_first"))) * np.arange(T) / (T - 1)
    abar = np.append(np.cumprod(1 - beta), 1.0)
    times = (np.arange(N)[::-1]) * (T // N)
    after = np.append(times[1:], T)  # the last goes to abar = 1
    alpha, sigma = np.sqrt(abar), np.sqrt(1 - abar)
    a, s, a1, s1 = alpha[times], sigma[times], alpha[after], sigma[after]
    p, q = a1 * a + s1 * s, s1 * a - a1 * s  # x0 = a x - s m, e = a m + s x, x' = a1 x0 + s1 e
    angle = times[:, None] * np.exp(-np.log(10000) * np.arange(64) / 64)
    u = np.concatenate((np.sin(angle), np.cos(angle)), 1)
    for name in ("time.0", "time.1", "shift"):
        u = u @ tensors[name + ".weight"].T.astype("d") + tensors[name + ".bias"]
        if name != "shift":
            u = u / (1 + np.exp(-u))
    names = ["in"] + [f"hidden.{i}" for i in range(1, depth)]
    shifts = np.split(u.astype("f"), depth, 1)
    weights = [tensors[name + ".weight"] for name in names] + [tensors["out.weight"]]
    return np.load(options.start), weights, shifts, tensors["out.bias"], p.astype("f"), q.astype("f")


def run(options, library, variants):
    """variants: name -> make(), where make() returns run(), which returns the samples as numpy when asked for. Prints library,
    variant, threads, nanoseconds a step (median, least), largest difference from --samples, rounds; the fastest last, as `best`."""
    import numpy as np

    found = []
    for name, make in variants.items():
        if options.variants and name not in options.variants.split(","):
            continue
        try:
            step = make()
            got = np.asarray(step())
        except Exception as error:  # a compiler may fail in any way
            common.say(f"{library} {name}: skipped: {common.first_line(error)}")
            continue
        worst = float("nan")
        if options.samples:
            wanted = np.load(options.samples)
            worst = float((np.abs(got - wanted) / np.maximum(1, np.abs(wanted))).max())
            if not worst <= TOLERANCE:
                sys.exit(f"{library} {name}: differs from the samples wanted by {worst}")
        (times,), _ = common.measure(options.seconds, step)
        found.append((statistics.median(times), min(times), name, worst, len(times)))
    for middle, least, name, worst, rounds in [*found, min(found)]:
        each = 1e9 / options.steps
        print(f"{library},{name},{options.threads},{middle * each:.1f},{least * each:.1f},{worst:.3g},{rounds}", flush=True)
