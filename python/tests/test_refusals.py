# SPDX-License-Identifier: MIT
"""What is wrong with an argument is said in one exception, which names it, what it is and what it should be."""
import decimal
import fractions
import pickle

import numpy as np
import pytest

import deeppcr
from deeppcr import recurrent, signal

A, B, X = np.full((4, 2, 2), 0.3, "f"), np.ones((4, 2), "f"), np.ones((3, 9))
SOS = np.array([[1, 0, 0, 1, 0.5, 0]])
LONG = np.longdouble  # which is no more than float64 on some machines
MASKED = np.ma.masked_array(B, mask=B > 0)
TEXT, OBJECTS, COMPLEX = np.full((4, 2), "a"), np.full((4, 2), None), np.ones((4, 2)) * 1j
chain, solve, net = deeppcr.linear_chain, deeppcr.solve, recurrent.GRU(2, 3)


def half(z, l):
    return 0.5 * z


def blocks(z, l):
    return np.zeros((len(z), 1, 2, 2))


REFUSED = [
    *([] if LONG(0).itemsize == 8 else [
        (lambda: signal.sosfilt(SOS, X.astype(LONG)), "x's dtype"), (lambda: signal.sosfilt(SOS.astype(LONG), X), "sos's dtype"),
        (lambda: signal.sosfilt(SOS, X + X.astype(LONG) * 1j), "x's dtype"), (lambda: signal.lfilter([1.0], np.ones(2, LONG), X), "a's dtype"),
        (lambda: signal.sosfilt(SOS, X, zi=np.zeros((1, 3, 2), LONG)), "zi's dtype"), (lambda: signal.lfilter_vjp([1.0], [1.0], X, X.astype(LONG)), "gy's dtype"),
        (lambda: signal.sosfilt_vjp(SOS, X.astype(LONG), X), "x's dtype"), (lambda: solve(half, B[0].astype(LONG), 5), "z0's dtype"),
        (lambda: solve(lambda z, l: z.astype(LONG), B[0], 5), "what step returned's dtype"), (lambda: chain(A, B.astype(LONG)), "b's dtype"), (lambda: net(np.ones((5, 1, 2), LONG)), "x's dtype")]),
    *[(lambda b=b: chain(A, b), "b's dtype") for b in (TEXT, OBJECTS, COMPLEX, B.astype("M8[s]"), np.zeros((4, 2), [("a", "f4")]))],
    (lambda: chain(A, MASKED), "b"), (lambda: chain(A, B, out=np.ma.masked_array(B.copy())), "out"),
    (lambda: solve(lambda z, l: np.ma.masked_array(z, mask=True), B[0], 5), "what step returned"), (lambda: signal.sosfilt(SOS, MASKED), "x"),
    (lambda: net(np.ma.masked_array(np.ones((5, 1, 2)), mask=True)), "x"),
    (lambda: chain(A, B, report="no"), "report"), (lambda: net(np.ones((5, 1, 2)), training="no"), "training"),
    *[(lambda t=t: chain(A, B, transposed=t), "transposed") for t in ("no", None, np.array([1, 0]), 2)],
    *[(lambda o=o: recurrent.GRU(2, 3, **{o: "no"}), o) for o in ("bias", "bidirectional")], (lambda: solve(half, B[0], 5, fallback="no"), "fallback"),
    (lambda: solve(half, B[0], 5, kinks=2), "kinks"), (lambda: solve(half, B[0], 5, kinks="some"), "kinks"), (lambda: deeppcr.plan("linear", length=5, kinks=True), "an option"),
    *[(lambda s=s: recurrent.GRU(2, 3, seed=s), "seed") for s in ("x", -1, 1.5)], (lambda: deeppcr.plan("linear", length=5, transposed="no"), "transposed"),
    (lambda: chain(COMPLEX, B), "A's dtype"), (lambda: chain(A, B, np.full(2, "a")), "z0's dtype"),
    (lambda: chain([[1], [1, 2]], B), "A"), (lambda: chain(A, B, scheme=["pcr"]), "scheme"), (lambda: chain(A, B, scheme=None), "scheme"),
    (lambda: chain(A, B, structure=["dense"]), "structure"), (lambda: chain(A, B, chunk="4"), "chunk"),
    (lambda: chain(A, B, chunk=2.5), "chunk"), (lambda: chain(A, B, chunk=-1), "chunk"), (lambda: chain(A, B, chunk=1 << 70), "chunk"),
    (lambda: chain(A, B, B[0], True), "z0"), (lambda: deeppcr.linear_chain_vjp(A, COMPLEX, B), "z's dtype"),
    (lambda: deeppcr.linear_chain_vjp(A, TEXT, B), "z's dtype"), (lambda: deeppcr.linear_chain_vjp(A, B, None), "g's dtype"),
    (lambda: deeppcr.linear_chain_vjp(A, B, B, scheme=["pcr"]), "scheme"),
    (lambda: deeppcr.linear_chain_vjp(A, B, B[:2]), "z's shape"), (lambda: deeppcr.linear_chain_vjp(A, B[:2], B), "z's shape"),
    (lambda: deeppcr.linear_chain_jvp(A, B, np.zeros(7)), "dA's shape"), (lambda: deeppcr.linear_chain_jvp(A, B, None, A), "db's shape"),
    (lambda: deeppcr.linear_chain_jvp(A, B, dz0=np.zeros(3)), "dz0's shape"), (lambda: deeppcr.linear_chain_jvp(A, B, "x"), "dA's dtype"),
    *[(lambda o=o: chain(A, B, out=o), "out") for o in (B[:3], B.astype(float), np.broadcast_to(B[0], (4, 2)), [1])],
    *[(lambda n=n: solve(half, B[0], n), "length") for n in (2.5, "5", None, -1, 1 << 70)],
    *[(lambda z=z: solve(half, z, 5), "z0's dtype") for z in (TEXT, None, COMPLEX)],
    *[(lambda r=r: solve(lambda z, l: r(z), B[0], 5), "what step returned") for r in (lambda z: z[0], lambda z: None, lambda z: [[1], [1, 2]])],
    *[(lambda k=k: solve(lambda z, l: z.astype(k), B[0], 5), "what step returned's dtype") for k in ("U5", "c16")],
    (lambda: solve(half, B[0], 5, 3), "jacobian"), (lambda: solve(half, B[0], 5, method=["newton"]), "method"),
    (lambda: solve(half, B[0], 5, structure=np.array(["dense", "scalar"])), "structure"),
    (lambda: solve(half, B[0], 5, guess=np.ones(3)), "guess's shape"), (lambda: solve(half, B[0], 5, guess=None), "guess"),
    (lambda: solve(half, B[0], 5, guess="given"), "guess"), (lambda: solve(half, B[0], 5, guess="none"), "guess"),
    (lambda: deeppcr.plan(half, B[0], 5, guess="given").solve(B[0]), "guess"),
    *[(lambda g=g: deeppcr.plan(half, B[0], 5, guess=g).solve(B[0], np.ones((5, 2))), "guess") for g in ("zero", "step", "state")],
    (lambda: solve(half, B[0], 5, progress=3), "progress"),
    *[(lambda v=v: solve(half, B[0], 5, **{v[0]: v[1]}), v[0]) for v in (
        ("atol", "x"), ("window", 1.5), ("chunk", "a"), ("warm_up", -1), ("memory_limit", -1), ("max_sweeps", 1 << 40), ("atol", -1e-9),
        ("rtol", -1), ("rtol", float("nan")), ("damping", -0.5), *((name, value) for name in ("atol", "rtol", "damping") for value in (
            float("inf"), "1e-3", b"1", True, np.True_, np.array("1e-3"), 10**400, 1j, np.complex128(1), None)))],
    *[(lambda k=k: solve(half, B[0], 5, blocks, structure="block", block=k), "block") for k in (0, 3)],
    (lambda: deeppcr.plan("linear", length=5, window=3), "an option"), (lambda: deeppcr.plan("linear", length=5, dtype="none"), "dtype"),
    (lambda: deeppcr.solve("linear", np.zeros(3), 15), "step"), (lambda: deeppcr.plan("linear", np.zeros(3), 5), "an option"),
    (lambda: deeppcr.plan("linear", length=5, method="newton"), "an option"), (lambda: deeppcr.plan("linear", length=5, fallback=False), "an option"),
    *[(lambda o=o: deeppcr.solve(lambda z, l: z, np.zeros(3), 5, **o), "an option") for o in ({"width": 7}, {"batch": 2}, {"dtype": "f4"}, {"transposed": True})],
    (lambda: deeppcr.plan("linear", length=5.0), "length"), (lambda: deeppcr.plan("nonlinear"), "the chain"),
    *[(lambda n=n: deeppcr.set_threads(n), "threads") for n in ("2", 1.5, None, -1, 1 << 20)],
    *[(lambda x=x: signal.sosfilt(SOS, x), "x's dtype") for x in (np.full((3, 9), "a"), np.full((3, 9), None))],
    *[(lambda n=n: signal.sosfilt(SOS, X, n), "axis") for n in (None, "0", 0.5, 2, -3)],
    (lambda: signal.sosfilt(SOS * 1j, X), "sos's dtype"), (lambda: signal.sosfilt(SOS, X, zi=np.full((1, 3, 2), "a")), "zi's dtype"),
    (lambda: signal.lfilter(np.ones(130), [1.0], X), "b's shape"), (lambda: signal.lfilter([1.0], np.ones((1, 2)), X), "a's shape"),
    (lambda: signal.lfilter([1j], [1.0], X), "b's dtype"), (lambda: signal.lfilter_vjp([1j], [1.0], X, X), "b's dtype"),
    (lambda: signal.lfilter_vjp([1.0], [1.0], X * 1j, X), "x's dtype"), (lambda: signal.sosfilt_vjp(SOS, X, X, "a"), "axis"),
    *[(lambda x=x: net(x), "x's dtype") for x in (np.full((5, 1, 2), "a"), np.ones((5, 1, 2)) * 1j)],
    *[(lambda n=n: net(np.ones((5, 1, 2)), lengths=n), what) for n, what in (([1.5], "lengths"), ([6], "lengths[0]"), ([-1], "lengths[0]"), ([1, 2], "lengths"))],
    (lambda: net.load_state_dict(None), "the state"), (lambda: net.load_state_dict({}), "the parameters' names"),
    (lambda: net.load_state_dict({n: v * 1j for n, v in net.state_dict().items()}), "weight_ih_l0's dtype"),
    *[(lambda a=a: recurrent.GRU(*a), what) for a, what in (((2.5, 3), "inputs"), (("2", 3), "inputs"), ((2, 0), "hidden"), ((2, 1 << 20), "hidden"),
                                                            ((2, 3, 1 << 40), "layers"), ((2, 3, None), "layers"))],
    *[(lambda s=s: deeppcr.linear_attention(*[np.ones((1, 2, 1, 2))] * 3, scale=s), "scale") for s in ("0.5", True, np.False_, 10**400, 10**5000, -(10**400))],
    (lambda: chain(A, B, chunk=10**5000), "chunk"), (lambda: chain(A, B, scheme=10**5000), "scheme"), (lambda: chain(A, B, report=10**5000), "report"),
    *[(lambda o=o: deeppcr.plan("linear", length=4, width=0, **o), "width") for o in ({}, {"structure": "diagonal"}, {"structure": "identity"})],
    *[(lambda m=m: setattr(net, "method", m), "method") for m in ("foo", ["auto"], None)],
    (lambda: recurrent.GRU(2, 3, dtype=None), "dtype"), (lambda: deeppcr.plan("linear", length=5, dtype=None), "dtype"),
    (lambda: recurrent.GRU(2, 3, dtype="none"), "dtype"), (lambda: recurrent.GRU(2, 3, method=["auto"]), "method"),
]  # fmt: skip


