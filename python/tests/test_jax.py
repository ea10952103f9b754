# SPDX-License-Identifier: MIT
"""deeppcr.jax against JAX's own scans, and the networks over NumPy (which test_recurrent.py and test_torch.py prove)."""
import ctypes
import os
import signal
import struct

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import deeppcr  # noqa: E402
from deeppcr import jax as ours  # noqa: E402
from deeppcr import recurrent  # noqa: E402
from test_process import ends_soon  # noqa: E402


def scan(A, b, z0):
    return jax.lax.scan(lambda z, step: ((n := step[0] @ z + step[1]), n), z0, (A, b))[1]


@pytest.fixture
def chain(rng):
    return tuple(jnp.asarray(rng.normal(size=s) * c, jnp.float32) for s, c in (((40, 3, 3), 0.4), ((40, 3), 1), ((3,), 1)))


def test_linear_chain_jit_grad_vmap(chain, rng):
    g = jnp.asarray(rng.normal(size=(40, 3)), jnp.float32)
    loss = lambda f: lambda *a: (f(*a) * g).sum()  # noqa: E731
    assert np.allclose(ours.linear_chain(*chain), scan(*chain), atol=1e-5)
    mine = jax.jit(jax.grad(loss(ours.linear_chain), (0, 1, 2)))(*chain)
    for a, b in zip(mine, jax.grad(loss(scan), (0, 1, 2))(*chain)):
        assert a.shape == b.shape and np.allclose(a, b, atol=1e-4)
    assert np.allclose(ours.linear_chain(*chain[:2]), scan(*chain[:2], jnp.zeros(3)), atol=1e-5)
    many = tuple(jnp.stack([a, 2 * a, -a]) for a in chain[1:])
    got = jax.vmap(ours.linear_chain, (None, 0, 0))(chain[0], *many)
    assert np.allclose(got, jax.vmap(scan, (None, 0, 0))(chain[0], *many), atol=1e-4)
    gradient = jax.vmap(jax.grad(lambda b, z0: ours.linear_chain(chain[0], b, z0).sum()))(*many)
    assert gradient.shape == many[0].shape


@pytest.mark.parametrize("structure, shape", [("diagonal", (40, 3)), ("scalar", (40,)), ("diagonal", (1, 3)), ("dense", (3, 3))])
def test_transposed_and_shared(chain, rng, structure, shape):
    A = jnp.asarray(rng.normal(size=shape) * 0.4, jnp.float32)
    b, g = chain[1], jnp.asarray(rng.normal(size=(40, 3)), jnp.float32)
    full = {"diagonal": lambda A: A[..., None] * jnp.eye(3), "scalar": lambda A: A[:, None, None] * jnp.eye(3), "dense": lambda A: A}
    matrices = lambda A: jnp.broadcast_to(full[structure](A), (40, 3, 3))  # noqa: E731

    def transposed(A, b):
        M = jnp.concatenate([jnp.swapaxes(matrices(A), 1, 2)[1:], jnp.zeros((1, 3, 3))])
        return jax.lax.scan(lambda z, s: ((n := s[0] @ z + s[1]), n), jnp.zeros(3), (M, b), reverse=True)[1]

    for mine, theirs in ((lambda A, b: ours.linear_chain(A, b, transposed=True, structure=structure), transposed),
                         (lambda A, b: ours.linear_chain(A, b, structure=structure), lambda A, b: scan(matrices(A), b, jnp.zeros(3)))):
        assert np.allclose(mine(A, b), theirs(A, b), atol=1e-5)
        for x, y in zip(jax.grad(lambda *a: (mine(*a) * g).sum(), (0, 1))(A, b), jax.grad(lambda *a: (theirs(*a) * g).sum(), (0, 1))(A, b)):
            assert x.shape == y.shape and np.allclose(x, y, atol=1e-4)


@pytest.mark.parametrize("structure, shape", [("identity", ()), ("scalar", ()), ("diagonal", (4,)), ("dense", (4, 4)), ("scalar", (2,))])
def test_what_is_shared_where_jax_refuses_to_promote_ranks(rng, structure, shape):
    A = jnp.asarray(np.ones(shape) if structure == "identity" else rng.normal(size=shape) * 0.4, jnp.float32)
    b = jnp.asarray(rng.normal(size=(5, 2, 4)), jnp.float32)
    f = lambda b, z0: (ours.linear_chain(A, b, z0, structure=structure) ** 2).sum()  # noqa: E731
    second = jax.jacrev(jax.grad(f, 1), 1)
    wanted = f(b, b[0]), second(b, b[0])
    with jax.numpy_rank_promotion("raise"):
        assert np.allclose(f(b, b[0]), wanted[0]) and np.allclose(second(b, b[0]), wanted[1])


@pytest.mark.parametrize("structure, values", [("dense", (4, 4)), ("diagonal", (4,)), ("block", (2, 2, 2))])
@pytest.mark.parametrize("lead", [(0,), (0, 3), (5, 0)])
@pytest.mark.parametrize("transposed", [False, True])
def test_derivatives_of_chains_of_nothing(structure, values, lead, transposed):
    A, b, z0 = jnp.ones(lead + values), jnp.ones(lead + (4,)), None if transposed else jnp.ones(lead[1:] + (4,))
    f = lambda A, b, z0: ours.linear_chain(A, b, z0, transposed, structure=structure).sum()  # noqa: E731
    which = (0, 1) if transposed else (0, 1, 2)
    for g, x in zip(jax.grad(f, which)(A, b, z0), (A, b, z0)):
        assert g.shape == x.shape and not g.any()
    for i in which:
        again = jax.jacrev(jax.grad(f, i), i)(A, b, z0)
        assert again.shape == (A, b, z0)[i].shape * 2 and not again.any()


@pytest.mark.parametrize("name", ["rnn", "gru", "lstm"])
def test_networks(rng, name):
    net = {"rnn": recurrent.RNN, "gru": recurrent.GRU, "lstm": recurrent.LSTM}[name](3, 4, 2, bidirectional=True)
    parameters = {n: jnp.asarray(p) for n, p in net.state_dict().items()}
    call = getattr(ours, name)
    x, h0, c0 = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((6, 2, 3), (4, 2, 4), (4, 2, 4)))
    state = (h0, c0) if name == "lstm" else h0
    y, last = jax.jit(call)(parameters, x, state)
    wanted, right = net(x, tuple(map(np.asarray, state)) if name == "lstm" else np.asarray(h0), training=True)
    assert np.array_equal(y, wanted) and np.array_equal(np.asarray(last), np.asarray(right))
    dy = rng.normal(size=y.shape).astype("f")
    found = net.backward(dy)
    mine = jax.jit(jax.grad(lambda p, x, s: (call(p, x, s)[0] * dy).sum(), (0, 1, 2)))(parameters, x, state)
    assert np.allclose(mine[1], found.x, atol=1e-6) and np.allclose(np.asarray(mine[2]), np.asarray(found.h0), atol=1e-6)
    assert all(np.allclose(mine[0][n], g, atol=1e-5) for n, g in found.parameters.items())
    single, _ = call(parameters, x[:, 0])
    many = jax.vmap(lambda x: call(parameters, x)[0], 1, 1)(x)
    assert single.shape == (6, 8) and np.array_equal(many[:, 0], single)


@pytest.fixture
def doubles():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def checked(function, arguments, order=1):
    from jax.test_util import check_grads

    check_grads(function, arguments, order=order, modes=["rev"], rtol=1e-4)


STRUCTURES = [("dense", (6, 3, 3)), ("dense", (3, 3)), ("diagonal", (6, 3)), ("diagonal", (1, 3)), ("scalar", (6,))]


@pytest.mark.parametrize("structure, shape", STRUCTURES)
def test_gradients_of_any_order_and_vmaps_as_batches(doubles, rng, structure, shape):
    A, b, z0 = (jnp.asarray(rng.normal(size=s) * 0.4) for s in (shape, (6, 3), (3,)))
    checked(lambda *x: ours.linear_chain(*x, structure=structure), (A, b, z0), 2)
    for batch in (None, 2):
        bs = jnp.stack([b, -b, 2 * b]) if batch is None else jnp.stack([jnp.stack([b, b + 1], 1), jnp.stack([-b, b], 1), jnp.ones((6, 2, 3))])
        start = z0 if batch is None else jnp.stack([z0, -z0])
        As = jnp.stack([A, A / 2])
        As = As[:, :, None] if batch and A.ndim - {"dense": 2, "diagonal": 1, "scalar": 0}[structure] == 1 else As
        one = lambda A, b: ours.linear_chain(A, b, start, structure=structure)  # noqa: E731
        all_ = jax.vmap(jax.vmap(one, (None, 0)), (0, None))
        assert np.allclose(all_(As, bs), jnp.stack([jnp.stack([one(x, y) for y in bs]) for x in As]), rtol=0, atol=1e-12)
        mine = jax.grad(lambda A, b: (all_(A, b) ** 2).sum(), (0, 1))(As, bs)
        right = jax.grad(lambda A, b: sum((one(x, y) ** 2).sum() for x in A for y in b), (0, 1))(As, bs)
        assert all(np.allclose(x, y, rtol=0, atol=1e-10) for x, y in zip(mine, right))


