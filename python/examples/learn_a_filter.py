#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A nonlinear filter whose parameters are learned from audio: NumPy alone.

A saturating resonator, z = (s, v):   v' = tanh(a v - c s + g x_l),   s' = s + d v'
has coloured a recording: plucked strings at 48 kHz, made here, or your own (--wav). The learner hears what went in and what came out,
starts from wrong parameters and follows the gradient of the squared error, which comes from the adjoint of the whole chain
(`Solution.vjp`): 100 passes forward and back over all of the recording, without cutting it.

    python learn_a_filter.py [--wav FILE] [--seconds 10] [--steps 100] [--plot picture.png]

When to use something else: a filter that is linear is faster by deeppcr.signal or deeppcr.torch.sosfilt, which have gradients too; a
recording of some hundred samples, or many short ones in a batch, runs as well as a loop in PyTorch; and where the filter is chaotic (it
amplifies small differences for ever) there is no way but the loop.
"""
import argparse
import time
import wave

import numpy as np

import deeppcr

RATE = 48000
TRUE = np.array([0.8, 0.25, 0.7, 0.3])  # a, c, g, d
NAMES = ("a", "c", "g", "d")


def recording(path, seconds):
    """The first channel of a 16-bit WAV file, or plucked strings: decaying harmonics after a short noise, a note every 0.4 s."""
    if path:
        with wave.open(path) as file:
            if file.getsampwidth() != 2:
                raise SystemExit(f"{path} has {8 * file.getsampwidth()} bits a sample; wanted 16")
            frames = np.frombuffer(file.readframes(min(file.getnframes(), int(seconds * file.getframerate()))), "<i2")
            return frames.reshape(-1, file.getnchannels())[:, 0] / 8192
    rng, x = np.random.default_rng(0), np.zeros(int(seconds * RATE))
    for start in range(0, x.size, int(0.4 * RATE)):
        t = np.arange(min(x.size - start, RATE)) / RATE
        pitch = 110 * 2 ** (rng.choice([0, 3, 5, 7, 10, 12, 15]) / 12)
        for k in range(1, 20):
            x[start : start + t.size] += np.sin(2 * np.pi * k * pitch * t + rng.uniform(0, 6)) * np.exp(-t * (2 + k)) / k
        x[start : start + t.size] += 0.7 * rng.normal(size=t.size) * np.exp(-t * 60)  # the pick
    return x + 0.1 * rng.normal(size=x.size)


def filter_of(x, p):
    """(step, its Jacobian, its derivative by the parameters) for the samples x."""
    a, c, g, d = p

    def v_of(z, l):
        return np.tanh(a * z[:, 1] - c * z[:, 0] + g * x[l])

    def step(z, l):
        v = v_of(z, l)
        return np.stack([z[:, 0] + d * v, v], 1)

    def jacobian(z, l):
        slope = 1 - v_of(z, l) ** 2
        return np.stack([np.stack([1 - d * slope * c, d * slope * a], 1), np.stack([-slope * c, slope * a], 1)], 1)

    def gradient(z, l, adjoint):
        """sum over l of (df_l/dp)^T adjoint_l."""
        v = v_of(z, l)
        inner = (d * adjoint[:, 0] + adjoint[:, 1]) * (1 - v * v)
        return np.array([inner @ z[:, 1], -inner @ z[:, 0], inner @ x[l], adjoint[:, 0] @ v])

    return step, jacobian, gradient


def plot(path, x, target, first, last, losses, course):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17), "frameon": False}  # where no curve can lie under it
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    at = slice(2 * RATE // 5, 2 * RATE // 5 + 700) if x.size > RATE else slice(0, 700)
    t = 1e3 * np.arange(x.size)[at] / RATE
    left.plot(t, target[at], "k", lw=2.5, label="the recording")
    left.plot(t, first[at], "C1", lw=1, label="at the start")
    left.plot(t, last[at], "C0--", lw=1, label="learned")
    left.set(xlabel="ms", ylabel="output", title="a note begins")
    left.legend(ncol=3, **below)
    middle.semilogy(losses)
    middle.set(xlabel="step of learning", title="mean squared error")
    for i, name in enumerate(NAMES):
        right.plot(np.array(course)[:, i], f"C{i}", label=name)
        right.axhline(TRUE[i], color=f"C{i}", ls=":")
    right.set(xlabel="step of learning", title="parameters (dotted: the true ones)")
    right.legend(ncol=4, **below)
    figure.savefig(path, dpi=80)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wav")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--plot", metavar="FILE")
    a = parser.parse_args()
    x = recording(a.wav, a.seconds)
    L, l, z0 = x.size, np.arange(x.size), np.zeros(2)
    step, jacobian, _ = filter_of(x, TRUE)
    target = deeppcr.solve(step, z0, L, jacobian).z[:, 0]

    p = np.array([0.5, 0.1, 1.0, 0.5])
    mean, square, losses, course = np.zeros(4), np.zeros(4), [], []
    begin = time.perf_counter()
    for n in range(1, a.steps + 1):
        step, jacobian, gradient = filter_of(x, p)
        found = deeppcr.solve(step, z0, L, jacobian)
        error = found.z[:, 0] - target
        first = found.z[:, 0] if n == 1 else first
        losses.append(float(np.mean(error**2)))
        course.append(p)
        g = np.zeros((L, 2))
        g[:, 0] = 2 * error / L
        adjoint, _ = found.vjp(g)
        by_p = gradient(np.concatenate([z0[None], found.z[:-1]]), l, adjoint)
        mean, square = 0.8 * mean + 0.2 * by_p, 0.95 * square + 0.05 * by_p**2  # Adam
        p = p - 0.03 * 0.98**n * (mean / (1 - 0.8**n)) / (np.sqrt(square / (1 - 0.95**n)) + 1e-12)
        if n in (1, 2, 5) or n % 20 == 0:
            print(f"step {n}: error {losses[-1]:.3g}, parameters {np.round(p, 3)}")
    each = (time.perf_counter() - begin) / a.steps
    print(f"{L} samples: {1e3 * each:.0f} ms a step, forward and back, {found.report!r}")

    z, short = z0[None], min(L, 20000)
    begin = time.perf_counter()
    for k in range(short):
        z = step(z, np.array([k]))
    print(f"a loop in Python would take {(time.perf_counter() - begin) / short * L * 1e3:.0f} ms for the way forward alone")
    if a.plot:
        plot(a.plot, x, target, first, found.z[:, 0], losses, course)
    assert losses[-1] < 0.05 * losses[0] or a.steps < 60


main()
