# SPDX-License-Identifier: MIT
import concurrent.futures
import copy
import ctypes
import pickle

import numpy as np
import pytest

import deeppcr
from deeppcr import _abi, _engine, _library, _ready, recurrent

KINDS = [recurrent.RNN, recurrent.RNNReLU, recurrent.GRU, recurrent.LSTM]


def sigmoid(u):
    return 1 / (1 + np.exp(-u))


def cell(kind, u, v, h, c):
    """(h', c') from u = W_ih x + b_ih and v = W_hh h + b_hh."""
    if kind == "gru":
        (ur, uz, un), (vr, vz, vn) = np.split(u, 3, -1), np.split(v, 3, -1)
        r, z = sigmoid(ur + vr), sigmoid(uz + vz)
        return (1 - z) * np.tanh(un + r * vn) + z * h, c
    if kind == "lstm":
        i, f, g, o = np.split(u + v, 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c
    return (np.tanh(u + v) if kind == "rnn_tanh" else np.maximum(u + v, 0)), c


def definition(net, x, h0, c0, lengths):
    f, p = net.form, net.state_dict()
    T, B = x.shape[:2]
    hT, cT = np.zeros_like(h0), np.zeros_like(h0)
    for layer in range(f.layers):
        ys = []
        for d in range(f.directions):
            end, n = f"_l{layer}" + ("_reverse" if d else ""), layer * f.directions + d
            bias = lambda name: p.get(name + end, 0)  # noqa: B023,E731
            y = np.zeros((T, B, f.hidden))
            for b in range(B):
                h, c = h0[n, b], c0[n, b]
                order = range(lengths[b]) if d == 0 else range(lengths[b] - 1, -1, -1)
                for t in order:
                    u = p["weight_ih" + end] @ x[t, b] + bias("bias_ih")
                    h, c = cell(f.kind, u, p["weight_hh" + end] @ h + bias("bias_hh"), h, c)
                    y[t, b] = h
                hT[n, b], cT[n, b] = h, c
            ys.append(y)
        x = np.concatenate(ys, -1)
    return x, hT, cT


@pytest.mark.parametrize("options", [{}, {"layers": 2, "bidirectional": True}, {"bias": False, "layers": 3}])
@pytest.mark.parametrize("Kind", KINDS)
@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 1e-5), (np.float64, 1e-12)])
def test_is_its_definition(rng, Kind, options, dtype, tolerance):
    net = Kind(4, 5, dtype=dtype, **options)
    T, B, N = 9, 3, net.form.layers * net.form.directions
    x, h0, c0 = (rng.normal(size=s).astype(dtype) for s in ((T, B, 4), (N, B, 5), (N, B, 5)))
    lstm = Kind is recurrent.LSTM
    for lengths in (None, [9, 4, 0]):
        y, state = net(x, (h0, c0) if lstm else h0, lengths)
        wanted = definition(net, x.astype("f8"), h0.astype("f8"), c0.astype("f8"), lengths or [T] * B)
        for got, right in zip((y, *(state if lstm else (state,))), wanted):
            assert got.dtype == dtype and np.abs(got - right).max() < tolerance
    single, _ = net(x[:, 0], (h0[:, 0], c0[:, 0]) if lstm else h0[:, 0])
    assert single.shape == (T, 5 * net.form.directions)
    assert np.array_equal(single, net(x, (h0, c0) if lstm else h0)[0][:, 0])  # alone as in the batch, bit for bit


@pytest.mark.parametrize("lengths", [None, [7, 3]])
@pytest.mark.parametrize("Kind", KINDS)
def test_gradients_are_differences(rng, Kind, lengths):
    net = Kind(3, 4, 2, bidirectional=True, dtype=np.float64, seed=3)
    lstm = Kind is recurrent.LSTM
    x, h0, c0 = (rng.normal(size=s) for s in ((7, 2, 3), (4, 2, 4), (4, 2, 4)))
    start = (h0, c0) if lstm else h0
    y, last = net(x, start, lengths, training=True)
    dy, dh, dc = rng.normal(size=y.shape), rng.normal(size=h0.shape), rng.normal(size=h0.shape)
    found = net.backward(dy, (dh, dc) if lstm else dh)

    def loss():
        y, last = net(x, start, lengths)
        return (y * dy).sum() + ((last[0] * dh + last[1] * dc).sum() if lstm else (last * dh).sum())

    pairs = [(x, found.x), *zip((h0, c0), found.h0 if lstm else (found.h0,))]
    pairs += [(net.state_dict()[name], g) for name, g in found.parameters.items()]
    for array, gradient in pairs:
        direction = rng.normal(size=array.shape)
        array += 1e-6 * direction
        above = loss()
        array -= 2e-6 * direction
        below = loss()
        array += 1e-6 * direction
        assert np.isclose((gradient * direction).sum(), (above - below) / 2e-6, rtol=2e-6, atol=1e-7)


