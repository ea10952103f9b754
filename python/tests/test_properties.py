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
       st.integers(1, 5), st.integers(1, 2), st.booleans(), st.data())  # fmt: skip
def test_a_sequence_runs_as_if_alone(Kind, T, B, inputs, hidden, layers, bidirectional, data):
    lengths = data.draw(st.lists(st.integers(0, T), min_size=B, max_size=B))
    net = Kind(inputs, hidden, layers, bidirectional=bidirectional)
    x = np.random.default_rng(T).normal(size=(T, B, inputs)).astype("f")
    y, last = net(disguised(None, x, data.draw(hows)), None, lengths)
    for b, n in enumerate(lengths):
        assert not y[n:, b].any()
        alone, state = net(x[:n, b])
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
    g = rng.normal(size=x.shape).astype(kind)
    if x.size and kind == "f8":  # the adjoint identity, over the signal
        gx = signal.lfilter_vjp(b, a, disguised(rng, x, how), g)[2]
        dx = rng.normal(size=x.shape)
        assert np.isclose((gx * dx).sum(), (g * signal.lfilter(b, a, dx)).sum(), rtol=1e-9, atol=1e-9)


@few
@given(st.sampled_from(["diagonal", "dense"]), st.integers(0, 40), st.integers(1, 3), hows, st.integers(0, 99))
def test_gradients_of_a_chain(structure, L, w, how, seed):
    """The adjoint identity, for arrays that lie anyhow."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(L, 2, w, w) if structure == "dense" else (L, 2, w)) * 0.4
    b, z0, g, dA, db, dz0 = (rng.normal(size=s) for s in ((L, 2, w), (2, w), (L, 2, w), A.shape, (L, 2, w), (2, w)))
    z = deeppcr.linear_chain(A, b, z0)
    gA, gb, gz0 = deeppcr.linear_chain_vjp(*(disguised(rng, v, how) for v in (A, z, g, z0)))
    dz = deeppcr.linear_chain_jvp(A, disguised(rng, z, how), disguised(rng, dA, how), db, dz0, z0)
    assert np.isclose((g * dz).sum(), (gA * dA).sum() + (gb * db).sum() + (gz0 * dz0).sum(), rtol=1e-9, atol=1e-9)
