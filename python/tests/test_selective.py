# SPDX-License-Identifier: MIT
"""The selective scan: against its loop in NumPy, its gradients against PyTorch's of the same loop."""
import itertools

import numpy as np
import pytest

import deeppcr
from deeppcr import selective

try:
    import torch

    import deeppcr.torch as ours
except ImportError:
    torch = ours = None
wants_torch = pytest.mark.skipif(torch is None, reason="no PyTorch")
registers = pytest.mark.skipif(torch is None or not hasattr(torch.library, "custom_op"), reason="this PyTorch registers no operators: 2.4 does")
NAMES = selective.NAMES


def full(x, batch, dim, length):
    """B or C for each channel, [batch][dim][N][L]."""
    if x.ndim == 2:
        return np.broadcast_to(x[None, :, :, None], (batch, dim, x.shape[1], length))
    return np.repeat(x[:, None] if x.ndim == 3 else x, dim // (1 if x.ndim == 3 else x.shape[1]), axis=1)


def loop(u, delta, A, B, C, D=None, z=None, delta_bias=None, h0=None, softplus=False, eps=0.0):
    """(y, last states, and what each may be off by where every operation rounds by eps): the definition, in double."""
    u, delta, A, B, C, *others = (None if x is None else np.asarray(x, np.float64) for x in (u, delta, A, B, C, D, z, delta_bias, h0))
    D, z, delta_bias, h0 = others
    batch, dim, length = u.shape
    B, C = full(B, batch, dim, length), full(C, batch, dim, length)
    raw = delta if delta_bias is None else delta + delta_bias[:, None]
    t, off = (np.logaddexp(0, raw), eps * (4 * np.logaddexp(0, raw) + np.abs(raw))) if softplus else (raw, eps * np.abs(raw))
    h = np.zeros((batch, dim, A.shape[1])) if h0 is None else h0
    e = np.zeros_like(h)  # what h may be off by
    y, ey = np.zeros(u.shape), np.zeros(u.shape)
    for l in range(length):
        tl, ol, decay = t[:, :, l, None], off[:, :, l, None], np.exp(t[:, :, l, None] * A)
        new = tl * B[..., l] * u[:, :, l, None]
        e = decay * e + np.abs(decay * h) * (ol * np.abs(A) + eps * (np.abs(tl * A) + 6)) + ol * np.abs(B[..., l] * u[:, :, l, None]) + 4 * eps * np.abs(new)
        h = decay * h + new
        e = e + eps * np.abs(h)
        y[..., l] = (C[..., l] * h).sum(-1)
        ey[..., l] = (np.abs(C[..., l]) * (e + (A.shape[1] + 2) * eps * np.abs(h))).sum(-1)
    if D is not None:
        y, ey = y + D[:, None] * u, ey + 3 * eps * np.abs(D[:, None] * u) + eps * np.abs(y)
    if z is not None:
        gate = z / (1 + np.exp(-z))
        y, ey = y * gate, ey * np.abs(gate) + eps * np.abs(y * gate) * (8 + np.abs(z))
    return y, h, 2 * ey, 2 * e


def given(rng, batch=2, dim=6, length=37, states=5, groups=(0, 0), options=(1, 1, 1, 1), dtype=np.float64, decay=1.0):
    """In the order of NAMES. `groups` of B and C: None is constant in time, 0 without a dimension of groups."""
    shared = [rng.normal(size=(dim, states) if g is None else (batch, states, length) if g == 0 else (batch, g, states, length)) for g in groups]
    made = [rng.normal(size=(batch, dim, length)), rng.uniform(0.01, 0.9, size=(batch, dim, length)), -decay * rng.uniform(0.05, 4, size=(dim, states)),
            *shared, rng.normal(size=dim), rng.normal(size=(batch, dim, length)), rng.normal(size=dim), rng.normal(size=(batch, dim, states))]
    return [x.astype(dtype) if i < 5 or options[i - 5] else None for i, x in enumerate(made)]


def scan(arrays, softplus, **more):
    return deeppcr.selective_scan(*arrays[:8], softplus, True, h0=arrays[8], **more)


OPTIONS = list(itertools.product((0, 1), repeat=4))
GROUPS = [(0, 0), (1, 0), (2, 2), (3, 3), (None, 0), (0, None), (None, None), (2, 3), (6, 0), (None, 2)]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("softplus", [False, True])
def test_all_options_are_the_loop(rng, softplus, dtype):
    for i, options in enumerate(OPTIONS):
        arrays = given(rng, 1 + i % 3, 6 * (1 + i % 4) + 5 * (i == 3), 13 + 7 * i, 1 + i, (0, 0) if i == 3 else GROUPS[i % len(GROUPS)], options, dtype)
        if not softplus and options[2]:
            arrays[7] = np.abs(arrays[7])  # steps forward in time
        y, last = scan(arrays, softplus)
        wanted, h, ey, eh = loop(*arrays, softplus, float(np.finfo(dtype).eps))
        assert y.dtype == last.dtype == dtype and y.shape == wanted.shape and last.shape == h.shape
        assert (np.abs(y - wanted) <= ey).all() and (np.abs(last - h) <= eh).all(), (i, options)


@pytest.mark.parametrize("states", range(1, 18))
def test_every_number_of_states(rng, states):
    for dim, length in ((1, 16), (7, 15), (16, 17), (19, 33)):
        arrays = given(rng, 1, dim, length, states)
        wanted, h = loop(*arrays, True)[:2]
        y, last = scan(arrays, True)
        assert np.allclose(y, wanted, rtol=0, atol=1e-12) and np.allclose(last, h, rtol=0, atol=1e-12)


def test_defaults_and_pieces(rng):
    u, delta, A, B, C = given(rng)[:5]
    y = deeppcr.selective_scan(u, delta, A, B, C)
    assert np.allclose(y, loop(u, delta, A, B, C)[0], rtol=0, atol=1e-12)
    first, h = deeppcr.selective_scan(u[..., :20], delta[..., :20], A, B[..., :20], C[..., :20], return_last_state=True)
    second = deeppcr.selective_scan(u[..., 20:], delta[..., 20:], A, B[..., 20:], C[..., 20:], h0=h)
    assert np.allclose(np.concatenate([first, second], -1), y, rtol=0, atol=1e-12)


def test_dtypes(rng):
    arrays = given(rng)
    y = scan(arrays, True)[0]
    mixed = [x.astype(np.float32) if i % 2 else x for i, x in enumerate(arrays)]
    assert scan(mixed, True)[0].dtype == np.float64
    assert scan([x.astype(np.float32) for x in arrays], True)[0].dtype == np.float32
    assert np.array_equal(scan([x.astype(">f8") for x in arrays], True)[0], y)
    whole = [np.round(x).astype(np.uint32) for x in (arrays[0] ** 2, arrays[1], np.zeros_like(arrays[2]), arrays[3] ** 2, arrays[4] ** 2)]
    assert np.array_equal(deeppcr.selective_scan(*whole), deeppcr.selective_scan(*[x.astype(np.float64) for x in whole]))
    assert np.array_equal(deeppcr.selective_scan(*(x.tolist() for x in arrays[:5])), deeppcr.selective_scan(*arrays[:5]))


def laid_out(x, how):
    """The same numbers elsewhere: the last two dimensions the other way round, apart from each other, backwards, and among others."""
    if x is None or x.ndim < 2:
        return None if x is None else np.repeat(x, 3)[::3]
    if how == "swapped":
        return np.swapaxes(np.ascontiguousarray(np.swapaxes(x, -1, -2)), -1, -2)
    if how == "apart":
        return np.repeat(x, 2, -1)[..., ::2]
    if how == "backwards":
        return np.ascontiguousarray(x[..., ::-1])[..., ::-1]
    return np.concatenate([x, x], 1)[:, x.shape[1] :]  # as a chunk of a projection lies


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_layouts(rng, dtype):
    for groups in ((0, 0), (2, 2), (None, 0)):
        arrays, gy = given(rng, dim=22, groups=groups, dtype=dtype), rng.normal(size=(2, 22, 37)).astype(dtype)
        y, last = scan(arrays, True)
        back = deeppcr.selective_scan_vjp(*arrays[:5], gy, *arrays[5:8], True, h0=arrays[8])
        for how in ("swapped", "apart", "backwards", "chunk"):
            other = [laid_out(x, how) for x in arrays]
            own = selective.Scan(other, True)
            assert all(np.shares_memory(a, b) for a, b in zip(own.arrays, other) if a is not None)  # nothing is copied
            found = scan(other, True)
            assert all(np.array_equal(a, b) for a, b in zip(found, (y, last)))
            assert found[0].strides[1] == (y.itemsize if how == "swapped" else y.strides[1])  # channels side by side, as in u
            for a, b in zip(back, deeppcr.selective_scan_vjp(*other[:5], laid_out(gy, how), *other[5:8], True, h0=other[8])):
                assert np.array_equal(a, b)
    shared = np.broadcast_to(arrays[0][:1, :1], arrays[0].shape)
    assert np.array_equal(scan([shared, *arrays[1:]], True)[0], scan([shared.copy(), *arrays[1:]], True)[0])


def test_bits_depend_neither_on_threads_nor_on_the_batch(rng):
    for dim, groups in ((40, (0, 0)), (600, (2, 2)), (33, (None, 0))):
        arrays, gy = given(rng, 3, dim, 70, 4, groups, dtype=np.float32), rng.normal(size=(3, dim, 70)).astype(np.float32)
        found = []
        try:
            for threads in (1, 2, 3, 5):
                deeppcr.set_threads(threads)
                found.append((*scan(arrays, True), *deeppcr.selective_scan_vjp(*arrays[:5], gy, *arrays[5:8], True, h0=arrays[8])))
        finally:
            deeppcr.set_threads(0)
        for other in found[1:]:
            assert all(np.array_equal(a, b) for a, b in zip(found[0], other))
        one = [x[1:2] if x.ndim >= 3 else x for x in arrays]
        assert all(np.array_equal(a[1:2], b) for a, b in zip(found[0], scan(one, True)))


@pytest.mark.parametrize("batch, dim, length", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)])
def test_over_nothing(rng, batch, dim, length):
    for groups in ((0, 0), (None, 0), (None, None)):
        arrays, glast = given(rng, batch, dim, length, 3, groups), rng.normal(size=(batch, dim, 3))
        y, last = scan(arrays, True)
        assert y.shape == (batch, dim, length) and np.array_equal(last, arrays[8])
        assert np.array_equal(scan([*arrays[:8], None], True)[1], np.zeros((batch, dim, 3)))
        found = deeppcr.selective_scan_vjp(*arrays[:5], np.zeros(y.shape), *arrays[5:8], True, glast=glast, h0=arrays[8])
        assert [g.shape for g in found] == [x.shape for x in arrays]
        assert np.array_equal(found.h0, glast) and not any(g.any() for g in found[:8])


