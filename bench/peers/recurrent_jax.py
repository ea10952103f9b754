#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""RNN, GRU and LSTM in JAX: lax.scan over the steps, jitted, the input's products of all steps in one product before it; median
nanoseconds a time step of a forward pass, and of forward and backward with all gradients, of the fastest unrolling.

    recurrent_jax.py --kind gru --inputs 32 --hidden 32 --batch 16 --length 1024 --threads 2 --seconds 1

Prints kind, inputs, hidden, batch, length, threads, forward, both, rounds; as bench_recurrent does."""
import statistics

import common
import recurrent

a = recurrent.prepare(
    __doc__, lambda parser: parser.add_argument("--check", action="store_true", help="compare the states with PyTorch's instead of timing"))  # fmt: skip
common.tell_xla(a.threads)

import jax  # noqa: E402  after the presets are cleared
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402

jax.config.update("jax_platforms", "cpu")
H = a.hidden
gates = recurrent.GATES[a.kind]
random = np.random.default_rng(1)


def uniform(*shape):
    return jnp.asarray(random.uniform(-(H**-0.5), H**-0.5, shape), jnp.float32)


parameters = (uniform(gates * H, a.inputs), uniform(gates * H, H), uniform(gates * H), uniform(gates * H))
x = jnp.asarray(random.normal(size=(a.length, a.batch, a.inputs)), jnp.float32)
g = jnp.asarray(random.normal(size=(a.length, a.batch, H)), jnp.float32)


def cell(W, b, state, u):
    """One step from the input's products u; PyTorch's order of gates."""
    if a.kind == "rnn":
        h = jnp.tanh(u + state @ W.T + b)
        return h, h
    if a.kind == "gru":
        v = state @ W.T + b
        r, z = jnp.split(jax.nn.sigmoid(u[:, : 2 * H] + v[:, : 2 * H]), 2, 1)
        n = jnp.tanh(u[:, 2 * H :] + r * v[:, 2 * H :])
        h = (1 - z) * n + z * state
        return h, h
    h, c = state
    i, f, n, o = jnp.split(u + h @ W.T + b, 4, 1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(n)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def network(unroll):
    def run(parameters, x):
        Wi, Wh, bi, bh = parameters
        zero = jnp.zeros((a.batch, H), jnp.float32)
        start = (zero, zero) if a.kind == "lstm" else zero
        return lax.scan(lambda state, u: cell(Wh, bh, state, u), start, x @ Wi.T + bi, unroll=unroll)[1]

    return run


def check():
    import torch

    module = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[a.kind](a.inputs, H)
    for mine, theirs in zip(parameters, module.parameters()):
        theirs.data = torch.from_numpy(np.array(mine))
    theirs = module(torch.from_numpy(np.array(x)))[0].detach().numpy()
    print(a.kind, "largest difference to PyTorch", float(abs(np.asarray(network(1)(parameters, x)) - theirs).max()))


def fastest(make):
    found = []
    for unroll in (1, 4, 16):
        compiled = jax.jit(make(unroll))
        jax.block_until_ready(compiled(parameters, x))
        (times,), _ = common.measure(a.seconds / 3, lambda: jax.block_until_ready(compiled(parameters, x)))
        found.append((statistics.median(times), len(times)))
    return min(found)


if a.check:
    check()
else:
    forward, _ = fastest(network)
    both, rounds = fastest(lambda unroll: jax.value_and_grad(lambda p, x: (network(unroll)(p, x) * g).sum(), argnums=(0, 1)))
    recurrent.show(a, forward, both, rounds)
