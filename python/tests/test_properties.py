# SPDX-License-Identifier: MIT
"""Properties over shapes, strides, dtypes and lengths that nobody thought of."""
import numpy as np
import pytest

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import deeppcr  # noqa: E402
from deeppcr import recurrent  # noqa: E402
from deeppcr.linear import SCHEMES  # noqa: E402
from test_linear import dense, loop, values_of  # noqa: E402

few = settings(max_examples=60, deadline=None, database=None)


def disguised(rng, array, how):
    """The same numbers otherwise: in another order of memory, with gaps, against the grain, not aligned, read-only."""
    if how == "fortran":
        return np.asfortranarray(array)
    if how == "gaps":
        wide = np.zeros(tuple(2 * n for n in array.shape), array.dtype)
        wide[tuple(slice(None, None, 2) for _ in array.shape)] = array
        return wide[tuple(slice(None, None, 2) for _ in array.shape)]
    if how == "reversed":
        turn = tuple(slice(None, None, -1) for _ in array.shape)
        return array[turn].copy()[turn]
    if how == "misaligned":
        raw = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
        raw[...] = array
        return raw
    frozen = array.copy()
    frozen.flags.writeable = how != "read-only"
    return frozen


hows = st.sampled_from(["plain", "fortran", "gaps", "reversed", "misaligned", "read-only"])


@few
@given(st.integers(0, 70), st.integers(0, 4), st.integers(1, 5), st.sampled_from(["dense", "diagonal", "scalar"]),
       st.sampled_from(sorted(SCHEMES)), st.booleans(), st.sampled_from(["f4", "f8"]), st.tuples(hows, hows, hows), st.integers(0, 99))
def test_linear_chain(L, B, w, structure, scheme, start, kind, how, seed):
    rng = np.random.default_rng(seed)
    dtype = np.dtype(kind)
    A = values_of(rng, structure, (L, B), w, dtype)
    b, z0 = rng.normal(size=(L, B, w)).astype(dtype), rng.normal(size=(B, w)).astype(dtype) if start else None
    z = deeppcr.linear_chain(disguised(rng, A, how[0]), disguised(rng, b, how[1]), None if z0 is None else disguised(rng, z0, how[2]),
                             scheme=scheme, structure=structure)  # fmt: skip
    wanted = loop(dense(A, structure, (L, B), w), b, z0)
    assert z.shape == b.shape and z.dtype == dtype and z.flags.c_contiguous
    assert np.allclose(z, wanted, rtol=0, atol=(1e-4 if kind == "f4" else 1e-11) * max(1, np.abs(wanted).max(initial=0)))
    assert np.array_equal(z, deeppcr.linear_chain(A, b, z0, scheme=scheme, structure=structure))  # bit for bit
    if B:
        alone = deeppcr.linear_chain(A[:, B - 1], b[:, B - 1], None if z0 is None else z0[B - 1], scheme=scheme, structure=structure)
        assert np.array_equal(alone, z[:, B - 1])


kinds = st.sampled_from(["f2", "f4", "f8", ">f4", "i4", "u4", "u1", "?"])


@few
@given(st.integers(0, 40), st.integers(1, 4), st.tuples(kinds, kinds, kinds), st.tuples(hows, hows, hows), st.sampled_from(sorted(SCHEMES)),
       st.integers(0, 99))  # fmt: skip
def test_dtypes_of_a_chain(L, w, kind, how, scheme, seed):
    """What NumPy promotes to, in floats but for uint32, which wraps around."""
    rng = np.random.default_rng(seed)
    A, b, z0 = (rng.integers(0, 3, size).astype(k) for size, k in zip(((L, w, w), (L, w), (w,)), kind))
    together = np.result_type(A, b, z0).newbyteorder("=")
    dtype = np.dtype("f4") if together == np.float16 else together if together in ("f4", "f8", "u4") else np.dtype("f8")
    if dtype == np.uint32:
        scheme = "auto" if scheme == "overlap" else scheme
    z = deeppcr.linear_chain(*(disguised(rng, v, h) for v, h in zip((A, b, z0), how)), scheme=scheme)
    assert z.dtype == dtype
    state = z0.astype(object if dtype == np.uint32 else "f8")
    for l in range(L):
        state = A[l].astype(state.dtype) @ state + b[l].astype(state.dtype)
        state = state % (1 << 32) if dtype == np.uint32 else state
        if dtype == np.uint32:
            assert np.array_equal(z[l], state.astype(np.uint32))
        else:
            assert np.allclose(z[l], state, rtol=1e-4 if dtype == np.float32 else 1e-11)