@pytest.mark.parametrize("name, kind", [("rnn", "RNN"), ("gru", "GRU"), ("lstm", "LSTM"), ("paragru", "ParaGRU"),
                                        ("paralstm", "ParaLSTM"), ("mingru", "MinGRU")])  # fmt: skip
def test_networks_under_vmap(doubles, rng, name, kind):
    net, call = getattr(recurrent, kind)(2, 3, 2, dtype=np.float64, bidirectional=True), getattr(ours, name)
    parameters = {n: jnp.asarray(p) for n, p in net.state_dict().items()}
    x = jnp.asarray(rng.normal(size=(5, 2, 2)))
    checked(lambda p, x: call(p, x)[0], (parameters, x))
    xs, run = jnp.stack([x, -x, 2 * x]), lambda x: call(parameters, x)[0]
    assert np.array_equal(jax.vmap(run)(xs), jnp.stack([run(x) for x in xs]))  # a batch: rows have their own bits
    many = jax.tree_util.tree_map(lambda a: jnp.stack([a, a / 2]), parameters)
    assert np.array_equal(jax.vmap(lambda p: call(p, x)[0])(many)[0], run(x))
    mine = jax.grad(lambda p: (jax.vmap(lambda x: call(p, x)[0])(xs) ** 2).sum())(parameters)
    right = jax.grad(lambda p: sum((call(p, x)[0] ** 2).sum() for x in xs))(parameters)
    assert all(np.allclose(mine[n], right[n], rtol=0, atol=1e-10) for n in right)


def test_a_vmapped_gradient_is_one_call(doubles, rng, monkeypatch):
    """What is summed over a batch goes back through the library once, however it is nested; each row's own gradients of the
    parameters, where those are asked for, row by row."""
    counted, calls = [], ours._xla._call_of

    def call_of(*attribute):
        found = calls(*attribute)
        counted.append(found.split()[0])
        return found

    monkeypatch.setattr(ours._xla, "_call_of", call_of)
    monkeypatch.setattr(ours._xla._table, "keep", lambda *a: None)  # so that every call is asked for
    ours._xla._table.forget()
    net = recurrent.GRU(2, 3, dtype=np.float64)
    parameters = {n: jnp.asarray(p) for n, p in net.state_dict().items()}
    xs, h0 = jnp.asarray(rng.normal(size=(4, 3, 5, 2, 2))), jnp.asarray(rng.normal(size=(1, 2, 3)))

    def loss(p, x, h):
        y, last = ours.gru(p, x, h)
        return (y**2).sum() + last.sum()

    whole = lambda p, xs, h: jax.vmap(jax.vmap(lambda x: loss(p, x, h)), 1)(xs).sum()  # noqa: E731
    for call in (jax.grad(whole, (0, 1, 2)), jax.jit(jax.grad(whole, (0, 1, 2)))):
        counted.clear()
        mine = jax.block_until_ready(call(parameters, xs, h0))
        assert counted.count(b"network_vjp") == 1 and counted.count(b"network") == 1, counted
    each = jax.grad(lambda p, xs, h: sum(loss(p, x, h) for row in xs for x in row), (0, 1, 2))(parameters, xs, h0)
    for a, b in zip(jax.tree_util.tree_leaves(mine), jax.tree_util.tree_leaves(each)):
        assert np.allclose(a, b, rtol=0, atol=1e-10)
    rows = jax.vmap(jax.grad(loss), (None, 0, None))(parameters, xs[0], h0)  # of each example
    for i in range(3):
        assert all(np.allclose(rows[n][i], g, rtol=0, atol=1e-10) for n, g in jax.grad(loss)(parameters, xs[0, i], h0).items())

    b, a, x = jnp.asarray([0.3, 0.2]), jnp.asarray([2.0, 0.5, -0.3]), jnp.asarray(rng.normal(size=(3, 2, 20)))
    filtered = lambda b, a, x: (jax.vmap(lambda x: ours.lfilter(b, a, x))(x) ** 2).sum()  # noqa: E731
    counted.clear()
    mine = jax.grad(filtered, (0, 1, 2))(b, a, x)
    assert counted == [b"filter", b"filter_vjp"]
    each = jax.grad(lambda b, a, x: sum((ours.lfilter(b, a, row) ** 2).sum() for row in x), (0, 1, 2))(b, a, x)
    assert all(np.allclose(p, q, rtol=0, atol=1e-10) for p, q in zip(mine, each))


def test_filters(doubles, rng):
    from deeppcr import signal

    sos = np.array([[0.5, 0.2, 0.1, 1, -0.4, 0.3], [1, -0.3, 0.2, 1, 0.3, -0.2]])
    x, zi = jnp.asarray(rng.normal(size=(3, 20))), jnp.asarray(rng.normal(size=(2, 3, 2)))
    assert np.array_equal(jax.jit(ours.sosfilt)(sos, x), signal.sosfilt(sos, x))
    free = np.where(np.arange(6) == 3, 0.0, 1.0)
    checked(lambda s, x, z: ours.sosfilt(s * free + (1 - free), x, -1, z), (jnp.asarray(sos), x, zi))
    b, a = jnp.asarray([0.3, 0.2, 0.1, -0.4]), jnp.asarray([2.0, 0.5, -0.3])
    checked(lambda *p: ours.lfilter(*p, 0), (b, a, x))
    assert np.allclose(jax.vmap(lambda x: ours.lfilter(b, a, x))(x), signal.lfilter(b, a, x), rtol=0, atol=1e-13)
    each = jax.vmap(lambda a: ours.lfilter(b, a, x))(jnp.stack([a, 2 * a]))
    assert np.allclose(each[0], 2 * each[1], rtol=0, atol=1e-13)
    for call in (ours.sosfilt, jax.jit(ours.sosfilt), jax.grad(lambda s, x: ours.sosfilt(s, x).sum())):
        with pytest.raises(Exception, match=r"sos\[.*, 3\].*wanted 1"):
            jax.block_until_ready(call(2 * jnp.asarray(sos), x))
    assert not jax.grad(lambda s: ours.sosfilt(s, x[:, :0]).sum())(jnp.asarray(sos)).any()  # no numbers; order 0
    checked(ours.lfilter, (b[:1], a[:1], x))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_states_of_filters_lie_as_scipys(doubles, rng, axis):
    """As deeppcr.signal's, which are held to SciPy's; also where another layout has the same shape."""
    from deeppcr import signal

    x, sos = rng.normal(size=(2, 2, 2)), np.array([[1, 0.5, 0.2, 1, -0.5, 0.3], [0.7, 0.1, 0.2, 1, 0.2, -0.3]])
    b, a, one = np.array([0.3, 0.2, 0.1]), np.array([2.0, 0.5, -0.3]), [1, 1, 1]
    one[axis] = 2
    for name, given, zi in (("sosfilt", (sos,), rng.normal(size=(2, 2, 2, 2))), ("lfilter", (b, a), rng.normal(size=(2, 2, 2))),
                            ("lfilter", (b, a), rng.normal(size=one))):  # fmt: skip
        for got, right in zip(getattr(ours, name)(*given, x, axis, zi), getattr(signal, name)(*given, x, axis, zi)):
            assert got.shape == right.shape and np.allclose(got, right, rtol=0, atol=1e-12)
    assert jax.grad(lambda zi: ours.lfilter(b, a, x, axis, zi)[0].sum())(jnp.asarray(zi)).shape == zi.shape
    with pytest.raises(deeppcr.ArgumentError, match="zi's shape"):
        ours.sosfilt(sos, x, axis, np.ones((2, 1, 2, 2)))


@pytest.mark.parametrize("transposed", [False, True])
def test_an_identity_is_a_cumulative_sum(doubles, rng, transposed):
    b, z0 = jnp.asarray(rng.normal(size=(9, 3, 2))), None if transposed else jnp.asarray(rng.normal(size=(3, 2)))
    run = lambda b, z0, A=1.0: ours.linear_chain(A, b, z0, transposed, structure="identity")  # noqa: E731
    wanted = deeppcr.linear_chain(1.0, np.asarray(b), None if z0 is None else np.asarray(z0), transposed, structure="identity")
    for A in (1.0, 1, np.ones((9, 1)), jnp.ones((1, 3))):
        assert np.allclose(run(b, z0, A), wanted, rtol=0, atol=1e-13) and np.allclose(jax.jit(run)(b, z0, A), wanted, rtol=0, atol=1e-13)
    checked(run if z0 is not None else lambda b: run(b, None), (b,) if z0 is None else (b, z0))
    assert not jax.grad(lambda A: run(b, z0, A).sum())(jnp.ones((9, 1))).any()
    assert run(b.astype("f4"), None, np.ones((9, 1))).dtype == np.float32 and run(b[:0], z0).shape == (0, 3, 2)
    for bad in (0.5, np.array([1.0, 2.0, 1.0]), np.ones((9, 3, 2)), 1j):
        with pytest.raises(deeppcr.ArgumentError, match="^A"):
            run(b, z0, bad)