@pytest.mark.filterwarnings("error")  # numbers that are cut to real ones would warn
@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refusals_name_what_is_wrong(number):
    call, what = REFUSED[number]
    with pytest.raises(deeppcr.Error) as caught:
        call()
    assert caught.value.what == what and caught.value.wanted and "wanted" in str(caught.value)
    assert caught.value.got is not None or "None" in str(caught.value)


@pytest.mark.parametrize("call", [
    lambda: chain(np.float32(0.5), np.broadcast_to(np.float32(1), (1 << 45, 2))),
    lambda: solve(half, B[0], 1 << 50), lambda: solve(half, B[0], 1 << 62), lambda: net(np.broadcast_to(X[0, 0], (1 << 45, 1, 2))),
    *(lambda f=f, n=n: f(np.broadcast_to(np.float32(1), (n, 1))) for n in (1 << 45, 1 << 60) for f in (
        lambda x: chain(np.float32(0.5), x, np.ones(1)), lambda x: deeppcr.linear_chain_vjp(np.float32(0.5), x, x),
        lambda x: deeppcr.linear_chain_jvp(np.float32(0.5), x, db=x), lambda x: signal.sosfilt(SOS, x, 0), lambda x: signal.sosfilt(SOS.astype("f"), x[:, 0]),
        lambda x: signal.lfilter_vjp([1.0], [1.0, 0.5], x[:, 0], x[:, 0]), lambda x: recurrent.GRU(1, 1)(x, training=True),
        lambda x: solve(half, x[0], len(x) // 4, guess=x[: len(x) // 4]), lambda x: solve(half, x[:, 0], 1),
        lambda x: deeppcr.selective_scan(*[x.reshape(1, 1, -1)] * 2, -np.ones((1, 1)), *[x.reshape(1, 1, -1)] * 2))),
    lambda: recurrent.GRU(1 << 30, 16384), lambda: recurrent.GRU(16384, 16384, 4096, bidirectional=True, dtype=np.float64), lambda: signal.sosfilt(SOS, np.broadcast_to(X[0, 0], (1 << 45, 2))),
])  # fmt: skip
def test_results_that_no_memory_holds(call):
    with pytest.raises(deeppcr.OutOfMemory):
        call()


LENGTHS = np.ones((3, 2000, 2), "f")


@pytest.mark.parametrize("call, said", [
    (lambda: chain(A, B, chunk=np.ones((50, 50))), "chunk is an array (50, 50) of float64; wanted "),
    (lambda: chain(A, B, B[0], np.ones((50, 50))), "transposed is an array (50, 50) of float64; wanted "),
    (lambda: chain(A, B, scheme=["pcr"] * 2000), "scheme is ['pcr', 'pcr', "), (lambda: chain(A, B, structure=np.ones(2)), "structure is an array (2,) of "),
    (lambda: solve(np.ones((50, 50)), B[0], 5), "step is an array (50, 50) of float64; wanted "),
    (lambda: deeppcr.plan(np.ones((50, 50)), B[0], 5), "step is an array"), (lambda: solve(half, B[0], 5, [0] * 2000), "jacobian is [0, 0, "),
    (lambda: solve(half, B[0], 5, progress=np.ones((50, 50))), "progress is an array"), (lambda: recurrent.GRU(2, 3, seed=np.ones((50, 50)) - 2), "seed is an array"),
    (lambda: recurrent.GRU(2, 3, dtype=np.ones((50, 50))), "dtype is an array"), (lambda: solve(half, B[0], 5, atol=np.ones((50, 50))), "atol is an array"),
    (lambda: net(LENGTHS, lengths=list(range(2000))), "lengths[4] is 4; wanted a whole number in 0..3"),
    (lambda: net(LENGTHS, lengths=np.uint64(1 << 63) + np.arange(2000, dtype="u8")), "lengths[0] is 9223372036854775808; wanted "),
    (lambda: net(LENGTHS, lengths=np.arange(2000.0)), "lengths is an array (2000,) of float64; wanted 2000 whole numbers in 0..3"),
    (lambda: net(LENGTHS, lengths=list(range(3000))), "lengths is [0, 1, "), (lambda: signal.sosfilt(np.tile([1.0, 0, 0, 2, 0, 0], (100, 1)), X), "sos[0, 3] is 2.0; wanted 1"),
])  # fmt: skip
def test_what_is_wrong_is_said_in_a_line(call, said):
    with pytest.raises(deeppcr.ArgumentError) as caught:
        call()
    text = str(caught.value)
    assert text.startswith(said) and "\n" not in text and len(text) < 250
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


def test_numbers_of_any_kind_are_taken():
    q = np.ones((1, 2, 1, 2))
    wanted = deeppcr.linear_attention(q, q, q, scale=2.0)
    for scale in (2, np.float32(2), np.int64(2), np.array(2.0), np.array(2), fractions.Fraction(2), decimal.Decimal(2)):
        assert np.array_equal(deeppcr.linear_attention(q, q, q, scale=scale), wanted)


def test_what_is_not_masked_is_taken():
    whole = np.ma.masked_array(B, mask=np.zeros(B.shape, bool))
    z = chain(A, whole, transposed=np.bool_(False))
    assert type(z) is np.ndarray and np.array_equal(z, chain(A, B, transposed=0)) and np.array_equal(chain(A, whole, transposed=1), chain(A, B, None, True))


def test_a_guess_may_be_a_list():
    found = solve(half, B[0], 3, guess=[[1, 1], [0, 0], [1, 1]])
    assert np.array_equal(found.z[:, 0], [0.5, 0.25, 0.125])


def test_a_plan_takes_a_guess_where_it_was_made_for_one():
    made = deeppcr.plan(half, B[0], 3, guess="given")
    for _ in range(2):
        assert np.array_equal(made.solve(B[0], np.ones((3, 2))).z[:, 0], [0.5, 0.25, 0.125])


def test_states_of_one_channel_serve_all_where_scipy_has_it_so():
    b, a, zi = [1.0, 0.5], [1.0, -0.3], np.array([[0.7]])
    wanted, last = signal.lfilter(b, a, X, zi=np.repeat(zi, 3, 0))
    arrays = np.array(b), np.array(a)
    for coefficients in ((b, a), arrays, arrays, arrays):  # arrays that look alike are known from the second call on
        y, zf = signal.lfilter(*coefficients, X, zi=zi)
        assert y.shape == wanted.shape and zf.shape == last.shape
        assert np.array_equal(y, wanted) and np.array_equal(zf, last)


def test_states_of_no_order_keep_their_shape():
    b = a = np.ones(1)
    for zi in (np.zeros((1, 0)), np.zeros((3, 0))):
        for _ in range(2):
            y, zf = signal.lfilter(b, a, X, zi=zi)
            assert np.array_equal(y, X) and zf.shape == (3, 0)
    with pytest.raises(deeppcr.ArgumentError):
        signal.sosfilt(SOS, X, zi=np.zeros((1, 1, 2)))
