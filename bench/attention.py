#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Linear attention by the gated delta rule in float32, forward and with all gradients, at the shapes of models that have it: deeppcr.torch's
against what Transformers runs on a processor (its loop over steps, its products of matrices over chunks of 64 steps, and the latter by
torch.compile), and against JAX's lax.scan, jitted.

    bench/attention.py [--only NAME]... [--threads 1 2] [--rounds 5] [--seconds 60] [--build build] [--out bench/results/attention.csv]

scans.py says how it is measured. Rows of the file that were not run stay. Writes the table of docs/attention.md too (--only none: that
alone)."""
import scans
from scans import of_jax, of_torch

# batch, steps, heads of q and k, heads of v, components of keys and of values, and whether each row of a state has a decay of its own
SHAPES = {
    "Qwen3-Next, L 2048": (1, 2048, 16, 32, 128, 128, 0), "Qwen3-Next, L 256, batch 4": (4, 256, 16, 32, 128, 128, 0),
    "Qwen3-Next, one step": (1, 1, 16, 32, 128, 128, 0), "Kimi Linear, L 1024": (1, 1024, 32, 32, 128, 128, 1),
    "4 heads of 64, L 8192": (1, 8192, 4, 4, 64, 64, 0),
}  # fmt: skip
WAYS = {"ours": "ours", "transformers loop": "loop", "transformers chunks": "chunks", "torch compiled": "compiled", "jax scan": "JAX scan"}


def problem(batch, length, groups, heads, keys, values, by_row):
    """q, k, v, g, beta, the first states and a gradient by o, as layers have them: q and k of length 1, decays of a few to hundreds of steps."""
    import numpy as np

    random = np.random.default_rng(0)
    normal = lambda *shape: random.normal(size=shape).astype(np.float32)  # noqa: E731
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)  # noqa: E731
    rate = random.uniform(1, 16, size=heads).astype(np.float32)
    shape = (batch, length, heads, keys) if by_row else (batch, length, heads)
    step = np.exp(random.uniform(np.log(1e-3), np.log(0.1), size=shape)).astype(np.float32)
    g = -(rate[:, None] if by_row else rate) * step
    beta = random.uniform(size=(batch, length, heads)).astype(np.float32)
    return (unit(normal(batch, length, groups, keys)), unit(normal(batch, length, groups, keys)), normal(batch, length, heads, values), g, beta,
            0.1 * normal(batch, heads, keys, values), normal(batch, length, heads, values))  # fmt: skip


def ours(*sizes):
    import deeppcr.torch

    return lambda q, k, v, g, beta, s: deeppcr.torch.linear_attention(q, k, v, g, beta, initial_state=s)


def transformers_ways(by_row, compiles):
    def make(arrays, both):
        import logging

        import torch
        from transformers.models.kimi_linear import modeling_kimi_linear as kimi
        from transformers.models.qwen3_next import modeling_qwen3_next as qwen

        logging.disable(logging.WARNING)
        loop = kimi.recurrent_kimi_delta_attention if by_row else qwen.torch_recurrent_gated_delta_rule
        chunks = kimi.chunk_kimi_delta_attention if by_row else qwen.torch_chunk_gated_delta_rule
        call = lambda f: lambda q, k, v, g, beta, s: f(q, k, v, g, beta, initial_state=s, output_final_state=False)[0]  # noqa: E731
        ways = {"transformers loop": call(loop), "transformers chunks": call(chunks)}
        if compiles:
            ways["torch compiled"] = torch.compile(call(chunks), dynamic=False)
        return {name: of_torch(way, arrays, both) for name, way in ways.items()}

    return make


def jax_ways(arrays, both):
    import jax.numpy as jnp
    from jax import lax

    def run(q, k, v, g, beta, s):
        each = v.shape[2] // q.shape[2]
        first = lambda x: jnp.moveaxis(x, 1, 0)  # noqa: E731  time first
        decay = jnp.exp(g[..., None, None] if g.ndim == 3 else g[..., None])

        def step(s, at):
            q, k, v, d, b = at
            s = d * s
            u = b[..., None] * (v - jnp.einsum("bhk,bhkv->bhv", k, s))
            s = s + k[..., None] * u[:, :, None]
            return s, jnp.einsum("bhk,bhkv->bhv", q, s)

        wide = lambda x: jnp.repeat(x, each, 2)  # noqa: E731
        o = lax.scan(step, s, tuple(map(first, (wide(q) / q.shape[-1] ** 0.5, wide(k), v, decay, beta))))[1]
        return jnp.moveaxis(o, 0, 1)

    return {"jax scan": of_jax(run, arrays, both)}


def makers(batch, length, groups, heads, keys, values, by_row):
    return [transformers_ways(by_row, length > 1), jax_ways]


def bytes_of(sizes, way, both):
    batch, length, _, heads, keys, values, _ = sizes
    if way in ("transformers loop", "jax scan"):
        return (16 if both else 4) * batch * length * heads * (keys * values if both else keys + values)
    return (200 if both else 60) * batch * length * heads * (keys + values)


if __name__ == "__main__":
    scans.run(scans.Subject(
        name="attention", about=__doc__, extents="batch length groups heads keys values by_row", shapes=SHAPES, ways=WAYS, problem=problem,
        ours=ours, makers=makers, bytes_of=bytes_of,
    ))  # fmt: skip