def test_one_number_is_a_scalar_transition(rng):
    """As it is for `deeppcr.linear_chain`, without a structure."""
    b, half = rng.normal(size=(4, 3, 2)).astype("f4"), np.float32(0.5)
    loss = lambda A: ((z := ours.linear_chain(A, b)).sum(), z)  # noqa: E731
    (_, z), dA = jax.jit(jax.value_and_grad(loss, has_aux=True))(half)
    assert np.array_equal(z, deeppcr.linear_chain(half, b)) and np.isclose(dA, deeppcr.linear_chain_vjp(half, np.asarray(z), np.ones_like(b))[0], rtol=1e-5)


SIZES = [("dense", "t, n, 3, 3"), ("dense", "1, 1, 3, 3"), ("dense", "n, 3, 3"), ("diagonal", "t, n, 3"), ("diagonal", "3"), ("scalar", "t, 1"),
         ("block", "t, n, 1, 3, 3"), ("identity", "")]  # fmt: skip


@pytest.mark.parametrize("structure, shape", SIZES)
@pytest.mark.parametrize("form", ["", "z0", "transposed"])
@pytest.mark.parametrize("which", ["t", "n", "tn"])
def test_chains_are_exported_with_sizes_that_are_open(rng, structure, shape, form, which):
    """Lengths, batches, or both: the bits of the call as it is, and of its gradients."""
    export = pytest.importorskip("jax.export")

    def run(*arrays):
        A, b, *rest = arrays if structure != "identity" else (1.0, *arrays)
        return ours.linear_chain(A, b, *(rest or [None]), form == "transposed", structure=structure)

    def with_gradients(*arrays):
        z, back = jax.vjp(run, *arrays)
        return z, back(jnp.cos(z))

    shapes = [*([] if structure == "identity" else [shape]), "t, n, 3", *(["n, 3"] if form == "z0" else [])]
    fixed = {"t": 6, "n": 2}
    for name in set(fixed) - set(which):
        shapes = [s.replace(name, str(fixed[name])) for s in shapes]
    scope = export.SymbolicScope()
    avals = [jax.ShapeDtypeStruct(export.symbolic_shape(s, scope=scope), jnp.float32) for s in shapes]
    made = export.export(jax.jit(with_gradients), disabled_checks=[export.DisabledSafetyCheck.custom_call("deeppcr")])(*avals)
    made = export.deserialize(made.serialize())
    for sizes in ({"t": 6, "n": 2}, {"t": 300 if "t" in which else 6, "n": 3 if "n" in which else 2}):
        given = [rng.normal(size=[sizes.get(n.strip()) or int(n) for n in s.split(",") if n]).astype("f4") * 0.4 for s in shapes]
        for got, wanted in zip(jax.tree.leaves(made.call(*given)), jax.tree.leaves(jax.jit(with_gradients)(*given))):
            assert got.dtype == wanted.dtype and np.array_equal(got, wanted)


@pytest.mark.parametrize("shapes, options, what", [
    (["t, n, 3, 3", "s, n, 3"], {}, "A"), (["t, n, 3", "t, m, 3"], {}, "A"), (["t, 2, 3", "t, 2, 4"], {}, "A"), (["t, 3", "t, 2, 3, 3"], {"structure": "dense"}, "b's shape"),
    (["3", "t, n, 3", "t, 3"], {"structure": "diagonal"}, "z0's shape"), (["3", "t, n, 3", "n, 3"], {"structure": "diagonal", "transposed": True}, "z0"),
    (["t, n, 3", "t, n, 3"], {"scheme": "fast"}, "scheme"), (["t, n, 3", "t, n, 3"], {"structure": "full"}, "structure"),
])  # fmt: skip
def test_open_sizes_that_do_not_fit_are_refused_when_they_are_traced(shapes, options, what):
    export = pytest.importorskip("jax.export")
    scope = export.SymbolicScope()
    avals = [jax.ShapeDtypeStruct(export.symbolic_shape(s, scope=scope), jnp.float32) for s in shapes]
    with pytest.raises(deeppcr.Error) as caught:
        jax.eval_shape(lambda *arrays: ours.linear_chain(*arrays, **options), *avals)
    assert caught.value.what == what and caught.value.wanted


def test_an_identity_of_open_sizes_is_looked_at():
    export = pytest.importorskip("jax.export")
    b = jax.ShapeDtypeStruct(export.symbolic_shape("t, 3"), jnp.float32)
    one, two = jnp.ones(1), jnp.full(1, 2.0)  # no tracers
    assert jax.eval_shape(lambda b: ours.linear_chain(one, b, structure="identity"), b).shape == b.shape
    with pytest.raises(deeppcr.ArgumentError, match="^A"):
        jax.eval_shape(lambda b: ours.linear_chain(two, b, structure="identity"), b)


def test_programs_of_jax(rng):
    """Under scan, with donated and empty arrays, and an exception that says what was wrong."""
    A, b = jnp.asarray(rng.normal(size=(9, 2, 2)) * 0.3, jnp.float32), jnp.ones((9, 2), jnp.float32)
    twice = jax.jit(lambda b: jax.lax.scan(lambda c, _: (ours.linear_chain(A, c), None), b, None, 2)[0])
    assert np.allclose(twice(b), ours.linear_chain(A, ours.linear_chain(A, b)), atol=1e-6)
    wanted = np.array(ours.linear_chain(A, b))
    assert np.array_equal(jax.jit(ours.linear_chain, donate_argnums=1)(A, b + 0), wanted)
    assert ours.linear_chain(A[:0], b[:0]).shape == (0, 2) and ours.linear_chain(A[:1], b[:1]).shape == (1, 2)
    with pytest.raises(Exception, match="deeppcr.errors.ArgumentError.*wanted a finite number"):
        jax.block_until_ready(jax.jit(ours.lfilter)(jnp.full(2, jnp.nan), jnp.ones(2), jnp.ones(5)))


@pytest.mark.skipif(not os.path.exists("/proc/self/statm") or "asan" in os.environ.get("LD_PRELOAD", ""), reason="memory is not seen")
def test_no_leak_over_many_calls(chain):
    def resident():
        return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    net = {n: jnp.asarray(p) for n, p in recurrent.LSTM(3, 4).state_dict().items()}
    x = jnp.ones((5, 2, 3))
    step = jax.jit(lambda A, b, z0, net, x: (jax.grad(lambda b: ours.linear_chain(A, b, z0).sum())(b),
                                             jax.grad(lambda x: ours.lstm(net, x)[0].sum())(x)))  # fmt: skip

    def calls(count):
        for _ in range(count):
            jax.block_until_ready(step(*chain, net, x))

    calls(2000)
    before = resident()
    calls(10000)
    assert resident() - before < 8 << 20


def test_refusals(chain):
    net = {n: jnp.asarray(p) for n, p in recurrent.GRU(3, 4).state_dict().items()}
    for call in (lambda: ours.linear_chain(chain[0], chain[1][:5]), lambda: ours.linear_chain(jnp.ones((3, 3)), jnp.ones((5, 2, 3))),
                 lambda: ours.gru(net, jnp.ones((5, 2, 4))), lambda: ours.gru({}, jnp.ones((5, 2, 3))),
                 lambda: ours.gru(net, jnp.ones((5, 2, 3)), jnp.ones((1, 3, 4))), lambda: ours.rnn(net, jnp.ones((5, 3)), nonlinearity="x"),
                 lambda: ours.linear_chain(jnp.ones((5, 3), int), jnp.ones((5, 3), int)), lambda: ours.sosfilt(jnp.ones((1, 5)), jnp.ones(5)),
                 lambda: ours.lfilter(jnp.ones(2, int), jnp.ones(2), jnp.ones(5)), lambda: ours.lfilter(jnp.ones(2, "e"), jnp.ones(2), jnp.ones(5)), lambda: ours.lfilter(jnp.ones(2), jnp.ones(2), jnp.ones(5), 1),
                 lambda: ours.lstm(net, jnp.ones((5, 3))), lambda: ours.gru(net, jnp.ones((5, 3)), method="x")):
        with pytest.raises(Exception, match="wanted") as caught:  # fmt: skip
            call()
        assert isinstance(caught.value, deeppcr.Error) or "ArgumentError" in str(caught.value)


def parameters(kind):
    return {name: jnp.asarray(value) for name, value in getattr(recurrent, kind)(3, 4).state_dict().items()}


