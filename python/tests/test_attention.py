# SPDX-License-Identifier: MIT
"""Linear attention: against its loop in NumPy, its gradients against PyTorch's of the same loop."""
import ctypes
import importlib
import itertools
import mmap
import os
import pathlib

import numpy as np
import pytest

import deeppcr
from deeppcr import attention

try:
    import torch

    import deeppcr.torch as ours
except ImportError:
    torch = ours = None
wants_torch = pytest.mark.skipif(torch is None, reason="no PyTorch")
registers = pytest.mark.skipif(torch is None or not hasattr(torch.library, "custom_op"), reason="this PyTorch registers no operators: 2.4 does")
NAMES = attention.NAMES


def loop(q, k, v, g=None, beta=None, s0=None, scale=None):
    """(o, last states): the definition, in double."""
    q, k, v, g, beta, s0 = (None if x is None else np.asarray(x, np.float64) for x in (q, k, v, g, beta, s0))
    each = v.shape[2] // q.shape[2]
    q, k = np.repeat(q, each, 2) * (q.shape[3] ** -0.5 if scale is None else scale), np.repeat(k, each, 2)
    S, o = np.zeros((*v.shape[::2], q.shape[3], v.shape[3])) if s0 is None else s0.copy(), np.zeros(v.shape)
    for l in range(q.shape[1]):
        if g is not None:
            S = S * np.exp(g[:, l, :, None, None] if g.ndim == 3 else g[:, l, :, :, None])
        u = v[:, l] if beta is None else beta[:, l, :, None] * (v[:, l] - np.einsum("bhkv,bhk->bhv", S, k[:, l]))
        S = S + np.einsum("bhk,bhv->bhkv", k[:, l], u)
        o[:, l] = np.einsum("bhkv,bhk->bhv", S, q[:, l])
    return o, S


# Of g: none, a decay a head, a decay a row. Of beta and of states before the first step: none, some.
OPTIONS = list(itertools.product((0, 3, 4), (0, 1), (0, 1)))


def given(rng, batch=2, length=37, groups=2, each=2, keys=5, values=7, options=(3, 1, 1), dtype=np.float64):
    """In the order of NAMES; keys of length 1, as models have them, where something is taken out of states."""
    heads, (decays, corrects, begins) = groups * each, options
    k = rng.normal(size=(batch, length, groups, keys))
    k /= np.sqrt((k * k).sum(-1, keepdims=True))
    g = -rng.exponential(0.3, size=(batch, length, heads, keys)[:decays]) if decays else None
    made = [rng.normal(size=k.shape), k, rng.normal(size=(batch, length, heads, values)), g,
            rng.uniform(0, 1, size=(batch, length, heads)) if corrects else None, rng.normal(size=(batch, heads, keys, values)) if begins else None]
    return [None if x is None else x.astype(dtype) for x in made]


def run(arrays, scale=None):
    return deeppcr.linear_attention(*arrays[:5], scale=scale, initial_state=arrays[5], return_final_state=True)


def back(arrays, go, gfinal=None, scale=None):
    return deeppcr.linear_attention_vjp(*arrays[:3], go, *arrays[3:5], scale=scale, initial_state=arrays[5], gfinal=gfinal)


def rounds(dtype, length):
    """What results may be off by, of the largest: as many roundings as there are steps, and some within one."""
    return (length + 16) * float(np.finfo(dtype).eps)


def near(found, wanted, rounding, names=NAMES):
    for name, a, b in zip(names, found, wanted):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape and np.abs(a - b).max(initial=0) <= rounding * max(1, np.abs(b).max(initial=0)), name


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("options", OPTIONS)
def test_it_is_the_loop(rng, options, dtype):
    for i, length in enumerate((1, 15, 16, 17, 31, 130, 257)):
        arrays = given(rng, 1 + i % 3, length, 1 + i % 2, 1 + (i + 1) % 3, (1, 3, 8, 16, 17, 33, 64)[i], (64, 1, 9, 16, 33, 7, 5)[i], options, dtype)
        scale = None if i % 2 else 0.7
        o, last = run(arrays, scale)
        assert o.dtype == last.dtype == dtype
        near((o, last), loop(*arrays, scale=scale), rounds(dtype, length), ("o", "last"))


