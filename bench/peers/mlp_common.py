# SPDX-License-Identifier: MIT
"""What mlp_torch.py, mlp_jax.py and mlp_onnx.py share: arguments, the network's numbers, timing, printing.

The problem: a whole network, forward, and backward with every parameter's gradient, in float32:
    z_l = relu(z_{l-1} W_l + b_l), l < layers, PyTorch's default initialisation;  loss = sum(z_{L-1})
`checksum` in the output is the sum of the last states: variants of one program must agree.

Import this before numpy, torch, jax or onnxruntime: it clears presets that decide which kernels they choose.
"""
import argparse
import json
import os
import statistics
import time

PRESETS = ("OPENBLAS_", "NVPL_", "MKL_", "BLIS_", "ATEN_", "DNNL_", "ONEDNN_", "XLA_", "JAX_", "OMP_", "KMP_", "GOMP_")


def prepare(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--layers", type=int, default=1024)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2, help="measured time of each variant and direction (default 2)")
    parser.add_argument("--compile-seconds", type=int, default=60, help="a compiled variant that takes longer is skipped")
    options = parser.parse_args()
    for name in [name for name in os.environ if name.startswith(PRESETS)]:
        del os.environ[name]
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, allowed[: options.threads])
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    return options


def numbers(options):
    """x [B][w], W [L][w][w] as [in][out], b [L][w]."""
    import numpy as np

    random = np.random.default_rng(0)
    layers, width = options.layers, options.width
    bound = width**-0.5
    return (random.uniform(-1, 1, (options.batch, width)).astype("f"),
            random.uniform(-bound, bound, (layers, width, width)).astype("f"),
            random.uniform(-bound, bound, (layers, width)).astype("f"))  # fmt: skip


def measure(call, seconds):
    call(), call()
    times, end = [], time.perf_counter() + seconds
    while len(times) < 7 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def record(options, library, version, variant, direction, **fields):
    print(json.dumps({"library": library, "version": version, "variant": variant, "direction": direction,
                      "threads": options.threads, "layers": options.layers, "width": options.width,
                      "batch": options.batch, **fields}), flush=True)  # fmt: skip


def run(options, library, version, variants):
    """variants: name -> make; make() returns (forward, backward), each a call that returns when its results are there,
    forward with the sum of the last states; backward (with its own forward pass, `with_forward`) may be None.
    Backward's time is what it takes beyond the forward pass that a peer makes with it."""
    for name, make in variants.items():
        start = time.perf_counter()
        try:
            forward, taped, both = make()
            checksum = float(forward())
        except Exception as error:  # a compiler may fail in any way
            text = (str(error).strip() or repr(error)).splitlines()[0]
            record(options, library, version, name, "forward", skipped=f"{type(error).__name__}: {text[:160]}")
            continue
        setup = time.perf_counter() - start
        scale = 1e9 / options.layers
        times = [t * scale for t in measure(forward, options.seconds)]
        deciles, median = statistics.quantiles(times, n=10), statistics.median(times)
        record(options, library, version, name, "forward", ns_a_layer=median, ns_a_layer_min=min(times),
               spread=(deciles[8] - deciles[0]) / median, rounds=len(times), checksum=checksum, setup_seconds=setup)  # fmt: skip
        if both is None:
            continue
        whole = [t * scale for t in measure(both, options.seconds)]
        first = statistics.median([t * scale for t in measure(taped, options.seconds)])
        deciles, median = statistics.quantiles(whole, n=10), statistics.median(whole)
        record(options, library, version, name, "backward", ns_a_layer=median - first, ns_a_layer_min=min(whole) - first,
               spread=(deciles[8] - deciles[0]) / median, rounds=len(whole), with_forward=median)  # fmt: skip
