#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Whole samplings on a GPU in PyTorch, of sampler.c's problem: a denoiser with drawn numbers that predicts v (states of 16 numbers,
4 layers of 512), DDIM of 100 steps and DDPM of 1000, leading spacing, the linear schedule; float32, TF32 off. CSV on standard output.

    peers_sampler.py [--device cuda] [--repetitions 21] [--seconds 240] [--width 16] [--hidden 512] [--depth 4]
                     [--small]

    h = silu(W_in x + s_1(t));  h += silu(W_l h + s_l(t)), l = 2..D;  m = W_out h + b_out;  x' = p_l x + q_l m + sigma_l xi_l

Peers: eager, the loop as it is written; graph, the whole loop captured in one CUDA graph. Shifts s(t), factors, start and noise (times
sigma) lie on the device before. Medians of samplings timed one by one by the host's clock, from the first call to the end of the wait
for the device, after two that are not counted. What matters most comes first, and what --seconds leave no time for is left out; a row
that fails is left out too, and both are said in a line on standard error. --small: a few steps of a small denoiser, for a rehearsal
(--device cpu, which has no graphs)."""
import argparse
import csv
import ctypes
import math
import platform
import statistics
import sys
import time

try:
    import torch
except Exception as error:
    print(f"peers_sampler: skipped: no PyTorch: {error}", file=sys.stderr)
    sys.exit(77)

TRAINED, BETA_FIRST, BETA_LAST = 1000, 1e-4, 0.02  # the linear schedule
TIME_WIDTH = 128
WARM, LEAST = 2, 3
TOLERANCE = 1e-4  # of a graph's samples against the loop's, relative to max(1, |x|)
COLUMNS = "device,driver,software,command,work,sampler,steps,width,batch,peer,repetitions,median_us"


def say(text):
    print(f"peers_sampler: {text}", file=sys.stderr, flush=True)


def first_line(error):
    return (str(error).strip() or repr(error)).splitlines()[0][:160]


def places(steps):
    """Times of the steps, and alpha and sigma where each begins and where it goes to, the last to alpha 1; [steps] float64."""
    beta = torch.linspace(BETA_FIRST, BETA_LAST, TRAINED, dtype=torch.float64)
    abar = torch.cat((torch.cumprod(1 - beta, 0), torch.ones(1, dtype=torch.float64)))
    times = torch.arange(steps - 1, -1, -1) * (TRAINED // steps)
    after = torch.cat((times[1:], torch.tensor([TRAINED])))
    return times, abar[times].sqrt(), (1 - abar[times]).sqrt(), abar[after].sqrt(), (1 - abar[after]).sqrt()


def factors(sampler, steps):
    """p, q and sigma of x' = p x + q m + sigma xi, m a v: x0 = a x - s m, e = a m + s x."""
    _, a, s, a1, s1 = places(steps)
    if sampler == "ddim":  # x' = a1 x0 + s1 e
        return (a1 * a + s1 * s).tolist(), (s1 * a - a1 * s).tolist(), [0.0] * steps
    kept = (a / a1) ** 2  # ddpm: x' = by_x x + by_x0 x0 + sigma xi
    by_x, by_x0 = kept.sqrt() * (s1 / s) ** 2, a1 * (1 - kept) / s**2
    sigma = ((s1 / s) ** 2 * (1 - kept).clamp(min=0)).sqrt()
    return (by_x + by_x0 * a).tolist(), (-by_x0 * s).tolist(), sigma.tolist()


def draw(width, hidden, depth, device):
    """Weights [out][in] of the layers, the last one's bias, and weights of the shifts' network; drawn as dpcr_diffusion_create draws."""
    generator = torch.Generator().manual_seed(1)

    def uniform(fan_in, out, scale=3**0.5):
        return ((2 * torch.rand(out, fan_in, generator=generator) - 1) * scale * fan_in**-0.5).to(device)

    weights = [uniform(width, hidden), *(uniform(hidden, hidden) for _ in range(1, depth)), uniform(hidden, width, 0.3)]
    shifts = [uniform(TIME_WIDTH, TIME_WIDTH), uniform(TIME_WIDTH, TIME_WIDTH), uniform(TIME_WIDTH, depth * hidden)]
    return weights, torch.zeros(width, device=device), shifts


def shift_table(network, steps, depth):
    """Of each step the layers' shifts, each [hidden], one after another in memory. Biases of a new network are 0."""
    half = TIME_WIDTH // 2
    angle = places(steps)[0][:, None] * torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float64) / half)
    u = torch.cat((angle.sin(), angle.cos()), 1).float().to(network[0].device)
    for weight in network[:2]:
        u = torch.nn.functional.silu(u @ weight.T)
    return [row.chunk(depth) for row in (u @ network[2].T).contiguous().unbind()]


