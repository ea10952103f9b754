# SPDX-License-Identifier: MIT
"""What the peers' programs share: a clean environment and timing; and of train_torch.py and train_jax.py the arguments, the
problem's numbers and printing.

Their problem: one training step (forward, backward, AdamW) in float32 of
    z_0 = x We + be;  z_l = z_{l-1} + s tanh(z_{l-1} W_l + b_l), s = 1/sqrt(L);  logits = z_L Wh + bh;  cross entropy
Weights lie as [in][out]. Every variant starts from the same parameters, so its loss after STEPS_CHECKED steps must be
the same; `loss` in the output tells.

Import this before numpy, torch or jax: it clears presets that decide which kernels they choose.
"""
import argparse
import json
import os
import statistics
import sys
import time

INPUTS, CLASSES = 784, 10
RATE, WEIGHT_DECAY, BETA1, BETA2, EPSILON = 1e-3, 1e-2, 0.9, 0.999, 1e-8
STEPS_CHECKED = 3
TOLERANCE = 1e-3  # of the loss after STEPS_CHECKED steps, between variants

PRESETS = ("OPENBLAS_", "NVPL_", "MKL_", "BLIS_", "ATEN_", "DNNL_", "ONEDNN_", "XLA_", "JAX_", "OMP_", "KMP_", "GOMP_")


def say(text):
    print(text, file=sys.stderr, flush=True)


def clear_presets():
    """Takes what decides which kernels are chosen out of the environment; the names."""
    cleared = sorted(name for name in os.environ if name.startswith(PRESETS))
    for name in cleared:
        del os.environ[name]
    return cleared


def keep_to(threads):
    """The process on as many processors as it has threads."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ["OMP_NUM_THREADS"] = str(threads)


def tell_xla(threads):
    """Before JAX is imported: where one thread is asked for, it has one."""
    if threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def arguments(description, extend=None):
    """`extend`, if given, adds a program's own options to the parser."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--layers", type=int, default=1024)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2, help="measured time of each variant (default 2)")
    parser.add_argument("--variants", help="only these, separated by commas, by their names in the output")
    parser.add_argument("--compile-seconds", type=int, default=60, help="a compiled variant that takes longer is skipped")
    parser.add_argument("--json", action="store_true", help="one JSON object a variant instead of a line of text")
    if extend:
        extend(parser)
    options = parser.parse_args()
    for name in ("layers", "width", "batch", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}, wanted at least 1")
    return options


def prepare(description, extend=None):
    """Parses the arguments, clears presets, keeps the process on as many processors as it has threads."""
    options = arguments(description, extend)
    cleared = clear_presets()
    if cleared:
        say("cleared presets: " + " ".join(cleared))
    allowed = len(os.sched_getaffinity(0))
    if options.threads > allowed:
        say(f"--threads is {options.threads}, this process may run on {allowed} processors")
        sys.exit(2)
    keep_to(options.threads)
    return options


def numbers(options):
    """x, labels and parameters as numpy arrays: PyTorch's default ranges, U(-1/sqrt(fan_in), 1/sqrt(fan_in))."""
    import numpy as np

    random = np.random.default_rng(0)
    layers, width = options.layers, options.width

    def uniform(fan_in, *shape):
        return random.uniform(-(fan_in**-0.5), fan_in**-0.5, shape).astype("f")

    x = random.standard_normal((options.batch, INPUTS)).astype("f")
    labels = random.integers(0, CLASSES, options.batch)
    parameters = {
        "We": uniform(INPUTS, INPUTS, width), "be": uniform(INPUTS, width),
        "W": uniform(width, layers, width, width), "b": uniform(width, layers, width),
        "Wh": uniform(width, width, CLASSES), "bh": uniform(width, CLASSES),
    }  # fmt: skip
    return x, labels, parameters


def wanted(options, variants):
    if not options.variants:
        return variants
    names = options.variants.split(",")
    unknown = [name for name in names if name not in variants]
    if unknown:
        say(f"no variant '{unknown[0]}'; there are {', '.join(variants)}")
        sys.exit(2)
    return {name: variants[name] for name in names}


def first_line(error):
    return (str(error).strip() or repr(error)).splitlines()[0][:160]


def measure(seconds, *works):
    """Of each work the seconds of at least 5 calls, in rounds of one call of each, for `seconds`, after one that is not
    counted; and the processors' time of all of them by wall time. A work returns when its results are there."""
    for work in works:
        work()
    times, begin, processors = [[] for _ in works], time.perf_counter(), time.process_time()
    while len(times[0]) < 5 or time.perf_counter() - begin < seconds:
        for work, kept in zip(works, times):
            start = time.perf_counter()
            work()
            kept.append(time.perf_counter() - start)
    return times, (time.process_time() - processors) / sum(map(sum, times))


def record(options, library, version, variant, **fields):
    entry = {"library": library, "version": version, "variant": variant, "threads": options.threads,
             "layers": options.layers, "width": options.width, "batch": options.batch, **fields}  # fmt: skip
    if options.json:
        print(json.dumps(entry), flush=True)
    elif "skipped" in fields:
        print(f"{library} {version}  {variant:40}  skipped: {fields['skipped']}", flush=True)
    else:
        print(f"{library} {version}  {variant:40}  {fields['milliseconds_median']:8.2f} ms (least "
              f"{fields['milliseconds_min']:.2f}, spread {100 * fields['spread']:.0f} %, {fields['processors']:.2f} "
              f"processors)  loss {fields['loss']:.5f}",
              flush=True)  # fmt: skip


def report(options, library, version, variant, seconds, processors, **fields):
    """spread: from the first to the ninth decile, as a part of the median. processors: how many were in use; well below
    1 on a machine that others load. processor_milliseconds: their time a step, all threads together."""
    times = [1e3 * s for s in seconds]
    deciles = statistics.quantiles(times, n=10)
    median = statistics.median(times)
    record(options, library, version, variant, milliseconds_median=median, milliseconds_min=min(times),
           spread=(deciles[8] - deciles[0]) / median, steps=len(times), processors=processors,
           processor_milliseconds=processors * statistics.mean(times), **fields)  # fmt: skip


def run(options, library, version, variants):
    """Measures every variant: name -> (autodiff, make), where make() returns step(), which returns the loss before its
    update. A variant that cannot be made is reported as skipped; one whose loss differs from the others' ends the run."""
    first = None
    for name, (autodiff, make) in variants.items():
        start = time.perf_counter()
        try:
            step = make()
            losses = [float(step()) for _ in range(STEPS_CHECKED + 1)]
        except Exception as error:  # a compiler may fail in any way
            record(options, library, version, name, skipped=f"{type(error).__name__}: {first_line(error)}")
            continue
        setup = time.perf_counter() - start
        loss = losses[-1]
        first = loss if first is None else first
        if not abs(loss - first) <= TOLERANCE:
            say(f"{library} {name}: loss {loss} after {STEPS_CHECKED} steps, the first variant's {first}")
            sys.exit(1)
        (times,), processors = measure(options.seconds, step)
        report(options, library, version, name, times, processors, autodiff=autodiff, loss=loss, setup_seconds=setup)
