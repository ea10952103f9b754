# SPDX-License-Identifier: MIT
import copy
import pickle
import signal
import threading
import time

import numpy as np
import pytest

import deeppcr
from deeppcr import nonlinear
from deeppcr.nonlinear import METHODS


class Cell:
    """z' = tanh(W z + x_l), that forgets its past within some tens of steps."""

    def __init__(self, rng, length, width, batch=None, dtype=np.float64):
        self.W = (rng.normal(size=(width, width)) * 0.6 / np.sqrt(width)).astype(dtype)
        self.x = rng.normal(size=(length,) + (() if batch is None else (batch,)) + (width,)).astype(dtype)
        self.z0 = rng.normal(size=self.x.shape[1:]).astype(dtype)
        self.calls = 0

    def step(self, z, l, b=None):
        self.calls += 1
        assert z.ndim == 2 and len(z) == len(l)
        return np.tanh(z @ self.W.T + (self.x[l] if b is None else self.x[l, b]))

    def jacobian(self, z, l, b=None):
        return (1 - self.step(z, l, b) ** 2)[:, :, None] * self.W

    def loop(self):
        z, out = self.z0, []
        for x in self.x:
            z = np.tanh(z @ self.W.T + x)
            out.append(z)
        return np.array(out).reshape(self.x.shape)


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_equals_the_loop(rng, method, batch):
    cell = Cell(rng, 200, 4, batch)
    options = {"block": 2} if method == "block" else {}
    found = deeppcr.solve(cell.step, cell.z0, 200, cell.jacobian, method, **options)
    assert found.z.shape == cell.x.shape and np.abs(found.z - cell.loop()).max() < 1e-8
    assert found.report.converged and found.report.evaluations >= 200
    if method != "auto":
        assert found.report.method == method and repr(found.report).startswith(method)


@pytest.mark.parametrize("kinks", [True, "affine"])
@pytest.mark.parametrize("method", ["newton", "shooting"])
def test_beyond_a_kink_only_rounding_counts(method, kinks):
    """From the first guess, 0, where the unit is closed, nothing grows: 1e-12 is within the tolerance of it."""
    def step(z, l):
        return np.maximum(5 * z, 0)

    def jacobian(z, l):
        return 5.0 * (z > 0)

    loop = deeppcr.solve(step, [1e-12], 20, method="sequential").z
    options = {"structure": "diagonal", "method": method, "chunk": 2}
    found = deeppcr.solve(step, [1e-12], 20, jacobian, kinks=kinks, **options)
    assert np.allclose(found.z, loop, rtol=1e-12) and loop[-1] > 90
    assert not np.allclose(deeppcr.solve(step, [1e-12], 20, jacobian, **options).z, loop)  # or nothing is tested here


def half(z, l):
    return 0.5 * z + 1


def half_everywhere(z, l):
    return np.full(z.shape, 0.5)


def test_tolerances_of_zero_are_none():
    """Not the library's default, which 0 is there: chunks that begin 40 steps early are near the loop, and have to be run again."""
    loop, options = deeppcr.solve(half, [4.0], 400, method="sequential").z, {"method": "overlap", "chunk": 100, "warm_up": 40}
    near = deeppcr.solve(half, [4.0], 400, **options).z
    assert np.allclose(near, loop, rtol=0, atol=1e-10) and not np.array_equal(near, loop)
    assert np.array_equal(deeppcr.solve(half, [4.0], 400, atol=0, rtol=0.0, **options).z, loop)
    wide = deeppcr.solve(half, [4.0], 400, atol=0, rtol=2, warm_up=1, method="overlap", chunk=100).z
    assert np.abs(wide - loop).max() > 1e-3  # taken as given


