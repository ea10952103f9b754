# SPDX-License-Identifier: MIT
"""Recurrent networks of the library by addresses: what deeppcr.recurrent, deeppcr.torch and deeppcr.jax stand on."""
from __future__ import annotations

import ctypes
import itertools
import math
from typing import Any, Collection, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from . import _abi
from . import _library as library
from ._ready import Ready
from .errors import ArgumentError, UnsupportedError, whole_number
from .nonlinear import METHODS

KINDS = {"rnn_tanh": "DPCR_RNN_TANH", "rnn_relu": "DPCR_RNN_RELU", "gru": "DPCR_GRU", "lstm": "DPCR_LSTM", "paragru": "DPCR_PARAGRU",
         "paralstm": "DPCR_PARALSTM", "mingru": "DPCR_MINGRU"}  # fmt: skip
GATES = {"rnn_tanh": 1, "rnn_relu": 1, "gru": 3, "lstm": 4, "paragru": 3, "paralstm": 3, "mingru": 2}
MOST_HIDDEN, MOST_LAYERS = 16384, 4096  # what the library takes
_UNMIXED = ("paragru", "paralstm", "mingru")  # kinds whose units do not mix
_AUTO_LENGTH = 256  # below, the loop is all there is to choose, and the planner's look costs more than it can win
_FALLBACK = _abi.CONSTANTS["DPCR_REASON_FALLBACK"]
_PLANS = 16  # that a slot keeps, and verdicts
_NEAR = 2  # a verdict holds for lengths within this factor of its own
_LOOK = 2000  # steps of the loop, forward and back, that a look at a network takes as long as, about
_PAYS = 4  # passes that were as thought, which pay for one that was finished in order
_ROUNDINGS = 16  # of a state's largest number, within which auto joins chunks of what forgets soon, and overlap always
_OVERLAP_F64 = 96  # steps before a chunk in which float64 comes so near, where the library's 64 do for float32


class Form(NamedTuple):
    """What network: its parameters' shapes follow."""

    kind: str
    dtype: int  # of the library
    inputs: int
    hidden: int
    layers: int
    bidirectional: bool
    bias: bool
    projection: int = 0  # LSTM: the numbers of h, of hidden ones without

    def checked(self) -> "Form":
        """Itself, where the library takes such sizes."""
        hidden = whole_number("hidden", self.hidden, 1, MOST_HIDDEN)
        return self._replace(inputs=whole_number("inputs", self.inputs, 1, (1 << 31) - 1), hidden=hidden,
                             layers=whole_number("layers", self.layers, 1, MOST_LAYERS),
                             projection=whole_number("projection", self.projection, 0, hidden - 1 if self.kind == "lstm" else 0))  # fmt: skip

    @property
    def outputs(self) -> int:
        """Numbers of h."""
        return self.projection or self.hidden

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def has_cell(self) -> bool:
        """Whether the state is h and c."""
        return self.kind in ("lstm", "paralstm")

    @property
    def mixed(self) -> bool:
        """Whether a unit's state depends on the other units'."""
        return self.kind not in _UNMIXED

    @property
    def gates(self) -> int:
        return GATES[self.kind]

    def parameters(self) -> List[Tuple[str, Tuple[int, ...]]]:
        """Names and shapes in the library's order, which is PyTorch's."""
        out: List[Tuple[str, Tuple[int, ...]]] = []
        for layer in range(self.layers):
            for direction in range(self.directions):
                end = f"_l{layer}" + ("_reverse" if direction else "")
                inputs = self.inputs if layer == 0 else self.directions * self.outputs
                rows = self.gates * self.hidden
                if not self.mixed:
                    out += [("weight_ih" + end, (rows, inputs))]
                    out += [("weight_hh" + end, (3 * self.hidden,))] if self.kind != "mingru" else []
                    out += [("bias_ih" + end, (rows,))] if self.bias else []
                    out += [("peephole" + end, (2 * self.hidden,))] if self.kind == "paralstm" else []
                    continue
                out += [("weight_ih" + end, (rows, inputs)), ("weight_hh" + end, (rows, self.outputs))]
                if self.bias:
                    out += [("bias_ih" + end, (rows,)), ("bias_hh" + end, (rows,))]
                if self.projection:
                    out += [("weight_hr" + end, (self.projection, self.hidden))]
        return out

    def bounds(self) -> List[Tuple[str, Tuple[int, ...], float]]:
        """The parameters, with b of their initialisation U(-b, b)."""
        out, inputs = [], self.inputs
        for name, shape in self.parameters():
            inputs = shape[1] if name.startswith("weight_ih") else inputs
            own = 0.5 if name.startswith(("weight_hh", "peephole")) else inputs**-0.5
            out.append((name, shape, self.hidden**-0.5 if self.mixed else own))
        return out