def test_what_is_not_finite_stays_in_its_channel(rng):
    arrays = given(rng)
    wanted, h = scan(arrays, True)
    for value in (np.nan, np.inf):
        spoilt = [x.copy() for x in arrays]
        spoilt[0][1, 2, 20] = value
        y, last = scan(spoilt, True)
        assert not np.isfinite(y[1, 2, 20:]).any() and not np.isfinite(last[1, 2]).any()
        y[1, 2, 20:], last[1, 2] = wanted[1, 2, 20:], h[1, 2]
        assert np.array_equal(y, wanted) and np.array_equal(last, h)


def test_gradients_are_differences(rng):
    for groups in GROUPS:
        arrays = given(rng, 2, 12, 19, 3, groups)
        gy, glast = rng.normal(size=(2, 12, 19)), rng.normal(size=(2, 12, 3))
        found = deeppcr.selective_scan_vjp(*arrays[:5], gy, *arrays[5:8], True, glast=glast, h0=arrays[8])
        for i, gradient in enumerate(found):
            assert gradient.shape == arrays[i].shape
            direction, ends = rng.normal(size=gradient.shape), []
            for sign in (1, -1):
                moved = [x + sign * 1e-6 * direction if k == i else x for k, x in enumerate(arrays)]
                ends.append(sum((g * v).sum() for g, v in zip((gy, glast), scan(moved, True))))
            assert np.isclose((gradient * direction).sum(), (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-6), (groups, NAMES[i])


def test_gradients_of_what_is_there(rng):
    u, delta, A, B, C = given(rng)[:5]
    glast = rng.normal(size=(2, 6, 5))
    found = deeppcr.selective_scan_vjp(u, delta, A, B, C, None, glast=glast)
    assert found.D is found.z is found.delta_bias is found.h0 is None and not found.C.any() and found.B.any()
    zero = deeppcr.selective_scan_vjp(u, delta, A, B, C, np.zeros(u.shape), glast=glast, h0=np.zeros((2, 6, 5)))
    assert all(np.array_equal(a, b) for a, b in zip(found[:5], zero)) and zero.h0.any()


X, M = np.ones((2, 6, 9)), np.ones((6, 3))
V = np.ones((2, 3, 9))


@pytest.mark.parametrize("call, what", [
    (lambda: deeppcr.selective_scan(X[0], X, M, V, V), "u's shape"), (lambda: deeppcr.selective_scan(X, X[:, :5], M, V, V), "delta's shape"),
    (lambda: deeppcr.selective_scan(X, X, M[:5], V, V), "A's shape"), (lambda: deeppcr.selective_scan(X, X, M[0], V, V), "A's shape"),
    (lambda: deeppcr.selective_scan(X, X, M[:, :0], V[:, :0], V[:, :0]), "A's shape"),
    (lambda: deeppcr.selective_scan(X, X, M, V[:1], V), "B's shape"), (lambda: deeppcr.selective_scan(X, X, M, V, V[..., :8]), "C's shape"),
    (lambda: deeppcr.selective_scan(X, X, M, V, M.T), "C's shape"), (lambda: deeppcr.selective_scan(X, X, M, np.ones((2, 4, 3, 9)), V), "B's shape"),
    (lambda: deeppcr.selective_scan(X, X, M, np.ones((2, 0, 3, 9)), V), "B's shape"), (lambda: deeppcr.selective_scan(X, X, M, V, V, M), "D's shape"),
    (lambda: deeppcr.selective_scan(X, X, M, V, V, z=X[..., :1]), "z's shape"), (lambda: deeppcr.selective_scan(X, X, M, V, V, delta_bias=[1.0]), "delta_bias's shape"),
    (lambda: deeppcr.selective_scan(X, X, M, V, V, h0=M), "h0's shape"), (lambda: deeppcr.selective_scan(X, X, M + 0j, V, V), "A's dtype"),
    (lambda: deeppcr.selective_scan(X, X, M, V * 1j, V), "B's dtype"), (lambda: deeppcr.selective_scan(X, X, M, V, None), "C's dtype"),
    (lambda: deeppcr.selective_scan(np.full((2, 6, 9), "a"), X, M, V, V), "u's dtype"), (lambda: deeppcr.selective_scan(X, X, M, V, V, delta_softplus="no"), "delta_softplus"),
    (lambda: deeppcr.selective_scan(X, X, M, V, V, return_last_state=2), "return_last_state"),
    (lambda: deeppcr.selective_scan(np.ma.masked_array(X, mask=X > 0), X, M, V, V), "u"),
    (lambda: deeppcr.selective_scan_vjp(X, X, M, V, V, X[:1]), "gy's shape"), (lambda: deeppcr.selective_scan_vjp(X, X, M, V, V, X, glast=M), "glast's shape"),
    (lambda: deeppcr.selective_scan_vjp(X, X, M, V, V, None), "gy"), (lambda: deeppcr.selective_scan_vjp(X, X, M, V, V, X * 1j), "gy's dtype"),
])  # fmt: skip
def test_refusals(call, what):
    with pytest.raises(ValueError) as caught:
        call()
    error = caught.value
    assert isinstance(error, deeppcr.Error) and error.what == what and error.wanted and "wanted" in str(error)


def test_no_states_are_refused():
    with pytest.raises(deeppcr.ArgumentError):
        deeppcr.selective_scan(X, X, M[:, :0], V[:, :0], V[:, :0])


# ---- PyTorch ----


def plain(u, delta, A, B, C, D=None, z=None, delta_bias=None, h0=None, softplus=False):
    """The definition by PyTorch's own operators."""
    batch, dim, length = u.shape
    t = delta if delta_bias is None else delta + delta_bias[:, None]
    t = torch.nn.functional.softplus(t) if softplus else t

    def each(x):
        if x.ndim == 2:
            return x[None, :, :, None].expand(batch, dim, x.shape[1], length)
        return (x[:, None] if x.ndim == 3 else x).repeat_interleave(dim // (1 if x.ndim == 3 else x.shape[1]), 1)

    B, C, h, y = each(B), each(C), u.new_zeros(batch, dim, A.shape[1]) if h0 is None else h0, []
    for l in range(length):
        h = torch.exp(t[:, :, l, None] * A) * h + t[:, :, l, None] * B[..., l] * u[:, :, l, None]
        y.append((C[..., l] * h).sum(-1))
    y = torch.stack(y, -1)
    y = y if D is None else y + D[:, None] * u
    return (y if z is None else y * torch.nn.functional.silu(z)), h


def tensors(arrays):
    return [None if x is None else torch.from_numpy(x.copy()).requires_grad_() for x in arrays]


def call(t, softplus=True, tells=True):
    return ours.selective_scan(*t[:8], softplus, tells, h0=t[8])


def near(found, wanted, rounding):
    """Each tensor within `rounding` of its largest."""
    for name, a, b in zip(NAMES, found, wanted):
        assert a.shape == b.shape and (a - b).abs().max() <= rounding * max(1, b.abs().max()), name


@wants_torch
@pytest.mark.parametrize("softplus", [False, True])
def test_gradients_are_pytorchs(rng, softplus):
    for i, (options, dtype) in enumerate(itertools.product(OPTIONS, (np.float64, np.float32))):
        length, states = 11 + i, 1 + i % 17
        arrays = given(rng, 1 + i % 3, 6 * (1 + i % 3), length, states, GROUPS[i % len(GROUPS)], options, dtype)
        if not softplus and options[2]:
            arrays[7] = np.abs(arrays[7])
        t, wide = tensors(arrays), tensors([None if x is None else x.astype(np.float64) for x in arrays])
        outputs, wanted = call(t, softplus), plain(*wide, softplus)
        back = [torch.from_numpy(rng.normal(size=tuple(o.shape)).astype(dtype)) for o in outputs]
        found, there = [torch.autograd.grad(o, [x for x in v if x is not None], [b.to(o[0].dtype) for b in back]) for o, v in ((outputs, t), (wanted, wide))]
        # Numbers are sums over terms that went through as many roundings as there are steps and states, forward and back.
        near(found, there, 1e-12 if dtype == np.float64 else 4 * (length + states) * 6e-8)
        gradients = deeppcr.selective_scan_vjp(*arrays[:5], back[0].numpy(), *arrays[5:8], softplus, glast=back[1].numpy(), h0=arrays[8])
        assert all(np.array_equal(a.numpy(), b) for a, b in zip(found, [g for g in gradients if g is not None]))


def heads_loop(x, dt, A, B, C, D, z, dt_bias, h, softplus):
    """Mamba-2's definition, step by step: y and the last states."""
    heads, ys = x.shape[2], []
    for l in range(x.shape[1]):
        t = dt[:, l] + dt_bias
        t = torch.nn.functional.softplus(t, threshold=700) if softplus else t
        b, c = (m[:, l].repeat_interleave(heads // m.shape[2], 1) for m in (B, C))
        h = torch.exp(t * A)[..., None, None] * h + (t[..., None] * x[:, l])[..., None] * b[:, :, None]
        ys.append(((h * c[:, :, None]).sum(-1) + D * x[:, l]) * torch.nn.functional.silu(z[:, l]))
    return torch.stack(ys, 1), h


@wants_torch
@pytest.mark.parametrize("softplus, groups, own", [(False, 1, False), (True, 2, True)])
def test_mamba2(rng, softplus, groups, own):
    batch, length, heads, each, states = 2, 21, 4, 3, 9
    make = lambda *shape: torch.from_numpy(rng.normal(size=shape)).requires_grad_()  # noqa: E731
    x, z, h0 = make(batch, length, heads, each), make(batch, length, heads, each), make(batch, heads, each, states)
    dt, A = torch.from_numpy(rng.uniform(0.01, 0.9, size=(batch, length, heads))).requires_grad_(), torch.from_numpy(-rng.uniform(0.1, 3, size=heads)).requires_grad_()
    B, C, dt_bias, D = make(batch, length, groups, states), make(batch, length, groups, states), make(heads), make(heads, each) if own else make(heads)
    given = (x, dt, A, B, C, D, z, dt_bias, h0)
    y, last = ours.mamba2_scan(x, dt, A, B, C, D, z, dt_bias, h0, dt_softplus=softplus, return_final_states=True)
    wanted, end = heads_loop(x, dt, A, B, C, D if own else D[:, None], z, dt_bias, h0, softplus)
    assert y.shape == x.shape and torch.allclose(y, wanted, atol=1e-12, rtol=1e-12) and torch.allclose(last, end, atol=1e-12, rtol=1e-12)
    weights = torch.from_numpy(rng.normal(size=x.shape)), torch.from_numpy(rng.normal(size=last.shape))
    found, true = (torch.autograd.grad((a * weights[0]).sum() + (b * weights[1]).sum(), given) for a, b in ((y, last), (wanted, end)))
    for name, f, t in zip("x dt A B C D z dt_bias initial_states".split(), found, true):
        assert torch.allclose(f, t, atol=1e-10, rtol=1e-10), name
    with torch.no_grad():  # channel by channel, and above as linear attention
        for a, b in zip((y, last), ours.mamba2_scan(x, dt, A, B, C, D, z, dt_bias, h0, dt_softplus=softplus, return_final_states=True)):
            assert a.shape == b.shape and torch.allclose(a, b, atol=1e-12, rtol=1e-12)
        plain = ours.mamba2_scan(x, dt, A, B, C)
        assert torch.allclose(plain, heads_loop(x, dt, A, B, C, torch.zeros(1), torch.full_like(x, 1e3), torch.zeros(heads), torch.zeros_like(h0), False)[0] / 1e3, atol=1e-12)
    for wrong, what in (({"x": x[0]}, "x's shape"), ({"dt": dt[..., 0]}, "dt's shape"), ({"A": A[:, None]}, "A's shape"), ({"D": make(3)}, "D's shape"), ({"B": make(batch, length, 3, states)}, "B's groups"),
                        ({"C": C[:, 1:]}, "C's shape"), ({"z": z[:1]}, "z's shape"), ({"initial_states": h0[:1]}, "initial_states's shape"), ({"dt_bias": h0}, "dt_bias's shape"), ({"x": 3}, "x")):  # fmt: skip
        with pytest.raises(ValueError, match=what):
            ours.mamba2_scan(**{**dict(zip("x dt A B C D z dt_bias initial_states".split(), given)), **wrong})


@wants_torch
def test_layouts_of_tensors(rng):
    """As Mamba has them: chunks of a projection, and [batch][L][dim] seen the other way round."""
    arrays = given(rng, dim=20)
    wanted = call(tensors(arrays))
    for how in ("swapped", "chunk", "apart"):
        leaves, views = tensors(arrays), []
        for x in leaves:
            if x.ndim < 3:
                views.append(x)
            elif how == "swapped":
                views.append(x.transpose(-1, -2).contiguous().transpose(-1, -2))
            elif how == "chunk":
                views.append(torch.cat([x, x], 1).chunk(2, 1)[1])
            else:
                views.append(x.repeat_interleave(2, -1)[..., ::2])
        y, last = call(views)
        assert torch.equal(y, wanted[0]) and torch.equal(last, wanted[1]) and (y.stride(1) == 1) == (how == "swapped")
        whole = tensors(arrays)
        loss = lambda o: (o[0].sin().sum() + o[1].cos().sum())  # noqa: E731
        for a, b in zip(torch.autograd.grad(loss((y, last)), leaves), torch.autograd.grad(loss(call(whole)), whole)):
            assert torch.equal(a, b)
    assert torch.equal(call([torch._neg_view(-x) for x in tensors(arrays)])[0], wanted[0])


@wants_torch
def test_pytorchs_own_check_of_gradients(rng):
    for groups in ((0, 0), (None, 2)):
        t = tensors(given(rng, 2, 4, 5, 2, groups))
        assert torch.autograd.gradcheck(lambda *v: call(v), t)
    assert torch.autograd.gradcheck(lambda *v: call([*v, None, None, None, None], False, False), t[:5])


@wants_torch
def test_only_what_is_needed_is_computed(rng, monkeypatch):
    seen, keeps = [], []
    back, forward = selective.Scan.back, selective.Scan.run
    monkeypatch.setattr(selective.Scan, "back", lambda self, *a: (seen.append([NAMES[i] for i, x in enumerate(a[3]) if x is not None]), back(self, *a))[1])
    monkeypatch.setattr(selective.Scan, "run", lambda self, *a: (keeps.append(a[2] != 0), forward(self, *a))[1])
    arrays = given(rng)
    for needed in (("A",), ("u", "h0"), ("D", "z", "delta_bias"), ("B",), ("C",)):
        t = [x.requires_grad_(n in needed) for n, x in zip(NAMES, map(torch.from_numpy, arrays))]
        y, last = call(t)
        found = torch.autograd.grad(y.sum() + last.sum(), [t[NAMES.index(n)] for n in needed])
        whole = tensors(arrays)
        wanted = torch.autograd.grad(sum(o.sum() for o in call(whole)), [whole[NAMES.index(n)] for n in needed])
        assert all(torch.equal(a, b) for a, b in zip(found, wanted)) and seen[0] == [n for n in NAMES if n in needed]
        seen.clear()
    assert all(keeps)
    keeps.clear()
    with torch.no_grad():
        assert call(tensors(arrays), tells=False).grad_fn is None
    call([x.detach() for x in tensors(arrays)])
    assert keeps and not keeps[0] and not keeps[-1]
    u = torch.from_numpy(arrays[0]).requires_grad_()
    assert torch.autograd.grad(call([u, *[x.detach() for x in tensors(arrays)[1:]]])[1].sum(), u)[0].any()  # of last states alone


@wants_torch
def test_the_way_back_runs_again_and_over_what_hooks_give(rng):
    t = tensors(given(rng))
    loss = lambda o: o[0].square().sum() + o[1].sum()  # noqa: E731
    wanted = torch.autograd.grad(loss(call(t)), t)
    y = loss(call(t))
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(y, t, retain_graph=True), wanted))

    def elsewhere(x):  # one number off any alignment
        return torch.cat([x.new_zeros(1).view(-1), x.reshape(-1)])[1:].view(x.shape)

    if hasattr(torch.autograd.graph, "saved_tensors_hooks"):
        with torch.autograd.graph.saved_tensors_hooks(elsewhere, lambda x: x):
            y = loss(call(t))
        for a, b in zip(torch.autograd.grad(y, t), wanted):
            assert torch.allclose(a, b, rtol=0, atol=1e-12)
    from torch.utils.checkpoint import checkpoint

    y = loss(checkpoint(lambda *v: call(v), *t, use_reentrant=False))
    assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(y, t), wanted))
    out = call(t, tells=False)
    out *= 2  # results may be written into
    out.sum().backward()
    assert t[0].grad.any()