@pytest.mark.parametrize("method", ["overlap", "jacobi"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("zero, other", [("atol", "rtol"), ("rtol", "atol")])
def test_a_tolerance_of_zero_alone_leaves_the_other_its_default(method, dtype, zero, other):
    options = {"method": method, **({"chunk": 100, "warm_up": 18 if dtype is np.float32 else 40} if method == "overlap" else {})}
    default = (1e-5 if dtype is np.float32 else 1e-10) * (0.1 if method == "jacobi" else 1)
    alone, both, none = (deeppcr.solve(half, np.array([4.0], dtype), 400, **options, **given)
                         for given in ({zero: 0}, {zero: 0, other: default}, {zero: 0, other: 0}))  # fmt: skip
    assert alone.z.dtype == dtype and np.array_equal(alone.z, both.z) and alone.report.evaluations == both.report.evaluations
    assert alone.report.evaluations < none.report.evaluations


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_solutions_reports_and_plans_are_copied_and_pickled(copied):
    plan = deeppcr.plan(half, [4.0, 8.0], 30, half_everywhere, "newton", structure="diagonal", window=10)
    found = plan.solve([4.0, 8.0])
    other = copied(plan)
    assert other.method == plan.method and np.array_equal(other.solve([4.0, 8.0]).z, found.z)
    same = copied(found)
    assert np.array_equal(same.z, found.z) and same.report.sweeps == found.report.sweeps and repr(same) == repr(found)
    if same._plan is None:
        with pytest.raises(deeppcr.ArgumentError, match="pickle"):
            same.vjp(found.z)
    else:
        assert np.array_equal(same.vjp(found.z)[0], found.vjp(found.z)[0])
    if copied is not copy.copy:
        assert not np.shares_memory(same.z, found.z)
    assert same.z.flags.writeable == (same._plan is None)
    A, b = np.full((9, 2), 0.5), np.ones((9, 2))
    report = deeppcr.linear_chain(A, b, report=True)[1]
    assert copied(report) == report
    linear = deeppcr.plan("linear", length=9, width=2, structure="diagonal", scheme="pcr", dtype="float32")
    assert (copied(linear).length, copied(linear).width, copied(linear).scheme) == (9, 2, "pcr")
    with pytest.raises(deeppcr.ArgumentError) as caught:
        deeppcr.linear_chain(A, b[:3])
    assert copied(caught.value).what == caught.value.what and str(copied(caught.value)) == str(caught.value)


class Model:
    """A step and Jacobian of its own, and the plan of them."""

    def __init__(self):
        self.weight = 0.5
        self.plan = deeppcr.plan(self.step, [4.0, 8.0], 30, self.jacobian, "newton", structure="diagonal")
        self.found = self.plan.solve([4.0, 8.0])

    def step(self, z, l):
        return self.weight * z + 1

    def jacobian(self, z, l):
        return np.full(z.shape, self.weight)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("copied", [copy.deepcopy, *(lambda x, p=p: pickle.loads(pickle.dumps(x, p)) for p in (0, 2, 5))])
def test_copies_of_plans_step_with_their_own_model(copied, whole):
    """Whichever is copied first, the model or its plan; none is run while it is half-made."""
    model = Model()
    before = model.found.z.copy()
    plan = copied(model).plan if whole else copied(model.plan)
    other = plan._made_of[0].__self__
    assert other is not model and other.plan is plan and plan is not model.plan and other.found.z is not model.found.z
    other.weight = 0.0
    assert np.array_equal(plan.solve([4.0, 8.0]).z, np.ones((30, 2))) and plan.method == "newton"
    assert np.array_equal(model.plan.solve([4.0, 8.0]).z, before)
    if copied is copy.deepcopy:
        assert other.found._plan is plan and np.abs(other.found.vjp(np.ones((30, 2)))[1]).max() == 0
    model.weight = 0.25
    assert np.array_equal(copied(copied(plan)).solve([4.0, 8.0]).z, np.ones((30, 2)))
    with pytest.raises(AttributeError):
        copied(plan).nothing


def test_threads_share_what_a_copied_plan_becomes():
    from concurrent.futures import ThreadPoolExecutor

    for _ in range(10):
        plan = copy.deepcopy(Model().plan)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: plan.solve([4.0, 8.0]).z, range(16)))  # noqa: B023
        assert all(np.array_equal(z, found[0]) for z in found)


def test_many_states_a_call(rng):
    cell = Cell(rng, 5000, 2)
    found = deeppcr.solve(cell.step, cell.z0, 5000, method="overlap")
    assert np.abs(found.z - cell.loop()).max() < 1e-12 and cell.calls < 1000


