#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Denoising steps in JAX: lax.scan over the steps, jitted; diffusion.py tells the problem.

    diffusion_jax.py --model M.safetensors --start start.npy --samples end.npy --threads 2

Variants: weights as arguments or as constants of the program, [out][in] or transposed, and two steps unrolled."""
import common
import diffusion

options = diffusion.prepare(__doc__)
common.tell_xla(options.threads)

import jax  # noqa: E402  after the presets are cleared
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

jax.config.update("jax_platforms", "cpu")
X, W, S, B, P, Q = diffusion.problem(options)
x0, shifts, bias, scale, slope = jnp.asarray(X), tuple(map(jnp.asarray, S)), jnp.asarray(B), jnp.asarray(P), jnp.asarray(Q)


def scan(flip, constant, unroll):
    def make():
        weights = tuple(jnp.asarray(w.T.copy() if flip else w) for w in W)
        product = (lambda h, w: h @ w) if flip else (lambda h, w: h @ w.T)

        def chain(weights, x):
            def step(x, row):
                s, p, q = row
                h = jax.nn.silu(product(x, weights[0]) + s[0])
                for l in range(1, len(S)):
                    h = h + jax.nn.silu(product(h, weights[l]) + s[l])
                return p * x + q * (product(h, weights[-1]) + bias), None

            return lax.scan(step, x, (shifts, scale, slope), unroll=unroll)[0]

        if constant:
            run = jax.jit(lambda x: chain(weights, x))
            return lambda: jax.block_until_ready(run(x0))
        run = jax.jit(chain)
        return lambda: jax.block_until_ready(run(weights, x0))

    return make


diffusion.run(options, "jax", {"arguments": scan(False, False, 1), "transposed": scan(True, False, 1), "constants": scan(True, True, 1), "unrolled": scan(True, False, 2)})