@wants_torch
def test_inputs_that_change_their_shape_before_the_way_back(rng):
    t = tensors(given(rng))
    y = call(t)[0].sum()
    t[0].data = torch.zeros(2, 6, 36, dtype=torch.float64)
    with pytest.raises(deeppcr.ArgumentError, match="shape"):
        y.backward()
    t = tensors(given(rng))
    y = call(t)[1].sum()
    for x, other in zip(t, given(rng, states=3)):
        x.data = torch.from_numpy(other)
    with pytest.raises(deeppcr.ArgumentError, match="glast's shape"):
        y.backward()


@wants_torch
def test_refusals_of_tensors(rng):
    t = [torch.from_numpy(x) for x in given(rng)]
    f = [x.float() for x in t]
    for arguments, what in (([f[0], *t[1:]], "delta's dtype"), ([*t[:2], f[2], *t[3:]], "A's dtype"), ([x.half() for x in t], "u's dtype"),
                            ([x.bfloat16() for x in t], "u's dtype"), ([*t[:2], t[2] + 0j, *t[3:]], "A's dtype"), ([*t[:8], f[8]], "h0's dtype"),
                            ([None, *t[1:]], "u"), ([*t[:4], None, *t[5:]], "C"), ([t[0].numpy(), *t[1:]], "u"), ([*t[:6], t[6][..., 1:], *t[7:]], "z's shape"),
                            ([t[0].to_sparse(), *t[1:]], "u's layout"), ([t[0].to("meta"), *t[1:]], "u's device"), ([x.int() for x in t], "u's dtype")):
        with pytest.raises(deeppcr.Error) as caught:
            call(arguments)
        assert caught.value.what == what and caught.value.wanted
    with pytest.raises(deeppcr.UnsupportedError, match="complex"):
        call([*t[:2], t[2] + 0j, *t[3:]])
    with pytest.raises(deeppcr.ArgumentError, match="delta_softplus"):
        call(t, "yes")
    leaves = tensors(given(rng))
    with pytest.raises(deeppcr.UnsupportedError, match="second"):
        torch.autograd.grad(call(leaves)[0].sin().sum(), leaves[0], create_graph=True)
    with pytest.raises(deeppcr.UnsupportedError, match="forward"):
        with torch.autograd.forward_ad.dual_level():
            call([torch.autograd.forward_ad.make_dual(t[0], t[0]), *t[1:]])
    with pytest.raises(deeppcr.UnsupportedError, match="many losses"):
        torch.autograd.functional.jacobian(lambda u: call([u, *t[1:]])[1], t[0], vectorize=True)