@pytest.mark.parametrize("call, what", [
    (lambda: ours.linear_chain(jnp.ones((4, 2, 2)), jnp.ones((4, 2)), jnp.ones(2), True), "z0"),
    (lambda: ours.linear_chain(jnp.ones((4, 2, 2)), jnp.ones((4, 2)), scheme=["pcr"]), "scheme"),
    (lambda: ours.gru(None, jnp.ones((5, 3))), "the parameters"), (lambda: ours.gru({}, jnp.ones((5, 3))), "the parameters"),
    (lambda: ours.gru(parameters("GRU"), jnp.ones(3)), "x's shape"), (lambda: ours.gru(parameters("GRU"), jnp.ones((5, 2))), "weight_ih_l0's shape"),
    (lambda: ours.linear_chain(None, jnp.ones((4, 2))), "A"), (lambda: ours.linear_chain(jnp.ones((4, 2, 2)), jnp.ones((4, 2)), "z0"), "z0"),
    (lambda: ours.linear_chain(jnp.ones((4, 2)), np.ma.masked_array(np.ones((4, 2)), mask=True)), "b"),
    (lambda: ours.linear_chain(jnp.ones((4, 2)), jnp.ones((4, 2)), transposed="no"), "transposed"),
    (lambda: ours.gru({n: 1j * p for n, p in parameters("GRU").items()}, jnp.ones((5, 3))), "weight_ih_l0's dtype"),
    (lambda: ours.gru({**parameters("GRU"), "weight_ih_l0": 1.0}, jnp.ones((5, 3))), "weight_ih_l0's shape"),
    (lambda: ours.gru({**parameters("GRU"), "weight_ih_l0": None}, jnp.ones((5, 3))), "weight_ih_l0"),
    (lambda: ours.gru(parameters("GRU"), jnp.ones((5, 3)), jnp.zeros((1, 4)) * 1j), "h0's dtype"), (lambda: ours.sosfilt(None, jnp.ones(3)), "sos"),
    (lambda: ours.sosfilt(jnp.ones((1, 6)), jnp.ones(3), zi=jnp.ones((1, 2)) * 1j), "zi's dtype"), (lambda: ours.lfilter(jnp.ones(2), "a", jnp.ones(3)), "a"),
    *[(lambda k=k: ours.gru({**parameters("GRU"), k: jnp.ones(1)}, jnp.ones((5, 3))), "the parameters' names") for k in ("more", 3)],
    (lambda: ours.lstm(parameters("LSTM"), jnp.ones((5, 3)), jnp.zeros((1, 4))), "state"),
    (lambda: ours.gru({**parameters("GRU"), "weight_ih_l0": jnp.ones((12, 0))}, jnp.ones((5, 0))), "inputs"),
    (lambda: ours.gru(parameters("GRU"), jnp.ones((5, 3)), method=["auto"]), "method"),
    (lambda: ours.sosfilt(jnp.ones((1, 6)), jnp.ones(3), "0"), "axis"), (lambda: ours.lfilter(jnp.ones(130), jnp.ones(1), jnp.ones(3)), "b's shape"),
])  # fmt: skip
def test_refusals_name_what_is_wrong(call, what):
    with pytest.raises(deeppcr.Error) as caught:
        call()
    assert caught.value.what == what and caught.value.wanted


@pytest.mark.parametrize("what, f, shape", [
    ("lstm", lambda x: ours.lstm(parameters("LSTM"), x)[0], (5, 3)), ("the filter", lambda s: ours.sosfilt(s, jnp.ones(9)), (1, 6)), ("the filter", lambda x: ours.lfilter(x[:2], x[2:4], x), (9,)),
])  # fmt: skip
def test_second_derivatives_of_networks_and_filters_are_refused(what, f, shape):
    """When they are traced; a first one that is a part of some program may be."""
    first, x = jax.grad(lambda x: (f(x) ** 2).sum()), jnp.ones(shape)
    looped = lambda x: jax.lax.scan(lambda c, _: (c - first(c), None), x, None, 2)[0]  # noqa: E731
    for call in (jax.jit(lambda x: first(x).sum()), lambda x: jax.vmap(looped)(x[None]).sum()):
        with pytest.raises(deeppcr.UnsupportedError) as caught:
            jax.eval_shape(jax.grad(call), x)
        assert (caught.value.what, caught.value.got, caught.value.wanted) == (f"{what}'s derivatives", "second derivatives", "first ones")
    held = jax.grad(lambda x: f(x).sum() + (jax.lax.stop_gradient(first(x)) * x).sum())
    assert jax.eval_shape(held, x).shape == shape


def test_a_vmap_of_nothing():
    found = jax.vmap(lambda x: ours.gru(parameters("GRU"), x)[0])(jnp.ones((0, 5, 2, 3)))
    assert found.shape == (0, 5, 2, 4)


@pytest.fixture(params=["the library", "Python"])
def repeats(request, monkeypatch):
    """Who runs known calls: Python those of much memory, which all are here."""
    if request.param == "Python":
        monkeypatch.setattr(ours._xla, "OWN_BYTES", -1)
    ours._xla._table.forget()
    yield request.param
    assert not ours._xla._table.kept or request.param == "the library"
    ours._xla._table.forget()


def test_calls_that_look_alike_read_their_own_numbers(doubles, rng, repeats):
    """From the second call on arrays are known by their addresses alone."""
    for d in (np.float32, np.float64):
        numbers = lambda *shape: jnp.asarray(rng.normal(size=shape), d)  # noqa: E731,B023
        filtered, stepped = jax.jit(lambda *a: ours.lfilter(*a[:3], zi=a[3])), jax.jit(lambda p, x, h: ours.gru(p, x, h))
        back = jax.jit(jax.grad(lambda p, x, h: ours.gru(p, x, h)[0].sum(), (0, 1, 2)))
        net = recurrent.GRU(3, 4, dtype=d)
        for call in range(4):
            b, x, zi, a = numbers(3), numbers(2, 9), numbers(2, 2), jnp.asarray([1, 0.1 * call], d)
            wanted, last = deeppcr.signal.lfilter(np.asarray(b), np.asarray(a), np.asarray(x), zi=np.asarray(zi))
            y, zf = filtered(b, a, x, zi)
            assert np.allclose(y, wanted, atol=1e-5) and np.allclose(zf, last, atol=1e-5)
            net.load_state_dict({n: rng.normal(size=p.shape) for n, p in net.state_dict().items()})
            x, h = numbers(5, 2, 3), numbers(1, 2, 4)
            p = {n: jnp.asarray(v) for n, v in net.state_dict().items()}
            for got, right in zip(stepped(p, x, h), net(x, h, training=True)):
                assert np.array_equal(got, right)
            wanted = net.backward(np.ones((5, 2, 4), d))
            got = back(p, x, h)
            assert np.array_equal(got[1], wanted.x) and np.array_equal(got[2], wanted.h0)
            assert all(np.array_equal(got[0][n], g) for n, g in wanted.parameters.items())


def test_known_gradients_leave_buffers_to_others(monkeypatch):
    monkeypatch.setattr(ours._xla, "OWN_BYTES", 0)  # so that Python repeats them
    ours._xla._table.forget()
    buffer = np.empty(5000, np.uint8)
    monkeypatch.setattr(ours.library, "_free", [buffer])
    p = parameters("GRU")
    program = jax.jit(jax.grad(lambda x: ours.gru(p, x)[0].sum()))
    for length in (3, 4, 5):
        for _ in range(3):
            program(jnp.ones((length, 1, 3), p["weight_ih_l0"].dtype))
    assert any(b is buffer for b in ours.library._free)


def test_programs_that_run_on_jaxs_own_threads_are_known_too(doubles, rng, monkeypatch):
    """Those of much work do, and the threads keep nothing of Python's between calls."""
    p = parameters("GRU")
    counted, first = [], ours._xla._first
    monkeypatch.setattr(ours._xla, "_first", lambda *a: counted.append(1) or first(*a))
    program = jax.jit(lambda x: jnp.tanh(ours.gru(p, x)[0]) + 1)
    for _ in range(6):
        x = jnp.asarray(rng.normal(size=(1500, 2, 3)), p["weight_ih_l0"].dtype)
        y = program(x)
        assert np.array_equal(y, jnp.tanh(ours.gru(p, x)[0]) + 1)
    assert len(counted) <= 4


def test_frames_are_looked_at_anew(rng, repeats):
    """XLA uses the memory of a frame again, for the same program and for others."""
    try:
        for turn in range(3):
            made = [(n, jax.jit(lambda A, b: ours.linear_chain(A, b))) for n in (3, 4, 5, 4, 3)]
            for n, program in made * 3:
                A, b = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((n, 2, 2), (n, 2)))
                assert np.allclose(program(A, b), scan(A, b, jnp.zeros(2)), atol=1e-4)
            if turn == 1:
                deeppcr.set_threads(1)
            del made, program
    finally:
        deeppcr.set_threads(0)


