#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The selective scan of Mamba's shapes in float32, forward and with all gradients: deeppcr.torch's against PyTorch's loop over time, eagerly
and compiled in blocks of 16 steps, and against JAX's lax.scan and lax.associative_scan, jitted. Mamba-2's against PyTorch's loop and its
products of matrices over chunks of 64 steps, which is what that scan was made for (arXiv 2405.21060), and against JAX's lax.scan.

    bench/selective.py [--only NAME]... [--threads 1 2] [--rounds 5] [--seconds 60] [--build build] [--out bench/results/selective.csv]

scans.py says how it is measured. Rows of the file that were not run stay. Writes the table of docs/selective.md too (--only none: that
alone)."""
import scans
from scans import of_jax, of_torch

# batch, channels, states, length, and Mamba-2's heads
SHAPES = {
    "Mamba-130m, L 2048": (1, 1536, 16, 2048), "Mamba-130m, L 512, batch 8": (8, 1536, 16, 512), "256 channels, L 16384": (1, 256, 16, 16384),
    "Mamba-2.8b, L 1024": (1, 5120, 16, 1024), "Mamba-2 130m, L 2048": (1, 1536, 128, 2048, 24),
}  # fmt: skip
WAYS = {"ours": "ours", "torch": "PyTorch", "torch compiled": "compiled", "torch chunks": "in chunks", "jax scan": "JAX scan", "jax associative": "associative"}
BLOCK, CHUNK = 16, 64


def problem(batch, channels, states, length):
    """u, delta, A, B, C, D, z, delta_bias and a gradient by y, as a Mamba layer has them when it begins to learn."""
    import numpy as np

    random = np.random.default_rng(0)
    normal = lambda *shape: random.normal(size=shape).astype(np.float32)  # noqa: E731
    step = np.exp(random.uniform(np.log(1e-3), np.log(0.1), size=channels))
    A = -np.tile(np.arange(1, states + 1, dtype=np.float32), (channels, 1))
    return (normal(batch, channels, length), normal(batch, channels, length), A, normal(batch, states, length), normal(batch, states, length),
            np.ones(channels, np.float32), normal(batch, channels, length), np.log(np.expm1(step)).astype(np.float32), normal(batch, channels, length))  # fmt: skip


def heads_problem(batch, channels, states, length, heads):
    """x, dt, A, B, C, D, z, dt_bias and a gradient by y, of Mamba-2: [batch][L][H][P] and so on."""
    import numpy as np

    random = np.random.default_rng(0)
    normal = lambda *shape: random.normal(size=shape).astype(np.float32)  # noqa: E731
    bias = np.log(np.expm1(np.exp(random.uniform(np.log(1e-3), np.log(0.1), size=heads)))).astype(np.float32)
    whole, shared = (batch, length, heads, channels // heads), (batch, length, 1, states)
    A = -random.uniform(1, 16, size=heads).astype(np.float32)
    return normal(*whole), normal(batch, length, heads), A, normal(*shared), normal(*shared), np.ones(heads, np.float32), normal(*whole), bias, normal(*whole)


def heads_torch_ways(arrays, both):
    import torch
    from torch.nn import functional

    def loop(x, dt, A, B, C, D, z, bias):
        t = functional.softplus(dt + bias)
        keep, tx, h, y = torch.exp(t * A), t[..., None] * x, 0, []
        for k, v, b, c in zip(keep.unbind(1), tx.unbind(1), B.unbind(1), C.unbind(1)):
            h = k[..., None, None] * h + v[..., None] * b[:, :, None]
            y.append((h * c[:, :, None]).sum(-1))
        return (torch.stack(y, 1) + D[:, None] * x) * functional.silu(z)

    def chunks(x, dt, A, B, C, D, z, bias):
        t = functional.softplus(dt + bias)
        cut = lambda m: m.unflatten(1, (-1, CHUNK))  # noqa: E731  [batch][chunk][step]...
        v, b, c, a = cut(t[..., None] * x), cut(B[:, :, 0]), cut(C[:, :, 0]), cut(t * A).cumsum(2)
        ago = a[:, :, :, None] - a[:, :, None]  # [batch][chunk][l][s][H]
        below = torch.ones(CHUNK, CHUNK, dtype=torch.bool).tril()[..., None]
        weights = torch.where(below, ago, -torch.inf).exp() * (c @ b.mT)[..., None]
        y = torch.einsum("bklsh,bkshp->bklhp", weights, v)
        ends = torch.einsum("bksh,bkshp,bksn->bkhpn", (a[:, :, -1:] - a).exp(), v, b)
        h, starts = torch.zeros_like(ends[:, 0]), []
        for e, whole in zip(ends.unbind(1), a[:, :, -1].exp().unbind(1)):
            starts.append(h)
            h = whole[..., None, None] * h + e
        y = y + torch.einsum("bkln,bkhpn,bklh->bklhp", c, torch.stack(starts, 1), a.exp())
        return (y.flatten(1, 2) + D[:, None] * x) * functional.silu(z)

    return {"torch": of_torch(loop, arrays, both), "torch chunks": of_torch(chunks, arrays, both)}


def heads_jax_ways(arrays, both):
    import jax
    import jax.numpy as jnp
    from jax import lax

    def states(t, x, A, B, C):
        def step(h, at):
            t, x, b, c = at
            h = jnp.exp(t * A)[..., None, None] * h + (t[..., None] * x)[..., None] * b[:, :, None]
            return h, (h * c[:, :, None]).sum(-1)

        return lax.scan(step, jnp.zeros((*x.shape[1:], B.shape[-1]), x.dtype), (t, x, B, C))[1]

    def run(x, dt, A, B, C, D, z, bias):
        first = lambda m: jnp.moveaxis(m, 1, 0)  # noqa: E731  time first
        y = states(first(jax.nn.softplus(dt + bias)), first(x), A, first(B), first(C))
        return (jnp.moveaxis(y, 0, 1) + D[:, None] * x) * jax.nn.silu(z)

    return {"jax scan": of_jax(run, arrays, both)}


def torch_ways(arrays, both):
    import torch
    from torch.nn import functional

    def begin(u, delta, A, B, bias):
        """What each step takes of the past, and adds to it: [batch][channels][L][N]."""
        t = functional.softplus(delta + bias[:, None])
        return torch.exp(t[..., None] * A[:, None]), (t * u)[..., None] * B.mT[:, None]

    def steps(h, keep, add, C):
        y = []
        for k, a, c in zip(keep.unbind(2), add.unbind(2), C.unbind(2)):
            h = k * h + a
            y.append((h * c[:, None]).sum(-1))
        return h, torch.stack(y, 2)

    def end(y, u, D, z):
        return (y + D[:, None] * u) * functional.silu(z)

    def loop(u, delta, A, B, C, D, z, bias):
        keep, add = begin(u, delta, A, B, bias)
        return end(steps(u.new_zeros(*u.shape[:2], A.shape[1]), keep, add, C)[1], u, D, z)

    compiled = [torch.compile(f, dynamic=False) for f in (begin, steps, end)]

    def in_blocks(u, delta, A, B, C, D, z, bias):
        keep, add = compiled[0](u, delta, A, B, bias)
        h, y = u.new_zeros(*u.shape[:2], A.shape[1]), []
        for parts in zip(keep.split(BLOCK, 2), add.split(BLOCK, 2), C.split(BLOCK, 2)):
            h, some = compiled[1](h, *parts)
            y.append(some)
        return compiled[2](torch.cat(y, 2), u, D, z)

    return {"torch": of_torch(loop, arrays, both), "torch compiled": of_torch(in_blocks, arrays, both)}


def jax_ways(arrays, both):
    import jax
    import jax.numpy as jnp
    from jax import lax

    def around(states):
        def run(u, delta, A, B, C, D, z, bias):
            t = jax.nn.softplus(delta + bias[:, None])
            first = lambda x: jnp.moveaxis(x, -1, 0)  # noqa: E731  time first
            y = states(first(t), first(u), A, first(B), first(C))
            return (jnp.moveaxis(y, 0, -1) + D[:, None] * u) * jax.nn.silu(z)

        return run

    def scan(unroll):
        def states(t, u, A, B, C):
            def step(h, at):
                t, u, b, c = at
                h = jnp.exp(t[..., None] * A) * h + (t * u)[..., None] * b[:, None]
                return h, (h * c[:, None]).sum(-1)

            return lax.scan(step, jnp.zeros((*u.shape[1:], A.shape[1]), u.dtype), (t, u, B, C), unroll=unroll)[1]

        return around(states)

    def associative(t, u, A, B, C):
        keep, add = jnp.exp(t[..., None] * A), (t * u)[..., None] * B[:, :, None]
        h = lax.associative_scan(lambda i, j: (j[0] * i[0], j[0] * i[1] + j[1]), (keep, add))[1]
        return (h * C[:, :, None]).sum(-1)

    ways = {"jax scan": scan(1), "jax scan, 8 steps unrolled": scan(8), "jax associative": around(associative)}
    return {name: of_jax(way, arrays, both) for name, way in ways.items()}


def ours(batch, channels, states, length, *heads):
    import deeppcr.torch

    if heads:
        return lambda x, dt, A, B, C, D, z, bias: deeppcr.torch.mamba2_scan(x, dt, A, B, C, D, z, bias, dt_softplus=True)
    return lambda *given: deeppcr.torch.selective_scan(*given, True)


def bytes_of(sizes, way, both):
    batch, channels, states, length, *_ = sizes
    whole = 4 * batch * channels * states * length  # of what each step keeps
    return whole * (24 if both else 8 if way == "jax associative" else 4) // (8 if way == "torch chunks" else 1)


if __name__ == "__main__":
    scans.run(scans.Subject(
        name="selective", about=__doc__, extents="batch channels states length", shapes=SHAPES, ways=WAYS,
        problem=lambda *sizes: (heads_problem if len(sizes) > 4 else problem)(*sizes), ours=ours,
        makers=lambda *sizes: [heads_torch_ways, heads_jax_ways] if len(sizes) > 4 else [torch_ways, jax_ways], bytes_of=bytes_of,
    ))  # fmt: skip
