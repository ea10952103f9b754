#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""RNN, GRU and LSTM in JAX: lax.scan over the steps, jitted, the input's products of all steps in one product before it; median
nanoseconds a time step of a forward pass, and of forward and backward with all gradients, of the fastest unrolling.

    recurrent_jax.py --kind gru --inputs 32 --hidden 32 --batch 16 --length 1024 --threads 2 --seconds 1

Prints kind, inputs, hidden, batch, length, threads, forward, both, rounds; as bench_recurrent does."""
import argparse
import os
import statistics
import time

for name in list(os.environ):
    if name.startswith(("OPENBLAS_", "MKL_", "OMP_", "KMP_", "GOMP_")):
        del os.environ[name]
parser = argparse.ArgumentParser()
for name, value in (("inputs", 32), ("hidden", 32), ("batch", 16), ("length", 1024), ("threads", 1)):
    parser.add_argument("--" + name, type=int, default=value)
parser.add_argument("--kind", default="gru")
parser.add_argument("--seconds", type=float, default=1)
parser.add_argument("--check", action="store_true", help="compare the states with PyTorch's instead of timing")
a = parser.parse_args()
if a.threads == 1:
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax  # noqa: E402  after the presets are cleared
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402

jax.config.update("jax_platforms", "cpu")
H = a.hidden
gates = {"rnn": 1, "gru": 3, "lstm": 4}[a.kind]
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


def median(work):
    work()
    begin, times = time.perf_counter(), []
    while len(times) < 5 or time.perf_counter() - begin < a.seconds / 3:
        start = time.perf_counter()
        jax.block_until_ready(work())
        times.append(time.perf_counter() - start)
    return statistics.median(times), len(times)


def fastest(make):
    found = []
    for unroll in (1, 4, 16):
        compiled = jax.jit(make(unroll))
        jax.block_until_ready(compiled(parameters, x))
        found.append(median(lambda: compiled(parameters, x)))
    return min(found)


if a.check:
    check()
else:
    forward, _ = fastest(network)
    both, rounds = fastest(lambda unroll: jax.value_and_grad(lambda p, x: (network(unroll)(p, x) * g).sum(), argnums=(0, 1)))
    each = 1e9 / a.length
    print(f"{a.kind},{a.inputs},{H},{a.batch},{a.length},{a.threads},{forward * each:.1f},{both * each:.1f},{rounds}")