@pytest.mark.parametrize("keys", [*range(1, 18), 31, 32, 33, 65])
def test_every_width(rng, keys):
    for values, options in zip((1, 8, 16, 31, 33, 130), OPTIONS[keys % 2 :: 2]):
        arrays = given(rng, 1, 19, 1, 2, keys, values, options)
        near(run(arrays), loop(*arrays), 1e-13)
        go, gfinal = rng.normal(size=arrays[2].shape), rng.normal(size=(1, 2, keys, values))
        found = back(arrays, go, gfinal)
        for i, x in enumerate(arrays):  # along one direction, which all have a part in
            if x is not None:
                direction = rng.normal(size=x.shape)
                ends = [sum((a * b).sum() for a, b in zip((go, gfinal), loop(*[y + s * 1e-6 * direction if n == i else y for n, y in enumerate(arrays)]))) for s in (1, -1)]
                assert np.isclose((found[i] * direction).sum(), (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-6), NAMES[i]


def test_defaults_and_pieces(rng):
    arrays = given(rng, options=(3, 1, 0))
    o = deeppcr.linear_attention(*arrays[:5])
    near((o,), loop(*arrays), 1e-13)
    for cut in (16, 20):
        first, last = deeppcr.linear_attention(*(x[:, :cut] for x in arrays[:5]), return_final_state=True)
        second = deeppcr.linear_attention(*(x[:, cut:] for x in arrays[:5]), initial_state=last)
        near((np.concatenate([first, second], 1),), (o,), 1e-13)
    assert np.array_equal(deeppcr.linear_attention(*arrays[:5], scale=5**-0.5), o)
    assert not deeppcr.linear_attention(*arrays[:5], scale=0).any()


def test_dtypes(rng):
    arrays = given(rng)
    o = run(arrays)[0]
    assert run([x.astype(np.float32) if i % 2 else x for i, x in enumerate(arrays)])[0].dtype == np.float64
    assert run([x.astype(np.float32) for x in arrays])[0].dtype == np.float32
    assert np.array_equal(run([x.astype(">f8") for x in arrays])[0], o)
    assert np.array_equal(deeppcr.linear_attention(*(x.tolist() for x in arrays[:5])), deeppcr.linear_attention(*arrays[:5]))
    whole = [np.round(x**2).astype(np.uint32) for x in arrays[:3]]
    assert np.array_equal(deeppcr.linear_attention(*whole), deeppcr.linear_attention(*[x.astype(np.float64) for x in whole]))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("decays", [3, 4])
def test_what_is_forgotten_leaves_no_trace(rng, decays, dtype):
    """-inf, and what e^g is no number for, forget all that was before, bit for bit; states of a row each for itself."""
    for at, value in ((0, -np.inf), (15, -np.inf), (16, -1000.0), (20, -np.inf)):
        arrays = given(rng, options=(decays, 1, 1), dtype=dtype)
        arrays[3][:, at] = value
        o, last = run(arrays)
        others = given(rng, options=(decays, 1, 1), dtype=dtype)
        mixed = [None if x is None else np.concatenate([y[:, :at], x[:, at:]], 1) for x, y in zip(arrays[:5], others[:5])] + [others[5]]
        again, end = run(mixed)
        assert np.isfinite(o).all() and np.array_equal(o[:, at:], again[:, at:]) and np.array_equal(last, end)
        near((o, last), loop(*arrays), rounds(dtype, 37), ("o", "last"))
        go, gfinal = rng.normal(size=o.shape).astype(dtype), rng.normal(size=last.shape).astype(dtype)
        go[:, :at] = 0
        found = back(arrays, go, gfinal)
        assert all(np.isfinite(x).all() for x in found) and not found.initial_state.any() and not found.g[:, : at + 1].any()
        assert not any(x[:, :at].any() for x in found[:5]) and all(x[:, at:].any() for x in found[:5])
    arrays = given(rng, options=(4, 1, 1), dtype=dtype)
    arrays[3][:, 9, :, 2] = -np.inf
    near(run(arrays), loop(*arrays), rounds(dtype, 37), ("o", "last"))


def laid_out(x, how):
    """The same numbers elsewhere."""
    if x is None:
        return None
    if how == "turned":  # the last dimension far apart
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, -1, 0)), 0, -1)
    if how == "heads first":  # [B][H][L][.], as many programs have it
        return np.swapaxes(np.ascontiguousarray(np.swapaxes(x, 1, 2)), 1, 2)
    if how == "apart":
        return np.repeat(x, 2, -1)[..., ::2]
    if how == "backwards":
        return np.ascontiguousarray(x[::-1, ::-1, ::-1, ...][..., ::-1])[..., ::-1][::-1, ::-1, ::-1] if x.ndim == 4 else np.ascontiguousarray(x[..., ::-1])[..., ::-1]
    return np.concatenate([x, x], -1)[..., x.shape[-1] :]  # as a chunk of a projection lies


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("options", [(3, 1, 1), (4, 1, 1), (3, 0, 0)])
def test_layouts(rng, options, dtype):
    arrays = given(rng, keys=21, values=38, options=options, dtype=dtype)
    go = rng.normal(size=arrays[2].shape).astype(dtype)
    wanted, gradients = run(arrays), back(arrays, go)
    for how in ("turned", "heads first", "apart", "backwards", "chunk"):
        other = [laid_out(x, how) for x in arrays]
        own = attention.Scan(other, 1.0)
        assert all(np.shares_memory(a, b) for a, b in zip(own.arrays, other) if a is not None)  # nothing is copied
        assert all(np.array_equal(a, b) for a, b in zip(run(other), wanted)), how
        assert all(a is b is None or np.array_equal(a, b) for a, b in zip(back(other, laid_out(go, how)), gradients)), how
    for i, x in enumerate(arrays):  # one number in many places
        if x is not None:
            shared = [np.broadcast_to(y[:1, :1], y.shape) if i == n else y for n, y in enumerate(arrays)]
            whole = [None if y is None else y.copy() for y in shared]
            assert all(np.array_equal(a, b) for a, b in zip(run(shared), run(whole))), NAMES[i]
            assert all(a is b is None or np.array_equal(a, b) for a, b in zip(back(shared, go), back(whole, go))), NAMES[i]
    unaligned = [None if x is None else np.frombuffer(b"." + x.tobytes(), np.uint8)[1:].view(dtype).reshape(x.shape) for x in arrays]
    assert all(np.array_equal(a, b) for a, b in zip(run(unaligned), wanted))


def test_bits_depend_neither_on_threads_nor_on_the_batch(rng):
    for batch, groups, each, values, options in ((3, 2, 2, 20, (3, 1, 1)), (1, 1, 1, 300, (4, 1, 1)), (1, 1, 3, 70, (0, 0, 0))):
        arrays = given(rng, batch, 150, groups, each, 24, values, options, np.float32)
        go, found = rng.normal(size=arrays[2].shape).astype("f"), []
        try:
            for threads in (1, 2, 3, 5):
                deeppcr.set_threads(threads)
                found.append([x for x in (*run(arrays), *back(arrays, go)) if x is not None])
        finally:
            deeppcr.set_threads(0)
        for other in found[1:]:
            assert all(np.array_equal(a, b) for a, b in zip(found[0], other))
        one = [None if x is None else x[-1:] for x in arrays]
        assert all(np.array_equal(a[-1:], b) for a, b in zip(found[0], (*run(one), *[x for x in back(one, go[-1:]) if x is not None])))
        columns = [x[..., :17] if i in (2, 5) and x is not None else x for i, x in enumerate(arrays)]
        assert all(np.array_equal(a[..., :17], b) for a, b in zip(found[0], run(columns)))


@pytest.mark.parametrize("batch, length", [(0, 3), (2, 0), (0, 0)])
def test_over_nothing(rng, batch, length):
    for options in OPTIONS:
        arrays = given(rng, batch, length, options=options)
        start, gfinal = np.zeros((batch, 4, 5, 7)) if arrays[5] is None else arrays[5], rng.normal(size=(batch, 4, 5, 7))
        o, last = run(arrays)
        assert o.shape == (batch, length, 4, 7)
        found = back(arrays, np.zeros(o.shape), gfinal)
        assert [None if x is None else x.shape for x in found] == [None if x is None else x.shape for x in arrays]
        if not length:
            assert np.array_equal(last, start) and (found.initial_state is None or np.array_equal(found.initial_state, gfinal))