class ByHand:
    """A frame as XLA's, in memory of our own: arguments and results of float32 (11 is XLA's number for it)."""

    def __init__(self, call, given, found):
        self.kept, self.memory, self.told = [], ours._xla._MEMORY, ""
        self.tables = [self.group(given), self.group(found)]
        self.text, self.span, self.items, self.types = (self.room(n) for n in (len(call), 16, 8, 4))
        self.write("<QQ", self.span, self.text, len(call))
        self.write("<Q", self.items, self.span)
        self.write("<i", self.types, 4)
        self.say(call)
        arguments = ours._xla._ErrorArguments

        def refuse(at):
            self.told = arguments.from_address(at).message.decode()
            return 1

        self.refuse = ours._xla._ERROR(refuse)
        api, self.frame = self.room(64), self.room(168)
        self.write("<QQQQiiQQ", api, 64, 0, 24, 0, 0, 1, 0, ctypes.cast(self.refuse, ctypes.c_void_p).value)
        self.write("<QQQQi4x", self.frame, 168, 0, api, 0, 3)
        self.write("<QQqQQ", self.frame + 40, 40, 0, len(given), 0, self.tables[0])
        self.write("<QQqQQ", self.frame + 80, 40, 0, len(found), 0, self.tables[1])
        self.write("<QQqQQQ", self.frame + 120, 48, 0, 1, self.types, 0, self.items)

    def room(self, size):
        self.kept.append(ctypes.create_string_buffer(size))
        return ctypes.addressof(self.kept[-1])

    def write(self, form, at, *values):
        struct.pack_into(form, self.memory, at, *values)

    def say(self, call):
        self.write(f"{len(call)}s", self.text, call.encode())

    def group(self, arrays):
        base, table = self.room(88 * len(arrays)), self.room(8 * len(arrays))
        for i in range(len(arrays)):
            self.write("<Q", table + 8 * i, base + 88 * i + 40)
        for i, array in enumerate(arrays):
            self.put(table, i, array)
        return table

    def put(self, table, i, array, kind=11):
        """Another array in the same place."""
        self.kept.append(array)
        at = struct.unpack_from("<Q", self.memory, table + 8 * i)[0]
        self.write(f"<{array.ndim}q", at - 32, *array.shape)
        self.write("<QQi4xQqQ", at, 48, 0, kind, array.ctypes.data, array.ndim, at - 32)

    def run(self):
        if deeppcr._library.lib.dpcr_xla_handler(self.frame):
            raise RuntimeError(self.told)


def test_all_of_a_frame_is_looked_at_on_every_call(rng, monkeypatch, repeats):
    """XLA's frames lie where others lay before: nothing may be believed of them by their place."""
    counted, first = [], ours._xla._first
    monkeypatch.setattr(ours._xla, "_first", lambda *a: counted.append(1) or first(*a))
    arrays = lambda n, d="f4": [rng.normal(size=s).astype(d) for s in ((n, 2, 2), (n, 2), (n, 2))]  # noqa: E731
    A, b, z = arrays(4)
    hand = ByHand("chain dense auto 0 2", [A, b], [z])

    def check(A, b, z, kind=11, **options):
        for table, i, array in ((0, 0, A), (0, 1, b), (1, 0, z)):
            hand.put(hand.tables[table], i, array, kind)
        hand.run()
        assert np.array_equal(z, deeppcr.linear_chain(A, b, **options))

    for _ in range(4):
        check(A, b, z)
        check(*arrays(4))  # numbers elsewhere
    assert len(counted) == 1
    for n in (3, 4, 5, 4):  # other lengths
        check(*arrays(n))
    assert len(counted) == 3
    check(*arrays(4, "f8"), kind=12)  # another dtype
    hand.say("chain dense auto 1 2")  # other words
    check(*arrays(4), transposed=True)
    hand.say("chain dense nono 1 2")
    with pytest.raises(RuntimeError, match="ArgumentError: the call"):
        hand.run()
    hand.say("chain dense auto 0 2")
    check(*arrays(4))
    shared = rng.normal(size=(1, 2, 2)).astype("f4")  # of the same rank
    check(shared, *arrays(4)[1:])
    check(*arrays(4))
    places = struct.unpack_from("<QQ", hand.memory, hand.tables[0])
    hand.write("<QQ", hand.tables[0], *reversed(places))
    with pytest.raises(RuntimeError, match="ArgumentError"):
        hand.run()
    hand.write("<QQ", hand.tables[0], *places)
    hand.write("<i", hand.types, 1)  # no text
    with pytest.raises(RuntimeError, match="attribute"):
        hand.run()
    hand.write("<i", hand.types, 4)
    other = hand.room(20)
    hand.write("20s", other, b"chain dense auto 1 2")
    hand.write("<Q", hand.span, other)  # text elsewhere
    check(*arrays(4), transposed=True)
    elsewhere = np.zeros_like(z)
    place = struct.unpack_from("<Q", hand.memory, hand.tables[1])[0]
    hand.write("<Q", hand.tables[1], struct.unpack_from("<Q", hand.memory, hand.group([elsewhere]))[0])
    hand.run()
    assert elsewhere.any()
    hand.write("<Q", hand.tables[1], place)
    try:
        deeppcr.set_threads(1)  # another context
        check(*arrays(4), transposed=True)
    finally:
        deeppcr.set_threads(0)


def test_arrays_of_the_other_order_of_bytes(rng):
    A, b, z0 = (rng.normal(size=shape).astype("f4") for shape in ((4, 2, 2), (4, 2), (2,)))
    swapped = [a.astype(a.dtype.newbyteorder()) for a in (A, b, z0)]
    assert np.array_equal(ours.linear_chain(*swapped), ours.linear_chain(A, b, z0))
    x, net = rng.normal(size=(5, 3)).astype("f4"), recurrent.GRU(3, 4).state_dict()
    there = {name: p.astype(p.dtype.newbyteorder()) for name, p in net.items()}
    assert np.array_equal(ours.gru(there, x.astype(x.dtype.newbyteorder()))[0], ours.gru(net, x)[0])
    with pytest.raises(deeppcr.ArgumentError, match="x is ndarray of object; wanted an array of numbers"):
        ours.gru(net, x.astype(object))


def test_arrays_that_do_not_lie_as_their_numbers_should(rng):
    A, b = rng.normal(size=(4, 2, 2)).astype("f4"), rng.normal(size=(4, 2)).astype("f4")
    odd = np.zeros(b.nbytes + 1, np.uint8)[1:].view("f4").reshape(4, 2)
    odd[...], z = b, np.zeros_like(b)
    hand = ByHand("chain dense auto 0 2", [A, b], [z])
    table = ours._xla._table
    table.forget()
    for given in (odd, odd, b, odd, odd, b, odd):
        z[...] = 0
        hand.put(hand.tables[0], 1, given)
        hand.run()
        assert np.array_equal(z, deeppcr.linear_chain(A, b))
    assert len(table.kept) == 1  # of the arrays in their place
    table.forget()
    sos, x = np.array([[1, 0.2, 0.1, 1, 0.3, 0.1]], "f4"), rng.normal(size=(4, 2)).astype("f4")
    zi, y, zf = (np.zeros(s, "f4") for s in ((4, 1, 2), (4, 2), (4, 1, 2)))
    odd[...] = x
    hand = ByHand("filter sos 2", [sos, odd, zi], [y, zf])
    for given, known in ((odd, 0), (odd, 0), (x, 1), (odd, 1), (odd, 1), (x, 1)):
        y[...] = 0
        hand.put(hand.tables[0], 1, given)
        hand.run()
        assert np.array_equal(y, deeppcr.signal.sosfilt(sos, x)) and len(table.kept) == known


def test_calls_that_the_handler_never_takes(rng, monkeypatch):
    """Those whose text is long: Python keeps what it made for them, and others stay known."""
    made, table = [], ours._xla._table
    again = ours._xla.repeats["filter"]
    monkeypatch.setitem(ours._xla.repeats, "filter", lambda *a: made.append(1) or again(*a))
    A, b = rng.normal(size=(4, 2, 2)).astype("f4"), rng.normal(size=(4, 2)).astype("f4")
    table.forget()
    ByHand("chain dense auto 0 2", [A, b], [np.zeros_like(b)]).run()
    known, size = list(table.kept), table.size
    assert len(known) == 1
    sos, x = np.array([[1, 0.2, 0.1, 1, 0.3, 0.1]], "f4"), rng.normal(size=(2, 9)).astype("f4")
    zi, y, zf = (np.zeros(s, "f4") for s in ((2, 1, 2), (2, 9), (2, 1, 2)))
    hand = ByHand("filter sos " + "0" * 600 + "2", [sos, x, zi], [y, zf])
    for turn in range(4):
        sos[0, 0] = turn
        hand.run()
        assert np.array_equal(y, deeppcr.signal.sosfilt(sos, x))
    assert len(made) == 1
    sos[0, 3] = 2
    for _ in range(2):
        with pytest.raises(RuntimeError, match="ArgumentError: sos"):
            hand.run()
    sos[0, 3] = 1
    for turn in range(4):
        hand.run()
        assert np.array_equal(y, deeppcr.signal.sosfilt(sos, x))
    assert len(made) == 2
    assert table.kept == known and table.size == size
    deeppcr.set_threads(1)  # another context: made anew
    try:
        hand.run()
        assert len(made) == 3 and not table.kept
    finally:
        deeppcr.set_threads(0)