def test_long_sequences_run_in_parallel_and_give_the_loop(rng):
    x = rng.normal(size=(6000, 1, 16)).astype("f")
    net = recurrent.GRU(16, 16, method="overlap")
    y, h = net(x, training=True)
    g = net.backward(np.ones_like(y))
    loop = recurrent.GRU(16, 16, method="sequential")
    wanted, last = loop(x, training=True)
    right = loop.backward(np.ones_like(y))
    assert "overlap" in net.sentences[0] and np.abs(y - wanted).max() < 1e-5 and np.abs(h - last).max() < 1e-5
    assert all(np.allclose(g.parameters[n], right.parameters[n], rtol=1e-3, atol=1e-2) for n in right.parameters)
    auto = recurrent.GRU(16, 16)
    assert np.abs(auto(x)[0] - wanted).max() < 1e-5 and auto.sentences


def test_several_passes_wait_for_their_backward(rng):
    from deeppcr._engine import Engine

    net = recurrent.RNN(2, 3)
    engine = net._engine
    assert isinstance(engine, Engine)
    x = rng.normal(size=(4, 1, 2))
    net(x, training=True)
    net(x, training=True)  # the first is dropped
    net.backward(np.ones((4, 1, 3)))
    assert len(engine.free) == 1
    with pytest.raises(deeppcr.ArgumentError, match="training=True"):
        net.backward()


class Pressed:
    """Ctrl-C in the place where an address is written."""

    def __setattr__(self, name, value):
        raise KeyboardInterrupt


def test_addresses_that_a_ctrl_c_kept_from_being_written_are_written_later(rng, monkeypatch):
    """Where the work is too large for one call of the library with all addresses."""
    x, dy = rng.normal(size=(5, 2, 3)), rng.normal(size=(5, 2, 4))
    net = recurrent.GRU(3, 4, dtype=np.float64)
    net(x, training=True)
    wanted = net.backward(dy)
    monkeypatch.setattr(_library, "OWN_BYTES", 0)
    net = pickle.loads(pickle.dumps(net))
    y, _ = net(x, training=True)
    waiting = net._waiting
    (kept, at, _), plan = waiting.kept, waiting.plan
    assert plan.once is None
    y, dx, dh0 = kept["y"], np.zeros_like(x), np.zeros((1, 2, 4))
    flat = np.zeros_like(net._flat)
    rest = (dy.ctypes.data, 0, 0), (dx.ctypes.data, dh0.ctypes.data, 0), net._addresses(flat)
    own, plan.given = plan.given, [*plan.given[:2], Pressed()]
    with pytest.raises(KeyboardInterrupt):
        waiting.backward(*at, y.ctypes.data, *rest)
    plan.given = own
    waiting.backward(*at, y.ctypes.data, *rest)
    assert np.array_equal(dx, wanted.x) and np.array_equal(dh0, wanted.h0)
    assert all(np.array_equal(g, wanted.parameters[n]) for n, g in net._parts(flat).items())
    places = [64 * k for k in range(1, 8)]
    own, plan.arrays = plan.arrays, [*plan.arrays[:2], Pressed()]
    with pytest.raises(KeyboardInterrupt):
        plan.fill(*places)
    plan.arrays = own
    plan.fill(*places)
    x_at, h0_at, c0_at, lengths_at, y_at, ht_at, ct_at = places
    assert [array.data for array in own] == [x_at, h0_at, c0_at, y_at, ht_at, ct_at] and plan.run.lengths == lengths_at