def test_what_is_not_finite_stays_in_its_head(rng):
    arrays = given(rng)
    wanted, end = run(arrays)
    for value in (np.nan, np.inf):
        spoilt = [x.copy() for x in arrays]
        spoilt[2][1, 20, 2, 3] = value
        o, last = run(spoilt)
        assert not np.isfinite(o[1, 20:, 2, 3]).any() and not np.isfinite(last[1, 2, :, 3]).any()
        o[1, 16:, 2, 3], last[1, 2, :, 3] = wanted[1, 16:, 2, 3], end[1, 2, :, 3]  # a column for itself
        assert np.array_equal(o, wanted) and np.array_equal(last, end)


def test_gradients_of_what_is_there(rng):
    arrays = given(rng, options=(0, 0, 0))
    gfinal = rng.normal(size=(2, 4, 5, 7))
    found = back(arrays, None, gfinal)
    assert found.g is found.beta is found.initial_state is None and not found.q.any() and found.k.any() and found.v.any()
    zero = deeppcr.linear_attention_vjp(*arrays[:3], np.zeros(arrays[2].shape), initial_state=np.zeros(gfinal.shape), gfinal=gfinal)
    assert all(np.array_equal(a, b) for a, b in zip(found[:3], zero)) and np.array_equal(zero.initial_state, gfinal)


Q, V = np.ones((2, 9, 2, 3)), np.ones((2, 9, 4, 5))
G, D, S = np.ones((2, 9, 4)), np.ones((2, 9, 4, 3)), np.ones((2, 4, 3, 5))


@pytest.mark.parametrize("call, what", [
    (lambda: deeppcr.linear_attention(Q[0], Q, V), "q's shape"), (lambda: deeppcr.linear_attention(Q, Q[:, 1:], V), "k's shape"),
    (lambda: deeppcr.linear_attention(Q, Q, V[:1]), "v's shape"), (lambda: deeppcr.linear_attention(Q, Q, V[:, :, :3]), "v's shape"),
    (lambda: deeppcr.linear_attention(Q[:, :, :0], Q[:, :, :0], V), "q's shape"), (lambda: deeppcr.linear_attention(Q[..., :0], Q[..., :0], V), "q's shape"),
    (lambda: deeppcr.linear_attention(Q, Q, V[:, :, :0]), "v's shape"), (lambda: deeppcr.linear_attention(Q, Q, V[..., :0]), "v's shape"),
    (lambda: deeppcr.linear_attention(Q, Q, V[..., 0]), "v's shape"), (lambda: deeppcr.linear_attention(Q, Q, V, G[..., 0]), "g's shape"),
    (lambda: deeppcr.linear_attention(Q, Q, V, Q), "g's shape"), (lambda: deeppcr.linear_attention(Q, Q, V, V), "g's shape"),
    (lambda: deeppcr.linear_attention(Q, Q, V, D, D), "beta's shape"), (lambda: deeppcr.linear_attention(Q, Q, V, initial_state=S[:1]), "initial_state's shape"),
    (lambda: deeppcr.linear_attention(Q, Q, V, initial_state=np.swapaxes(S, 2, 3)), "initial_state's shape"),
    (lambda: deeppcr.linear_attention(Q, Q * 1j, V), "k's dtype"), (lambda: deeppcr.linear_attention(Q, Q, None), "v's dtype"),
    (lambda: deeppcr.linear_attention(np.full(Q.shape, "a"), Q, V), "q's dtype"), (lambda: deeppcr.linear_attention(Q, Q, V, scale="one"), "scale"),
    (lambda: deeppcr.linear_attention(Q, Q, V, scale=np.nan), "scale"), (lambda: deeppcr.linear_attention(Q, Q, V, scale=np.ones(2)), "scale"),
    (lambda: deeppcr.linear_attention(Q, Q, V, return_final_state=2), "return_final_state"),
    (lambda: deeppcr.linear_attention(np.ma.masked_array(Q, mask=Q > 0), Q, V), "q"),
    (lambda: deeppcr.linear_attention_vjp(Q, Q, V, V[:1]), "go's shape"), (lambda: deeppcr.linear_attention_vjp(Q, Q, V, V, gfinal=S[0]), "gfinal's shape"),
    (lambda: deeppcr.linear_attention_vjp(Q, Q, V, None), "go"), (lambda: deeppcr.linear_attention_vjp(Q, Q, V, V * 1j), "go's dtype"),
])  # fmt: skip
def test_refusals(call, what):
    with pytest.raises(ValueError) as caught:
        call()
    error = caught.value
    assert isinstance(error, deeppcr.Error) and error.what == what and error.wanted and "wanted" in str(error)


def test_widths_beyond_what_is_computed_are_refused():
    wide = np.broadcast_to(np.zeros(1, "f"), (1, 0, 1, (1 << 20) + 1))
    with pytest.raises(deeppcr.ArgumentError, match="1048576"):
        deeppcr.linear_attention(wide, wide, V[:1, :0, :1].astype("f"))


# ---- PyTorch ----


def plain(q, k, v, g=None, beta=None, s0=None, scale=None):
    """The definition by PyTorch's own operators."""
    each = v.shape[2] // q.shape[2]
    q, k = q.repeat_interleave(each, 2) * (q.shape[3] ** -0.5 if scale is None else scale), k.repeat_interleave(each, 2)
    S, o = v.new_zeros(v.shape[0], v.shape[2], k.shape[3], v.shape[3]) if s0 is None else s0, []
    for l in range(q.shape[1]):
        if g is not None:
            S = S * torch.exp(g[:, l, :, None, None] if g.ndim == 3 else g[:, l, :, :, None])
        u = v[:, l] if beta is None else beta[:, l, :, None] * (v[:, l] - (S * k[:, l, :, :, None]).sum(2))
        S = S + k[:, l, :, :, None] * u[:, :, None]
        o.append((S * q[:, l, :, :, None]).sum(2))
    return torch.stack(o, 1), S


