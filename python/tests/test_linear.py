# SPDX-License-Identifier: MIT
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import deeppcr
from deeppcr.linear import SCHEMES

TOLERANCE = {np.float32: 2e-5, np.float64: 1e-11}


def dense(A, structure, lead, w):
    """A's values as matrices [L][B][w][w]."""
    if structure == "dense":
        return np.broadcast_to(A, lead + (w, w))
    if structure == "diagonal":
        return np.broadcast_to(A, lead + (w,))[..., None] * np.eye(w)
    if structure == "scalar":
        return np.broadcast_to(A, lead)[..., None, None] * np.eye(w)
    if structure == "identity":
        return np.broadcast_to(np.eye(w), lead + (w, w))
    k = A.shape[-1]
    full = np.zeros(lead + (w, w))
    for i in range(w // k):
        full[..., i * k : i * k + k, i * k : i * k + k] = A[..., i, :, :]
    return full


def loop(A, b, z0=None, transposed=False):
    """The definition, over matrices A [L][B][w][w] and b [L][B][w]."""
    z = np.empty(b.shape, np.float64)
    order = range(len(b)) if not transposed else range(len(b) - 1, -1, -1)
    state = np.zeros(b.shape[1:]) if z0 is None else z0.astype(np.float64)
    for n, l in enumerate(order):
        if transposed:
            state = b[l] + (np.einsum("bji,bj->bi", A[l + 1], state) if n else 0)
        else:
            state = b[l] + np.einsum("bij,bj->bi", A[l], state)
        z[l] = state
    return z


def values_of(rng, structure, lead, w, dtype):
    shape = {"dense": (w, w), "diagonal": (w,), "scalar": (), "block": (w // 2, 2, 2)}.get(structure)
    if structure == "identity":
        return np.ones((), dtype)
    return (rng.normal(size=lead + shape) * (0.8 / np.sqrt(w if structure == "dense" else 1))).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("structure", ["dense", "diagonal", "scalar", "block", "identity"])
@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_every_structure_and_scheme_equals_the_loop(rng, structure, scheme, dtype):
    if structure == "identity" and scheme == "overlap":
        pytest.skip("an identity never forgets")
    for L, B, w in ((1, 1, 2), (7, 3, 4), (257, 2, 6)):
        A = values_of(rng, structure, (L, B), w, dtype)
        b, z0 = rng.normal(size=(L, B, w)).astype(dtype), rng.normal(size=(B, w)).astype(dtype)
        wanted = loop(dense(A, structure, (L, B), w), b, z0)
        got = deeppcr.linear_chain(A, b, z0, scheme=scheme, structure=structure)
        assert got.dtype == dtype and got.shape == b.shape
        assert np.abs(got - wanted).max() <= TOLERANCE[dtype] * max(1, np.abs(wanted).max())
        back = deeppcr.linear_chain(A, b, transposed=True, scheme=scheme, structure=structure)
        wanted = loop(dense(A, structure, (L, B), w), b, transposed=True)
        assert np.abs(back - wanted).max() <= TOLERANCE[dtype] * max(1, np.abs(wanted).max())


@pytest.mark.parametrize("call", [
    lambda A, b: deeppcr.linear_chain(A, b, structure="identity"), lambda A, b: deeppcr.linear_chain_vjp(A, b, b, structure="identity"),
    lambda A, b: deeppcr.linear_chain_jvp(A, b, db=b, structure="identity"),
])  # fmt: skip
def test_an_identity_is_1(call):
    """What calls like one before are known by is not A's numbers: they are looked at in every call."""
    b = np.ones((4, 2))
    for A in (1.0, 1, np.ones(()), np.ones(1), np.ones(4)):
        for _ in range(2):
            call(A, b)
        for bad in (5.0 * np.asarray(A), np.full(np.shape(A), np.nan), np.zeros(np.shape(A))):
            with pytest.raises(deeppcr.ArgumentError, match=r"^A .*wanted 1\.0") as caught:
                call(bad, b)
            assert caught.value.what == "A"
    for bad in (np.ones(7), np.ones((4, 2)), np.array([1.0, 1.0, 1.0, 2.0])):
        with pytest.raises(deeppcr.ArgumentError, match="^A"):
            call(bad, b)


def test_without_a_batch_and_shared(rng):
    L, B, w = 50, 3, 2
    A, b, z0 = rng.normal(size=(w, w)) * 0.5, rng.normal(size=(L, B, w)), rng.normal(size=(B, w))
    wanted = loop(np.broadcast_to(A, (L, B, w, w)), b, z0)
    for shared in (np.broadcast_to(A, (L, B, w, w)), np.broadcast_to(A, (L, 1, w, w)), A[None, None], np.tile(A, (1, B, 1, 1))):
        assert np.allclose(deeppcr.linear_chain(shared, b, z0), wanted, rtol=0, atol=1e-12)
    assert np.allclose(deeppcr.linear_chain(A, b, z0, structure="dense"), wanted, rtol=0, atol=1e-12)
    single = deeppcr.linear_chain(np.tile(A, (L, 1, 1)), b[:, 1], z0[1])
    assert single.shape == (L, w) and np.allclose(single, wanted[:, 1], rtol=0, atol=1e-12)


def test_strides_order_and_writability_do_not_matter(rng):
    L, B, w = 33, 4, 3
    A, b, z0 = rng.normal(size=(L, B, w, w)) * 0.4, rng.normal(size=(L, B, w)), rng.normal(size=(B, w))
    wanted = deeppcr.linear_chain(A, b, z0)
    frozen = b.copy()
    frozen.flags.writeable = False
    odd = np.zeros(b.nbytes + 1, np.uint8)[1:].view(np.float64).reshape(b.shape)
    odd[...] = b
    ways = [(np.asfortranarray(A), np.asfortranarray(b), z0), (A, frozen, z0[::1]), (A[::-1][::-1], b[:, ::-1][:, ::-1], z0),
            (A, np.repeat(b, 2, 2)[..., ::2], np.repeat(z0, 2, 1)[:, ::2]), (A, odd, z0), (A, b.astype(">f8"), z0),
            (A.tolist(), b.tolist(), z0.tolist()), (np.moveaxis(np.moveaxis(A, 1, 0).copy(), 0, 1), b, z0)]  # fmt: skip
    for way in ways:
        for _ in range(2):  # the second time by the kept call
            assert np.array_equal(deeppcr.linear_chain(*way), wanted)


def test_a_kept_call_takes_new_numbers(rng):
    for n in range(3):
        A, b, z0 = rng.normal(size=(9, 2, 2)), rng.normal(size=(9, 2)), rng.normal(size=2)
        wanted = loop(A[:, None], b[:, None], z0[None])[:, 0]
        assert np.allclose(deeppcr.linear_chain(A, b, z0), wanted, rtol=0, atol=1e-12)
        assert np.allclose(deeppcr.linear_chain(A.astype("f"), b.astype("f"), z0.astype("f")), wanted, rtol=1e-4, atol=1e-4)


def test_dtypes(rng):
    one = np.ones((4, 2), np.uint32)
    z = deeppcr.linear_chain(3_000_000_000 * one, 2_000_000_000 * one, one[0], scheme="pcr")
    state = np.ones(2, np.uint32)
    for row in z:
        state = (np.uint64(3_000_000_000) * state + np.uint64(2_000_000_000)).astype(np.uint32)
        assert np.array_equal(row, state)
    assert deeppcr.linear_chain(one.astype("i8"), one.astype("i8")).dtype == np.float64
    assert deeppcr.linear_chain(one.astype("f2"), one.astype("f2")).dtype == np.float32
    assert deeppcr.linear_chain(one.astype("f4"), one.astype("f8")).dtype == np.float64
    with pytest.raises(deeppcr.ArgumentError) as caught:
        deeppcr.linear_chain(one.astype("c16"), one)
    assert caught.value.what == "A's dtype" and caught.value.got == np.dtype("c16") and caught.value.wanted == "real numbers"


def test_a_number_goes_with_the_dtype_of_the_rest():
    """Whatever NumPy's rules are: 1's weigh values, 2's take a number's array for one of float64."""
    u, f, half, chain = np.full((3, 2), 3_000_000_000, np.uint32), np.ones((4, 2), "f4"), np.full(4, 0.5, "f4"), deeppcr.linear_chain
    assert chain(3, u).dtype == np.uint32 and np.array_equal(chain(3, u), chain(np.full(3, 3, "u4"), u))
    for A, b, dtype in ((0.5, f, "f4"), (2, f, "f4"), (0.5, f.astype("f8"), "f8"), (0.5, f.astype("f2"), "f4"), (2, f.astype("i8"), "f8"),
                        (0.5, u, "f8"), (2.0, u, "f8"), (1e30, f, "f4"), (np.float64(0.5), f, "f8"), (np.array(0.5), f, "f8")):  # fmt: skip
        z = chain(A, b)
        assert z.dtype == dtype and np.allclose(z[:2], [b[0], b[0] * float(A) + b[1]])
    assert chain(2, u, np.ones(2, "f4")).dtype == np.float64 and chain(0.5, f, out=np.empty_like(f)).dtype == np.float32
    assert np.array_equal(deeppcr.linear_chain_jvp(0.5, f, 1.0, f), deeppcr.linear_chain_jvp(half, f, 1.0, f))
    (dA, *got), (each, *wanted) = (deeppcr.linear_chain_vjp(A, f, f, f[0]) for A in (0.5, half))
    assert dA.dtype == np.float32 and dA.shape == () and dA == each.sum()
    assert all(g.dtype == np.float32 and np.array_equal(g, w) for g, w in zip(got, wanted))
    for bad in (-1, 1 << 32, 1 << 70):
        with pytest.raises(deeppcr.ArgumentError, match="^A") as caught:
            chain(bad, u)
        assert caught.value.wanted
    for large in (1 << 64, -(1 << 70), 10**300):  # which NumPy has no dtype for
        assert np.array_equal(chain(large, f.astype("f8")), chain(float(large), f.astype("f8")))
    with pytest.raises(deeppcr.ArgumentError, match="^A is a whole number of 1329 bits; wanted a number that a double holds"):
        chain(10**400, f)
    for A in (True, False, np.True_):
        with pytest.raises(deeppcr.ArgumentError, match="^A is (np.)?(True|False)_?; wanted a number or an array"):
            deeppcr.linear_chain(A, np.ones((3, 2)))
        with pytest.raises(deeppcr.ArgumentError, match="^A is"):
            deeppcr.linear_chain_vjp(A, np.ones((3, 2)), np.ones((3, 2)))
        with pytest.raises(deeppcr.ArgumentError, match="^A is"):
            deeppcr.linear_chain_jvp(A, np.ones((3, 2)))
    with pytest.raises(deeppcr.ArgumentError, match="^A is 1e\\+300; wanted a number that float32 holds"):
        chain(1e300, f)
    assert np.all(np.isinf(chain(float("inf"), f)[1:]))


@pytest.mark.parametrize("structure, shape", [("scalar", ()), ("diagonal", (1, 2)), ("dense", (2, 2)), ("scalar", (5, 1))])
def test_gradients_of_uint32_wrap_around(structure, shape):
    """Of what is shared too, whose sum NumPy would give 64 bits."""
    b, g = (np.arange(n, n + 20, dtype="u4").reshape(5, 2, 2) * np.uint32(0x9E3779B1) for n in (1, 3))
    A, values = np.full(shape, 0x85EBCA6B, "u4"), {"scalar": (), "diagonal": (2,), "dense": (2, 2)}[structure]
    z, each = deeppcr.linear_chain(A, b, structure=structure), np.broadcast_to(A, (5, 2, *values)).copy()
    shared, whole = (deeppcr.linear_chain_vjp(a, z, g, structure=structure)[0] for a in (A, each))
    lead = (1,) * (2 + len(values) - len(shape)) + shape
    axes = tuple(i for i in range(2) if lead[i] == 1)
    assert shared.dtype == np.uint32 and np.array_equal(shared, whole.sum(axes, np.uint32).reshape(shape))


def test_an_identity_has_no_part_in_the_dtype():
    u, f = np.full((3, 2), 3_000_000_000, np.uint32), np.ones((4, 2), "f4")
    for A in (1.0, 1, np.ones(()), np.float64(1), np.ones(1), np.ones(1, "u4")):
        for b in (u, f):
            z = deeppcr.linear_chain(A, b, structure="identity")
            assert z.dtype == b.dtype and np.array_equal(z, np.cumsum(b, 0, b.dtype))
        assert deeppcr.linear_chain(A, f, structure="identity", out=np.empty_like(f)).dtype == np.float32
        assert deeppcr.linear_chain_vjp(A, f, f, structure="identity")[1].dtype == np.float32
        assert deeppcr.linear_chain_jvp(A, f, db=f, structure="identity").dtype == np.float32
        with pytest.raises(deeppcr.ArgumentError, match="^dA's shape"):  # though nothing comes of it
            deeppcr.linear_chain_jvp(A, f, np.ones(7), structure="identity")
    with pytest.raises(deeppcr.ArgumentError, match=r"^A .*wanted 1\.0"):
        deeppcr.linear_chain(1.5, u, structure="identity")
    with pytest.raises(deeppcr.ArgumentError, match="^A's dtype"):
        deeppcr.linear_chain(np.ones(3, complex), u, structure="identity")


def test_empty_and_short(rng):
    assert deeppcr.linear_chain(np.zeros((0, 2, 2)), np.zeros((0, 2))).shape == (0, 2)
    assert deeppcr.linear_chain(np.zeros((5, 0, 2)), np.zeros((5, 0, 2))).shape == (5, 0, 2)
    A, b = np.full((1, 2, 2), np.nan), rng.normal(size=(1, 2))
    assert np.array_equal(deeppcr.linear_chain(A, b), b)  # without z0 the first transition is not read


def test_out(rng):
    A, b = rng.normal(size=(20, 3, 2, 2)) * 0.5, rng.normal(size=(20, 3, 2))
    wanted = deeppcr.linear_chain(A, b)
    place = np.empty_like(b)
    assert deeppcr.linear_chain(A, b, out=place) is place and np.array_equal(place, wanted)
    wide = np.zeros((20, 3, 5))[:, :, 1:3]
    assert deeppcr.linear_chain(A, b, out=wide) is wide and np.array_equal(wide, wanted)
    same = b.copy()
    assert deeppcr.linear_chain(A, same, out=same) is same and np.array_equal(same, wanted)
    frozen = np.empty_like(b)
    frozen.flags.writeable = False
    for bad in (np.empty((20, 3, 3)), np.empty((20, 3, 2), "f"), frozen, np.empty((20, 3, 4))[:, :, ::2], [1.0]):
        with pytest.raises(deeppcr.ArgumentError, match="^out"):
            deeppcr.linear_chain(A, b, out=bad)
    with pytest.raises(deeppcr.ArgumentError, match="memory"):
        deeppcr.linear_chain(A, b[::-1], out=b)


def test_out_between_other_numbers():
    """Arrays may lie between each other's numbers; a chunk may be a number of NumPy's."""
    A, both = np.full((5, 2), 0.5), np.ones((5, 2, 2))
    wanted = deeppcr.linear_chain(A, both[:, 1].copy())
    assert deeppcr.linear_chain(A, both[:, 1], out=both[:, 0]) is not None
    assert np.array_equal(both[:, 0], wanted) and np.array_equal(both[:, 1], np.ones((5, 2)))
    with pytest.raises(deeppcr.ArgumentError, match="shares memory"):
        deeppcr.linear_chain(A, both.reshape(5, 4)[:, :2], out=both.reshape(5, 4)[:, 1:3])
    for chunk in (3, np.int64(3), np.array(3)):
        assert np.array_equal(deeppcr.linear_chain(A, wanted, chunk=chunk), deeppcr.linear_chain(A, wanted))
        deeppcr.linear_chain_vjp(A, wanted, wanted, chunk=chunk)
    with pytest.raises(deeppcr.ArgumentError, match="chunk"):
        deeppcr.linear_chain(A, wanted, chunk=True)


def test_report():
    z, report = deeppcr.linear_chain(np.full((4096, 1), 0.5), np.ones((4096, 1)), scheme="pcr", report=True)
    assert report.scheme == "pcr" and report.depth <= 14 and report.compositions > 4096 and report.seconds > 0
    assert repr(report).startswith("pcr: ")


@pytest.mark.parametrize("structure", ["dense", "diagonal", "scalar", "block"])
@pytest.mark.parametrize("shared", [False, True])
def test_derivatives(rng, structure, shared):
    L, B, w = 12, 2, 4
    A = values_of(rng, structure, (1, 1) if shared else (L, B), w, np.float64)
    b, z0 = rng.normal(size=(L, B, w)), rng.normal(size=(B, w))
    run = lambda A, b, z0: deeppcr.linear_chain(A, b, z0, structure=structure)  # noqa: E731
    z = run(A, b, z0)
    g, steps = rng.normal(size=z.shape), [rng.normal(size=x.shape) for x in (A, b, z0)]
    h = 1e-6
    difference = (run(A + h * steps[0], b + h * steps[1], z0 + h * steps[2])
                  - run(A - h * steps[0], b - h * steps[1], z0 - h * steps[2])) / (2 * h)  # fmt: skip
    dz = deeppcr.linear_chain_jvp(A, z, *steps, z0=z0, structure=structure)
    assert np.abs(dz - difference).max() < 1e-7
    gradients = deeppcr.linear_chain_vjp(A, z, g, z0, structure=structure)
    assert [x.shape for x in gradients] == [A.shape, b.shape, z0.shape]
    assert np.isclose((dz * g).sum(), sum((x * y).sum() for x, y in zip(gradients, steps)), rtol=1e-10)


def test_derivatives_without_a_batch(rng):
    A, b = rng.normal(size=(30, 2, 2)) * 0.5, rng.normal(size=(30, 2))
    z, g = deeppcr.linear_chain(A, b), rng.normal(size=(30, 2))
    dA, db, dz0 = deeppcr.linear_chain_vjp(A, z, g)
    assert dA.shape == A.shape and db.shape == b.shape and dz0 is None
    tangent = rng.normal(size=A.shape)
    dz = deeppcr.linear_chain_jvp(A, z, dA=tangent)
    assert np.isclose((dz * g).sum(), (dA * tangent).sum(), rtol=1e-10)


@pytest.mark.parametrize("arguments, what", [
    ((np.zeros((5, 3, 2)), np.zeros((5, 2))), "A"),
    ((np.zeros((4, 2, 2)), np.zeros((5, 2))), "A"),
    ((np.zeros((5, 3, 2, 2)), np.zeros((5, 4, 2))), "A"),
    ((np.zeros((2, 2)), np.zeros((5, 4, 2))), "A"),
    ((np.zeros((5, 2, 2)), np.zeros((5, 2)), np.zeros(3)), "z0's shape"),
    ((np.zeros((5, 2)), np.zeros(5)), "b's shape"),
    ((np.zeros((5, 0)), np.zeros((5, 0))), "b's shape"),
])  # fmt: skip
def test_wrong_shapes_are_refused_in_words(arguments, what):
    with pytest.raises(deeppcr.ArgumentError) as caught:
        deeppcr.linear_chain(*arguments)
    assert isinstance(caught.value, ValueError) and caught.value.what == what and "wanted" in str(caught.value)


def test_a_report_is_drawn(monkeypatch):
    class Axes:
        def bar(self, names, heights):
            self.bars = dict(zip(names, heights))

        def set(self, **options):
            self.options = options

    _, report = deeppcr.linear_chain(np.full((50, 2), 0.5), np.ones((50, 2)), scheme="pcr", report=True)
    axes = Axes()
    assert report.plot(axes) is axes and axes.options["title"].startswith("pcr")
    assert axes.bars == {"products": report.compositions, "applications": report.applications, "dependent steps": report.depth}
    pyplot = SimpleNamespace(subplots=lambda: (None, Axes()))  # without axes a new figure's
    monkeypatch.setitem(sys.modules, "matplotlib", SimpleNamespace(pyplot=pyplot))
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", pyplot)
    assert report.plot().bars == axes.bars


def test_wrong_options_are_refused_in_words():
    A, b = np.zeros((5, 2, 2)), np.zeros((5, 2))
    for options, what in (({"scheme": "magic"}, "scheme"), ({"structure": "magic"}, "structure"), ({"chunk": -1}, "chunk")):
        with pytest.raises(deeppcr.ArgumentError) as caught:
            deeppcr.linear_chain(A, b, **options)
        assert caught.value.what == what and caught.value.got is not None and caught.value.wanted
    with pytest.raises(deeppcr.UnsupportedError, match="transposed"):
        deeppcr.linear_chain(A, b, np.zeros(2), transposed=True)
    for _ in range(2):  # beside a kept call whose options are equal
        deeppcr.linear_chain(A, b, transposed=True, chunk=2)
        deeppcr.linear_chain_vjp(A, b, b, chunk=2)
        for call in (lambda: deeppcr.linear_chain(A, b, transposed=1.0, chunk=2), lambda: deeppcr.linear_chain(A, b, transposed=True, chunk=2.0),
                     lambda: deeppcr.linear_chain_vjp(A, b, b, chunk=2.0)):  # fmt: skip
            with pytest.raises(deeppcr.ArgumentError, match="transposed is 1.0|chunk is 2.0"):
                call()
    with pytest.raises(MemoryError):
        deeppcr.linear_chain(np.broadcast_to(0.5, (1 << 40, 1)), np.broadcast_to(1.0, (1 << 40, 1)))