@pytest.mark.parametrize("Kind", [recurrent.GRU, recurrent.LSTM, recurrent.MinGRU])
def test_large_work_and_small_have_the_same_numbers(rng, monkeypatch, Kind):
    x, state = rng.normal(size=(5, 2, 3)).astype("f"), rng.normal(size=(4, 2, 4)).astype("f")
    start = (state, -state) if Kind is recurrent.LSTM else state

    def passes():
        net = Kind(3, 4, 2, bidirectional=True)
        out = [net(x, start), net(x), net(x, start, [5, 3], training=True)]
        g = net.backward(np.ones_like(out[-1][0]), start)
        numbers = [*out, g.x, g.h0, *g.parameters.values()]
        return [np.array(a) for part in numbers for a in (part if isinstance(part, tuple) else (part,)) for a in (a if isinstance(a, tuple) else (a,))]

    small = passes()
    monkeypatch.setattr(_library, "OWN_BYTES", 0)
    assert all(np.array_equal(a, b) for a, b in zip(small, passes()))


@pytest.mark.parametrize("Kind", [recurrent.GRU, recurrent.LSTM])
def test_what_the_caller_writes_after_a_pass_is_not_the_passs(rng, Kind):
    """Whoever fills one buffer again and again has the gradients of what was in it."""
    net, lstm = Kind(3, 4, dtype=np.float64), Kind is recurrent.LSTM
    x, lengths, dy = rng.normal(size=(7, 2, 3)), np.array([7, 4]), rng.normal(size=(7, 2, 4))
    state = [rng.normal(size=(1, 2, 4)) for _ in range(2 if lstm else 1)]
    h0 = tuple(state) if lstm else state[0]
    net(x.copy(), copy.deepcopy(h0), lengths.copy(), training=True)
    wanted = net.backward(dy)
    net(x, h0, lengths, training=True)
    for array in (x, *state, lengths):
        array[...] = 1
    found = net.backward(dy)
    np.testing.assert_array_equal(found.x, wanted.x)
    np.testing.assert_array_equal(found.h0, wanted.h0)
    for name, gradient in wanted.parameters.items():
        np.testing.assert_array_equal(found.parameters[name], gradient)


def test_a_way_back_that_was_cut_off_is_over(rng, monkeypatch):
    """It had used up what its pass left, or some of it."""
    net, x, dy = recurrent.GRU(3, 4), rng.normal(size=(5, 2, 3)), rng.normal(size=(5, 2, 4))
    net(x, training=True)
    run = _ready._run
    monkeypatch.setattr(_ready, "_run", lambda *a: run(*a) or _abi.CONSTANTS["DPCR_ERROR_MEMORY"])
    with pytest.raises(deeppcr.OutOfMemory):
        net.backward(dy)
    monkeypatch.undo()
    with pytest.raises(deeppcr.ArgumentError, match="without a pass"):
        net.backward(dy)


@pytest.mark.parametrize("small", [True, False])
def test_a_pass_on_its_way_back_is_no_other_threads(rng, monkeypatch, small):
    """While the library is at work other threads call the same network."""
    monkeypatch.setattr(_library, "OWN_BYTES", _library.OWN_BYTES if small else 0)
    net, x, dy = recurrent.GRU(3, 4), rng.normal(size=(5, 2, 3)), rng.normal(size=(5, 2, 4))
    owner, name = (_ready, "_run") if small else (_engine, "_backward")
    run = getattr(owner, name)

    def other():
        with pytest.raises(deeppcr.ArgumentError, match="without a pass"):
            net.backward(dy)
        net(-x, training=True)

    def meanwhile(*arguments):
        monkeypatch.setattr(owner, name, run)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(other).result()
        return run(*arguments)

    wanted = []
    for given in (x, -x):
        net(given, training=True)
        wanted.append(net.backward(dy))
    net(x, training=True)
    monkeypatch.setattr(owner, name, meanwhile)
    for right in wanted:
        found = net.backward(dy)
        assert np.array_equal(found.x, right.x) and all(np.array_equal(g, right.parameters[n]) for n, g in found.parameters.items())
    free = net._engine.free
    assert len(free) == len({id(slot) for slot in free}) == 2