def tensors(arrays):
    return [None if x is None else torch.from_numpy(x.copy()).requires_grad_() for x in arrays]


def call(t, tells=True, scale=None):
    return ours.linear_attention(*t[:5], scale=scale, initial_state=t[5], return_final_state=tells)


def loss(outputs):
    return sum(o.sin().sum() for o in outputs)


def there(t):
    return [x for x in t if x is not None]


def values_of(t):
    return [x.detach().numpy() for x in t]


@wants_torch
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("options", OPTIONS)
def test_gradients_are_pytorchs(rng, options, dtype):
    for i, length in enumerate((1, 15, 16, 17, 130)):
        arrays = given(rng, 1 + i % 2, length, 1 + i % 2, 1 + (i + 1) % 3, (1, 8, 17, 33, 6)[i], (20, 1, 33, 16, 9)[i], options, dtype)
        if options[0] and length > 1:
            arrays[3][:, length // 2, 0] = -np.inf
        scale = None if i % 2 else -0.3
        t, wide = tensors(arrays), tensors([None if x is None else x.astype(np.float64) for x in arrays])
        outputs, wanted = call(t, scale=scale), plain(*wide, scale=scale)
        go, gfinal = (torch.from_numpy(rng.normal(size=tuple(o.shape)).astype(dtype)) for o in outputs)
        found, true = (torch.autograd.grad(o, there(v), [go.to(o[0].dtype), gfinal.to(o[0].dtype)]) for o, v in ((outputs, t), (wanted, wide)))
        names = [name for name, x in zip(NAMES, t) if x is not None]
        near(values_of(found), values_of(true), 4 * rounds(dtype, length), names)
        gradients = back(arrays, go.numpy(), gfinal.numpy(), scale)  # which make the states again that were kept here
        assert all(np.array_equal(a.numpy(), b) for a, b in zip(found, there(gradients)))


@wants_torch
def test_layouts_of_tensors(rng):
    arrays = given(rng, keys=9, values=20)
    whole = tensors(arrays)
    wanted = call(whole)
    gradients = torch.autograd.grad(loss(wanted), whole)
    for how in (lambda x: x.transpose(1, 2).contiguous().transpose(1, 2), lambda x: torch.cat([x, x], -1).chunk(2, -1)[1],
                lambda x: x.repeat_interleave(2, -1)[..., ::2], lambda x: torch._neg_view(-x)):  # fmt: skip
        leaves = tensors(arrays)
        found = call([how(x) for x in leaves])
        assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])
        assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(loss(found), leaves), gradients))
    v = torch.from_numpy(arrays[2]).transpose(1, 2).contiguous().transpose(1, 2)
    assert call([*whole[:2], v, *whole[3:]])[0].stride() == v.stride()
    one = [x.detach()[:1, :1].clone().requires_grad_() for x in whole[:5]] + [whole[5]]  # expanded: gradients of one place are sums
    shared = lambda t: [x.expand(2, 37, *x.shape[2:]) for x in t[:5]] + [t[5]]  # noqa: E731
    near(values_of(torch.autograd.grad(loss(call(shared(one))), one)), values_of(torch.autograd.grad(loss(plain(*shared(one))), one)), 1e-12)


@wants_torch
def test_pytorchs_own_check_of_gradients(rng):
    for options in ((3, 1, 1), (4, 1, 1)):
        assert torch.autograd.gradcheck(lambda *v: call(v), tensors(given(rng, 1, 18, 1, 2, 2, 2, options)))
    assert torch.autograd.gradcheck(lambda *v: call([*v, None, None, None], False), tensors(given(rng, 1, 5, options=(0, 0, 0))[:3]))


@wants_torch
def test_only_what_is_needed_is_computed(rng, monkeypatch):
    seen, keeps = [], []
    backward, forward = attention.Scan.back, attention.Scan.run
    monkeypatch.setattr(attention.Scan, "back", lambda self, *a: (seen.append([NAMES[i] for i, x in enumerate(a[3]) if x is not None]), backward(self, *a))[1])
    monkeypatch.setattr(attention.Scan, "run", lambda self, *a: (keeps.append(a[2] != 0), forward(self, *a))[1])
    for options in ((3, 1, 1), (4, 1, 1)):
        arrays = given(rng, options=options)
        whole = tensors(arrays)
        wanted = dict(zip(NAMES, torch.autograd.grad(loss(call(whole)), whole)))
        for needed in (("q",), ("k",), ("v",), ("g",), ("beta",), ("initial_state",), ("v", "beta"), ("q", "g")):
            t = [x.requires_grad_(n in needed) for n, x in zip(NAMES, map(torch.from_numpy, arrays))]
            seen.clear()
            found = torch.autograd.grad(loss(call(t)), [t[NAMES.index(n)] for n in needed])
            assert all(torch.equal(f, wanted[n]) for f, n in zip(found, needed)) and seen == [list(needed)]
    assert all(keeps)
    keeps.clear()
    with torch.no_grad():
        assert call(tensors(arrays), tells=False).grad_fn is None
    call([x.detach() for x in tensors(arrays)])
    assert keeps == [False, False]
    q = torch.from_numpy(arrays[0]).requires_grad_()
    assert not torch.autograd.grad(call([q, *[x.detach() for x in whole[1:]]])[1].sum(), q)[0].any()  # the last states do not hang on it


@wants_torch
def test_the_way_back_runs_again_and_over_what_hooks_give(rng):
    t = tensors(given(rng, length=150))
    wanted = torch.autograd.grad(loss(call(t)), t)
    y = loss(call(t))
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(y, t, retain_graph=True), wanted))

    def elsewhere(x):  # one number off any alignment
        return torch.cat([x.new_zeros(1).view(-1), x.reshape(-1)])[1:].view(x.shape)

    if hasattr(torch.autograd.graph, "saved_tensors_hooks"):
        with torch.autograd.graph.saved_tensors_hooks(elsewhere, lambda x: x):
            y = loss(call(t))
        assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(y, t), wanted))
    from torch.utils.checkpoint import checkpoint

    y = loss(checkpoint(lambda *v: call(v), *t, use_reentrant=False))
    assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(y, t), wanted))
    out = call(t, tells=False)
    out *= 2  # results may be written into
    out.sum().backward()
    assert t[0].grad.any()