@wants_torch
@pytest.mark.parametrize("back", [False, True])
def test_mamba2_refuses_other_dtypes(back):
    """Each argument by its own name, whether gradients are wanted or not."""
    x = torch.randn(1, 9, 2, 3, requires_grad=back)
    good = {"x": x, "dt": torch.rand(1, 9, 2), "A": -torch.rand(2), "B": torch.randn(1, 9, 1, 4), "C": torch.randn(1, 9, 1, 4)}
    more = {"D": torch.ones(2), "z": torch.ones(1, 9, 2, 3), "dt_bias": torch.ones(2), "initial_states": torch.ones(1, 2, 3, 4)}
    ours.mamba2_scan(**good, **more)
    for name, tensor in {**good, **more}.items():
        for dtype in (torch.float64, torch.float16, torch.int64, torch.complex64):
            if name != "x":
                with pytest.raises(deeppcr.ArgumentError, match=f"{name}'s dtype is"):
                    ours.mamba2_scan(**{**good, **more, name: tensor.to(dtype)})
        with pytest.raises(deeppcr.ArgumentError, match=name):
            ours.mamba2_scan(**{**good, **more, name: "text"})
    for name in ("dt", "C"):
        with pytest.raises(deeppcr.ArgumentError, match=name):
            ours.mamba2_scan(**{**good, name: None})


