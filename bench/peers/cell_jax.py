#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Recurrences in JAX, each variant one jitted function; cells.py tells the problem.

    bench/peers/.venv/bin/python bench/peers/cell_jax.py --cell tanh --length 65536 --width 2 --threads 1 --json

Forward is lax.scan, unrolled or not, and for linear chains also lax.associative_scan. Backward by autodiff is the pull-back
alone, at what forward left (jax.vjp outside the timing); hand-written is a reverse scan over the states.
"""
import cells
import common

options = cells.prepare(__doc__)
common.tell_xla(options.threads)

import jax  # noqa: E402  after the presets are cleared
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402

jax.config.update("jax_platforms", "cpu")
options.numbers = cells.numbers(options)
W, X, G, Z0 = (jnp.asarray(a) for a in options.numbers)
LINEAR, EACH, DENSE = options.cell == "linear", options.cell != "tanh", options.structure == "dense"
ACT, SLOPE = {"tanh": (jnp.tanh, lambda z: 1 - z * z), "linear": (lambda u: u, lambda z: 1.0),
              "mlp": (jax.nn.relu, lambda z: z > 0)}[options.cell]  # fmt: skip
UNROLLS = (1, 16, 64)


def product(A, z):
    return z @ A.T if DENSE else z * A


def product_transposed(A, d):
    return d @ A if DENSE else d * A


def sums(A, z):
    """The same without a call of a matrix product, which XLA fuses into the loop's body."""
    return (z[:, None, :] * A).sum(2)


def sums_transposed(A, d):
    return (d[:, :, None] * A).sum(1)


def scan(unroll, apply=product):
    def forward(W, x, z0):
        def step(z, this):
            A, b = this if EACH else (W, this)
            z = ACT(apply(A, z) + b)
            return z, z

        return lax.scan(step, z0, (W, x) if EACH else x, unroll=unroll)[1]

    return forward


def columns(unroll):
    """One sequence alone, a state as a vector."""

    def forward(W, x, z0):
        def step(z, this):
            A, b = this if EACH else (W, this)
            z = ACT((A @ z if DENSE else A * z) + b)
            return z, z

        return lax.scan(step, z0[0], (W, x[:, 0]) if EACH else x[:, 0], unroll=unroll)[1]

    return forward


def associative(W, x, z0):
    """(A, b) after (A', b') is (A A', A b' + b); z0 is zero."""
    A = W[:, None]  # one for all sequences

    def join(earlier, later):
        (A1, b1), (A2, b2) = earlier, later
        if DENSE:
            return A2 @ A1, jnp.einsum("lbij,lbj->lbi", A2, b1) + b2
        return A2 * A1, A2 * b1 + b2

    return lax.associative_scan(join, (jnp.broadcast_to(A, x.shape[:2] + A.shape[2:]), x))[1]


def made(function, *arguments, pick=lambda all: all):
    """A jitted function as (run, result); `pick` finds what is checked in what it gives."""
    jitted, kept = jax.jit(function), []

    def run():
        kept[:] = [jax.block_until_ready(jitted(*arguments))]

    return run, lambda: np.asarray(pick(kept[0]))


def pulled_back(unroll, apply=product):
    """The pull-back of forward, whose residuals are an argument: only backward is timed."""

    def make():
        if options.cell == "mlp":
            _, pull = jax.vjp(scan(unroll, apply), W, X, Z0)
        else:
            _, pull = jax.vjp(lambda x, z0: scan(unroll, apply)(W, x, z0), X, Z0)
        return made(lambda pull, g: pull(g), pull, G, pick=lambda all: all[-1])

    return make


def hand_written(unroll, apply=product_transposed):
    def make():
        states = jax.jit(scan(1))(W, X, Z0)

        def backward(W, states, g):
            def step(d, this):
                A, z, g = this if EACH else (W, *this)
                e = (d + g) * SLOPE(z)
                return apply(A, e), e

            inputs = (W, states, g) if EACH else (states, g)
            d, es = lax.scan(step, jnp.zeros_like(Z0), inputs, reverse=True, unroll=unroll)
            if options.cell != "mlp":
                return d, es
            before = jnp.concatenate((Z0[None], states[:-1]))
            return d, es.sum(1), jnp.einsum("lbi,lbj->lij", es, before)

        return made(backward, W, states, G, pick=lambda all: all[0])

    return make


FORWARD = {f"lax.scan unroll {u}": (lambda u=u: made(scan(u), W, X, Z0)) for u in UNROLLS}
if options.batch == 1:
    FORWARD.update({f"lax.scan of vectors unroll {u}": (lambda u=u: made(columns(u), W, X, Z0)) for u in UNROLLS})
if LINEAR:
    FORWARD["lax.associative_scan"] = lambda: made(associative, W, X, Z0)
BACKWARD = {f"pull-back of lax.scan unroll {u}": pulled_back(u) for u in UNROLLS}
BACKWARD.update({f"hand-written unroll {u}": hand_written(u) for u in UNROLLS})
if DENSE:
    FORWARD.update({f"lax.scan of sums unroll {u}": (lambda u=u: made(scan(u, sums), W, X, Z0)) for u in UNROLLS})
    BACKWARD.update({f"pull-back of sums unroll {u}": pulled_back(u, sums) for u in UNROLLS})
    BACKWARD.update({f"hand-written sums unroll {u}": hand_written(u, sums_transposed) for u in UNROLLS})
cells.run(options, "jax", jax.__version__, FORWARD, BACKWARD)