@wants_torch
def test_inputs_that_change_before_the_way_back(rng, monkeypatch):
    t = tensors(given(rng))
    y = call(t)[0].sum()
    t[0].data = torch.zeros(2, 36, 2, 5, dtype=torch.float64)
    with pytest.raises(deeppcr.ArgumentError, match="shape"):
        y.backward()
    t = tensors(given(rng))
    y = call(t)[1].sum()
    for x, other in zip(t, given(rng, keys=4)):
        x.data = torch.from_numpy(other)
    with pytest.raises(deeppcr.ArgumentError, match="gfinal's shape"):
        y.backward()
    seen, backward = [], attention.Scan.back
    monkeypatch.setattr(attention.Scan, "back", lambda self, *a: (seen.append(a[2] != 0), backward(self, *a))[1])
    t = tensors(given(rng))
    y = call(t)[0].sum()
    for x, other in zip(t, given(rng, keys=40)):  # whose states are larger than those that were kept
        x.data = torch.from_numpy(other)
    with pytest.raises(RuntimeError, match="invalid gradient"):
        y.backward()
    call(tensors(given(rng)))[0].sum().backward()
    assert seen == [False, True]
    leaf = tensors(given(rng))
    v = leaf[2] * 1
    y = call([*leaf[:2], v, *leaf[3:]])[0].sum()
    v += 1
    with pytest.raises(RuntimeError, match="inplace"):
        y.backward()


@wants_torch
def test_refusals_of_tensors(rng):
    t = [torch.from_numpy(x) for x in given(rng)]
    f = [x.float() for x in t]
    for arguments, what in (([f[0], *t[1:]], "k's dtype"), ([*t[:2], f[2], *t[3:]], "v's dtype"), ([x.half() for x in t], "q's dtype"),
                            ([x.bfloat16() for x in t], "q's dtype"), ([*t[:2], t[2] + 0j, *t[3:]], "v's dtype"), ([*t[:5], f[5]], "initial_state's dtype"),
                            ([None, *t[1:]], "q"), ([*t[:2], None, *t[3:]], "v"), ([t[0].numpy(), *t[1:]], "q"), ([*t[:4], t[4][..., 1:], t[5]], "beta's shape"),
                            ([t[0][0, 0, 0, 0], *t[1:]], "q's shape"), ([t[0][..., :0], t[1][..., :0], *t[2:]], "q's shape"),
                            ([t[0].to_sparse(), *t[1:]], "q's layout"), ([t[0].to("meta"), *t[1:]], "q's device"), ([x.int() for x in t], "q's dtype")):
        with pytest.raises(deeppcr.Error) as caught:
            call(arguments)
        assert caught.value.what == what and caught.value.wanted
    with pytest.raises(deeppcr.UnsupportedError, match="complex"):
        call([*t[:2], t[2] + 0j, *t[3:]])
    with pytest.raises(deeppcr.ArgumentError, match="return_final_state"):
        call(t, "yes")
    for scale in ("one", np.inf, torch.ones((), requires_grad=True)):  # which would get no gradient
        with pytest.raises(deeppcr.ArgumentError, match="scale"):
            call(t, scale=scale)
    leaves = tensors(given(rng))
    with pytest.raises(deeppcr.UnsupportedError, match="second"):
        torch.autograd.grad(call(leaves)[0].sin().sum(), leaves[0], create_graph=True)
    with pytest.raises(deeppcr.UnsupportedError, match="forward"):
        with torch.autograd.forward_ad.dual_level():
            call([torch.autograd.forward_ad.make_dual(t[0], t[0]), *t[1:]])
    with pytest.raises(deeppcr.UnsupportedError, match="many losses"):
        torch.autograd.functional.jacobian(lambda v: call([*t[:2], v, *t[3:]])[1], t[2], vectorize=True)