def test_state_dict(rng):
    a, b = recurrent.LSTM(3, 4, seed=1), recurrent.LSTM(3, 4, seed=2)
    x = rng.normal(size=(5, 3)).astype("f")
    assert not np.array_equal(a(x)[0], b(x)[0])
    b.load_state_dict(a.state_dict())
    assert np.array_equal(a(x)[0], b(x)[0]) and list(a.state_dict()) == ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    with pytest.raises(deeppcr.ArgumentError, match="^the parameters come without bias_ih_l0 and with bias; wanted weight_ih_l0, "):  # what differs
        a.load_state_dict({"bias" if name == "bias_ih_l0" else name: value for name, value in a.state_dict().items()})
    with pytest.raises(deeppcr.ArgumentError, match="weight_hh_l0's shape"):
        a.load_state_dict({**a.state_dict(), "weight_hh_l0": np.zeros((2, 2))})


def test_blocks_want_pairs_of_units():
    """Which the refusal tells in words of who called, of the network's own size; a state of h and c is one whatever it is."""
    x = np.zeros((4, 1, 2))
    recurrent.GRU(2, 4, method="block")(x)
    recurrent.LSTM(2, 5, method="block")(x)
    with pytest.raises(deeppcr.UnsupportedError, match="^method is 'block'; .* 5$") as caught:
        recurrent.GRU(2, 5, method="block")(x)
    assert caught.value.what == "method"


def test_refusals(rng):
    net = recurrent.LSTM(3, 4)
    x = np.zeros((5, 2, 3), "f")
    for call, what in ((lambda: net(x[..., :2]), "x's shape"), (lambda: net(x, np.zeros((1, 2, 4))), "h0"),
                       (lambda: net(x, (np.zeros((1, 2, 5)), np.zeros((1, 2, 4)))), "h0's shape"),
                       (lambda: net(x, None, [5, 6]), "lengths[1]"), (lambda: recurrent.GRU(3, 0), "hidden"),
                       (lambda: recurrent.GRU(3, 4, dtype="i4"), "dtype"), (lambda: recurrent.GRU(3, 4, method="x"), "method")):
        with pytest.raises(deeppcr.ArgumentError) as caught:  # fmt: skip
            call()
        assert caught.value.what == what
    assert net(x[:0])[0].shape == (0, 2, 4) and net(x[:, :0])[0].shape == (5, 0, 4)


@pytest.mark.parametrize("kind", [recurrent.RNN, recurrent.RNNReLU, recurrent.GRU, recurrent.LSTM, recurrent.ParaGRU, recurrent.ParaLSTM,
                                  recurrent.MinGRU])  # fmt: skip
@pytest.mark.parametrize("bias", [True, False])
def test_parameters_are_the_librarys(kind, bias):
    """Names, shapes and order as the library tells them."""
    from deeppcr import _abi, _library

    net = kind(3, 4, 2, bias=bias, bidirectional=True)
    slot = net._engine.acquire()
    network = slot.network.address
    found = []
    for i in range(_library.lib.dpcr_recurrent_parameter_count(network)):
        name, view = ctypes.create_string_buffer(64), _abi.Array()
        assert _library.lib.dpcr_recurrent_parameter(network, i, ctypes.addressof(name), 64, ctypes.byref(view), None, None) == 0
        found.append((name.value.decode(), tuple(view.shape[: view.ndim])))
    assert found == [(n, p.shape) for n, p in net.state_dict().items()]


@pytest.mark.parametrize("Kind", [recurrent.GRU, recurrent.ParaLSTM])
def test_copies_and_pickles_stand_alone(rng, Kind):
    net, x = Kind(3, 4, 2, bidirectional=True), rng.normal(size=(6, 2, 3)).astype("f")
    y, _ = net(x, training=True)  # a pass under way stays behind
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert np.array_equal(other(x)[0], y) and other.method == net.method
        other.state_dict()["weight_ih_l0"][...] = 0
        assert not np.array_equal(other(x)[0], y) and np.array_equal(net(x)[0], y)
        with pytest.raises(deeppcr.ArgumentError, match="without a pass"):
            other.backward(y)


def test_lengths_that_are_no_whole_numbers_are_told_so(rng):
    with pytest.raises(deeppcr.ArgumentError, match=r"lengths is an array \(2,\) of float64; wanted 2 whole numbers in 0\.\.4"):
        recurrent.GRU(3, 4)(rng.normal(size=(4, 2, 3)), None, np.array([3.0, 2.0]))