def sampling(weights, bias, shifts, pqs, x0, noise):
    """run(), one sampling; `noise` [steps][batch][width], times sigma, or None."""
    linear, silu = torch.nn.functional.linear, torch.nn.functional.silu
    first, middle, last = weights[0], weights[1:-1], weights[-1]
    added = noise.unbind() if noise is not None else [None] * len(shifts)
    steps = list(zip(shifts, *pqs[:2], added))

    def run():
        x = x0
        for s, p, q, xi in steps:
            h = silu(linear(x, first, s[0]), inplace=True)
            for weight, shift in zip(middle, s[1:]):
                h = h + silu(linear(h, weight, shift), inplace=True)
            x = torch.mul(x, p).add_(linear(h, last, bias), alpha=q)
            if xi is not None:
                x.add_(xi)
        return x

    return run


def captured(run):
    """The same as one CUDA graph."""
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):  # libraries take their memory before
        run()
    torch.cuda.current_stream().wait_stream(beside)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x = run()

    def replay():
        graph.replay()
        return x

    return replay


def largest_difference(got, wanted):
    return float(((got - wanted).abs() / wanted.abs().clamp(min=1)).max())


def driver():
    """Its version as CUDA counts it (13000 is 13.0)."""
    try:
        version = ctypes.c_int()
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
        return version.value
    except (OSError, AttributeError):
        return ""


class Bench:
    def __init__(self, options):
        self.options, self.end, self.rows = options, time.perf_counter() + options.seconds, 0
        self.device = torch.device(options.device)
        self.on_gpu = self.device.type == "cuda"
        self.weights, self.bias, self.network = draw(options.width, options.hidden, options.depth, self.device)
        name = torch.cuda.get_device_name(self.device) if self.on_gpu else platform.machine() + " processor"
        software = f"PyTorch {torch.__version__}, Python {platform.python_version()}"
        command = " ".join(["peers_sampler.py", *sys.argv[1:]])
        self.begin = [name, driver() if self.on_gpu else "", software, command, f"denoiser-{options.hidden}x{options.depth}"]
        self.out = csv.writer(sys.stdout, lineterminator="\n")
        print(COLUMNS, flush=True)

    def wait(self):
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def late(self):
        return time.perf_counter() > self.end

    def median(self, run):
        times = []
        while len(times) < WARM + self.options.repetitions and (len(times) < WARM + LEAST or not self.late()):
            start = time.perf_counter()
            run()
            self.wait()
            times.append(time.perf_counter() - start)
        return len(times) - WARM, statistics.median(times[WARM:])

    def row(self, peer, sampler, steps, batch, run):
        repetitions, seconds = self.median(run)
        self.out.writerow([*self.begin, sampler, steps, self.options.width, batch, peer, repetitions, f"{1e6 * seconds:.4g}"])
        sys.stdout.flush()
        self.rows += 1

    def problem(self, sampler, steps, batch):
        generator = torch.Generator().manual_seed(2)
        pqs = factors(sampler, steps)
        x0 = torch.randn(batch, self.options.width, generator=generator).to(self.device)
        noise = None
        if sampler == "ddpm":
            noise = torch.randn(steps, batch, self.options.width, generator=generator).mul_(torch.tensor(pqs[2])[:, None, None]).to(self.device)
        return sampling(self.weights, self.bias, shift_table(self.network, steps, self.options.depth), pqs, x0, noise)

    def graph(self, run):
        if not self.on_gpu:
            raise RuntimeError("a CUDA graph wants a CUDA device")
        replay, wanted = captured(run), run()
        worst = largest_difference(replay(), wanted)
        if not worst <= TOLERANCE:
            raise RuntimeError(f"its samples differ from the loop's by {worst:.3g}")
        return replay

    def both(self, sampler, steps, batch):
        run = None
        for peer in ("eager", "graph"):
            what = f"{peer}, {sampler} {steps}, batch {batch}"
            if self.late():
                say(f"{what}: left out: --seconds are over")
                continue
            try:
                run = run or self.problem(sampler, steps, batch)
                self.row(peer, sampler, steps, batch, run if peer == "eager" else self.graph(run))
            except Exception as error:  # of the device's, of the capture's, out of memory
                say(f"{what}: skipped: {type(error).__name__}: {first_line(error)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repetitions", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=240, help="of all rows together")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if min(options.repetitions, options.width, options.hidden, options.depth) < 1:
        parser.error("wanted --repetitions, --width, --hidden and --depth 1 or more")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        say("skipped: PyTorch finds no CUDA device")
        sys.exit(77)
    if options.small:
        options.hidden, options.repetitions = min(options.hidden, 32), min(options.repetitions, 3)
    torch.set_float32_matmul_precision("highest")  # no TF32
    ddim, ddpm = ("ddim", 5 if options.small else 100), ("ddpm", 10 if options.small else 1000)
    problems = [(*ddim, 1), (*ddim, 8), (*ddpm, 1), (*ddpm, 8), (*ddim, 64), (*ddpm, 64),
                (*ddim, 2), (*ddim, 4), (*ddpm, 2), (*ddpm, 4)]  # fmt: skip
    with torch.no_grad():
        if options.device.startswith("cuda"):
            torch.cuda.set_device(torch.device(options.device).index or 0)
        bench = Bench(options)
        for problem in problems:
            bench.both(*problem)
    sys.exit(0 if bench.rows else 1)


if __name__ == "__main__":
    main()