@registers
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_a_compiled_program_takes_another_scale(rng, dynamic):
    """PyTorch makes a number that changes a symbol, of which Python's math.isfinite knows nothing."""
    torch.compiler.reset()
    q, k, v = (torch.from_numpy(rng.normal(size=(2, 9, 2, 3))).requires_grad_() for _ in range(3))
    compiled = torch.compile(lambda scale: ours.linear_attention(q, k, v, scale=scale), backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for scale in (0.5, 0.25, 0.7, 2):
        found, wanted = compiled(scale), ours.linear_attention(q, k, v, scale=scale)
        assert torch.allclose(found, wanted, rtol=0, atol=1e-11)
        for a, b in zip(*(torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (found, wanted))):
            assert torch.allclose(a, b, rtol=0, atol=1e-10)
    with pytest.raises(Exception, match="finite number|Observed exception"):
        compiled(float("inf"))


@registers
def test_compiled_programs_and_exported_ones(rng):
    arrays = given(rng)
    arrays[2] = np.swapaxes(np.ascontiguousarray(np.swapaxes(arrays[2], 1, 2)), 1, 2)
    t = [x.requires_grad_() for x in map(torch.from_numpy, arrays)]
    whole = lambda *v: loss(call(v))  # noqa: E731
    wanted = torch.autograd.grad(whole(*t), t)
    for dynamic in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(whole, backend="aot_eager", fullgraph=True, dynamic=dynamic)
        for a, b in zip(torch.autograd.grad(compiled(*t), t), wanted):
            assert torch.allclose(a, b, rtol=0, atol=1e-11)
    assert torch.allclose(torch.autograd.grad(compiled(*[x if i == 3 else x.detach() for i, x in enumerate(t)]), t[3])[0], wanted[3], rtol=0, atol=1e-11)
    rule = torch.compile(lambda *v: ours.gated_delta_rule(*v, use_qk_l2norm_in_kernel=True)[0], backend="aot_eager", fullgraph=True)
    assert torch.allclose(rule(*t[:5]), ours.gated_delta_rule(*t[:5], use_qk_l2norm_in_kernel=True)[0], rtol=0, atol=1e-11)

    class Module(torch.nn.Module):
        def forward(self, q, k, v, g, beta):
            return ours.linear_attention(q, k, v, g, beta, scale=0.5)

    given_ = tuple(x.detach() for x in t[:5])
    program = torch.export.export(Module(), given_)
    assert any("deeppcr.linear_attention" in str(node.target) for node in program.graph.nodes)
    assert torch.equal(program.module()(*given_), Module()(*given_))


@registers
def test_operators_pass_pytorchs_own_checks(rng):
    run_, back_ = torch.ops.deeppcr.linear_attention, torch.ops.deeppcr.linear_attention_vjp
    for options in ((3, 1, 1), (4, 0, 0)):
        t = tensors(given(rng, 2, 19, 1, 2, 3, 4, options))
        torch.library.opcheck(run_.default, (*t, 0.5))
        o, last = torch.ones(2, 19, 2, 4, dtype=torch.float64), torch.ones(2, 2, 3, 4, dtype=torch.float64)
        detached = [x if x is None else x.detach() for x in t]
        for needed in (63, 0, 0b001100):
            torch.library.opcheck(back_.default, (*detached, 0.5, o, last, needed))
        assert [x.numel() > 0 for x in back_(*detached, 0.5, o, last, 0b100)] == [i == 2 for i in range(6)]


@registers
def test_transforms_of_torch_func(rng):
    func = pytest.importorskip("torch.func")
    if not hasattr(torch.library, "register_vmap"):
        pytest.skip("a PyTorch without vmap of operators")
    t = [x.detach() for x in tensors(given(rng, length=19))]
    mine, theirs = (lambda *v: loss(call(v))), (lambda *v: loss(plain(*v)))
    found, wanted = (func.grad(f, argnums=tuple(range(6)))(*t) for f in (mine, theirs))
    near(values_of(found), values_of(wanted), 1e-12)
    rows = torch.stack([t[2], 2 * t[2], t[2].flip(1)])
    for f in (lambda v: call([*t[:2], v, *t[3:]])[0], lambda v: func.grad(lambda w: mine(*t[:2], w, *t[3:]))(v)):
        assert torch.allclose(func.vmap(f)(rows), torch.stack([f(r) for r in rows]), rtol=0, atol=1e-12)
    with pytest.raises(deeppcr.UnsupportedError, match="second"):
        func.grad(lambda v: func.grad(lambda w: mine(*t[:2], w, *t[3:]))(v).sum())(t[2])


# ---- gated_delta_rule ----


def normal(x):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


@wants_torch
@pytest.mark.parametrize("decays", [3, 4])
def test_gated_delta_rule(rng, decays):
    arrays = given(rng, options=(decays, 1, 1))
    t = [torch.from_numpy(x) for x in arrays]
    o, last = ours.gated_delta_rule(*t[:5], initial_state=t[5], output_final_state=True)
    near((o, last), run(arrays), 0)
    assert ours.gated_delta_rule(*t[:5])[1] is None
    assert torch.equal(ours.gated_delta_rule(*t[:5], scale=0.5, chunk_size=16, cu_seqlens_cpu=None, use_gate_in_kernel=False)[0], ours.linear_attention(*t[:5], scale=0.5))
    without = ours.gated_delta_rule(*t[:3], initial_state=t[5], output_final_state=None)  # of fla: no decay, and beta 1
    assert without[1] is None
    near(without[:1], loop(*arrays[:3], None, np.ones(arrays[4].shape), arrays[5])[:1], 1e-13)
    with pytest.raises(TypeError):  # Transformers' loops have chunk_size there
        ours.gated_delta_rule(*t[:5], 64)
    wide = [5 * arrays[0], 3 * arrays[1], *arrays[2:]]
    w = [torch.from_numpy(x) for x in wide]
    near(ours.gated_delta_rule(*w[:5], initial_state=w[5], output_final_state=True, use_qk_l2norm_in_kernel=True),
         loop(normal(wide[0]), normal(wide[1]), *wide[2:]), 1e-13)  # fmt: skip
    for dtype in (torch.bfloat16, torch.float16, torch.float32):  # computed in float32, whatever states and gates come in
        few = [x.to(dtype) for x in t[:3]] + [x.float() for x in t[3:]]
        single = [x.float() for x in few]
        o, last = ours.gated_delta_rule(*few[:5], initial_state=few[5], output_final_state=True)
        near((o.float(), last), [call(single)[0].to(dtype).float(), call(single)[1]], 0)
        assert o.dtype is dtype and last.dtype is torch.float32
        leaves = [x.requires_grad_() for x in few]
        ours.gated_delta_rule(*leaves[:5], initial_state=leaves[5], use_qk_l2norm_in_kernel=True)[0].float().sum().backward()
        assert all(x.grad.dtype is x.dtype and x.grad.any() for x in leaves)
    assert ours.gated_delta_rule(*few[:4], t[4])[0].dtype is torch.float32


def flags_of(address):
    """What Linux notes of the memory there."""
    inside = False
    with open("/proc/self/smaps", encoding="ascii") as lines:
        for line in lines:
            first = line.split(maxsplit=1)[0]
            if "-" in first:
                inside = int(first.split("-")[0], 16) <= address < int(first.split("-")[1], 16)
            elif inside and first == "VmFlags:":
                return line.split()[1:]
    return []


@wants_torch
def test_large_results_lie_in_large_pages(rng):
    if not pathlib.Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("no large pages here")
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("nothing of a sanitizer's, and long under it")
    q = torch.zeros(1, 3, 1, 2, requires_grad=True)
    v = torch.zeros(1, 3, 1, 1 << 20, requires_grad=True)  # 12 MiB
    o = ours.linear_attention(q, q, v)
    (gradient,) = torch.autograd.grad(o, v, torch.zeros_like(o))
    for x in (o, gradient):
        assert "hg" in flags_of(x.data_ptr() + (1 << 22))
    plain = mmap.mmap(-1, 1 << 23)
    assert "hg" not in flags_of(ctypes.addressof(ctypes.c_char.from_buffer(plain)) + (1 << 22))


@wants_torch
def test_sequences_one_after_another(rng):
    arrays = given(rng, 1, 60)
    ends, states = [0, 17, 17, 20, 60], torch.from_numpy(rng.normal(size=(4, 4, 5, 7)))
    t = [torch.from_numpy(x) for x in arrays[:5]]
    for begun in (states, None):
        for given_ in (ends, torch.tensor(ends), torch.tensor(ends, dtype=torch.int32)):
            o, last = ours.gated_delta_rule(*t, initial_state=begun, output_final_state=True, cu_seqlens=given_)
            for i, (a, b) in enumerate(zip(ends, ends[1:])):
                one, end = ours.gated_delta_rule(*(x[:, a:b] for x in t), initial_state=None if begun is None else begun[i : i + 1], output_final_state=True)
                assert torch.equal(o[:, a:b], one) and torch.equal(last[i : i + 1], end)
    leaves = [x.clone().requires_grad_() for x in t]
    (ours.gated_delta_rule(*leaves, cu_seqlens=ends)[0] * o.detach()).sum().backward()
    apart = [x.clone().requires_grad_() for x in t]
    sum((ours.gated_delta_rule(*(x[:, a:b] for x in apart))[0] * o.detach()[:, a:b]).sum() for a, b in zip(ends, ends[1:])).backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(leaves, apart))
    for wrong in ([0, 17], [1, 60], [0, 20, 17, 60], [60], [], [0, 61], torch.tensor([[0, 60]]), 3):
        with pytest.raises(deeppcr.ArgumentError, match="cu_seqlens"):
            ours.gated_delta_rule(*t, cu_seqlens=wrong)
    with pytest.raises(deeppcr.ArgumentError, match="cu_seqlens"):
        ours.gated_delta_rule(*(x.expand(2, *x.shape[1:]) for x in t), cu_seqlens=ends)
    with pytest.raises(deeppcr.ArgumentError, match="initial_state"):
        ours.gated_delta_rule(*t, initial_state=states[:3], cu_seqlens=ends)
    length = t[0].shape[1]
    for cut in ([0, 2.9, length], [0.0, length], [False, length], f"0{length}", torch.tensor([0.0, length]), [0, None, length], [0, 10**400, length], 3):
        with pytest.raises(deeppcr.ArgumentError, match="^cu_seqlens is"):  # nothing is cut to whole numbers
            ours.gated_delta_rule(*t, cu_seqlens=cut)