@pytest.fixture
def looks(monkeypatch):
    """The lengths over which the planner looked at a network."""
    found, keep = [], _engine._Slot.keep

    def told(slot, verdict):
        found.append(verdict.length)
        return keep(slot, verdict)

    monkeypatch.setattr(_engine._Slot, "keep", told)
    return found


def skip_if_busy(net):
    """Steps of networks are timed by the planner: where others take this machine's time the loop may be thought the faster."""
    if net.sentences[0].startswith("sequential") and "what looked faster" not in net.sentences[0]:
        pytest.skip("the loop was found the faster on a busy machine")


@pytest.mark.parametrize("Kind", [recurrent.GRU, recurrent.LSTM])
@pytest.mark.parametrize("layers", [1, 2])
def test_passes_of_near_lengths_are_planned_by_one_look(rng, looks, Kind, layers):
    x = rng.normal(size=(1300, 1, 4)).astype("f")
    net, loop = (Kind(4, 8, layers, seed=1, method=method) for method in ("auto", "sequential"))
    for length in [600, *rng.permutation(np.arange(300, 1200))[:20], 1200]:
        for training in (False, True):
            y, _ = net(x[:length], training=training)
            wanted, _ = loop(x[:length], training=True)
            assert np.abs(y - wanted).max() < 1e-5
        assert "(of 600 steps)" in net.sentences[0] or length == 600
        dy = rng.normal(size=y.shape).astype("f")
        found, right = net.backward(dy).parameters, loop.backward(dy).parameters
        assert all(np.allclose(found[name], right[name], rtol=1e-3, atol=1e-2) for name in right)
    assert looks == [600, 600]  # for inference, and for training
    net(x)
    net(x[:900])
    assert looks == [600, 600, 1300]
    net(np.repeat(x, 2, 1))  # another batch
    assert looks == [600, 600, 1300, 1300]


def test_the_plans_that_were_used_last_are_kept(rng):
    x, net = rng.normal(size=(100, 1, 4)).astype("f"), recurrent.GRU(4, 8)
    net(x[:1])
    first = net._engine.last
    for length in range(2, 2 * _engine._PLANS):
        net(x[:length])
        net(x[:1])
        assert net._engine.last is first
    slot = net._engine.acquire()
    assert len(slot.plans) == _engine._PLANS and [*slot.plans][-1][0] == 1


@pytest.mark.usefixtures("by_price")
def test_a_network_that_learned_to_remember_is_looked_at_again(rng, looks):
    x = (rng.normal(size=(1000, 1, 4)) * 1e-3).astype("f")
    net, loop = (recurrent.RNN(4, 16, bias=False, seed=1, method=method) for method in ("auto", "sequential"))
    net(x[:600])
    skip_if_busy(net)
    net(x[:700])
    assert looks == [600] and net.sentences[0].startswith("overlap")
    keeps = np.linalg.qr(rng.normal(size=(16, 16)))[0] * 0.9999
    for other in (net, loop):
        other.state_dict()["weight_hh_l0"][...] = keeps
    for length in (800, 810, 820, 830):
        assert np.abs(net(x[:length])[0] - loop(x[:length])[0]).max() < 1e-6
    assert looks == [600, 820] and net.sentences[0].startswith("sequential")


def test_where_looking_is_of_no_use_the_loop_is_left(rng, looks):
    net, x = recurrent.GRU(4, 8, seed=1), rng.normal(size=(900, 1, 4)).astype("f")
    for length, count in ((600, 1), (700, 2)):
        y, _ = net(x[:length])
        slot = net._engine.acquire()
        (verdict,) = slot.verdicts
        assert looks[-1] == length and len(looks) == count
        verdict.worked, verdict.fallbacks = 1, 2  # as if it had been finished in order
        slot.drop(verdict)
        net._engine.release(slot)
    net(x[:800])
    assert net.sentences == ["sequential: what looked faster was finished in order time and again (of 700 steps)"]
    assert slot.verdict_on((800, 1, False, False, "auto")).at(800).method == 1