def test_float32_and_diagonal(rng):
    a, x = np.array([0.5, -0.9], np.float32), rng.normal(size=(300, 2)).astype("f")
    step = lambda z, l: np.sin(a * z) + x[l]  # noqa: E731
    found = deeppcr.solve(step, np.zeros(2, "f"), 300, lambda z, l: a * np.cos(a * z), "newton", structure="diagonal")
    z, wanted = np.zeros(2, "f"), []
    for l in range(300):
        z = np.sin(a * z) + x[l]
        wanted.append(z)
    assert found.z.dtype == np.float32 and np.abs(found.z - np.array(wanted)).max() < 1e-4
    assert found.report.sweeps > 1 and len(found.report.residual_history) >= found.report.sweeps
    turned = deeppcr.solve(step, np.zeros(2, ">f4"), 300, lambda z, l: a * np.cos(a * z), "newton", structure="diagonal").z
    assert turned.dtype == np.float32 and np.array_equal(turned, found.z)


@pytest.mark.parametrize("batch", [None, 2])
def test_adjoint(rng, batch):
    cell = Cell(rng, 40, 3, batch)
    found = deeppcr.solve(cell.step, cell.z0, 40, cell.jacobian)
    g = rng.normal(size=cell.x.shape)
    adjoint, dz0 = found.vjp(g)
    assert adjoint.shape == cell.x.shape and dz0.shape == cell.z0.shape
    direction, h = rng.normal(size=cell.x.shape), 1e-6
    before, losses = cell.x, []
    for sign in (1, -1):
        cell.x = before + sign * h * direction
        losses.append((cell.loop() * g).sum())
    cell.x = before
    slope = 1 - cell.loop() ** 2  # d(step)/dx
    assert np.isclose((adjoint * slope * direction).sum(), (losses[0] - losses[1]) / (2 * h), rtol=1e-6)


@pytest.mark.parametrize("method", ["newton", "shooting", "damped"])
def test_a_step_may_write_into_its_states(rng, method):
    """The Jacobian is asked for where the step was."""
    cell = Cell(rng, 300, 3)

    def step(z, l):
        z[:] = z @ cell.W.T
        z += cell.x[l]
        return np.tanh(z, out=z)

    own = deeppcr.solve(step, cell.z0, 300, cell.jacobian, method, fallback=False)
    apart = deeppcr.solve(cell.step, cell.z0, 300, cell.jacobian, method, fallback=False)
    np.testing.assert_allclose(own.z, cell.loop(), rtol=1e-7, atol=1e-9)
    assert own.report.sweeps == apart.report.sweeps


def test_vjp_is_of_the_state_that_was_given(rng):
    """Which the caller may have written into since, as who goes on from the last one does."""
    cell = Cell(rng, 50, 3)
    z0, g = cell.z0.copy(), rng.normal(size=(50, 3))
    found = deeppcr.solve(cell.step, z0, 50, cell.jacobian)
    _, wanted = found.vjp(g)
    z0[:] = found.z[-1]
    np.testing.assert_array_equal(found.vjp(g)[1], wanted)


@pytest.mark.parametrize("batch", [None, 2])
def test_states_that_vjp_reads_are_not_written_into(rng, batch):
    cell = Cell(rng, 50, 3, batch)
    found, g = deeppcr.solve(cell.step, cell.z0, 50, cell.jacobian), rng.normal(size=cell.x.shape)
    wanted = found.vjp(g)
    with pytest.raises(ValueError, match="read-only"):
        found.z[...] = 0
    found.z.copy()[...] = 0
    for again in (found.vjp(g), copy.copy(found).vjp(g)):
        assert all(np.array_equal(a, b) for a, b in zip(again, wanted))
    assert deeppcr.solve(cell.step, cell.z0, 50, method="sequential").z.flags.writeable  # no Jacobian, no vjp


def test_threads_are_told_of_their_own_progress():
    """Each of the states of its own solve, of one plan."""
    from concurrent.futures import ThreadPoolExecutor

    plan = deeppcr.plan(lambda z, l: np.tanh(z) * 0.5 + 1, np.zeros(2), 500, method="sequential")

    def run(told):
        seen = []
        plan.solve(np.zeros(2), progress=seen.append if told else None)
        return sum(seen)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, [True, True, True, False] * 3)) == [500, 500, 500, 0] * 3
    assert plan._steps.progress is None


def test_a_guess_that_is_right_takes_one_sweep(rng):
    cell = Cell(rng, 100, 2)
    again = deeppcr.solve(cell.step, cell.z0, 100, cell.jacobian, "newton", guess=cell.loop())
    assert again.report.sweeps <= 1 and np.abs(again.z - cell.loop()).max() < 1e-10