@wants_torch
def test_what_changes_numbers_is_not_ignored(rng):
    """Arguments that flash-linear-attention's functions have and this one has not."""
    t = [torch.from_numpy(x) for x in given(rng)[:5]]
    for word, value in (("use_gate_in_kernel", True), ("use_beta_sigmoid_in_kernel", True), ("state_v_first", True), ("transpose_state_layout", True),
                        ("head_first", True), ("gk", t[3]), ("gv", t[3]), ("return_intermediate_states", True), ("cp_context", object()),
                        ("ssm_state_indices", t[3]), ("num_accepted_tokens", t[3]), ("inplace_final_state", True)):  # fmt: skip
        with pytest.raises(deeppcr.UnsupportedError, match=word):
            ours.gated_delta_rule(*t, **{word: value})
        ours.gated_delta_rule(*t, **{word: None if isinstance(value, torch.Tensor) else False})
    for arguments, what in (([t[0].int(), *t[1:]], "q's dtype"), ([*t[:3], t[3] + 0j, t[4]], "g's dtype"), ([t[0].numpy(), *t[1:]], "q"),
                            ([*t[:4], t[4][:1]], "beta's shape")):  # fmt: skip
        with pytest.raises(deeppcr.Error) as caught:
            ours.gated_delta_rule(*arguments)
        assert caught.value.what == what
    with pytest.raises(deeppcr.ArgumentError, match="output_final_state"):
        ours.gated_delta_rule(*t, output_final_state="yes")


RULES = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")
SMALL = dict(vocab_size=90, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2)
HEADS = dict(linear_key_head_dim=8, linear_value_head_dim=16, linear_num_key_heads=2)
MODELS = {
    "qwen3_next": (RULES, "Qwen3NextConfig", "Qwen3NextForCausalLM", dict(HEADS, linear_num_value_heads=4, num_key_value_heads=1, head_dim=16, num_experts=4,
                   num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16)),
    "qwen3_5": (RULES, "Qwen3_5TextConfig", "Qwen3_5ForCausalLM", dict(HEADS, linear_num_value_heads=4, num_key_value_heads=1, head_dim=16)),
    "olmo_hybrid": (RULES, "OlmoHybridConfig", "OlmoHybridForCausalLM", dict(HEADS, linear_num_value_heads=2, num_key_value_heads=2)),
    "kimi_linear": (("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"), "KimiLinearConfig", "KimiLinearForCausalLM",
                    dict(num_key_value_heads=2, moe_intermediate_size=16, kv_lora_rank=16, qk_rope_head_dim=8, v_head_dim=16, qk_nope_head_dim=8, num_experts_per_tok=2,
                         num_local_experts=4, linear_head_dim=16, linear_num_heads=2, layer_types=["linear_attention"] * 3 + ["full_attention"])),
}  # fmt: skip


@wants_torch
@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers(monkeypatch, name):
    pytest.importorskip("transformers")
    package = pytest.importorskip(f"transformers.models.{name}")
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    rules, config, kind, sizes = MODELS[name]
    if not all(hasattr(module, rule) for rule in rules):
        pytest.skip("a Transformers that calls it otherwise")
    torch.manual_seed(0)
    model, words = getattr(package, kind)(getattr(package, config)(**SMALL, **sizes)), torch.randint(3, 90, (2, 21))

    def numbers():
        model.zero_grad()
        found = model(words, labels=words)
        found.loss.backward()
        with torch.no_grad():
            told = model.eval().generate(words, max_new_tokens=6, do_sample=False)
        return found.logits.detach(), told, [p.grad for p in model.train().parameters() if p.grad is not None]

    calls = []
    theirs = numbers()
    for rule in rules:
        monkeypatch.setattr(module, rule, lambda *a, rule=rule, **words: (calls.append(rule), ours.gated_delta_rule(*a, **words))[1])
    mine = numbers()
    assert set(calls) == set(rules)
    assert torch.allclose(mine[0], theirs[0], rtol=0, atol=2e-6) and torch.equal(mine[1], theirs[1]) and len(mine[2]) == len(theirs[2])
    largest = max(g.abs().max() for g in theirs[2])
    assert all((a - b).abs().max() <= 1e-6 * largest for a, b in zip(mine[2], theirs[2]))