@few
@given(st.integers(0, 60), st.integers(1, 3), st.integers(1, 4), st.sampled_from(["auto", "sequential", "overlap", "jacobi"]),
       st.integers(0, 99))  # fmt: skip
def test_solve(L, B, w, method, seed):
    rng = np.random.default_rng(seed)
    x, z0 = rng.normal(size=(L, B, w)), rng.normal(size=(B, w))
    found = deeppcr.solve(lambda z, l, b: 0.5 * np.tanh(z[:, ::-1]) + x[l, b], z0, L, method=method)
    z = z0
    for l in range(L):
        z = 0.5 * np.tanh(z[:, ::-1]) + x[l]
        assert np.allclose(found.z[l], z, rtol=0, atol=1e-7)


@few
@given(st.sampled_from([recurrent.RNN, recurrent.GRU, recurrent.LSTM]), st.integers(1, 12), st.integers(1, 4), st.integers(1, 4),
       st.integers(1, 5), st.integers(1, 2), st.booleans(), st.sampled_from(["f4", "f8"]), st.data())  # fmt: skip
def test_a_sequence_runs_as_if_alone(Kind, T, B, inputs, hidden, layers, bidirectional, dtype, data):
    lengths = data.draw(st.lists(st.integers(0, T), min_size=B, max_size=B))
    net, rng = Kind(inputs, hidden, layers, bidirectional=bidirectional, dtype=dtype), np.random.default_rng(T)
    x = rng.normal(size=(T, B, inputs)).astype(dtype)
    start = rng.normal(size=(2, layers * (1 + bidirectional), B, hidden)).astype(dtype)
    pair = (lambda s: tuple(s)) if Kind is recurrent.LSTM else (lambda s: s[0])
    y, last = net(disguised(None, x, data.draw(hows)), pair([disguised(None, s, data.draw(hows)) for s in start]), lengths)
    assert y.dtype == x.dtype
    for b, n in enumerate(lengths):
        assert not y[n:, b].any()
        alone, state = net(x[:n, b], pair(start[:, :, b]))
        assert np.array_equal(alone, y[:n, b])
        for whole, single in zip(last if Kind is recurrent.LSTM else (last,), state if Kind is recurrent.LSTM else (state,)):
            assert np.array_equal(whole[:, b], single)


def filtered(b, a, x, z):
    """The definition over the last axis; z [..][order] is changed."""
    y = np.zeros(x.shape)
    for l in range(x.shape[-1]):
        y[..., l] = b[0] * x[..., l] + z[..., 0]
        for i in range(z.shape[-1]):
            after = z[..., i + 1] if i + 1 < z.shape[-1] else 0
            z[..., i] = b[i + 1] * x[..., l] + after - a[i + 1] * y[..., l]
    return y


@few
@given(st.integers(0, 3), st.integers(0, 60), st.integers(1, 3), st.booleans(), st.sampled_from(["f4", "f8"]), hows, st.integers(0, 99))
def test_filters(channels, length, order, first, kind, how, seed):
    from deeppcr import signal

    rng = np.random.default_rng(seed)
    b, a = rng.normal(size=order + 1), np.concatenate([[1.0], rng.normal(size=order) * 0.3 / order])
    x, zi = rng.normal(size=(channels, length)).astype(kind), rng.normal(size=(channels, order))
    turn = (lambda v: v.T) if first else (lambda v: v)
    state = zi.copy()
    wanted = filtered(b, a, x.astype("f8"), state)
    y, zf = signal.lfilter(b, a, disguised(rng, turn(x), how), 0 if first else 1, zi=turn(zi))
    assert y.shape == turn(x).shape and zf.shape == turn(zi).shape
    assert np.allclose(turn(y), wanted, rtol=0, atol=1e-5 if kind == "f4" else 1e-11) and np.allclose(turn(zf), state, rtol=0, atol=1e-5)
    assert np.array_equal(y, signal.lfilter(b, a, turn(x), 0 if first else 1, zi=turn(zi))[0])  # bit for bit
    assert np.array_equal(y, signal.lfilter(b, a, disguised(rng, turn(x), how), 0 if first else 1, zi=turn(zi))[0])  # known by now
    g = rng.normal(size=x.shape).astype(kind)
    if x.size and kind == "f8":  # the adjoint identity, over the signal
        gx = signal.lfilter_vjp(b, a, disguised(rng, x, how), g)[2]
        dx = rng.normal(size=x.shape)
        assert np.isclose((gx * dx).sum(), (g * signal.lfilter(b, a, dx)).sum(), rtol=1e-9, atol=1e-9)