def test_what_is_made_for_an_old_context_is_not_kept(rng, monkeypatch):
    """As where another thread sets the number of threads while a call is made ready, or a signal's handler while it is handed over."""
    A, b = rng.normal(size=(4, 2, 2)).astype("f4"), rng.normal(size=(4, 2)).astype("f4")
    z, table = np.zeros_like(b), ours._xla._table
    hand = ByHand("chain dense auto 0 2", [A, b], [z])
    lib, again = ours._xla._lib, ours._xla.repeats["chain"]

    def renewing(function):
        def both(*given):
            deeppcr.set_threads(0)
            return function(*given)

        return both

    class Renewing:
        dpcr_xla_keep = staticmethod(renewing(lib.dpcr_xla_keep))

        def __getattr__(self, name):
            return getattr(lib, name)

    for where, name, instead in ((ours._xla.repeats, "chain", renewing(again)), (vars(ours._xla), "_lib", Renewing())):
        table.forget()
        with monkeypatch.context() as changed:
            changed.setitem(where, name, instead)
            hand.run()
        assert not table.kept and not table.size and not table.leaving
        for known in (0, 1, 1):
            assert len(table.kept) == known
            z[...] = 0
            hand.run()
            assert np.array_equal(z, deeppcr.linear_chain(A, b))


def test_a_ctrl_c_leaves_no_call_that_only_the_handler_has(rng, monkeypatch, request):
    """Wherever it comes while a call is handed over: what the library may run is the package's too."""
    import sys

    A, b = rng.normal(size=(4, 2, 2)).astype("f4"), rng.normal(size=(4, 2)).astype("f4")
    z, table, lib, handed = np.zeros_like(b), ours._xla._table, ours._xla._lib, []
    hand = ByHand("chain dense auto 0 2", [A, b], [z])
    code = ours._xla._Table._hand.__code__

    class Noting:
        def __getattr__(self, name):
            return getattr(lib, name)

        def dpcr_xla_keep(self, frame, call):
            handed.append(call)
            return lib.dpcr_xla_keep(frame, call)

    monkeypatch.setattr(ours._xla, "_lib", Noting())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the shell that started this ignores
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    for stop in range(1, 20):
        table.forget()
        handed.clear()
        lines = 0

        def trace(frame, event, argument, stop=stop):
            nonlocal lines
            lines += frame.f_code is code and event == "line"
            if lines == stop:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace if frame.f_code is code else None

        sys.settrace(trace)
        try:
            hand.run()
        except KeyboardInterrupt:
            assert "KeyboardInterrupt" in hand.told
        finally:
            sys.settrace(None)
        assert {*handed} <= {ctypes.addressof(ready.call) for ready in table.kept}
        if lines < stop:
            break
    assert lines >= 5 and handed and np.array_equal(z, deeppcr.linear_chain(A, b))
    table.forget()


@pytest.fixture
def interrupting():
    """A frame whose call does as a function here says, before XLA's handler gets back to it."""

    class Hand(ByHand):
        def does(self, what):
            ours._xla.functions["interrupting"] = lambda: lambda given, found: what()

        def run(self):
            self.told = ""
            super().run()

    ours._xla._run_of.cache_clear()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield Hand("interrupting", [np.ones(2, "f4")], [])
    signal.signal(signal.SIGINT, before)
    ours._xla._run_of.cache_clear()
    ours._xla._table.forget()
    del ours._xla.functions["interrupting"]


def test_a_ctrl_c_within_a_call_is_an_error_to_xla_and_raised_behind_it(interrupting):
    interrupting.does(lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        interrupting.run()
    assert interrupting.told == "builtins.KeyboardInterrupt: "
    ours._xla._run_of.cache_clear()
    interrupting.does(lambda: None)
    interrupting.run()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_ctrl_c_that_tears_the_host_away(interrupting, monkeypatch):
    """Where nothing of Python's takes it: what ctypes would return then is anything."""
    def torn(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ours._xla, "_fail", torn)
    interrupting.does(torn)
    with pytest.raises(KeyboardInterrupt):
        interrupting.run()
    assert interrupting.told == "deeppcr: the host was interrupted"


def test_a_handler_of_ctrl_c_runs_once_and_behind_a_call(interrupting):
    """Of a call that the library gave up."""
    pressed = []
    signal.signal(signal.SIGINT, lambda *_: pressed.append(interrupting.told))
    interrupting.does(lambda: deeppcr._library.check(deeppcr._abi.CONSTANTS["DPCR_ERROR_CANCELLED"], None))
    with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
        interrupting.run()
    assert pressed == ["builtins.KeyboardInterrupt: "]
    with pytest.raises(KeyboardInterrupt):  # elsewhere it runs at once
        deeppcr._library.check(deeppcr._abi.CONSTANTS["DPCR_ERROR_CANCELLED"], None)
    assert len(pressed) == 2


CALLS_OF_JAX = {
    "a chain": ("lambda A, b: ours.linear_chain(A, b, scheme='sequential')", "jnp.full((1, 64, 64), 0.01), jnp.ones((300_000, 64))"),
    "a gradient": ("jax.grad(lambda A, b: ours.linear_chain(A, b, scheme='sequential').sum())",
                   "jnp.full((1, 64, 64), 0.01), jnp.ones((100_000, 64))"),
    "a filter": ("ours.sosfilt", "jnp.array([[1, 0.5, 0, 1, 0.2, 0]] * 8), jnp.ones(20_000_000)"),
    "a network": ("lambda p, x: ours.gru(p, x, method='sequential')[0]",
                  "{n: jnp.asarray(v) for n, v in recurrent.GRU(1, 128).state_dict().items()}, jnp.zeros((100_000, 1, 1))"),
}  # fmt: skip


@pytest.mark.parametrize("which, jitted", [*((which, True) for which in CALLS_OF_JAX), ("a chain", False)])
def test_ctrl_c_ends_a_program_and_not_the_process(which, jitted):
    """JAX raises its own error, KeyboardInterrupt comes right behind it, and what is called next is as good as before."""
    function, arguments = CALLS_OF_JAX[which]
    ends_soon(f"""
    import jax, jax.numpy as jnp
    from deeppcr import jax as ours
    function, arguments = {function}, ({arguments})
    if {jitted}:
        function = jax.jit(function)
    wanted = np.array(jax.block_until_ready(function(*arguments)))
    told = []
    def call(begun):
        begun()
        try:
            try:
                jax.block_until_ready(function(*arguments))
            except Exception:
                time.sleep(0)  # it is raised here at the latest
                raise
        except KeyboardInterrupt as raised:
            while raised is not None:
                told.append(str(raised))
                raised = raised.__context__
            raise
    def interrupted_within(call, wait):
        took, where = interrupted(call, wait)
        return took, "within" if "CANCELLED" in "".join(told) else where
    heard(call, ["within"], interrupted_within)
    again = function(*arguments)
    assert np.array_equal(again, wanted)
    print("done")
    """)


def test_a_known_call_that_fails_is_an_exception(monkeypatch, rng):
    """As one does that is cancelled: told by the library's status and text, and then as good as before."""
    A, b = rng.normal(size=(4, 2, 2)).astype("f4"), rng.normal(size=(4, 2)).astype("f4")
    z, made = np.zeros_like(b), []
    keep = ours._xla._table.keep
    monkeypatch.setattr(ours._xla._table, "keep", lambda frame, ready, *more: made.append(ready) or keep(frame, ready, *more))
    hand = ByHand("chain dense pcr 0 2", [A, b], [z])
    ours._xla._table.forget()  # an earlier test may have had the same call
    for _ in range(2):
        hand.run()
    assert len(made) == 1
    step = ours._xla._abi.XlaStep.from_address(made[0].call.step)
    room, step.count = step.count, 0
    with pytest.raises(RuntimeError, match="deeppcr.errors.*workspace"):
        hand.run()
    step.count = room
    hand.run()
    assert np.array_equal(z, deeppcr.linear_chain(A, b, scheme="pcr")) and len(made) == 1


def test_what_is_kept_is_let_go(monkeypatch, rng):
    """With the context, by a limit, and when a kind too many comes; what runs meanwhile stays until it is done."""
    table, p = ours._xla._table, parameters("GRU")
    program = jax.jit(lambda x: ours.gru(p, x)[0])
    wanted = {n: np.array(program(jnp.ones((n, 1, 3)))) for n in range(1, 6)}
    assert table.kept and table.size >= sum(r.size for r in table.kept) > 0
    deeppcr.set_threads(1)
    try:
        assert not table.kept and not table.leaving and not table.size
        for n, y in wanted.items():
            for _ in range(2):
                assert np.array_equal(program(jnp.ones((n, 1, 3))), y)
        assert len(table.kept) == 5
        monkeypatch.setattr(ours._xla, "_ALL_BYTES", table.size)
        program(jnp.ones((6, 1, 3)))
        assert len(table.kept) == 1
    finally:
        deeppcr.set_threads(0)
    ours._xla.functions["alike"] = lambda: lambda given, found: None
    ours._xla.repeats["alike"] = lambda words, given, found: ours._xla.Ready([], [], 0)
    try:
        hands = [ByHand("alike", [np.zeros(n, "f4")], []) for n in range(1, 300)]
        for hand in hands:
            hand.run()
        assert 0 < len(table.kept) <= 256
    finally:
        del ours._xla.functions["alike"], ours._xla.repeats["alike"]
        table.forget()


def test_threads_while_everything_is_forgotten(rng):
    from concurrent.futures import ThreadPoolExecutor, wait

    p, x, table = parameters("GRU"), jnp.asarray(rng.normal(size=(4, 7, 2, 3)), jnp.float32), ours._xla._table
    program = jax.jit(lambda x: jax.grad(lambda x: (ours.gru(p, x)[0] ** 2).sum())(x))
    wanted = [np.array(program(row)) for row in x]
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(lambda i: np.array(program(x[i % 4])), i) for i in range(300)]
        kept = 0
        while wait(running, 0.002).not_done:
            kept += len(table.kept)
            table.forget()
        for i, found in enumerate(running):
            assert np.array_equal(found.result(), wanted[i % 4])
    assert kept + len(table.kept)
    table.forget()
    assert not table.leaving and not table.kept


