# SPDX-License-Identifier: MIT
"""Nonlinear chains z_l = f_l(z_{l-1}) whose step is a Python function over many states at once."""
from __future__ import annotations

import contextlib
import copy
import copyreg
import ctypes
import functools
import signal
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union, overload

import numpy as np

from . import _abi
from . import _library as library
from ._plot import axes_or_new
from .errors import ArgumentError, NotConverged, UnsupportedError, finite, flag, one_of, shown, whole_number
from .linear import SCHEMES, STRUCTURES
from .linear import _SCHEME_NAMES as SCHEME_NAMES
from .linear import Plan as LinearPlan
from .linear import plan_for

ARRAY = np.ndarray
METHODS = {
    name: _abi.CONSTANTS[f"DPCR_METHOD_{name.upper()}"]
    for name in (
        "auto", "sequential", "newton", "diagonal", "block", "picard", "jacobi", "damped", "overlap", "shooting", "parareal", "parataa"
    )
}
METHOD_NAMES = {value: name for name, value in METHODS.items()}
GUESSES = {name: _abi.CONSTANTS[f"DPCR_GUESS_{name.upper()}"] for name in ("zero", "step", "state", "given")}
_KINKS = {False: 0, True: _abi.CONSTANTS["DPCR_KINKS_CURVED"], "affine": _abi.CONSTANTS["DPCR_KINKS_AFFINE"]}
_LINEAR = ("newton", "diagonal", "block", "damped", "shooting")  # methods that linearise the steps
_ESTIMATED = ("auto", "sequential", "newton", "overlap", "shooting")  # methods whose tolerances are not a tenth
_LANES = 512  # states that one call of a Python step likes to get
# The planner's model (src/solve/cost.c) takes Jacobians to reach a tenth of the processor's peak; and amid a solve, beside all that it
# touches, they were seen to take twice what they take alone.
_JACOBIANS = 2 * 0.1
_DOUBT = 1.25  # by which its predictions have to be ahead of the loop's
_CREDIT = 4  # solves, as most, that count for a plan's method where one has to be finished in order


class Report(NamedTuple):
    """What a solve did.

    `reason` it ended for ("converged", "exact", "sequential", "fallback", ...), `method` and `scheme` that ran, `sweeps` over
    the chain, `evaluations` of its step, largest `residual` that the last check saw, `error_estimate` (negative: none),
    `seconds` in all and by phase, largest residual and smallest converged prefix by sweep, and the planner's `sentence`.
    """

    reason: str
    method: str
    scheme: str
    sweeps: int
    evaluations: int
    residual: float
    error_estimate: float
    seconds: float
    seconds_evaluate: float
    seconds_linear: float
    seconds_finish: float
    residual_history: ARRAY
    locked_history: ARRAY
    sentence: str

    @property
    def converged(self) -> bool:
        """Whether the states are the chain's: by convergence, by the loop, or finished by it."""
        return self.reason != "not-converged"

    def __repr__(self) -> str:
        residual = f", residual {self.residual:.2g}" if len(self.residual_history) else ""
        return (
            f"{self.method}: {self.reason} after {self.sweeps} sweeps, {self.evaluations} evaluations, "
            f"{self.seconds * 1e3:.3g} ms{residual}"
        )

    def plot(self, axes: Any = None) -> Any:
        """Draws residual and converged prefix by sweep; needs matplotlib.

        Parameters
        ----------
        axes : matplotlib's Axes, optional
            A new figure's without it.

        Returns
        -------
        The axes.
        """
        axes = axes_or_new(axes)
        sweeps = np.arange(1, len(self.residual_history) + 1)
        axes.semilogy(sweeps, np.maximum(self.residual_history, 1e-300), "o-", color="C0")
        axes.set(xlabel="sweep", ylabel="largest residual", title=self.method)
        twin = axes.twinx()
        twin.plot(sweeps, self.locked_history, "s--", color="C1")
        twin.set_ylabel("steps converged")
        return axes


_HISTORY = 128


class _ReportPlace:
    """A dpcr_solve_report with room for its histories."""

    def __init__(self) -> None:
        self.residual = np.zeros(_HISTORY)
        self.locked = np.zeros(_HISTORY, np.int64)
        self.c = _abi.SolveReport(size=ctypes.sizeof(_abi.SolveReport), history_capacity=_HISTORY)
        self.c.residual_history = self.residual.ctypes.data
        self.c.locked_history = self.locked.ctypes.data

    def read(self) -> Report:
        c = self.c
        n = min(c.history_length, _HISTORY)
        sentence = ctypes.string_at(c.sentence).decode() if c.sentence else ""
        return Report(library.lib.dpcr_reason_name(c.reason).decode(), METHOD_NAMES.get(c.method, "?"),
                      SCHEME_NAMES.get(c.scheme, "?"), c.sweeps, c.evaluations, c.residual, c.error_estimate, c.seconds,
                      c.seconds_evaluate, c.seconds_linear, c.seconds_finish, self.residual[:n].copy(), self.locked[:n].copy(),
                      sentence)  # fmt: skip


class Candidate(NamedTuple):
    """A way to run a chain, as the planner saw it: predicted (and, where it was timed, measured) seconds."""

    method: str
    scheme: str
    backward: bool
    sweeps: float
    seconds: float
    measured: float


