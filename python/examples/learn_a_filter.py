#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A nonlinear filter whose parameters are learned from sound: NumPy alone.

A saturating resonator, z = (s, v):   v' = tanh(a v - c s + g x_l),   s' = s + d v'
is run over 10 s of noise with parameters that the learner does not know. It starts from wrong ones and follows the gradient of the
squared error, which comes from the adjoint of the whole chain (`Solution.vjp`): 100 passes forward and back over the recording.

    python learn_a_filter.py [--seconds 10] [--steps 100] [--plot picture.png]
"""
import argparse
import time

import numpy as np

import deeppcr

RATE = 48000
TRUE = np.array([0.8, 0.25, 0.7, 0.3])  # a, c, g, d


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--plot", metavar="FILE")
    a = parser.parse_args()
    L = int(a.seconds * RATE)
    rng = np.random.default_rng(0)
    x, l = rng.normal(size=L), np.arange(L)
    z0 = np.zeros(2)
    step, jacobian, _ = filter_of(x, TRUE)
    target = deeppcr.solve(step, z0, L, jacobian).z[:, 0]

    p = np.array([0.5, 0.1, 1.0, 0.5])
    mean, square, losses = np.zeros(4), np.zeros(4), []
    begin = time.perf_counter()
    for n in range(1, a.steps + 1):
        step, jacobian, gradient = filter_of(x, p)
        found = deeppcr.solve(step, z0, L, jacobian)
        error = found.z[:, 0] - target
        losses.append(float(np.mean(error**2)))
        g = np.zeros((L, 2))
        g[:, 0] = 2 * error / L
        adjoint, _ = found.vjp(g)
        by_p = gradient(np.concatenate([z0[None], found.z[:-1]]), l, adjoint)
        mean, square = 0.8 * mean + 0.2 * by_p, 0.95 * square + 0.05 * by_p**2  # Adam
        p = p - 0.03 * 0.97**n * (mean / (1 - 0.8**n)) / (np.sqrt(square / (1 - 0.95**n)) + 1e-12)
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
        import matplotlib.pyplot as plt

        plt.semilogy(losses)
        plt.xlabel("step"), plt.ylabel("mean squared error")
        plt.savefig(a.plot)
    assert losses[-1] < 0.05 * losses[0]


main()