@registers
def test_compiled_programs_and_exported_ones(rng):
    arrays = given(rng)
    arrays[0], arrays[4] = laid_out(arrays[0], "swapped"), laid_out(arrays[4], "swapped")
    t = [x.requires_grad_() for x in map(torch.from_numpy, arrays)]
    loss = lambda *v: sum(o.sin().sum() for o in call(v))  # noqa: E731
    wanted = torch.autograd.grad(loss(*t), t)
    for dynamic in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=dynamic)
        for a, b in zip(torch.autograd.grad(compiled(*t), t), wanted):
            assert torch.allclose(a, b, rtol=0, atol=1e-11)
    assert torch.allclose(torch.autograd.grad(compiled(*[x.detach() if i else x for i, x in enumerate(t)]), t[0])[0], wanted[0], rtol=0, atol=1e-11)

    class Module(torch.nn.Module):
        def forward(self, u, delta, A, B, C, D):
            return ours.selective_scan(u, delta, A, B, C, D, delta_softplus=True)

    given_ = tuple(x.detach() for x in t[:6])
    program = torch.export.export(Module(), given_)
    assert any("deeppcr.selective_scan" in str(node.target) for node in program.graph.nodes)
    assert torch.equal(program.module()(*given_), Module()(*given_))


@registers
def test_operators_pass_pytorchs_own_checks(rng):
    t = tensors(given(rng, 2, 4, 7, 3, (2, 0)))
    torch.library.opcheck(torch.ops.deeppcr.selective_scan.default, (*t, True))
    torch.library.opcheck(torch.ops.deeppcr.selective_scan.default, (*t[:5], None, None, None, None, False))
    y, last = torch.ones(2, 4, 7, dtype=torch.float64), torch.ones(2, 4, 3, dtype=torch.float64)
    for needed in (511, 0, 0b100010100):
        torch.library.opcheck(torch.ops.deeppcr.selective_scan_vjp.default, (*[x.detach() for x in t], True, y, last, needed))
    found = torch.ops.deeppcr.selective_scan_vjp(*[x.detach() for x in t], True, y, last, 0b100)
    assert [x.numel() > 0 for x in found] == [i == 2 for i in range(9)]


