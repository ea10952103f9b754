#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A whole network in JAX, jitted lax.scan, forward and backward by autodiff; mlp_common.py tells the problem.

    bench/peers/.venv/bin/python bench/peers/mlp_jax.py --width 8 --threads 2
"""
import mlp_common as common

options = common.prepare(__doc__)

import jax  # noqa: E402  after the presets are cleared
import jax.numpy as jnp  # noqa: E402

X, W, B = (jnp.asarray(a) for a in common.numbers(options))


def scanned(unroll):
    def chain(x, w, b):
        return jax.lax.scan(lambda z, p: (jax.nn.relu(z @ p[0] + p[1]), None), x, (w, b), unroll=unroll)[0]

    def make():
        forward = jax.jit(lambda x, w, b: chain(x, w, b).sum())
        # the whole step: what autodiff makes of forward and backward together
        both = jax.jit(jax.grad(lambda w, b, x: chain(x, w, b).sum(), argnums=(0, 1)))
        return (lambda: forward(X, W, B).block_until_ready(), lambda: forward(X, W, B).block_until_ready(),
                lambda: jax.block_until_ready(both(W, B, X)))  # fmt: skip

    return make


common.run(options, "jax", jax.__version__, {"scan": scanned(1), "scan, unroll 8": scanned(8)})