@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_known_calls_have_the_bits_of_the_first(doubles, rng, kind):
    b, a, x = (jnp.asarray(rng.normal(size=n) + 2, kind) for n in (7, 5, 40))
    sos = jnp.asarray([[1, 0.2, 0.1, 1, 0.3, 0.1], [0.5, 0.1, 0.3, 1, -0.2, 0.1]], kind)
    a = a / 20 + jnp.eye(5, dtype=kind)[0]
    for call, given in ((ours.lfilter, (b, a, x)), (ours.sosfilt, (sos, x))):
        program = jax.jit(jax.value_and_grad(lambda *v, call=call: (call(*v) ** 2).sum(), tuple(range(len(given)))))
        ours._xla._table.forget()
        first = jax.tree_util.tree_leaves(program(*given))
        for _ in range(3):
            assert all(np.array_equal(p, q) for p, q in zip(first, jax.tree_util.tree_leaves(program(*given))))


def test_the_frame_is_that_of_jaxlibs_header(headers, tmp_path):
    """What src/xla/frame.h believes, against XLA's own C header, by the compiler."""
    import shutil
    import subprocess

    compiler, folder = shutil.which("gcc") or shutil.which("clang"), jax.ffi.include_dir()
    if compiler is None or not os.path.exists(os.path.join(folder, "xla/ffi/api/c_api.h")):
        pytest.skip("no compiler, or no header")
    fields = {"buffer XLA_FFI_Buffer": "dtype dtype numbers data rank rank shape dims", "text XLA_FFI_ByteSpan": "first ptr size len",
              "arrays XLA_FFI_Args": "count size items args", "arrays XLA_FFI_Rets": "count size items rets",
              "attributes XLA_FFI_Attrs": "count size types types items attrs",
              "error XLA_FFI_Error_Create_Args": "size struct_size extension extension_start message message code errc",
              "api XLA_FFI_Api": "size struct_size extension extension_start version api_version internal internal_api make_error XLA_FFI_Error_Create",
              "frame XLA_FFI_CallFrame": "size struct_size extension extension_start api api stage stage given args found rets said attrs"}  # fmt: skip
    lines = ["#include <xla/ffi/api/c_api.h>", "#include <xla/frame.h>"]
    for pair, names in fields.items():
        (mine, theirs), words = pair.split(), names.split()
        for own, other in zip(words[::2], words[1::2]):
            lines.append(f'_Static_assert(offsetof(dpcri_xla_{mine}, {own}) == offsetof({theirs}, {other}), "{own}");')
            lines.append(f'_Static_assert(sizeof(((dpcri_xla_{mine} *)0)->{own}) == sizeof((({theirs} *)0)->{other}), "{own}");')
    for mine, theirs in (("EXECUTE", "ExecutionStage_EXECUTE"), ("TEXT", "AttrType_STRING"), ("INT64", "DataType_S64"), ("FLOAT64", "DataType_F64"),
                         ("CANCELLED", "Error_Code_CANCELLED")):  # fmt: skip
        lines.append(f'_Static_assert((int)DPCRI_XLA_{mine} == (int)XLA_FFI_{theirs}, "{mine}");')
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "xla").mkdir()
    shutil.copy(headers.parent / "src" / "xla" / "frame.h", tmp_path / "mine" / "xla")
    for wrong in (False, True):
        text = "\n".join(lines).replace("numbers", "rank", 1) if wrong else "\n".join(lines)
        (tmp_path / "frame.c").write_text(text + "\n")
        done = subprocess.run([compiler, "-std=gnu17", "-fsyntax-only", f"-I{folder}", f"-I{tmp_path}/mine", str(tmp_path / "frame.c")],
                              capture_output=True, text=True)  # fmt: skip
        assert (done.returncode != 0) == wrong, done.stderr


def alone(program, **environment):
    """A program in a process of its own: (exit status, what it said)."""
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def test_several_devices(rng):
    """Each runs its own part of a program at once, on threads of XLA's."""
    status, said = alone("""
import numpy as np, jax, jax.numpy as jnp
from deeppcr import jax as ours, recurrent
assert len(jax.devices()) == 3
net = recurrent.GRU(3, 4)
p = {n: jnp.asarray(v) for n, v in net.state_dict().items()}
x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5, 2, 3)), jnp.float32)
step = jax.pmap(jax.grad(lambda x: (ours.gru(p, x)[0] ** 2).sum()))
one = jax.jit(jax.grad(lambda x: (ours.gru(p, x)[0] ** 2).sum()))
for _ in range(20):
    found = step(x)
    assert all(np.array_equal(found[i], one(x[i])) for i in range(3))
print("whole")
""", XLA_FLAGS="--xla_force_host_platform_device_count=3")
    assert status == 0 and said.endswith("whole\n"), said


@pytest.mark.skipif(not hasattr(jax, "set_mesh") or not hasattr(jax.sharding, "reshard"), reason="this JAX has no meshes whose axes are explicit")
def test_gradients_over_meshes_whose_axes_are_explicit():
    """JAX wants gradients over the devices as what they belong to, and so second ones of chains; without the mesh all are the same."""
    status, said = alone("""
import numpy as np, jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from deeppcr import jax as ours, recurrent
p = {n: jnp.asarray(v) for n, v in recurrent.GRU(3, 4).state_dict().items()}
rng = np.random.default_rng(0)
make = lambda *shape: jnp.asarray(rng.normal(size=shape) * 0.3, jnp.float32)
A, b, z0, x, h, q = make(5, 4, 3, 3), make(5, 4, 3), make(4, 3), make(5, 4, 3), make(1, 4, 4), make(4, 5, 1, 3)
sos = jnp.asarray([[0.1, 0.2, 0.1, 1, -0.5, 0.2]])
chain = lambda *a: jnp.sin(ours.linear_chain(*a)).sum()
again = lambda *a: sum((g ** 3).sum() for g in jax.grad(chain, (0, 1, 2))(*a))
calls = [
    (chain, (A, b, z0)), (again, (A, b, z0)), (lambda A, b: jnp.sin(ours.linear_chain(A, b, transposed=True)).sum(), (A, b)),
    (lambda p, x, h: (ours.gru(p, x, h)[0] ** 2).sum(), (p, x, h)), (lambda q: (ours.linear_attention(q, q, q) ** 2).sum(), (q,)),
    (lambda sos, x: (ours.sosfilt(sos, x) ** 2).sum(), (sos, q)),
]
whole = [jax.grad(f, tuple(range(len(a))))(*a) for f, a in calls]
mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Explicit,))
def over(x):
    parts = [("d" if n == 4 and i == list(x.shape).index(4) else None) for i, n in enumerate(x.shape)]
    return jax.device_put(x, NamedSharding(mesh, P(*parts)))
with jax.set_mesh(mesh):
    for i, ((f, a), wanted) in enumerate(zip(calls, whole)):
        mixed = [] if i in (1, 2) else [a[:1] + jax.tree.map(over, a[1:])]  # those go by JAX's own operations, which have their rules
        for given in (jax.tree.map(over, a), *mixed):
            found = jax.jit(jax.grad(f, tuple(range(len(a)))))(*given)
            for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted)):
                assert np.allclose(one, other, rtol=1e-4, atol=1e-5)
            for one, x in zip(jax.tree.leaves(found), jax.tree.leaves(given)):
                assert jax.typeof(one).sharding.spec == jax.typeof(x).sharding.spec, (i, one.sharding, x.sharding)
print("whole")
""", XLA_FLAGS="--xla_force_host_platform_device_count=4")
    assert status == 0 and said.endswith("whole\n"), said