def test_plan(rng):
    cell = Cell(rng, 3000, 2)
    plan = deeppcr.plan(cell.step, cell.z0, 3000, cell.jacobian)
    assert plan.memory == "forgets" and plan.method in METHODS and plan.method in plan.sentence and plan.sentence in repr(plan)
    assert {c.method for c in plan.candidates} >= {"sequential", "overlap", "newton"}
    assert all(c.seconds > 0 for c in plan.candidates)
    for _ in range(2):
        assert np.abs(plan.solve(cell.z0).z - cell.loop()).max() < 1e-8
    linear = deeppcr.plan("linear", length=4096, batch=1, width=2, structure="dense")
    assert linear.scheme in ("chunked", "overlap", "sequential") and linear.sentence in repr(linear)


def test_progress_and_plot(rng):
    cell, seen = Cell(rng, 500, 2), []
    found = deeppcr.solve(cell.step, cell.z0, 500, cell.jacobian, "jacobi", progress=seen.append)
    assert sum(seen) == found.report.evaluations

    class Axes:
        def __init__(self):
            self.drawn = {}

        def semilogy(self, x, y, *style, **options):
            self.drawn["residual"] = y

        def plot(self, x, y, *style, **options):
            self.drawn["locked"] = y

        def twinx(self):
            return self

        def set(self, **options):
            self.drawn.update(options)

        def set_ylabel(self, text):
            self.drawn["right"] = text

    axes = found.report.plot(Axes())
    assert len(axes.drawn["residual"]) == len(axes.drawn["locked"]) > 1 and axes.drawn["title"] == "jacobi"


def test_what_a_step_raises_comes_through(rng):
    class Mine(Exception):
        pass

    def step(z, l):
        if l.max() > 50:
            raise Mine("at 50")
        return 0.5 * z

    for method in ("sequential", "overlap", "jacobi"):
        with pytest.raises(Mine, match="at 50"):
            deeppcr.solve(step, np.ones(2), 100, method=method)
    with pytest.raises(deeppcr.ArgumentError) as caught:
        deeppcr.solve(lambda z, l: z[:, :1], np.ones(2), 100, method="sequential")
    assert caught.value.what == "what step returned" and caught.value.got == "of shape (1, 1)"


@pytest.mark.parametrize("kind", [SystemExit, TimeoutError])  # the second as a signal's handler would: once, anywhere
@pytest.mark.parametrize("method", ["auto", "sequential"])
def test_what_comes_up_in_a_step_that_is_planned_comes_through(method, kind):
    for at in (7, 8, 9, 12):  # the first six are timed before
        calls = [0]

        def step(z, l):
            calls[0] += 1
            if calls[0] == at:
                raise kind(f"call {at}")
            return 0.5 * z + 1

        with pytest.raises(kind, match=f"call {at}"):
            deeppcr.plan(step, np.ones(2), 200, half_everywhere, method, structure="diagonal").backward  # for which the chain is tried
        assert calls[0] == at + (kind is TimeoutError)  # which is asked for again


@pytest.mark.parametrize("method", ["auto", "sequential", "overlap"])
def test_a_step_may_refuse_states_that_its_chain_does_not_have(method):
    def step(z, l):
        if (z <= 0).any():
            raise ValueError("a state that is not positive")
        return np.sqrt(z) + 0.1

    loop = np.empty((300, 3))
    z = np.full((1, 3), 2.0)
    for l in range(300):
        loop[l] = z = step(z, l)
    np.testing.assert_allclose(deeppcr.solve(step, np.full(3, 2.0), 300, method=method).z, loop, rtol=1e-6)