@registers
def test_transforms_of_torch_func(rng):
    func = pytest.importorskip("torch.func")
    if not hasattr(torch.library, "register_vmap"):
        pytest.skip("a PyTorch without vmap of operators")
    t = [x.detach() for x in tensors(given(rng, 2, 4, 9, 3, (2, 0)))]
    loss = lambda run: lambda *v: sum(o.sin().sum() for o in run(*v))  # noqa: E731
    mine, theirs = loss(lambda *v: call(v)), loss(lambda *v: plain(*v, True))
    near(func.grad(mine, argnums=tuple(range(9)))(*t), func.grad(theirs, argnums=tuple(range(9)))(*t), 1e-12)
    rows = torch.stack([t[0], 2 * t[0], t[0].flip(-1)])
    for f in (lambda u: call([u, *t[1:]])[0], lambda u: func.grad(lambda v: mine(v, *t[1:]))(u)):
        assert torch.allclose(func.vmap(f)(rows), torch.stack([f(r) for r in rows]), rtol=0, atol=1e-12)
    with pytest.raises(deeppcr.UnsupportedError, match="second"):
        func.grad(lambda v: func.grad(lambda w: mine(w, *t[1:]))(v).sum())(t[0])


# ---- JAX ----


@pytest.fixture
def jax():
    return pytest.importorskip("jax")