@pytest.mark.usefixtures("by_price")
def test_passes_that_forget_one_in_two_settle_on_the_loop(rng, looks):
    """The first input shuts the update gate: passes that do so after a quarter remember, and are those of the plans that did not look."""
    nets = [recurrent.GRU(4, 64, seed=1, method=method) for method in ("auto", "sequential")]
    for net in nets:
        net.state_dict()["weight_ih_l0"][64:128, 0] = 30
    for k in range(48):
        x = rng.normal(size=((600, 650, 700, 750)[k % 4], 1, 4)).astype("f")
        x[:, 0, 0] = 0 if k % 2 == 0 else np.arange(len(x)) >= len(x) // 4
        assert np.abs(nets[0](x)[0] - nets[1](x)[0]).max() < 1e-5
        skip_if_busy(nets[0])
    assert len(looks) == 3 and nets[0].sentences[0].startswith("sequential: what looked faster")  # two looks, and the loop


def test_a_verdict_fails_where_what_it_spares_does_not_pay():
    def told(text):
        plan = _engine._Plan.__new__(_engine._Plan)
        plan.verdict, plan.looked = _engine._Verdict((600, 1, False, False, "auto"), _engine._loop(), []), False
        answers = []
        for letter in text:
            plan.reports = [_abi.SolveReport(reason=_engine._FALLBACK if letter == "F" else 0)]
            answers.append(plan.learn())
        return answers.index(True) + 1 if True in answers else 0, plan.verdict.failed()

    assert told("FF") == (2, True) and told("wFwF" * 9)[0] == 6 and told("wwwwF" * 50) == (0, False)
    assert told("w" * 100 + "FF") == (102, False)  # served long: another look is worth it


def test_chains_for_which_different_ways_are_best_have_no_common_options():
    from deeppcr._abi import SolveOptions

    overlap, longer = SolveOptions(method=8, warm_up=50, chunk=99), SolveOptions(method=8, warm_up=70, chunk=80)
    loop, near = SolveOptions(method=1), SolveOptions(method=8, warm_up=50, chunk=99, join_tolerance=2e-6)
    assert _engine._common([overlap, loop]) is None and _engine._common([loop, overlap]) is None
    both = _engine._common([SolveOptions.from_buffer_copy(overlap), longer])
    assert (both.method, both.warm_up, both.chunk, both.join_tolerance) == (8, 70, 0, 0)
    for pair in ((overlap, near), (near, overlap)):  # the closer tolerance, and a warm-up for it
        both = _engine._common([SolveOptions.from_buffer_copy(one) for one in pair])
        assert (both.warm_up, both.chunk, both.join_tolerance) == (96, 99, 2e-6)
    key = (600, 1, False, False, "auto")
    verdict = _engine._Verdict(key, None, ["overlap: as it is", "sequential: as it is"])
    assert verdict.at(700).method == 1 and verdict.told() == ["sequential: what is best differs from chain to chain (of 600 steps)"] * 2
    long, edge = (_engine._Verdict((length, *key[1:]), None, []) for length in (6000, 2000))
    assert not long.holds((6000, *key[1:]))  # long ones are worth a look of their own
    assert edge.holds((2000, *key[1:])) and edge.holds((1000, *key[1:])) and not edge.holds((2001, *key[1:]))
    slot = recurrent.GRU(4, 8)._engine.acquire()
    assert slot.keep(edge) is edge and slot.keep(long) is long and slot.verdicts == [edge]
    assert _engine._Verdict(key, overlap, []).at(1100).chunk == 1100 // 6


@pytest.mark.parametrize("scale", [1, 1e-4])
@pytest.mark.parametrize("dtype, near", [("f", 1e-5), ("d", 1e-13)])
def test_overlap_is_within_roundings_of_small_states_too(rng, dtype, near, scale):
    x = (rng.normal(size=(4000, 1, 4)) * scale).astype(dtype)
    y = []
    for method in ("overlap", "sequential"):
        net = recurrent.RNN(4, 16, bias=False, seed=1, method=method, dtype=dtype)
        net.state_dict()["weight_hh_l0"][...] = np.linalg.qr(np.random.default_rng(5).normal(size=(16, 16)))[0] * 0.93
        y.append(net(x)[0])
    assert np.abs(y[0] - y[1]).max() < near * np.abs(y[1]).max()