def test_a_child_and_the_end(rng):
    """A child after fork knows nothing of its parent's calls, and makes its own; the end of a process waits for none."""
    status, said = alone(f"""
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
import os, threading, warnings
import numpy as np
from test_jax import ByHand, deeppcr, jax, jnp, ours
warnings.simplefilter("ignore")
A, b = np.full((4, 2, 2), 0.3, "f4"), np.ones((4, 2), "f4")
z = np.zeros_like(b)
hand, table = ByHand("chain dense auto 0 2", [A, b], [z]), ours._xla._table
for _ in range(2):
    hand.run()
assert len(table.kept) == 1
child = os.fork()
wanted = deeppcr.linear_chain(A, b)
for known in (0, 1, 1):
    assert len(table.kept) == (known if child == 0 else 1)
    z[...] = 0
    hand.run()
    assert np.array_equal(z, wanted)
if child == 0:
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
program = jax.jit(lambda sos, x: jnp.tanh(ours.sosfilt(sos, x)) + 1)  # by threads of XLA's
sos, x = jnp.asarray([[1, 0.1, 0, 1, 0.2, 0.0]] * 8), jnp.ones((4, 500000))
for _ in range(2):
    program(sos, x).block_until_ready()
late = [program(sos, x) for _ in range(3)]  # runs when the interpreter ends
print("whole", flush=True)
""")
    assert status == 0 and said.endswith("whole\n"), said


@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_gradients_of_filters_like_one_before(doubles, rng, kind, repeats):
    tolerance = 1e-4 if kind == "f4" else 1e-11
    filtered = lambda b, a, x, zi: sum((y * g).sum() for y, g in zip(ours.lfilter(b, a, x, zi=zi), (x, zi)))  # noqa: E731  gy is x itself
    mine = jax.jit(jax.grad(filtered, (0, 1, 2, 3)))
    cascade = jax.jit(jax.grad(lambda sos, x: (ours.sosfilt(sos, x) ** 2).sum(), (0, 1)))
    for call in range(4):
        b, a = rng.normal(size=3), np.array([1 + call, 0.3, 0.1 * call])
        x, zi = rng.normal(size=(2, 9)), rng.normal(size=(2, 2))
        given = [jnp.asarray(v, kind) for v in (b, a, x, zi)]
        wide = [np.asarray(v, "f8") for v in given]
        states = wide[3][:, None]
        gb, ga, gx, gzi = deeppcr.signal._gradient("ba", wide[0], wide[1], wide[2], states, wide[2], states, -1, True)
        y, zf = deeppcr.signal.lfilter(*wide[:3], zi=wide[3])
        for got, right in zip(mine(*given), (gb, ga, gx + y, gzi[:, 0] + zf)):
            assert got.dtype == kind and np.allclose(got, right, rtol=tolerance, atol=tolerance)
        sos = np.array([[1.0, call, 0, 1, 0.2, 0], [0.5, 0, call, 1, 0, 0.1]])
        gs, gx = deeppcr.signal.sosfilt_vjp(sos, wide[2], 2 * deeppcr.signal.sosfilt(sos, wide[2]))
        for got, right in zip(cascade(jnp.asarray(sos, kind), given[2]), (gs, gx)):
            assert np.allclose(got, right, rtol=tolerance, atol=tolerance)


def test_calls_from_threads_at_once(rng, repeats):
    from concurrent.futures import ThreadPoolExecutor

    p, x = parameters("LSTM"), jnp.asarray(rng.normal(size=(8, 7, 2, 3)), jnp.float32)
    program = jax.jit(lambda x: (ours.lstm(p, x)[0], jax.grad(lambda x: ours.lstm(p, x)[0].sum())(x), ours.lfilter(x[0, 0], x[0, 1] + 9, x, 0)))
    wanted = [[np.array(a) for a in program(row)] for row in x]
    with ThreadPoolExecutor(8) as pool:
        for i, found in enumerate(pool.map(lambda i: [np.array(a) for a in program(x[i % 8])], range(200))):
            assert all(np.array_equal(a, b) for a, b in zip(found, wanted[i % 8]))


F, N, S = np.float32, "sequential gru 1 3 4 1 0 1", [(12, 3), (12, 4), (12,), (12,)]
STATES, ENDS = [(5, 2, 3), (1, 2, 4), (1, 2, 4)], [(5, 2, 4), (1, 2, 4), (1, 2, 4)]
DIRECT = {
    f"network {N}": ([*STATES, *S], ENDS), f"network_vjp {N}": ([*ENDS, *STATES, *S], [*STATES, *S]),
    "filter sos 2": ([(1, 6), (2, 9), (2, 1, 2)], [(2, 9), (2, 1, 2)]),
    "filter ba 2": ([(3,), (2,), (2, 9), (2, 1, 2)], [(2, 9), (2, 1, 2)]),
    "filter_vjp ba 2": ([(2, 9), (2, 1, 2), (3,), (2,), (2, 9), (2, 1, 2)], [(3,), (2,), (2, 9), (2, 1, 2)]),
    "chain dense auto 0 2": ([(4, 2, 2), (4, 2), (2,)], [(4, 2)]),
    "chain_vjp dense auto 2": ([(4, 2, 2), (4, 2), (4, 2), (2,)], [(4, 2, 2), (4, 2), (2,)]),
}  # fmt: skip


def directly(call, given, found, dtypes=None):
    dtypes = dtypes or [F] * (len(given) + len(found))
    arrays = [np.full(s, 0.1, d) for s, d in zip(given, dtypes)]
    for array in arrays:
        if array.shape[-1:] == (6,):
            array[..., 3] = 1
    shapes = [jax.ShapeDtypeStruct(s, d) for s, d in zip(found, dtypes[len(given) :])]
    return jax.block_until_ready(jax.ffi.ffi_call("deeppcr", shapes)(*arrays, call=call))


@pytest.mark.parametrize("call", DIRECT)
def test_the_handler_refuses_what_it_cannot_read(call, repeats):
    """Programs that others made may call it with anything: also after a call that it kept."""
    given, found = DIRECT[call]
    for _ in range(3):
        directly(call, given, found)
    shapes = [*given, *found]
    for i, own in enumerate(shapes):
        longer = () if call == "filter ba 2" and i < 2 else ((own[0] + 1, *own[1:]), (*own[:-1], own[-1] - 1))  # another filter
        for wrong in (own[1:], (2, *own), (0, *own[1:]), *longer):
            if (call, wrong, i) == ("chain dense auto 0 2", (2, 2), 0) or len(found) == 1 and i >= len(given) and 0 in wrong:
                continue  # the same transition at all steps; a program without a result is not run
            others = [*shapes[:i], wrong, *shapes[i + 1 :]]
            with pytest.raises(Exception, match="INVALID_ARGUMENT|wanted"):
                directly(call, others[: len(given)], others[len(given) :])
        if not call.startswith("chain") or i >= len(given):  # whose inputs become floats
            with pytest.raises(Exception, match="wanted"):
                directly(call, given, found, [np.int32 if i == j else F for j in range(len(shapes))])
    for _ in range(2):
        with pytest.raises(Exception, match="INVALID_ARGUMENT"):
            directly(call, given[:1], found)


@pytest.mark.parametrize("mapped", [(), (2,)])
@pytest.mark.parametrize("call", DIRECT)
def test_the_handler_refuses_one_array_more_or_less(call, mapped):
    """More than once: what it kept of a call reads and writes at places that it counts."""
    given, found = ([(*mapped, *s) for s in shapes] for shapes in DIRECT[call])
    more = given[-1]
    for _ in range(3):
        for inputs, results in (([*given, more], found), (given, [*found, more]), ([*given, more], [*found, more]), (given, found[:-1]),
                                (given[:-1], found)):  # fmt: skip
            if results and (call, inputs) != ("chain dense auto 0 2", given[:-1]):  # which may be without z0
                with pytest.raises(Exception, match="INVALID_ARGUMENT"):
                    directly(call, inputs, results)
        if call.startswith("chain_vjp"):
            directly(call, given[:-1], found[:-1])
        directly(call, given, found)


@pytest.mark.parametrize("call", DIRECT)
def test_the_handler_refuses_whole_numbers(call):
    given, found = DIRECT[call]
    for shapes in (given, found), ([(2, *s) for s in given], [(2, *s) for s in found]):
        for into in (np.int32, F)[: 1 if call.startswith("chain") else 2]:  # whose inputs become floats
            with pytest.raises(Exception, match="INVALID_ARGUMENT"):
                directly(call, *shapes, [np.int32] * len(given) + [into] * len(found))


@pytest.mark.parametrize("call", [
    "", "nothing", "network", f"network {N} 1", "filter sos", "filter sos x", "filter sos 0", "filter sos -1", "filter x 2", "filter_vjp sos 0",
    "network sequential gru 1 3 4 1000000000000 0 1", "network sequential gru 1 3 1000000000000 1 0 1", "network sequential gru 1 3 4 0 0 1",
    "network sequential x 1 3 4 1 0 1", "network x gru 1 3 4 1 0 1", "network_vjp x gru 1 3 4 1 0 1", "network sequential gru 3 3 4 1 0 1",
    "chain x auto 0 2", "chain dense x 0 2", "chain dense auto x 2", "chain dense auto 0 1", "chain dense auto 0 4", "chain_vjp x auto 2",
    "chain_vjp dense x 2", "chain_vjp dense auto 0",
])  # fmt: skip
def test_the_handler_refuses_calls_that_it_does_not_know(call):
    with pytest.raises(Exception, match="wanted one that deeppcr.jax made"):
        directly(call, *DIRECT["filter sos 2"])