def test_jax(jax, rng):
    from deeppcr import jax as ours_of_jax

    for groups, options, softplus in (((0, 0), (1, 1, 1, 1), True), ((2, 0), (0, 1, 0, 0), False), ((None, 2), (1, 0, 0, 1), True), ((0, None), (0, 0, 0, 0), False)):
        arrays = given(rng, 2, 6, 19, 3, groups, options, np.float32)
        there = [i for i, x in enumerate(arrays) if x is not None]
        gy, glast = rng.normal(size=(2, 6, 19)).astype("f"), rng.normal(size=(2, 6, 3)).astype("f")

        def run(*some, there=there, softplus=softplus):
            whole = [None] * 9
            for i, x in zip(there, some):
                whole[i] = x
            return ours_of_jax.selective_scan(*whole[:8], softplus, True, h0=whole[8])

        numbers = [arrays[i] for i in there]
        wanted = scan(arrays, softplus)
        back = [g for g in deeppcr.selective_scan_vjp(*arrays[:5], gy, *arrays[5:8], softplus, glast=glast, h0=arrays[8]) if g is not None]
        for f in (run, jax.jit(run)):
            y, pull = jax.vjp(f, *numbers)
            assert all(np.array_equal(a, b) for a, b in zip((*y, *pull((gy, glast))), (*wanted, *back)))
        loss = lambda u: run(u, *numbers[1:])[0].sum()  # noqa: E731, B023
        rows = np.stack([numbers[0], 2 * numbers[0]])
        for f in (lambda u: run(u, *numbers[1:])[1], jax.grad(loss)):  # noqa: B023
            assert np.array_equal(jax.vmap(f)(rows)[1], f(rows[1]))
        several = [np.stack([x, x]) for x in numbers]
        assert np.array_equal(jax.jit(jax.vmap(run))(*several)[0][1], wanted[0])
        assert np.array_equal(jax.vmap(jax.vmap(run, (0, *[None] * (len(numbers) - 1))), (None, 1, *[None] * (len(numbers) - 2)))(
            several[0], np.stack([numbers[1]] * 3, 1), *numbers[2:])[0][2, 1], wanted[0])  # fmt: skip
        with pytest.raises(deeppcr.UnsupportedError, match="second"):
            jax.grad(lambda u: jax.grad(loss)(u).sum())(rows[0])  # noqa: B023
    assert np.array_equal(ours_of_jax.selective_scan(*numbers), wanted[0])  # the last of them has no options