@pytest.mark.parametrize("method", ["sequential", "overlap", "jacobi"])
def test_a_handler_of_ctrl_c_that_raises_nothing(method):
    """It runs once, and what was given up halfway is a KeyboardInterrupt as everywhere; what was whole by then is given."""
    pressed, calls = [], []

    def step(z, l):
        calls.append(l.max())
        if at is not None and l.max() >= at:
            signal.raise_signal(signal.SIGINT)
        return 0.5 * z

    before = signal.signal(signal.SIGINT, lambda *_: pressed.append(len(calls)))
    try:
        at = None
        plan = deeppcr.plan(step, np.ones(2), 3000, method=method)
        at = 300
        with pytest.raises(KeyboardInterrupt):
            plan.solve(np.ones(2))
        assert len(pressed) == 1
        at = None
        assert plan.solve(np.ones(2)).z.shape == (3000, 2) and len(pressed) == 1
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("method", ["sequential", "overlap", "jacobi"])
def test_a_step_that_runs_its_own_plan_may_catch_what_that_raises(method):
    class Mine(Exception):
        pass

    state = {"depth": 0, "caught": 0}

    def step(z, l):
        if l.max() >= 50 and state["depth"] == 0:
            state["depth"] = 1
            try:
                plan.solve(np.ones(2))
            except Mine:
                state["caught"] += 1
            finally:
                state["depth"] = 0
        elif state["depth"]:
            raise Mine
        return 0.5 * z

    state["depth"] = -1  # planning is no solve
    plan = deeppcr.plan(lambda z, l: step(z, l) if state["depth"] >= 0 else 0.5 * z, np.ones(2), 100, method=method)
    state["depth"] = 0
    found = plan.solve(np.ones(2))
    assert state["caught"] and np.allclose(found.z[:, 0], 0.5 ** np.arange(1, 101.0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("when", ["around", "within"])
def test_a_ctrl_c_around_a_call_within_a_step_is_heard(when):
    """One that came in the step before it called its own plan was forgotten; one within ends both, and a handler runs once."""
    pressed, calls = [], []

    def step(z, l):
        calls.append(l.max())
        if len(calls) == 300 and when == "around":
            signal.raise_signal(signal.SIGINT)
            plan.solve(np.ones(2))
        elif len(calls) == 300:
            plan.solve(np.ones(2))
        elif len(calls) == 310 and when == "within":
            signal.raise_signal(signal.SIGINT)
        return 0.5 * z

    plan = deeppcr.plan(step, np.ones(2), 3000, method="sequential")
    calls.clear()
    before = signal.signal(signal.SIGINT, lambda *_: pressed.append(len(calls)))
    try:
        with pytest.raises(KeyboardInterrupt):
            plan.solve(np.ones(2))
        assert len(pressed) == 1 and len(calls) < 320
        assert plan.solve(np.ones(2)).z.shape == (3000, 2) and len(pressed) == 1
    finally:
        signal.signal(signal.SIGINT, before)


def test_not_finite_and_not_converged(rng):
    chaotic = lambda z, l: 3.99 * z * (1 - z)  # noqa: E731
    jacobian = lambda z, l: (3.99 * (1 - 2 * z))  # noqa: E731
    found = deeppcr.solve(chaotic, np.array([0.3]), 300, jacobian, "jacobi", structure="diagonal", max_sweeps=3)
    assert found.report.reason == "fallback"
    with pytest.raises(deeppcr.NotConverged):
        deeppcr.solve(chaotic, np.array([0.3]), 300, jacobian, "jacobi", structure="diagonal", max_sweeps=3, fallback=False)
    with np.errstate(over="ignore"):
        grows = deeppcr.solve(lambda z, l: z * z, np.array([3.0]), 30, lambda z, l: 2 * z, "newton", structure="diagonal")
    assert np.isinf(grows.z[-1, 0]) and grows.z[0, 0] == 9


@pytest.mark.parametrize("arguments, options, what", [
    ((None, np.ones(2), 5), {}, "step"), ((len, np.ones((2, 2, 2)), 5), {}, "z0's shape"),
    ((len, np.ones(0), 5), {}, "z0's shape"), ((len, np.ones(2), -1), {}, "length"),
    ((len, np.ones(2), 5, None, "magic"), {}, "method"), ((len, np.ones(2), 5), {"structure": "magic"}, "structure"),
    ((len, np.ones(2), 5), {"scheme": "magic"}, "scheme"), ((len, np.ones(2), 5), {"magic": 1}, "an option"),
])  # fmt: skip
def test_refusals(arguments, options, what):
    with pytest.raises(deeppcr.ArgumentError) as caught:
        deeppcr.solve(*arguments, **options)
    assert caught.value.what == what
    for method in ("newton", "diagonal", "block", "damped", "shooting"):
        with pytest.raises(deeppcr.UnsupportedError) as caught:
            deeppcr.solve(lambda z, l: z, np.ones(2), 5, method=method)
        assert caught.value.what == "jacobian" and caught.value.got is None and method in caught.value.wanted
    with pytest.raises(deeppcr.UnsupportedError) as caught:
        deeppcr.solve(lambda z, l: 0.5 * z, np.ones(2), 5).vjp(np.ones((5, 2)))
    assert caught.value.what == "jacobian" and "adjoint" in caught.value.wanted


def test_progress_is_told_of_every_sweep():
    """What is stepped and what is linearised; the loop's numbers add up to the length."""
    step, jacobian = lambda z, l: np.tanh(0.5 * z + 0.1), lambda z, l: (0.5 * (1 - np.tanh(0.5 * z + 0.1) ** 2))[:, :, None] * np.eye(2)
    told = []
    deeppcr.solve(step, np.zeros(2), 2000, jacobian, "sequential", progress=told.append)
    assert sum(told) == 2000
    told = []
    asked = []

    def counted(z, l):
        asked.append(len(z))
        return jacobian(z, l)

    plan = deeppcr.plan(step, np.zeros(2), 2000, counted, "newton")
    asked.clear()
    assert plan.solve(np.zeros(2), progress=told.append).report.sweeps > 1
    assert len(asked) > 1 and sum(told) >= sum(asked) > 2000 and told[-1] in asked


def test_empty():
    assert deeppcr.solve(lambda z, l: z, np.ones(2), 0).z.shape == (0, 2)
    assert deeppcr.solve(lambda z, l, b: z, np.ones((0, 2)), 3).z.shape == (3, 0, 2)


@pytest.mark.parametrize("method", ["sequential", "overlap", "jacobi"])
def test_a_named_method_without_a_way_back_tries_nothing(method):
    calls = [0]

    def step(z, l):
        calls[0] += 1
        return half(z, l)

    plan = deeppcr.plan(step, [4.0, 8.0], 400, method=method)
    assert (plan.method, plan.backward, plan.sentence, plan.candidates) == (method, "sequential", f"{method}: as asked", [])
    assert calls[0] == 0 and plan.solve([4.0, 8.0]).report.sentence == plan.sentence


@pytest.mark.parametrize("method", ["sequential", "newton"])
def test_the_way_back_of_a_named_method_is_looked_for_when_it_is_asked_for(rng, method):
    cell = Cell(rng, 400, 3)
    plan = deeppcr.plan(cell.step, cell.z0, 400, cell.jacobian, method)
    assert cell.calls == 0
    found, auto = plan.solve(cell.z0), deeppcr.solve(cell.step, cell.z0, 400, cell.jacobian)
    g = rng.normal(size=found.z.shape)
    before = cell.calls
    assert np.allclose(found.vjp(g)[0], auto.vjp(g)[0], rtol=1e-6, atol=1e-8) and cell.calls > before
    assert plan.backward in plan.sentence and plan.sentence.startswith(f"{method}: as asked; backward")
    assert plan.memory == "forgets" and {c.backward for c in plan.candidates} == {True}
    calls = deeppcr.plan(cell.step, cell.z0, 400, cell.jacobian, method)
    assert calls.backward == plan.backward  # without a solve, too


@pytest.mark.parametrize("method", ["auto", "newton", "overlap"])
def test_what_numpy_says_of_states_that_are_not_the_chains_is_not_heard(method):
    """Of 0, where the planner and sweeps begin, and of z0 at later steps, where trials and chunks do."""
    def part(z, l):
        return np.where(l[:, None] == 0, 1.0, z - 3)

    def step(z, l):
        return 1 + 0.5 / (1 + 1 / z) + 0.01 / part(z, l)

    def jacobian(z, l):
        return 0.5 / (1 + z) ** 2 - 0.01 / part(z, l) ** 2

    options = {"structure": "diagonal", **({"chunk": 100} if method == "overlap" else {})}
    with np.errstate(all="raise"):
        plan = deeppcr.plan(step, [3.0], 400, jacobian, method, **options)
        assert plan.memory == "forgets"
        found = plan.solve([3.0])
        loop = deeppcr.solve(step, [3.0], 400, method="sequential")
        assert np.allclose(found.z, loop.z, rtol=0, atol=1e-9) and np.isfinite(found.vjp(loop.z)[0]).all()
        with pytest.raises(FloatingPointError):  # the loop's states are the chain's
            deeppcr.solve(step, [0.0], 400, method="sequential")
        assert np.geterr()["divide"] == "raise"


def timed(monkeypatch, one, many, each):
    """A step's and its Jacobian's microseconds: of one state, and of 512 together."""
    monkeypatch.setattr(nonlinear._Steps, "time", lambda steps, z0, length: (one * 1e-6, many * 1e-6 / 512, each * 1e-6 / 512))


BY_JACOBIANS = ("newton", "shooting")

by_price = pytest.mark.usefixtures("by_price")


def spiking(rng, length):
    """A step and a Jacobian that knows nothing of its resets: Newton's method corrects a spike a sweep."""
    current = rng.random((length, 1)) * 0.3

    def step(z, l):
        v = 0.9 * z + current[l]
        return np.where(v > 1, 0.0, v)

    return step, lambda z, l: np.where(0.9 * z + current[l] > 1, 0.0, 0.9)


def plan_of_spikes(rng, monkeypatch):
    """A plan that begins by a method of Jacobians, and that method's name."""
    timed(monkeypatch, 10, 15, 50)
    step, jacobian = spiking(rng, 3000)
    plan = deeppcr.plan(step, [0.0], 3000, jacobian, structure="diagonal")
    assert plan.method in BY_JACOBIANS
    return plan, plan.method


@by_price
def test_a_plan_leaves_a_method_that_was_finished_in_order(rng, monkeypatch):
    plan, first = plan_of_spikes(rng, monkeypatch)
    loop = deeppcr.solve(plan._made_of[0], [0.0], 3000, method="sequential").z
    found = [plan.solve([0.0]) for _ in range(3)]
    assert [f.report.method for f in found] == [first, "overlap", "overlap"]
    assert [f.report.reason == "fallback" for f in found] == [True, False, False]
    assert all(np.allclose(f.z, loop, rtol=0, atol=1e-8) for f in found)
    assert plan.method == "overlap" and plan.sentence == f"overlap: {first} had to be finished in order" == found[1].report.sentence
    assert {c.method for c in plan.candidates if not c.backward} >= {first, "overlap", "sequential"}
    g = rng.normal(size=loop.shape)
    assert np.allclose(found[0].vjp(g)[0], found[2].vjp(g)[0], rtol=0, atol=1e-8)


@by_price
def test_a_plan_falls_to_the_loop_where_nothing_forgets(rng, monkeypatch):
    timed(monkeypatch, 10, 15, 50)
    plan = deeppcr.plan(*(lambda W, x: (lambda z, l: np.tanh(z @ W.T + x[l]), [0.0] * 3, 3000,
                                        lambda z, l: (1 - np.tanh(z @ W.T + x[l]) ** 2)[:, :, None] * W))(
        np.linalg.qr(rng.normal(size=(3, 3)))[0] * 2.5, rng.normal(size=(3000, 3)) * 0.3))  # fmt: skip
    found = [plan.solve([0.0] * 3).report for _ in range(3)]
    assert found[0].method in BY_JACOBIANS and found[0].reason == "fallback"
    assert [r.method for r in found[1:]] == ["sequential"] * 2 and plan.sentence.startswith(f"sequential: {found[0].method}")
    assert plan.method == "sequential" == copy.copy(plan).method


@by_price
def test_a_plan_keeps_a_method_that_mostly_serves(rng, monkeypatch):
    timed(monkeypatch, 10, 15, 50)
    cell = Cell(rng, 3000, 1)
    plan = deeppcr.plan(cell.step, cell.z0, 3000, cell.jacobian)
    report = plan.solve(cell.z0).report
    assert report.reason != "fallback" and report.method != "sequential"
    plan._learn(plan._way, report._replace(reason="fallback"))
    assert plan.method == report.method  # once in two
    plan._learn(plan._way, report._replace(reason="fallback"))
    assert plan.method != report.method


@by_price
def test_what_served_long_ago_is_left_too(rng):
    cell = Cell(rng, 3000, 1)
    plan = deeppcr.plan(cell.step, cell.z0, 3000, cell.jacobian)
    good = plan.solve(cell.z0).report._replace(reason="converged")
    method, way, fell = plan.method, plan._way, good._replace(reason="fallback")
    assert method != "sequential"
    for report in [good] * 50 + [fell] * 4 + [good, fell] * 10:
        plan._learn(way, report)
    assert plan.method == method
    plan._learn(way, fell)
    assert plan.method != method


@by_price
def test_passes_that_began_by_a_method_that_was_left_say_nothing_of_the_next(rng, monkeypatch):
    plan, first = plan_of_spikes(rng, monkeypatch)
    old = plan._way
    report = plan.solve([0.0]).report
    for _ in range(3):  # of other threads
        plan._learn(old, report)
    assert plan.method == "overlap" and plan._failed == [first]
    plan._learn(plan._way, report._replace(method="overlap"))
    assert plan.sentence == f"sequential: {first} and overlap had to be finished in order"


@by_price
def test_threads_leave_a_method_together(rng, monkeypatch):
    plan, first = plan_of_spikes(rng, monkeypatch)
    way, report, instead = plan._way, plan.solve([0.0]).report, nonlinear.SolvePlan._instead
    plan._way, plan._failed, made, ready = way, [], [], threading.Barrier(4)

    def slow(*given, **options):
        made.append(given)
        time.sleep(0.05)
        return instead(*given, **options)

    def learn():
        ready.wait()
        plan._learn(way, report)

    monkeypatch.setattr(nonlinear.SolvePlan, "_instead", slow)
    threads = [threading.Thread(target=learn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and plan._failed == [first] and plan.method == "overlap"


@by_price
def test_a_method_is_left_once_there_is_another(rng, monkeypatch):
    plan, first = plan_of_spikes(rng, monkeypatch)

    def fails(*given, **options):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(nonlinear.SolvePlan, "_instead", fails)
        with pytest.raises(MemoryError):
            plan.solve([0.0])
    assert plan.method == first and plan._failed == []
    plan.solve([0.0])
    assert plan.sentence == f"overlap: {first} had to be finished in order"


@pytest.mark.parametrize("batch", [None, 3])
def test_one_solve_of_few_steps_takes_each_once(rng, batch):
    cell = Cell(rng, 400, 3, batch)
    found = deeppcr.solve(cell.step, cell.z0, 400, cell.jacobian)
    assert cell.calls == 400 and found.report.method == "sequential"
    assert found.report.sentence.startswith("sequential: to plan 400 steps takes longer than to solve them once")
    loop = deeppcr.solve(cell.step, cell.z0, 400, cell.jacobian, "sequential")
    assert found.z.tobytes() == loop.z.tobytes()
    g = rng.normal(size=loop.z.shape)
    assert np.allclose(found.vjp(g)[0], loop.vjp(g)[0], rtol=0, atol=1e-9)
    assert deeppcr.plan(cell.step, cell.z0, 400, cell.jacobian).sentence != found.report.sentence
    cell.calls = 0
    deeppcr.solve(cell.step, cell.z0, 400, cell.jacobian, chunk=100)  # an option of another method: it is planned
    assert cell.calls > 0


def test_printing_a_plan_calls_no_step(rng):
    cell = Cell(rng, 400, 3)
    plan = deeppcr.plan(cell.step, cell.z0, 400, cell.jacobian, "newton")
    assert repr(plan) == "<chain of 400 steps, batch 1, width 3: newton: as asked>" and cell.calls == 0
    assert "backward" in plan.sentence and plan.sentence in repr(plan)


def test_few_chunks_are_not_taken_for_as_dear_as_many(rng, monkeypatch):
    """A chain that forgets within some 300 steps of 3000: four chunks beside each other take a call as long as one, not as 512."""
    x = rng.normal(size=(3000, 1))

    def step(z, l):
        return 0.93 * z + x[l]

    timed(monkeypatch, 10, 60, 0)
    plan = deeppcr.plan(step, [4.0], 3000)
    assert plan.method == "overlap" and plan.sentence.startswith("overlap: chunks would take")
    assert np.allclose(plan.solve([4.0]).z, deeppcr.solve(step, [4.0], 3000, method="sequential").z, rtol=0, atol=1e-8)
    timed(monkeypatch, 10, 6000, 0)
    assert deeppcr.plan(step, [4.0], 3000).method == "sequential"


def test_what_a_call_takes_is_measured_once(monkeypatch):
    step, jacobian = nonlinear._overheads()
    assert 0 <= step < 1e-3 and 0 <= jacobian < 1e-3
    made, init = [], nonlinear._Steps.__init__
    monkeypatch.setattr(nonlinear._Steps, "__init__", lambda steps, *given: made.append(given) or init(steps, *given))
    nonlinear._overheads.cache_clear()
    assert nonlinear._overheads() is nonlinear._overheads() and len(made) == 1
    monkeypatch.setattr(nonlinear, "_overheads", lambda: (1000.0, 2000.0))
    one, many, each = nonlinear._Steps(half, half_everywhere, False, np.dtype("d"), 2, "diagonal", 0).time(np.ones((1, 2)), 1000)
    assert 1000 < one < 1001 and 1000 < many * 512 < 1001 and 2000 < each * 512 < 2001