@few
@given(st.sampled_from(["diagonal", "dense"]), st.integers(0, 40), st.integers(1, 3), st.booleans(), st.booleans(), hows,
       st.integers(0, 99))  # fmt: skip
def test_gradients_of_a_chain(structure, L, w, one, same, how, seed):
    """The adjoint identity, for arrays that lie anyhow, and transitions shared by steps or sequences."""
    rng = np.random.default_rng(seed)
    lead = (1 if one else L, 1 if same else 2)
    A = rng.normal(size=(*lead, w, w) if structure == "dense" else (*lead, w)) * 0.4
    b, z0, g, dA, db, dz0 = (rng.normal(size=s) for s in ((L, 2, w), (2, w), (L, 2, w), A.shape, (L, 2, w), (2, w)))
    z = deeppcr.linear_chain(A, b, z0)
    gA, gb, gz0 = deeppcr.linear_chain_vjp(*(disguised(rng, v, how) for v in (A, z, g, z0)))
    dz = deeppcr.linear_chain_jvp(A, disguised(rng, z, how), disguised(rng, dA, how), db, dz0, z0)
    assert np.isclose((g * dz).sum(), (gA * dA).sum() + (gb * db).sum() + (gz0 * dz0).sum(), rtol=1e-9, atol=1e-9)


def laid(torch, x, how):
    """The same numbers of a tensor otherwise: another order of dimensions in memory, gaps, further into its memory, broadcast."""
    if how == "permuted":
        return x.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    if how == "gaps":
        return torch.stack([x, -x], -1).flatten(-2)[..., ::2]
    if how == "offset":
        return torch.cat([torch.zeros(1, dtype=x.dtype), x.flatten()])[1:].view(x.shape)
    return x[:, :1].expand(x.shape) if how == "expanded" else x


@few
@given(st.sampled_from(["RNN", "GRU", "LSTM"]), st.integers(1, 9), st.integers(1, 3), st.integers(1, 4), st.integers(1, 5),
       st.integers(1, 2), st.booleans(), st.booleans(), st.booleans(), st.booleans(),
       st.sampled_from(["plain", "permuted", "gaps", "offset", "expanded"]), st.integers(0, 99))  # fmt: skip
def test_modules_of_pytorch(kind, T, B, inputs, hidden, layers, bidirectional, first, bias, double, how, seed):
    torch = pytest.importorskip("torch")
    from deeppcr import torch as ours

    torch.manual_seed(seed)
    dtype = torch.float64 if double else torch.float32
    theirs = getattr(torch.nn, kind)(inputs, hidden, layers, bias=bias, batch_first=first, bidirectional=bidirectional).to(dtype)
    mine = ours.from_torch(theirs)
    x = torch.randn(B, T, inputs, dtype=dtype) if first else torch.randn(T, B, inputs, dtype=dtype)
    x = laid(torch, x, how).detach().requires_grad_()
    found = []
    for module in (mine, theirs):
        y, last = module(x)
        g = torch.linspace(-1, 1, y.numel(), dtype=dtype).view(y.shape)
        loss = (y * g).sum() + sum(s.sum() for s in (last if kind == "LSTM" else (last,)))
        found.append([y, *torch.autograd.grad(loss, [x, *module.parameters()])])
    for i, (a, b) in enumerate(zip(*found)):
        tolerance = (1e-10 if double else 1e-5) if i == 0 else (1e-9 if double else 1e-4) * max(1, b.abs().max().item())
        assert a.shape == b.shape and (a - b).abs().max() <= tolerance


@few
@given(st.integers(0, 30), st.integers(1, 3), st.integers(1, 4), st.sampled_from(["dense", "diagonal", "scalar"]), st.integers(0, 2),
       st.booleans(), st.integers(0, 99))  # fmt: skip
def test_chains_of_jax(L, B, w, structure, mapped, start, seed):
    jax = pytest.importorskip("jax")
    from deeppcr import jax as ours

    rng = np.random.default_rng(seed)
    A = values_of(rng, structure, (L, B), w, np.float32)
    b = rng.normal(size=(mapped, L, B, w) if mapped else (L, B, w)).astype("f")
    z0 = rng.normal(size=(B, w)).astype("f") if start else None
    call = lambda b: ours.linear_chain(A, b, z0, structure=structure)  # noqa: E731
    z = np.asarray(jax.vmap(call)(b) if mapped else call(b))
    for got, right in zip(z if mapped else z[None], b if mapped else b[None]):
        assert np.allclose(got, loop(dense(A, structure, (L, B), w), right, z0), rtol=0, atol=1e-3)