# ---- JAX ----


@pytest.fixture
def jax():
    return pytest.importorskip("jax")


@pytest.mark.parametrize("options, scale", [((3, 1, 1), None), ((4, 1, 0), 0.3), ((0, 0, 1), -1 / 3), ((0, 0, 0), None)])
def test_jax(jax, rng, options, scale):
    from deeppcr import jax as ours_of_jax

    arrays = given(rng, length=19, options=options, dtype=np.float32)
    indices, numbers = [i for i, x in enumerate(arrays) if x is not None], there(arrays)
    go, gfinal = rng.normal(size=arrays[2].shape).astype("f"), rng.normal(size=(2, 4, 5, 7)).astype("f")

    def call_(*some):
        whole = dict(zip(indices, some))
        return ours_of_jax.linear_attention(*(whole.get(i) for i in range(5)), scale=scale, initial_state=whole.get(5), return_final_state=True)

    wanted, gradients = run(arrays, scale), there(back(arrays, go, gfinal, scale))
    for f in (call_, jax.jit(call_)):
        out, pull = jax.vjp(f, *numbers)
        assert all(np.array_equal(a, b) for a, b in zip((*out, *pull((go, gfinal))), (*wanted, *gradients)))
    of_v = lambda v: call_(*numbers[:2], v, *numbers[3:])  # noqa: E731
    rows = np.stack([numbers[2], 2 * numbers[2]])
    for f in (lambda v: of_v(v)[1], jax.grad(lambda v: of_v(v)[0].sum())):
        assert np.array_equal(jax.vmap(f)(rows)[1], f(rows[1]))
    several = [np.stack([x, x]) for x in numbers]
    assert np.array_equal(jax.jit(jax.vmap(call_))(*several)[0][1], wanted[0])
    axes = [None] * (len(numbers) - 2)
    twice = jax.vmap(jax.vmap(call_, (0, None, *axes)), (None, 1, *axes))(several[0], np.stack([numbers[1]] * 3, 1), *numbers[2:])
    assert np.array_equal(twice[0][2, 1], wanted[0]) and np.array_equal(twice[1][2, 1], wanted[1])
    with pytest.raises(deeppcr.UnsupportedError, match="second"):
        jax.grad(lambda v: jax.grad(lambda w: of_v(w)[0].sum())(v).sum())(rows[0])
    assert np.array_equal(ours_of_jax.linear_attention(*numbers[:3]), run([*arrays[:3], None, None, None])[0])


def test_refusals_of_jax(jax, rng):
    from deeppcr import _xla
    from deeppcr import jax as ours_of_jax

    t = given(rng, dtype=np.float32)
    for arguments, what in (([t[0][0], *t[1:5]], "q's shape"), ([*t[:2], t[2].astype("c8"), *t[3:5]], "v's dtype"), ([t[0].astype("i4"), *t[1:5]], "q's dtype"),
                            ([t[0], t[1].astype(np.float16), *t[2:5]], "k's dtype"), ([*t[:2], None], "v"), ([*t[:4], t[4][..., 1:]], "beta's shape")):
        with pytest.raises(deeppcr.Error) as caught:
            ours_of_jax.linear_attention(*arguments)
        assert caught.value.what == what
    for word in (dict(scale="one"), dict(scale=np.nan), dict(return_final_state="no"), dict(initial_state=t[5][:1])):
        with pytest.raises(deeppcr.ArgumentError, match=next(iter(word))):
            ours_of_jax.linear_attention(*t[:3], **word)
    with pytest.raises(deeppcr.ArgumentError, match="scale"):
        jax.jit(lambda scale: ours_of_jax.linear_attention(*t[:3], scale=scale))(0.5)
    for words in ("attention 1.0 6", "attention 1.0 64", "attention nan 7", "attention one 7", "attention 1.0", "attention 1.0 7 7"):
        with pytest.raises(deeppcr.ArgumentError):
            _xla._run_of(words.encode())
    forward, backward = _xla._run_of(b"attention 0.5 7"), _xla._run_of(b"attention_vjp 0.5 7")
    q, k, v = t[:3]
    o, last = np.empty_like(v), np.empty((2, 4, 5, 7), "f")
    forward([q, k, v], [o, last])
    assert np.array_equal(o, deeppcr.linear_attention(q, k, v, scale=0.5))
    two = [np.stack([x, x]) for x in (o, last)]
    for given_, found in (([q, k], [o, last]), ([q, k, v], [o]), ([q, k, v], [o[0], last]), ([q, k, v], [o, last[:1]]), ([q, k, v], [o[:1], last]),
                          ([q, k.astype("f8"), v], [o, last]), ([q, k, v], two), ([q[None], k[None], v[None]], [two[0], last[None]])):  # fmt: skip
        with pytest.raises(deeppcr.ArgumentError):
            forward(given_, found)
    forward([q[None], k[None], v[None]], two)
    assert np.array_equal(two[0][1], o)
    for given_, found in (([o, last, q, k, v], [q, k]), ([o, o, q, k, v], [q, k, v]), ([o, last, q, k, v], [q, k, k])):
        with pytest.raises(deeppcr.ArgumentError):
            backward(given_, [x.copy() for x in found])


@pytest.mark.parametrize("dtype, least, none, state", [(np.float32, 87.33, 104, 1e30), (np.float64, 708, 746, 1e300)])
def test_what_a_chunk_forgets_is_told_by_its_sum_of_g(dtype, least, none, state):
    """As docs/attention.md says: decays of up to 16 steps are multiplied before they meet the state."""
    def left(total, steps):
        q, zero = np.ones((1, steps, 1, 1), dtype), np.zeros((1, steps, 1, 1), dtype)
        g, S = np.full((1, steps, 1), -total / steps, dtype), np.full((1, 1, 1, 1), state, dtype)
        return deeppcr.linear_attention(q, zero, zero, g, scale=1, initial_state=S)[0, -1, 0, 0]

    for steps in (2, 16):
        assert left(least - 1, steps) > 0 and left(none + 1, steps) == 0
    assert left(least - 0.5, 1) > 0 and left(least + 0.5, 1) == 0
    assert left(none + 1, 32) > 0  # two chunks