def test_refusals_of_jax(jax, rng):
    from deeppcr import _xla
    from deeppcr import jax as ours_of_jax

    t = given(rng, dtype=np.float32)
    for arguments, what in (([t[0][0], *t[1:8]], "u's shape"), ([*t[:2], t[2].astype("c8"), *t[3:8]], "A's dtype"), ([t[0].astype("i4"), *t[1:8]], "u's dtype"),
                            ([t[0], t[1].astype(np.float16), *t[2:8]], "delta's dtype"), ([*t[:4], None, *t[5:8]], "C"), ([*t[:6], t[6][..., 1:], t[7]], "z's shape")):
        with pytest.raises(deeppcr.Error) as caught:
            ours_of_jax.selective_scan(*arguments)
        assert caught.value.what == what
    for call in ("selective 2 31", "selective 0 30", "selective 0 1023", "selective 0 47"):
        with pytest.raises(deeppcr.ArgumentError):
            _xla._run_of(call.encode())
    run, back = _xla._run_of(b"selective 0 31"), _xla._run_of(b"selective_vjp 0 31")
    u, delta, A, B, C = t[:5]
    y, last = np.empty_like(u), np.empty((2, 6, 5), "f")
    run([u, delta, A, B, C], [y, last])
    assert np.array_equal(y, deeppcr.selective_scan(u, delta, A, B, C))
    two = [np.stack([x, x]) for x in (y, last)]
    for wrong in (([u, delta, A, B], [y, last]), ([u, delta, A, B, C], [y]), ([u, delta, A, B, C], [y[0], last]), ([u, delta, A, B, C], [y, last[:1]]),
                  ([u, delta, A, B, C], [y[:1], last]), ([u, delta, A.astype("f8"), B, C], [y, last]), ([u, delta, A, B, C], two),
                  ([x[None] for x in (u, delta, A, B, C)], [two[0], last[None]]), ([x[None][[0, 0, 0]] for x in (u, delta, A, B, C)], two)):
        with pytest.raises(deeppcr.ArgumentError):
            run(*wrong)
    run([x[None] for x in (u, delta, A, B, C)], two)
    assert np.array_equal(two[0][1], y)
    for wrong in (([y, last, u, delta, A, B, C], [u, delta, A, B]), ([y, y, u, delta, A, B, C], [u, delta, A, B, C]), ([y, last, u, delta, A, B, C], [u, delta, A, B, A])):
        with pytest.raises(deeppcr.ArgumentError):
            back(wrong[0], [x.copy() for x in wrong[1]])