_execute, _backward = library.bare(library.lib.dpcr_recurrent_execute), library.bare(library.lib.dpcr_recurrent_backward)
_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
# What these return is not looked at: it is nothing.
_clear, _set, _get = (library.bare(getattr(library.lib, f"dpcr_recurrent_{name}")) for name in ("zero_gradients", "set_parameters", "get_gradients"))


KEY = Tuple[int, int, bool, bool, str]  # length, batch, training, packed, method


class _Verdict:
    """What the planner found by looking at a network over `length` steps, for passes that differ from that one in their length alone."""

    def __init__(self, key: KEY, solve: Optional[Any], sentences: List[str]) -> None:
        """`solve`: options that ask for what was chosen; None where the chains' choices differ, which no options ask for: then the loop
        takes no longer than another look, but of long chains."""
        self.length, self.kind, self.sentences = key[0], key[1:], sentences
        self.mixed, self.solve = solve is None, _loop() if solve is None and key[0] <= _LOOK else solve
        self.worked = self.fallbacks = 0  # passes that were as thought, and that were finished in order
        self.owed = 0  # passes as thought that are wanted to pay for the latter

    def holds(self, key: KEY) -> bool:
        """Whether it stands for passes of that key."""
        length = key[0]
        if self.solve is None or self.mixed and length > _LOOK:
            return False
        return self.kind == key[1:] and length <= _NEAR * self.length and self.length <= _NEAR * length

    def failed(self) -> bool:
        """Whether passes were finished in order too often for what the others spared."""
        return self.worked < _PAYS * self.fallbacks

    def at(self, length: int) -> Any:
        """Options for that length: as many chunks as were chosen."""
        solve = _abi.SolveOptions.from_buffer_copy(self.solve)
        for name in ("chunk", "backward_chunk"):
            chunk = getattr(solve, name)
            setattr(solve, name, length // max(1, self.length // chunk) if chunk else 0)
        return solve

    def told(self) -> List[str]:
        """The planner's sentences, for other passes than that one."""
        texts = ["sequential: what is best differs from chain to chain"] * len(self.sentences) if self.mixed else self.sentences
        return [f"{text} (of {self.length} steps)" for text in texts]


def _loop() -> Any:
    """Options that ask for it."""
    return _abi.SolveOptions(size=ctypes.sizeof(_abi.SolveOptions), method=METHODS["sequential"])


def _common(chains: List[Any]) -> Optional[Any]:
    """Options that ask for what was chosen for every one of these chains; None where there are none."""
    solve = chains[0]
    for other in chains[1:]:
        if any(getattr(other, name) != getattr(solve, name) for name in ("method", "scheme", "backward")):
            return None
        for name in ("chunk", "backward_chunk"):  # the library's own for the warm-up, where they differ
            setattr(solve, name, getattr(solve, name) if getattr(solve, name) == getattr(other, name) else 0)
        for name in ("warm_up", "backward_warm_up", "max_sweeps", "join_tolerance"):
            if name == "join_tolerance" and getattr(solve, name) != getattr(other, name):  # 0 is the tolerances, which are wider
                solve.warm_up = max(solve.warm_up, _OVERLAP_F64)
            setattr(solve, name, max(getattr(solve, name), getattr(other, name)))
    solve.order = 0  # of all steps, which was their number
    return solve


class _Plan:
    """A plan with its pass, gradients and reports, for one length and batch."""

    def __init__(self, slot: "_Slot", key: KEY) -> None:
        length, batch, training, packed, _ = key
        form = slot.form
        D, N, P = form.directions, form.layers * form.directions, form.outputs
        self.verdict: Optional[_Verdict] = None
        self.looked = False
        self.handle: Any = None
        h, c = (N, batch, P), (N, batch, form.hidden)
        shapes = {"x": (length, batch, form.inputs), "h0": h, "c0": c, "y": (length, batch, D * P), "ht": h, "ct": c}
        self.run = _abi.RecurrentPass(size=ctypes.sizeof(_abi.RecurrentPass))
        self.gradients = _abi.RecurrentGradients(size=ctypes.sizeof(_abi.RecurrentGradients))
        for struct in (self.run, self.gradients):
            for name, shape in shapes.items():
                setattr(struct, name, library.view(0, form.dtype, shape))
        self.reports = (_abi.SolveReport * N)()
        for report in self.reports:
            report.size = ctypes.sizeof(_abi.SolveReport)
        self.key, self.chosen = key, key[4] == "auto" and length >= _AUTO_LENGTH
        # Where addresses go: a structure's own arrays, so that they need not be looked up in it.
        self.arrays = [getattr(self.run, name) for name in ("x", "h0", "c0", "y", "ht", "ct")]
        self.given = [getattr(self.gradients, name) for name in ("y", "ht", "ct", "x", "h0", "c0")]
        self.filled: Any = None
        self.error = _abi.Error()
        self.error_ref = ctypes.byref(self.error)

    def fill(self, x: int, h0: int, c0: int, lengths: int, y: int, ht: int, ct: int) -> None:
        """Addresses, 0 for none."""
        filled = (x, h0, c0, y, ht, ct, lengths)
        if filled == self.filled:
            return
        self.filled = None  # a Ctrl-C may come before all are written
        for place, address in zip(self.arrays, filled):
            place.data = address
        self.run.lengths = lengths
        self.filled = filled

    def make(self, slot: "_Slot") -> None:
        """The library's plan, by the slot's verdict on such passes where there is one; else `run` is a typical pass."""
        length, batch, training, packed, method = self.key
        self.verdict = slot.verdict_on(self.key) if self.chosen else None
        self.looked = self.chosen and self.verdict is None
        if method == "block" and slot.form.hidden % 2 and not slot.form.has_cell:
            raise UnsupportedError.of("method", "'block'", f"another, for its blocks are pairs of units, and the hidden size is {slot.form.hidden}")
        options = _abi.RecurrentPlanOptions(size=ctypes.sizeof(_abi.RecurrentPlanOptions), length=length, batch=batch,
                                            training=int(training), packed=int(packed))  # fmt: skip
        if self.verdict is not None:
            options.solve = self.verdict.at(length)
        else:
            options.solve.size = ctypes.sizeof(_abi.SolveOptions)
            options.solve.method = METHODS["sequential" if method == "auto" and not self.chosen else method]
        if method == "overlap":
            dtype = library.NAMES[slot.form.dtype]
            options.solve.join_tolerance = _ROUNDINGS * float(np.finfo(dtype).eps)
            options.solve.warm_up = _OVERLAP_F64 if dtype == np.float64 else 0
        options.sample = ctypes.addressof(self.run) if self.looked else None
        place, (error, error_ref) = ctypes.c_void_p(), library.error_place()
        library.check(library.lib.dpcr_recurrent_plan_create(slot.network.address, ctypes.byref(options), ctypes.byref(place),
                                                             error_ref), error)  # fmt: skip
        self.handle = library.Handle(place.value, library.lib.dpcr_recurrent_plan_destroy, slot.network)
        if self.looked:
            found = [_abi.SolveOptions.from_buffer_copy(_abi.SolveOptions.from_address(library.lib.dpcr_solve_plan_options(chain)))
                     for chain in self.chains()]  # fmt: skip
            self.verdict = slot.keep(_Verdict(self.key, _common(found), self.sentences()))
        self.workspace = library.lib.dpcr_recurrent_plan_workspace(place.value)
        self.tape = library.lib.dpcr_recurrent_plan_tape(place.value)
        # A slot serves one pass at a time, so its plans may keep what is small for themselves.
        self.own_work = self.own_tape = None
        if self.workspace <= library.OWN_BYTES:
            self.own_work = np.empty(self.workspace + 64, np.uint8)
            self.work_at = library.aligned(self.own_work)
        if self.tape <= library.OWN_BYTES:
            self.own_tape = np.empty(self.tape + 64, np.uint8)
            self.own_tape_at = library.aligned(self.own_tape)
        address, run = _POINTER(self.handle.address), ctypes.byref(self.run)
        self.before, self.after = (address, run), (_SIZE(self.workspace), self.reports, self.error_ref)
        self.back, self.end = (address, run, ctypes.byref(self.gradients)), (_SIZE(self.workspace), None, self.error_ref)
        self.once: Optional[Ready] = None  # what needs no other memory: x, h0, c0, lengths, y, ht, ct, then the parameters
        self.once_back: Optional[Ready] = None  # x, h0, c0, lengths, y, those given and wanted, then the parameters' gradients
        if self.own_work is not None and (not training or self.own_tape is not None):
            self._make_ready(slot, training)

    def _make_ready(self, slot: "_Slot", training: bool) -> None:
        at = ctypes.addressof
        network, plan, run, tape = slot.network.address, self.handle.address, at(self.run), self.own_tape_at if training else None
        x, h0, c0, y, ht, ct = map(at, self.arrays)
        pointers = [x, h0, c0, run + _abi.RecurrentPass.lengths.offset, y]
        tensors = [at(slot.tensors) + 8 * i for i in range(len(slot.tensors))]
        self.once = Ready([("PARAMETERS", (network, at(slot.tensors)), 0, 0),
                           ("FORWARD", (plan, run, tape, self.work_at, at(self.reports) if self.chosen else None), self.workspace, 0)],
                          [*enumerate([*pointers, ht, ct, *tensors])], 0)  # fmt: skip
        if training:
            places = [at(slot.places) + 8 * i for i in range(len(slot.places))]
            back = (network, at(slot.places), plan, run, at(self.gradients), tape, self.work_at)
            self.once_back = Ready([("BACKWARD", back, self.workspace, 0)], [*enumerate([*pointers, *map(at, self.given), *places])], 0)

    def execute(self, tape: Optional[int]) -> None:
        if self.own_work is not None:
            status = _execute(*self.before, _POINTER(tape), _POINTER(self.work_at), *self.after)
        else:
            work = library.take(self.workspace)
            status = _execute(*self.before, _POINTER(tape), _POINTER(library.aligned(work)), *self.after)
            library.give(work)
        if status:
            library.check(status, self.error)

    def backward(self, tape: int) -> None:
        if self.own_work is not None:
            status = _backward(*self.back, _POINTER(tape), _POINTER(self.work_at), *self.end)
        else:
            work = library.take(self.workspace)
            status = _backward(*self.back, _POINTER(tape), _POINTER(library.aligned(work)), *self.end)
            library.give(work)
        if status:
            library.check(status, self.error)

    def chains(self) -> List[int]:
        """The library's plans of layers and directions, by address."""
        out: List[int] = []
        while True:
            chain = library.lib.dpcr_recurrent_plan_chain(self.handle.address, len(out))
            if not chain:
                return out
            out.append(chain)

    def sentences(self) -> List[str]:
        if self.verdict is not None and not self.looked:
            return self.verdict.told()
        return [library.lib.dpcr_solve_plan_sentence(chain).decode() for chain in self.chains()]

    def learn(self) -> bool:
        """Tells planner and verdict how the pass went; True where it is to be looked again: chains did not forget as was thought."""
        assert self.verdict is not None
        if all(report.reason != _FALLBACK for report in self.reports):
            self.verdict.worked += 1
            self.verdict.owed = max(0, self.verdict.owed - 1)
            return False
        self.verdict.fallbacks += 1
        self.verdict.owed += _PAYS
        for chain, report in zip(self.chains() if self.looked else (), self.reports):
            if report.reason == _FALLBACK:
                library.lib.dpcr_solve_plan_learn(chain, ctypes.byref(report), None)
        return self.verdict.owed >= 2 * _PAYS


class _Slot:
    """A network of the library and its plans. Serves one pass at a time, from forward to backward."""

    def __init__(self, form: Form) -> None:
        self.form, self.generation = form, library.context.generation
        self.plans: Dict[KEY, _Plan] = {}  # the last used last
        self.verdicts: List[_Verdict] = []  # the last found last
        self.doubts: Dict[Any, int] = {}  # by a verdict's kind: verdicts one after another that failed
        options = _abi.RecurrentOptions(
            size=ctypes.sizeof(_abi.RecurrentOptions), kind=_abi.CONSTANTS[KINDS[form.kind]], dtype=form.dtype,
            inputs=form.inputs, hidden=form.hidden, layers=form.layers, bidirectional=int(form.bidirectional),
            no_bias=int(not form.bias), projection=form.projection,
        )  # fmt: skip
        place, (error, error_ref) = ctypes.c_void_p(), library.error_place()
        owner = library.context.get()
        library.check(library.lib.dpcr_recurrent_create(owner.address, ctypes.byref(options), ctypes.byref(place), error_ref),
                      error)  # fmt: skip
        self.network = library.Handle(place.value, library.lib.dpcr_recurrent_destroy, owner)
        count = ctypes.c_int64()
        library.lib.dpcr_recurrent_vector(place.value, ctypes.byref(count))
        assert sum(math.prod(shape) for _, shape in form.parameters()) == count.value
        self.tensors, self.places = ((ctypes.c_void_p * len(form.parameters()))() for _ in range(2))
        at = _POINTER(self.network.address)
        self.to_set, self.to_get, self.to_clear = (at, ctypes.byref(self.tensors)), (at, ctypes.byref(self.places)), (at,)

    def plan(self, key: KEY) -> Optional[_Plan]:
        """The plan for that key, where it is kept."""
        plan = self.plans.get(key)
        if plan is not None:
            self.plans[key] = self.plans.pop(key)
        return plan

    def verdict_on(self, key: KEY) -> Optional[_Verdict]:
        """The last verdict on such passes."""
        return next((verdict for verdict in reversed(self.verdicts) if verdict.holds(key)), None)

    def keep(self, verdict: _Verdict) -> _Verdict:
        if verdict.solve is not None:  # else it holds for nothing but the plan that looked
            self.verdicts = [*self.verdicts[1 - _PLANS :], verdict]
        return verdict

    def drop(self, verdict: _Verdict) -> None:
        """Looks again, where it no longer holds; where looking was of no use twice, the loop is left."""
        self.plans = {key: plan for key, plan in self.plans.items() if plan.verdict is not verdict}
        self.verdicts = [other for other in self.verdicts if other is not verdict]
        self.doubts[verdict.kind] = self.doubts.get(verdict.kind, 0) + 1 if verdict.failed() else 0
        if self.doubts[verdict.kind] >= 2:
            why = "sequential: what looked faster was finished in order time and again"
            self.keep(_Verdict((verdict.length, *verdict.kind), _loop(), [why for _ in verdict.sentences]))

    def load(self, parameters: Sequence[int]) -> None:
        """Parameters by address."""
        self.tensors[:] = parameters  # type: ignore[call-overload]
        _set(*self.to_set)  # copies the numbers

    def gradients(self, places: Sequence[int]) -> None:
        """Copies the parameters' gradients, in order, to these addresses."""
        self.places[:] = places  # type: ignore[call-overload]
        _get(*self.to_get)


def plan_apart(form: Form, key: KEY, most: int) -> Optional[Tuple[_Slot, _Plan, int]]:
    """A plan in a slot of its own, with all its memory, and their bytes; None where those are more than `most`, or the plan learns."""
    parameters = sum(math.prod(shape) for _, shape in form.parameters()) * library.NAMES[form.dtype].itemsize
    if 2 * parameters > most:
        return None
    slot = _Slot(form)
    plan = _Plan(slot, key)
    if plan.chosen:
        return None
    plan.make(slot)
    size = 2 * parameters + plan.workspace + plan.tape
    return None if plan.once is None or size > most else (slot, plan, size)


class Waiting:
    """A slot between a forward pass and its backward pass, whose numbers lie in it: that of one thread, the first to claim it. Dropped, it
    gives the slot back."""

    __slots__ = ("engine", "slot", "held", "_left")

    def __init__(self, engine: "Slots", slot: Any) -> None:
        self.engine, self.slot, self.held = engine, slot, True
        self._left = [True]  # a list, whose pop nothing comes between

    def claim(self) -> bool:
        """Whether it is the caller's alone from now on, who calls `release` in the end: once, of however many threads that hold it."""
        try:
            return self._left.pop()
        except IndexError:
            return False

    def end(self) -> None:
        """Gives it up, where nobody has claimed it."""
        if self.claim():
            self.release()

    def release(self) -> None:
        """By who has claimed it: the slot is free again."""
        if self.held:
            self.held = False
            self.put_away()
            self.engine.release(self.slot)

    def put_away(self) -> None:
        """What it holds besides."""

    def __del__(self) -> None:
        if self.held:  # no lock in a finaliser: memory goes to the collector
            self.held = False
            self.engine.release(self.slot)


class Pass(Waiting):
    """A forward pass that waits for its backward pass."""

    __slots__ = ("plan", "tape", "tape_at", "kept")

    def __init__(self, engine: "Engine", slot: _Slot, plan: _Plan, tape: np.ndarray, tape_at: int) -> None:
        super().__init__(engine, slot)
        self.plan, self.tape_at = plan, tape_at
        self.tape: Optional[np.ndarray] = tape
        self.kept: Any = None  # of the caller's, until the end

    def backward(self, x: int, h0: int, c0: int, lengths: int, y: int, given: Tuple[int, int, int], wanted: Tuple[int, int, int],
                 gradients: Iterable[int]) -> None:  # fmt: skip
        """Addresses as in Engine.forward, without the last states', which may be gone; given dy, dht, dct; wanted dx, dh0, dc0 and the
        parameters' gradients, in order. Of a pass that the caller has claimed, and releases after."""
        plan, slot = self.plan, self.slot
        if plan.once_back is not None:
            plan.once_back.run((x, h0, c0, lengths, y, *given, *wanted, *gradients))
            return
        plan.fill(x, h0, c0, lengths, y, *plan.filled[4:6])  # the slot is this pass's, and nobody else filled it
        for place, address in zip(plan.given, given + wanted):
            place.data = address
        _clear(*slot.to_clear)
        plan.backward(self.tape_at)
        slot.gradients([*gradients])

    def put_away(self) -> None:
        tape, self.kept, self.tape = self.tape, None, None
        if tape is not None and tape is not self.plan.own_tape:
            library.give(tape)


_tokens = itertools.count(1)
_engines = library.Cache(128)  # of modules that are known by a number


class Slots:
    """The slots of one module: as many as it has passes under way at once. `make` makes one for a form."""

    make: Any = None

    def __init__(self, form: Any) -> None:
        self.form = form.checked()
        self.free: List[Any] = []

    def acquire(self) -> Any:
        generation = library.context.generation
        while True:
            try:
                slot = self.free.pop()
            except IndexError:
                return self.make(self.form)
            if slot.generation == generation:
                return slot

    def release(self, slot: Any) -> None:
        if slot.generation == library.context.generation and len(self.free) < 8:
            self.free.append(slot)


class Engine(Slots):
    """A recurrent module's slots."""

    make = _Slot

    def __init__(self, form: Form) -> None:
        super().__init__(form)
        self.last: Optional[_Plan] = None

    def forward(self, parameters: Sequence[int], length: int, batch: int, x: int, h0: int, c0: int, lengths: int, y: int,
                ht: int, ct: int, training: bool, method: str) -> Optional[Pass]:  # fmt: skip
        """Runs a pass over contiguous arrays by address (0: none): parameters in order, x [T][B][I], h0 [N][B][P], c0 [N][B][H],
        lengths [B] int64, y [T][B][D P], ht, ct; P is form.outputs. Training, the result waits for the backward pass."""
        slot = self.acquire()
        key = (length, batch, training, lengths != 0, method)
        plan = slot.plan(key)
        if plan is None:
            slot.load(parameters)  # which the planner looks at
            plan = _Plan(slot, key)
            plan.fill(x, h0, c0, lengths, y, ht, ct)
            plan.make(slot)
            while len(slot.plans) >= _PLANS:
                slot.plans.pop(next(iter(slot.plans)))
            slot.plans[key] = plan
        self.last = plan
        tape, tape_at = plan.own_tape, 0
        if plan.once is not None:
            plan.once.run((x, h0, c0, lengths, y, ht, ct, *parameters))
        else:
            slot.load(parameters)
            plan.fill(x, h0, c0, lengths, y, ht, ct)
            if training and tape is None:
                tape = library.take(plan.tape)
                tape_at = library.aligned(tape)
            elif training:
                tape_at = plan.own_tape_at
            plan.execute(tape_at or None)
        if plan.verdict is not None and plan.learn():
            slot.drop(plan.verdict)
        if tape is None or not training:
            self.release(slot)
            return None
        return Pass(self, slot, plan, tape, tape_at)

    def sentences(self) -> List[str]:
        """Why the chains of the last pass ran as they did, a layer and direction each."""
        return [] if self.last is None else self.last.sentences()


def refuse_names(given: Collection[Any], wanted: Collection[str]) -> None:
    """Refuses parameters' names that are not those of a form, by what tells them apart."""
    differ = ("without", [name for name in wanted if name not in given]), ("with", [str(name) for name in given if name not in wanted])
    got = " and ".join(f"{word} {', '.join(names)}" for word, names in differ if names)
    if got:
        names = ", ".join(wanted)
        raise ArgumentError(f"the parameters come {got}; wanted {names}", "the parameters' names", got, names)


def token() -> int:
    """A number for a module: what survives torch.compile."""
    return next(_tokens)


def engine_of(number: int, form: Any, kind: Any = Engine) -> Any:
    """The engine of the module of that number, for a form that it has."""
    engine = _engines.kept.get((number, form))
    if engine is None:
        engine = kind(form)
        _engines.put((number, form), engine)
    return engine


def drop(number: int) -> None:
    """The module of that number is gone."""
    with _engines.lock:
        for key in [key for key in list(_engines.kept) if key[0] == number]:
            _engines.kept.pop(key, None)