# ---- a Python step as the library's callbacks ----


def _grid(address: int) -> ARRAY:
    """A NumPy view of a dpcr_array, whose strides may be 0 or negative."""
    c = _abi.Array.from_address(address)
    item, shape = library.NAMES[c.dtype], tuple(c.shape[: c.ndim])
    if not all(shape):
        return np.empty(shape, item)
    strides = tuple(s * item.itemsize for s in c.strides[: c.ndim])
    ends = [(n - 1) * s for n, s in zip(shape, strides)]
    before = sum(e for e in ends if e < 0)
    extent = sum(e for e in ends if e > 0) - before + item.itemsize
    memory = (ctypes.c_char * extent).from_address(c.data + before)
    return np.ndarray(shape, item, memory, -before, strides)


class _Steps:
    """The callbacks of a step, and what it raised."""

    def __init__(self, step: Callable[..., Any], jacobian: Optional[Callable[..., Any]], batched: bool, dtype: np.dtype,
                 width: int, structure: str, block: int) -> None:  # fmt: skip
        self.step, self.jacobian, self.batched, self.dtype, self.width = step, jacobian, batched, dtype, width
        count = {"dense": (width, width), "diagonal": (width,), "scalar": (), "block": (width // max(block, 1), block, block)}
        self.values = count[structure]
        self.raised: Optional[BaseException] = None
        self.interrupted = self.planning = False
        self.progress: Optional[Callable[[int], Any]] = None
        self.lock = threading.RLock()  # what is raised and asked belongs to one call
        self.forks = library.context.forks
        self.advance_c = _abi.STEP(self._advance)
        self.linearise_c = _abi.LINEARISE(self._linearise) if jacobian else None

    def _call(self, function: Callable[..., Any], z: ARRAY, l: ARRAY, row: int, shape: Tuple[int, ...], what: str) -> ARRAY:
        """function over states z [lanes][rows][w] of steps l [lanes]: values [lanes][rows][...]."""
        lanes, rows = z.shape[:2]
        states = z.reshape(lanes * rows, self.width)
        if self.batched:
            index = np.repeat(l, rows) if rows > 1 else l
            out = function(states, index, np.tile(np.arange(row, row + rows), lanes))
        else:
            out = function(states, l)
        out = library.array(out, f"what {what} returned")
        if out.shape != (lanes * rows, *shape):
            raise ArgumentError.of(f"what {what} returned", f"of shape {out.shape}", f"{(lanes * rows, *shape)}")
        if out.dtype.kind not in "fiub" or out.dtype.itemsize > 8:
            library.real(out, f"what {what} returned")
        return out.reshape(lanes, rows, -1)

    def _failed(self, raised: BaseException, again: Callable[[], Any]) -> int:
        """The code to return for what was raised. While the library plans, at states of its own where the step may be none, what the
        step raises a second time tells the planner nothing; else it came from outside, as from a signal's handler."""
        if self.planning and isinstance(raised, Exception):
            try:
                again()
            except BaseException as second:  # noqa: B902
                if type(second) is type(raised):
                    return 1
                raised = raised if isinstance(second, Exception) else second
        self.raised = self.raised or raised
        return -1

    def _advance(self, _user: Any, span: int, given: int, states: int, last: int, _tape: int) -> int:
        if self.interrupted or self.raised is not None:  # other parts of the chain may still be asked for
            return -1
        k = 0
        try:
            s = _abi.Span.from_address(span)
            z = np.array(_grid(given))
            kept = _grid(states) if states else None
            l = s.first + s.stride * np.arange(s.lanes)
            for k in range(s.steps):
                z = self._call(self.step, z, l + k, s.row, (self.width,), "step").astype(self.dtype, copy=False)
                if kept is not None:
                    kept[:, k] = z
                if self.progress is not None:
                    self.progress(s.lanes * s.rows)
                if self.interrupted:
                    return -1
            if last:
                _grid(last)[...] = z
            return 0
        except BaseException as raised:  # noqa: B902  it goes on where the solve was called
            return self._failed(raised, lambda: self._call(self.step, z, l + k, s.row, (self.width,), "step"))

    def _linearise(self, _user: Any, span: int, given: int, f: int, a: int) -> int:
        assert self.jacobian
        if self.interrupted or self.raised is not None:
            return -1
        try:
            s = _abi.Span.from_address(span)
            z = np.array(_grid(given))
            l = s.first + s.stride * np.arange(s.lanes)
            if f:  # a step may write into the states that it is given
                _grid(f)[...] = self._call(self.step, z.copy() if a else z, l, s.row, (self.width,), "step")
            if a:
                _grid(a)[...] = self._call(self.jacobian, z, l, s.row, self.values, "jacobian")
            if self.progress is not None:
                self.progress(s.lanes * s.rows)
            return -1 if self.interrupted else 0
        except BaseException as raised:  # noqa: B902
            return self._failed(raised, lambda: (self._call(self.step, z.copy(), l, s.row, (self.width,), "step"),
                                                 self._call(self.jacobian, z, l, s.row, self.values, "jacobian")))  # fmt: skip

    def time(self, z0: ARRAY, length: int) -> Tuple[float, float, float]:
        """Seconds of a step of the loop; seconds a state of a call with many; of the Jacobian likewise."""
        start = np.array(z0[:1][None])
        lanes = max(1, min(_LANES, length))

        def best(function: Callable[..., Any], n: int, shape: Tuple[int, ...], what: str) -> float:
            l, least = np.arange(n), np.inf
            for _ in range(3):
                z = np.repeat(start, n, 0)  # which the step may write into
                begin = time.perf_counter()
                self._call(function, z, l, 0, shape, what)
                least = min(least, time.perf_counter() - begin)
            return least

        beside, around = _overheads()
        with np.errstate(all="ignore"):  # at states that the chain may never have
            one = beside + best(self.step, 1, (self.width,), "step")
            many = (beside + best(self.step, lanes, (self.width,), "step")) / lanes
            each = (around + best(self.jacobian, lanes, self.values, "jacobian")) / lanes if self.jacobian else 0.0
        return one, many, each

    def run(self, function: Any, *arguments: Any, progress: Optional[Callable[[int], Any]] = None, planning: bool = False,
            quiet: bool = False) -> None:  # fmt: skip
        """Calls the library. `planning`: at states of the planner's own; `quiet`: of a method's own. Of either NumPy says nothing."""
        if self.forks != library.context.forks:
            self._after_fork()
        with self.lock:
            before = self.progress, self.raised, self.planning  # a step may run its own plan, and catch what that raises
            self.progress, self.planning = progress, planning
            try:
                heard: Any = np.errstate(all="ignore") if planning or quiet else contextlib.nullcontext()
                with heard:
                    self._run(function, *arguments)
            finally:
                self.progress, self.raised, self.planning = before

    def _after_fork(self) -> None:
        """In a child: another thread of the parent, which is not here, may have been in a call."""
        with library.context.lock:
            if self.forks != library.context.forks:
                self.lock, self.raised, self.progress = threading.RLock(), None, None
                self.interrupted = self.planning = False
                self.forks = library.context.forks

    def _run(self, function: Any, *arguments: Any) -> None:
        """Calls the library, holding SIGINT back until it is out of the callbacks: they end the call, the handler runs then."""
        (error, error_ref) = library.error_place()
        ours = None
        if threading.current_thread() is threading.main_thread():
            ours = signal.getsignal(signal.SIGINT)
        if ours is None or ours == signal.SIG_IGN or ours == signal.SIG_DFL:
            ours = None
        self.raised, around = None, self.interrupted  # by a Ctrl-C that a call around this one has not heard of yet: it ends this one too
        if ours is not None:
            signal.signal(signal.SIGINT, self._interrupt)
        try:
            status = function(*arguments, error_ref)
        finally:
            if ours is not None:
                signal.signal(signal.SIGINT, ours)
            interrupted, self.interrupted = self.interrupted, around
        if interrupted and status:
            library.interrupt()
        if interrupted:  # too late to end anything
            signal.raise_signal(signal.SIGINT)
        if self.raised is not None:
            raise self.raised
        library.check(status, error)

    def _interrupt(self, _number: int, _frame: Any) -> None:
        if self.interrupted:  # asked twice: not even the step is waited for
            raise KeyboardInterrupt
        self.interrupted = True


@functools.lru_cache(maxsize=None)
def _overheads() -> Tuple[float, float]:
    """Seconds that a step, and a call of the Jacobian, take in the library's calls beside what `_Steps.time` sees of them: by calls of a
    step and a Jacobian that do nothing, once a process."""
    steps = _Steps(lambda z, l: z, lambda z, l: z, False, np.dtype(np.float64), 1, "diagonal", 0)
    assert steps.linearise_c
    count, lanes = 32, np.zeros((_LANES, 1, 1))
    one, kept, values = lanes[:1], np.zeros((1, count, 1, 1)), np.zeros((_LANES, 1, 1))
    loop = _abi.Span(size=ctypes.sizeof(_abi.Span), lanes=1, stride=1, steps=count, rows=1)
    all_ = _abi.Span(size=ctypes.sizeof(_abi.Span), lanes=_LANES, stride=1, steps=1, rows=1)
    places = [library.of(array) for array in (one, kept, lanes, values)]
    at = [ctypes.addressof(c) for c in (*places, loop, all_)]

    def best(function: Callable[..., Any], *arguments: Any) -> float:
        least = np.inf
        for _ in range(5):
            begin = time.perf_counter()
            function(*arguments)
            least = min(least, time.perf_counter() - begin)
        return least

    step = best(steps.advance_c, None, at[4], at[0], at[1], None, None) / count
    jacobian = best(steps.linearise_c, None, at[5], at[2], at[3], at[3])
    seen, seen_of_many = (best(steps._call, steps.step, z, np.arange(len(z)), 0, (1,), "step") for z in (one, lanes))
    return max(0.0, step - seen), max(0.0, jacobian - 2 * seen_of_many)


class _Way(NamedTuple):
    """A plan of the library."""

    handle: Any
    workspace: int
    sentence: str = ""  # why, where the library does not know


class Solution:
    """States of a chain, and how they were found.

    Attributes
    ----------
    z : ndarray
        [L][w] or [L][B][w]; read-only where there is a Jacobian, for `vjp` reads it: `z.copy()` may be written into.
    report : Report
    """

    def __init__(self, plan: Optional["SolvePlan"], batched: bool, z0: ARRAY, states: ARRAY, report: Report) -> None:
        self._plan, self._batched, self._z0, self._states, self.report = plan, batched, z0, states, report

    @property
    def z(self) -> ARRAY:
        """The states, [L][w] or [L][B][w]; read-only where `vjp` may follow, which is taken at them."""
        z = self._states[:] if self._batched else self._states[:, 0]
        z.flags.writeable = self._plan is None or self._plan._made_of[3] is None  # without a Jacobian
        return z

    def __reduce__(self) -> Any:
        return Solution, (None, self._batched, self._z0, self._states, self.report)

    def __copy__(self) -> "Solution":
        return Solution(self._plan, self._batched, self._z0, self._states, self.report)

    def __deepcopy__(self, memo: Any) -> "Solution":
        plan, z0, states, report = copy.deepcopy((self._plan, self._z0, self._states, self.report), memo)
        return Solution(plan, self._batched, z0, states, report)

    def __repr__(self) -> str:
        return f"<states {self.z.shape} of {self.z.dtype}, {self.report!r}>"

    def vjp(self, g: Any) -> Tuple[ARRAY, ARRAY]:
        """The adjoint of the chain, in parallel: needs a Jacobian.

        Parameters
        ----------
        g : array_like
            dLoss/dz of z's shape, each entry where the loss reads it.

        Returns
        -------
        adjoint, dz0 : of the shapes of z and z0. adjoint[l] is the whole derivative of the loss by what step l gives; the
        gradient of a parameter is the sum over l of (df_l/dparameter)^T adjoint[l]. Pickled, a solution has lost its step, and this.
        """
        if self._plan is None:
            raise ArgumentError.of("the solution's step", None, "a solution that solve gave: a pickle keeps states and report only")
        return self._plan._backward(self, g)


def _tolerances(options: Dict[str, Any], method: str, dtype: Any) -> Dict[str, float]:
    """The default of the tolerance that is not given where the other one is 0, which to the library would mean both."""
    given = {name: options[name] for name in ("atol", "rtol") if name in options}
    if list(given.values()) != [-1.0]:
        return {}
    default = 1e-5 if dtype == np.float32 else 1e-10
    return {"rtol" if "atol" in given else "atol": default if method in _ESTIMATED else 0.1 * default}


class SolvePlan:
    """How a chain with a Python step will run. See `deeppcr.plan`. A choice of auto's that has to be finished in order more often than
    not is left for another, at the latest after five such solves one after another: it has at most four to its credit, however many went
    well before. Pickled or deeply copied, with its step, it is planned anew when it is next used: not before, as the step may
    be a method of what is copied, which is half-made until then."""

    def __init__(self, step: Callable[..., Any], z0: Any, length: int, jacobian: Optional[Callable[..., Any]], method: str,
                 structure: str, block: int, kinks: int, options: Dict[str, Any]) -> None:  # fmt: skip
        start = library.array(z0, "z0")
        library.real(start, "z0")
        dtype = library.float_of(start.dtype)
        if start.ndim not in (1, 2) or start.shape[-1] == 0:
            raise ArgumentError.of("z0's shape", start.shape, "[width] or [batch][width]")
        for name, function in (("step", step), *([] if jacobian is None else [("jacobian", jacobian)])):
            if not callable(function):
                raise ArgumentError.of(name, shown(function), "a function")
        length = whole_number("length", length)
        one_of("method", method, METHODS)
        if jacobian is None and method in _LINEAR:
            raise UnsupportedError.of("jacobian", None, f"a function: method {method!r} works with it")
        one_of("structure", structure, [name for name in STRUCTURES if name != "identity"])
        self.batched, self.dtype, self.length, self.width = start.ndim == 2, dtype, length, start.shape[-1]
        if structure == "block" and (block < 1 or self.width % block):
            raise ArgumentError.of("block", block, f"a divisor of the width, {self.width}")
        first = library.whole(start.reshape(-1, self.width), dtype, "z0")
        self._made_of = (step, library.copied(first, "z0").reshape(start.shape), length, jacobian, method, structure, block, kinks,
                         options)  # fmt: skip
        self.batch = first.shape[0]
        self._steps = _Steps(step, jacobian, self.batched, dtype, self.width, structure, block)
        kind = _abi.CONSTANTS[f"DPCR_{structure.upper()}"]
        c = _abi.Steps(size=ctypes.sizeof(_abi.Steps), length=length, batch=self.batch, width=self.width,
                       dtype=library.DTYPES[dtype], lanes=_LANES, kinks=kinks,
                       jacobian=_abi.Transition(kind, self.width, self.width, block if structure == "block" else 0, None))  # fmt: skip
        c.advance = ctypes.cast(self._steps.advance_c, ctypes.c_void_p)
        if self._steps.linearise_c:
            c.linearise = ctypes.cast(self._steps.linearise_c, ctypes.c_void_p)
        self._c = c
        self._options = _abi.SolveOptions(size=ctypes.sizeof(_abi.SolveOptions), method=METHODS[method])
        for name, value in {**_tolerances(options, method, dtype), **options}.items():
            setattr(self._options, name, value)
        self._given = self._options.guess == GUESSES["given"]
        self._failed: List[str] = []  # methods of auto's choice that were left
        self._credit = 0  # passes of the method of now that were its own, without as many that were finished in order: up to _CREDIT
        self._learning = threading.RLock()  # again: a handler of signals may solve, too
        # Nobody goes back without a Jacobian; with one, beside a method that is named, the way back is looked for when it is asked for.
        left = self._options.backward == SCHEMES["auto"] and (jacobian is None or method != "auto")
        self._back: Optional[_Way] = None
        self._looks_back = left and jacobian is not None
        self._seconds = 0.0, 0.0  # of a step of the loop, and of one of _LANES chunks; 0: not timed
        way = self._make(self._options, backward=SCHEMES["sequential"]) if left else self._make(self._options)
        if left and method != "auto":
            way = way._replace(sentence=f"{method}: as asked")
        self._way, self.handle = way, way.handle
        if method == "auto" and self.method == "sequential":
            self._way = self._by_chunks("") or way

    def _make(self, options: Any, **others: Any) -> _Way:
        """The library's plan by these options; the chain is tried where they leave something open."""
        options = _abi.SolveOptions.from_buffer_copy(options)
        for name, value in others.items():
            setattr(options, name, value)
        owner = library.context.get()
        sample = library.of(self._made_of[1].reshape(self.batch, self.width))
        if options.method == METHODS["auto"] or options.backward == SCHEMES["auto"]:
            options.start = ctypes.addressof(sample)
            self._time(owner)
        place = ctypes.c_void_p()
        self._steps.run(library.lib.dpcr_solve_plan_create, owner.address, ctypes.byref(self._c), ctypes.byref(options),
                        ctypes.byref(place), planning=True)  # fmt: skip
        handle = library.Handle(place.value, library.lib.dpcr_solve_plan_destroy, owner)
        return _Way(handle, library.lib.dpcr_solve_plan_workspace(place.value))

    def _time(self, owner: Any) -> None:
        """Tells the planner what the step takes."""
        c = self._c
        if c.latency > 0 or self.length == 0 or self.batch == 0:
            return
        machine = _abi.Machine(size=ctypes.sizeof(_abi.Machine))
        error, error_ref = library.error_place()
        library.check(library.lib.dpcr_context_machine(owner.address, ctypes.byref(machine), error_ref), error)
        latency, c.lane_seconds, each = self._steps.time(self._made_of[1].reshape(self.batch, self.width), self.length)
        lanes = min(_LANES, self.length)  # that were timed
        self._seconds = latency, latency + max(0.0, c.lane_seconds * lanes - latency) * _LANES / lanes
        c.flops, c.jacobian_flops = c.lane_seconds * machine.flops, each * machine.flops * _JACOBIANS
        c.latency = latency

    def _way_back(self) -> _Way:
        """The library's plan for the way back, looked for where that was put off."""
        if self._looks_back:
            self._back = self._make(self._options)
            self._looks_back = False
        return self._back or self._way

    def _looked(self) -> int:
        """The library's plan that has looked at the chain, by address."""
        self._way_back()
        return (self._back.handle if self._back else self.handle).address

    def _learn(self, way: _Way, report: Report) -> None:
        """Leaves a method of auto's choice that was finished in order more often than not: for overlap where that was seen to be ahead of
        the loop, else for the loop."""
        with self._learning:
            if way is not self._way:
                return  # what another pass has left
            if report.reason != "fallback":
                self._credit = min(self._credit + (report.reason != "not-converged"), _CREDIT)
                return
            self._credit -= 1
            if self._credit >= 0:
                return
            failed = [*self._failed, report.method]
            why = f"{' and '.join(failed)} had to be finished in order"
            self._way = self._by_chunks(why, failed) or self._instead(f"sequential: {why}", "sequential")
            self._failed, self._credit = failed, 0

    def _by_chunks(self, why: str, failed: Sequence[str] = ()) -> Optional[_Way]:
        """By overlap, where that has not failed and is ahead of the loop. The planner takes a call of the step over few chunks to last
        as long as one over _LANES, which calls of Python do not."""
        alone, many = self._seconds
        if self.batch != 1 or alone == 0 or "overlap" in failed or self._options.memory_limit:
            return None
        best, least = None, alone * self.length / _DOUBT
        for c in self._listed():
            if METHOD_NAMES[c.method] == "overlap" and not c.backward:
                count = max(1, self.length // (c.chunk or 2 * c.warm_up))
                calls = -(-count // _LANES) * (self.length // count + c.warm_up)
                seconds = calls * (alone + (many - alone) * min(1, count / _LANES))
                if seconds < least:
                    best, least = c, seconds
        if best is None:
            return None
        why = why or (f"chunks would take {least * 1e3:.3g} ms with a warm-up of {best.warm_up}, "
                      f"the loop takes {alone * self.length * 1e3:.3g} ms")  # fmt: skip
        return self._instead(f"overlap: {why}", "overlap", chunk=best.chunk, warm_up=best.warm_up)

    def _instead(self, why: str, method: str, **others: Any) -> _Way:
        """A plan for that method in the place of the one that the planner chose, whose way back stays."""
        taken = _abi.SolveOptions.from_address(library.lib.dpcr_solve_plan_options(self.handle.address))
        way = self._make(self._options, method=METHODS[method], backward=taken.backward, backward_warm_up=taken.backward_warm_up,
                         backward_chunk=taken.backward_chunk or taken.chunk, **others)  # fmt: skip
        return way._replace(sentence=why)

    def _listed(self) -> List[Any]:
        """The library's candidates."""
        looked, place = self._looked(), _abi.Candidate(size=ctypes.sizeof(_abi.Candidate))
        found: List[Any] = []
        while library.lib.dpcr_solve_plan_candidate(looked, len(found), ctypes.byref(place)):
            found.append(_abi.Candidate.from_buffer_copy(place))
        return found

    def __copy__(self) -> "SolvePlan":
        return self

    def __reduce__(self) -> Any:
        return copyreg.__newobj__, (type(self),), {"_made_of": self._made_of}  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        known = self.__dict__
        if name.startswith("__") or "_made_of" not in known or "handle" in known:
            raise AttributeError(f"a plan has no {name}")
        known.update(known.setdefault("_anew", type(self)(*self._made_of)).__dict__)  # of several threads, one's
        return getattr(self, name)

    @property
    def method(self) -> str:
        """The method that was asked for or chosen."""
        return METHOD_NAMES[library.lib.dpcr_solve_plan_method(self._way.handle.address)]

    @property
    def backward(self) -> str:
        """The scheme of the backward pass."""
        return SCHEME_NAMES[library.lib.dpcr_solve_plan_backward(self._way_back().handle.address)]

    @property
    def sentence(self) -> str:
        """Why."""
        looked = library.lib.dpcr_solve_plan_sentence(self._looked()).decode()
        return self._way.sentence if self._way.sentence and self._back is None else looked

    @property
    def memory(self) -> str:
        """What the planner found of the chain's memory: "forgets", "keeps its past", "is chaotic", "unknown"."""
        return library.lib.dpcr_solve_plan_memory(self._looked(), None, None).decode()

    @property
    def candidates(self) -> List[Candidate]:
        """What was weighed, the best first."""
        return [Candidate(METHOD_NAMES[c.method], SCHEME_NAMES[c.scheme], bool(c.backward), c.sweeps, c.seconds, c.measured)
                for c in self._listed()]  # fmt: skip

    def __repr__(self) -> str:
        sentence = self._way.sentence if self._looks_back else self.sentence  # printing calls no step
        return f"<chain of {self.length} steps, batch {self.batch}, width {self.width}: {sentence}>"

    def solve(self, z0: Any, guess: Optional[Any] = None, progress: Optional[Callable[[int], Any]] = None) -> Solution:
        """Runs the chain from z0 (of the plan's shape); `progress` as in `deeppcr.solve`. A plan of guess="given", and no other, takes
        the states to start from as `guess`."""
        first = library.whole(z0, self.dtype, "z0")
        if first.shape != ((self.batch, self.width) if self.batched else (self.width,)):
            raise ArgumentError.of("z0's shape", first.shape, "the plan's")
        first = library.copied(first.reshape(self.batch, self.width), "z0")  # for vjp, whatever the caller's becomes
        shape = (self.length, self.batch, self.width)
        if self._given and guess is None:
            raise ArgumentError.of("guess", None, "an array of z's shape, as the plan's guess is 'given'")
        if not self._given and guess is not None:
            raise ArgumentError.of("guess", f"of type {type(guess).__name__}", "none, as the plan's guess is not 'given'")
        if guess is None:
            z = library.empty(shape, self.dtype)
        else:
            own = shape if self.batched else (self.length, self.width)
            z = library.copied(library.like("guess", guess, own, self.dtype)).reshape(shape)
        if not (progress is None or callable(progress)):
            raise ArgumentError.of("progress", shown(progress), "a function")
        place = _ReportPlace()
        way = self._way
        work = library.take(way.workspace)
        try:
            loop = library.lib.dpcr_solve_plan_method(way.handle.address) == METHODS["sequential"]
            self._steps.run(library.lib.dpcr_solve_execute, way.handle.address, ctypes.byref(library.of(first)),
                            ctypes.byref(library.of(z)), None, library.aligned(work), way.workspace,
                            ctypes.byref(place.c), progress=progress, quiet=not loop)  # fmt: skip
        finally:
            library.give(work)
        report = place.read()
        if way.sentence:
            report = report._replace(sentence=way.sentence)
        if self._made_of[4] == "auto":
            self._learn(way, report)
        return Solution(self, self.batched, first, z, report)

    def _backward(self, at: Solution, g: Any) -> Tuple[ARRAY, ARRAY]:
        if self._steps.jacobian is None:
            raise UnsupportedError.of("jacobian", None, "a function, given to solve or plan: the adjoint works with it")
        direct = library.whole(g, self.dtype, "g")
        if direct.shape != at.z.shape:
            raise ArgumentError.of("g's shape", direct.shape, f"z's, {at.z.shape}")
        direct = direct.reshape(at._states.shape)
        adjoint, dz0 = (library.empty(x.shape, self.dtype) for x in (direct, at._z0))
        way = self._way_back()
        work = library.take(way.workspace)
        try:
            self._steps.run(library.lib.dpcr_solve_backward, way.handle.address,
                            *(ctypes.byref(library.of(x)) for x in (at._z0, at._states)), None,
                            ctypes.byref(library.of(direct)), None, ctypes.byref(library.of(adjoint)),
                            ctypes.byref(library.of(dz0)), library.aligned(work), way.workspace, None)  # fmt: skip
        finally:
            library.give(work)
        return (adjoint, dz0) if self.batched else (adjoint[:, 0], dz0[0])


_NUMBERS = ("atol", "rtol", "damping")
_OPTIONS = "atol rtol window chunk warm_up damping max_sweeps memory_limit".split()


@overload
def plan(step: str, z0: Any = ..., length: int = ..., *, batch: int = ..., width: int = ..., structure: str = ..., block: int = ...,
         dtype: Any = ..., scheme: str = ..., chunk: int = ..., transposed: bool = ...) -> LinearPlan: ...  # fmt: skip
@overload
def plan(step: Callable[..., Any], z0: Any, length: int, jacobian: Optional[Callable[..., Any]] = ..., method: str = ..., *,
         structure: str = ..., block: int = ..., scheme: str = ..., backward: str = ..., guess: str = ..., fallback: bool = ...,
         chunk: int = ..., kinks: Union[bool, str] = ..., **options: Any) -> SolvePlan: ...  # fmt: skip
def plan(
    step: Union[Callable[..., Any], str], z0: Any = None, length: int = 0, jacobian: Optional[Callable[..., Any]] = None,
    method: str = "auto", *, structure: str = "dense", block: int = 0, scheme: str = "auto", backward: str = "auto",
    guess: str = "zero", fallback: bool = True, batch: int = 1, width: int = 1, dtype: Any = np.float64, chunk: int = 0,
    transposed: bool = False, kinks: Union[bool, str] = False, **options: Any,
) -> Union[SolvePlan, LinearPlan]:  # fmt: skip
    """Plans a chain: which method will run it, and why.

    `plan(step, z0, length, jacobian, ...)` plans what `solve` with the same arguments runs, and its `solve(z0)` runs it again
    and again. `plan("linear", length=..., batch=..., width=..., structure=..., dtype=...)` plans a linear chain.

    Parameters
    ----------
    step, length, jacobian, method, structure, block, scheme, backward, fallback, chunk, kinks, options
        As in `solve`: step and jacobian are called with states [n][w] and steps [n], and with a batch sequences [n].
    z0 : array_like
        [w], or [B][w] for a batch; of the dtype that the plan works in.
    guess : str
        As in `solve`; "given" leaves it to the plan's `solve(z0, guess)`, an array of [length][w] or [length][B][w].
    batch, width, dtype, transposed
        Of a linear chain: sequences, numbers of a state, float32, float64 or uint32, and which way it runs.

    Returns
    -------
    A plan, whose repr and `sentence` say why; that of a step has `method`, `memory`, `candidates` and `solve` besides.

    Raises
    ------
    ArgumentError, UnsupportedError
        Of sizes that are none, options that there are not, methods that want a Jacobian where there is none. And what comes up in step
        and jacobian, which are called here too, such as KeyboardInterrupt; but for what they raise at states of the planner's own.
    """
    if isinstance(step, str):
        one_of("the chain", step, ("a step", "linear"))
        one_of("scheme", scheme, SCHEMES)
        one_of("structure", structure, STRUCTURES)
        others = {"z0": z0 is not None, "jacobian": jacobian is not None, "method": method != "auto", "backward": backward != "auto",
                  "guess": guess != "zero", "fallback": fallback is not True, "kinks": kinks is not False}  # fmt: skip
        for name in (*(n for n, given in others.items() if given), *options):
            raise ArgumentError.of("an option", name, "none but those of a linear chain's shape, scheme and chunk")
        sizes = (whole_number(n, v, least) for n, v, least in (("length", length, 0), ("batch", batch, 0), ("width", width, 1)))
        return plan_for(*sizes, structure, whole_number("block", block), library.dtype_of(dtype, "float32 float64 uint32"),
                        flag("transposed", transposed), scheme, whole_number("chunk", chunk))  # fmt: skip
    ours = {"batch": batch != 1, "width": width != 1, "dtype": dtype is not np.float64, "transposed": transposed is not False}
    for name in (n for n, asked in ours.items() if asked):
        raise ArgumentError.of("an option", name, "none but those of a step's chain, whose sizes and dtype are z0's")
    given: Dict[str, Any] = {"chunk": chunk, "block": block, **options}
    for name, value in given.items():
        if one_of("an option", name, (*_OPTIONS, "block")) in _NUMBERS:
            given[name] = finite(name, value)
            if given[name] < 0:
                raise ArgumentError.of(name, given[name], "0 or more")
            if given[name] == 0 and name != "damping":  # the library's 0 is its default
                given[name] = -1.0
        else:
            given[name] = whole_number(name, value, 0, (1 << 31) - 1 if name == "max_sweeps" else (1 << 63) - 1)
    given.update(scheme=SCHEMES[one_of("scheme", scheme, SCHEMES)], backward=SCHEMES[one_of("backward", backward, SCHEMES)],
                 guess=GUESSES[one_of("guess", guess, GUESSES)], no_fallback=int(not flag("fallback", fallback)))  # fmt: skip
    bent = _KINKS[one_of("kinks", kinks, _KINKS) if isinstance(kinks, str) else flag("kinks", kinks)]
    return SolvePlan(step, z0, length, jacobian, method, structure, given["block"], bent, given)


_ALWAYS = {"structure", "block", "backward", "fallback", "kinks", "atol", "rtol"}  # options that no other method is wanted for


def _is_few(z0: Any, length: Any) -> bool:
    return isinstance(length, int) and length < (500 if np.ndim(z0) < 2 else 2000)


def solve(
    step: Callable[..., Any], z0: Any, length: int, jacobian: Optional[Callable[..., Any]] = None, method: str = "auto", *,
    guess: Any = "zero", progress: Optional[Callable[[int], Any]] = None, **options: Any,
) -> Solution:  # fmt: skip
    """Solves z_l = f_l(z_{l-1}), l = 0..length-1, z_{-1} = z0, in parallel over l where that pays.

    Parameters
    ----------
    step : callable
        `step(z, l)` gives f_l(z) for many states at once: z [n][w], l [n] the steps that they go into, result [n][w]. With a
        batch, `step(z, l, b)`, b [n] the sequences that they belong to. A state's result may depend on nothing else.
    z0 : array_like
        [w], or [B][w] for a batch.
    length : int
    jacobian : callable, optional
        Called as `step`: df_l/dz as [n][w][w] (structure "dense"), [n][w] ("diagonal"), [n] ("scalar") or
        [n][w/k][k][k] ("block", with block=k). Without it only sequential, overlap, picard, jacobi, parareal and parataa
        can run.
    method : str
        "auto", "sequential", "newton", "diagonal", "block", "picard", "jacobi", "damped", "overlap", "shooting", "parareal" or
        "parataa". "auto" plans the chain, which takes some hundred calls of the step: a chain of fewer than 500 steps (of a batch,
        2000) runs in order at once; `plan` plans those too, for many solves.
    guess : str or array_like
        Where the sweeps start: "zero" (f_l of zeros), "step" (f_l(z0)), "state" (z0), or an array of z's shape.
    progress : callable, optional
        Called with the number of states that were just stepped or linearised, such as the `update` of a tqdm bar. With "sequential"
        they add up to length times batch; other methods go over states several times, so that a bar wants no total.
    options
        structure, block, scheme, backward, fallback (False: raise NotConverged instead of finishing in order); kinks (True: the step
        has some, such as ReLU's, beyond which its Jacobian says nothing: "newton" and "shooting" then go on until every residual is
        rounding; "affine": and it is affine between them, so that the Jacobian changes, bit for bit, where a unit turns); atol and
        rtol, 0 or more and finite: a step is converged where |z_l - f_l(z_{l-1})| <= atol + rtol |z_l| (both 1e-10, float32 1e-5, a
        tenth of that where a method has no estimate of its error; both 0: with "overlap" the loop bit for bit, where the step
        rounds a state alone as among others: `z @ W.T` does not, `np.einsum("ni,ji->nj", z, W)` does); window, chunk, warm_up,
        damping, max_sweeps, memory_limit: as in `dpcr_solve_options`.

    Returns
    -------
    Solution : with states `z` [length][w] or [length][B][w], `report`, and `vjp` for the adjoint.

    Raises
    ------
    ArgumentError, UnsupportedError
        As `plan`, and where step or jacobian return other shapes.
    NotConverged
        With fallback=False.
    OutOfMemory
        And whatever step, jacobian and progress raise.

    A step in Python costs some microseconds a call however many states it gets, so even where the loop is the least
    arithmetic, chunks of it side by side may be a hundred times faster.
    """
    if not callable(step):
        raise ArgumentError.of("step", shown(step), "a function of states and steps (linear chains: deeppcr.linear_chain)")
    if guess is None or isinstance(guess, str) and guess == "given":
        raise ArgumentError.of("guess", shown(guess), "'zero', 'step', 'state' or an array of z's shape")
    given = not isinstance(guess, str)
    # To plan takes some hundred calls of a step, of batches more, which one solve of few steps does not make good.
    few = not given and guess == "zero" and method == "auto" and _is_few(z0, length) and not options.keys() - _ALWAYS
    way = "sequential" if few else method
    made = plan(step, z0, length, jacobian, way, guess="given" if given else guess, **options)  # type: ignore[arg-type]
    assert isinstance(made, SolvePlan)
    if few:
        why = f"sequential: to plan {length} steps takes longer than to solve them once (deeppcr.plan does)"
        made._way = made._way._replace(sentence=why)
    found = made.solve(z0, guess if given else None, progress)
    if not found.report.converged:
        raise NotConverged(f"solve: {found.report!r}", "solve", found.report.residual, "convergence, or fallback=True")
    return found
