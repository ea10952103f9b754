# SPDX-License-Identifier: MIT
"""torch.nn.RNN, GRU and LSTM with another engine below: subclasses of torch.nn.RNNBase, so that parameters, hooks, copies and
pickles are PyTorch's own. (Not of torch.nn.RNN itself and its like: torch.compile leaves those out.)"""
from __future__ import annotations

import contextlib
import math
import os
import threading
import weakref
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from .. import _engine
from .._engine import MOST_HIDDEN, MOST_LAYERS
from .._library import NAMES, empty
from ..errors import ArgumentError, UnsupportedError, flag, number, one_of, shown, whole_number
from ..nonlinear import METHODS
from ._others import LONG, send_home
from ._registry import (
    CODES, REGISTERS, apart, autocasting, differentiable, eagerly, expect, floats, going_forward, jit_traces, looks, no_script,
    of_many, operator, plain, saved_elsewhere, tracing, wanted, wrapped,
)  # fmt: skip

_VF: Any = torch._VF  # type: ignore[attr-defined,unused-ignore]


def _address(tensor: Optional[Tensor]) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _contiguous(tensor: Optional[Tensor]) -> Optional[Tensor]:
    return None if tensor is None else plain(tensor)


_data_ptr = Tensor.data_ptr
_STRIDED = torch.strided
_KNOWN = 16  # shapes of inputs that a module remembers
_HUGE = 1 << 22  # numbers for which memory is kept from call to call, or asked for in large pages, as PyTorch does not


def _new(like: Tensor, length: int, batch: int, width: int) -> Tensor:
    """An empty tensor of the same dtype: the new pages of a large one alone cost more than a short network's run."""
    if length * batch * width < _HUGE:
        return like.new_empty(length, batch, width)
    return torch.from_numpy(empty((length, batch, width), NAMES[CODES[like.dtype]]))


class _Call:
    """What a pass is besides its tensors; x is [T][B][I]."""

    __slots__ = ("engine", "form", "dtype", "method", "chains", "cell", "width", "outputs", "hidden", "flops", "shapes", "alike", "lasts")

    def __init__(self, engine: _engine.Engine, method: str, lasts: bool = True) -> None:
        """`lasts`: whether it is run more than once."""
        self.engine, self.form, self.method, self.lasts = engine, engine.form, method, lasts
        form = self.form
        self.dtype = next(dtype for dtype, code in CODES.items() if code == form.dtype)
        self.chains, self.cell, self.width = form.layers * form.directions, form.has_cell, form.directions * form.outputs
        self.outputs, self.hidden = form.outputs, form.hidden
        self.shapes = [shape for _, shape in form.parameters()]
        self.flops = 2.0 * sum(map(math.prod, self.shapes))  # of a step forward
        self.alike: Any = None  # tells of parameters whether they look like those that were found right last

    def places(self, parameters: Sequence[Tensor], dtype: torch.dtype) -> Optional[List[int]]:
        """Where the parameters lie; None where one of them has to be copied first. Refuses those that are not the form's."""
        if len(parameters) != len(self.shapes):
            raise ArgumentError.of("the number of parameters", len(parameters), str(len(self.shapes)))
        alike = self.alike  # another thread may forget it
        if alike is not None and alike(*parameters):
            return list(map(_data_ptr, parameters))
        self.alike, apart = None, False
        for p, shape in zip(parameters, self.shapes):
            if p.shape != shape or p.dtype is not dtype or not p.is_cpu or p.layout is not _STRIDED:
                for q, (name, own) in zip(parameters, self.form.parameters()):
                    expect(name, q, own, dtype)
            apart = apart or not p.is_contiguous() or p.is_neg()
        if apart:
            return None
        self.alike = looks(parameters) if self.lasts else None
        return list(map(_data_ptr, parameters))

    def expect(self, x: Tensor, h: Optional[Tensor], c: Optional[Tensor], h_name: str = "h0", c_name: str = "c0") -> None:
        """Refuses states that are not those of a pass over x."""
        expect(h_name, h, (self.chains, x.shape[1], self.form.outputs), x.dtype)
        expect(c_name, c, (self.chains, x.shape[1], self.form.hidden), x.dtype)

    def forward(self, x: Tensor, h0: Optional[Tensor], c0: Optional[Tensor], lengths: Optional[Tensor],
                parameters: Sequence[Tensor], training: bool) -> Tuple[Tensor, Tensor, Optional[Tensor], Any]:  # fmt: skip
        places = self.places(parameters, x.dtype)
        if places is None:
            parameters = [plain(p) for p in parameters]
            places = [p.data_ptr() for p in parameters]
        x = plain(x)
        if h0 is not None or c0 is not None or lengths is not None:
            h0, c0, lengths = _contiguous(h0), _contiguous(c0), _contiguous(lengths)
        return self.run(places, x, h0, c0, lengths, training)

    def run(self, places: List[int], x: Tensor, h0: Optional[Tensor], c0: Optional[Tensor], lengths: Optional[Tensor],
            training: bool) -> Tuple[Tensor, Tensor, Optional[Tensor], Any]:  # fmt: skip
        """Of tensors that are contiguous, the parameters by address."""
        if 0 in places:
            raise ArgumentError.of("a parameter", "without memory, as of a storage that was freed", "numbers")
        T, B, _ = x.shape
        y, ht, ct, ct_at = _new(x, T, B, self.width), x.new_empty(self.chains, B, self.outputs), None, 0
        if self.cell:
            ct = x.new_empty(self.chains, B, self.hidden)
            ct_at = ct.data_ptr()
        if self.flops * T * B >= LONG:
            send_home(self.flops * T * B)
        given = (0, 0, 0)
        if h0 is not None or c0 is not None or lengths is not None:
            given = (_address(h0), _address(c0), _address(lengths))
        return y, ht, ct, self.engine.forward(places, T, B, x.data_ptr(), *given, y.data_ptr(), ht.data_ptr(), ct_at, training, self.method)

    def backward(self, waiting: Any, x: Tensor, h0: Optional[Tensor], c0: Optional[Tensor], lengths: Optional[Tensor],
                 parameters: Sequence[Tensor], y: Optional[Tensor], given: Sequence[Optional[Tensor]],
                 wants: Sequence[bool]) -> List[Optional[Tensor]]:  # fmt: skip
        """Gradients of x, h0, c0 and the parameters; `waiting` the pass that gave y; without y, one like it, or where that is None one of
        tensors that were looked at, is run here."""
        T, B = x.shape[:2] if waiting is None else waiting.plan.key[:2]
        if x.shape != (T, B, self.form.inputs) or x.dtype is not self.dtype or not x.is_cpu or x.layout is not _STRIDED:
            expect("x", x, (T, B, self.form.inputs), self.dtype)  # whose memory may be another's since the pass
        if h0 is not None or c0 is not None:
            self.expect(x, h0, c0)
        alike = self.alike  # another thread may forget it
        if alike is None or not alike(*parameters):
            alike = None
            self.places(parameters, x.dtype)
        x, h0, c0, lengths = plain(x), _contiguous(h0), _contiguous(c0), _contiguous(lengths)
        if y is None or not waiting.claim():  # by another thread, meanwhile
            y, _, _, waiting = self.forward(x, h0, c0, lengths, parameters, True)
            waiting.claim()
        dy, dht, dct = map(_contiguous, given)
        dx = _new(x, T, B, x.shape[2]) if wants[0] else None
        dh0 = x.new_empty(self.chains, B, self.form.outputs) if wants[1] else None
        dc0 = x.new_empty(self.chains, B, self.form.hidden) if self.cell and wants[2] else None
        if 2 * self.flops * T * B >= LONG:
            send_home(2 * self.flops * T * B)
        try:
            # Each in memory of its own, which optimisers may keep or free; those that look alike are contiguous.
            if alike is not None:
                gradients = list(map(torch.empty_like, parameters))
            else:
                gradients = [torch.empty_like(p, memory_format=torch.contiguous_format) for p in parameters]
            waiting.backward(x.data_ptr(), _address(h0), _address(c0), _address(lengths), y.data_ptr(),
                             (_address(dy), _address(dht), _address(dct) if self.cell else 0),
                             (_address(dx), _address(dh0), _address(dc0)), map(_data_ptr, gradients))  # fmt: skip
        finally:  # cancelled halfway, it has used up some of its tape
            waiting.release()
        return [dx, dh0, dc0, *gradients]


_onednn = threading.RLock()  # its switch is the process's
_onednn_was: List[bool] = []  # the switch, as those found it who have turned it


@contextlib.contextmanager
def _without_onednn() -> Iterator[None]:
    """For derivatives taken forward, which its LSTM of float32 has none of. One thread at a time: of two, the second would put back
    the switch as the first had turned it. (torch.backends.mkldnn.flags would turn others with it, and warn of one.)"""
    with _onednn:
        before = torch._C._get_mkldnn_enabled()
        _onednn_was.append(before)
        try:
            torch._C._set_mkldnn_enabled(False)
            yield
        finally:
            torch._C._set_mkldnn_enabled(before)
            del _onednn_was[-1:]  # in a child there may be none


def _after_fork() -> None:
    """In a child: another thread of the parent, which is not here, may have turned the switch."""
    global _onednn
    _onednn = threading.RLock()
    if _onednn_was:
        torch._C._set_mkldnn_enabled(_onednn_was[0])
        _onednn_was.clear()


os.register_at_fork(after_in_child=_after_fork)


def _pytorch(form: _engine.Form, x: Tensor, h0: Optional[Tensor], c0: Optional[Tensor], lengths: Optional[Tensor],
             parameters: Sequence[Tensor]) -> Any:  # fmt: skip
    """The same by PyTorch's own operators, for second derivatives and those taken forward."""
    N, T, B = form.layers * form.directions, x.shape[0], x.shape[1]
    states: Tuple[Tensor, ...] = (x.new_zeros(N, B, form.outputs) if h0 is None else h0,)
    if form.has_cell:
        states += (x.new_zeros(N, B, form.hidden) if c0 is None else c0,)
    run = {"gru": _VF.gru, "lstm": _VF.lstm, "rnn_tanh": _VF.rnn_tanh, "rnn_relu": _VF.rnn_relu}[form.kind]
    rest = (list(parameters), form.bias, form.layers, 0.0, False, form.bidirectional)
    hx = states if form.has_cell else states[0]
    if lengths is None:
        with _without_onednn() if form.has_cell and going_forward() else contextlib.nullcontext():
            return run(x, hx, *rest, False)
    flat, sizes = _VF._pack_padded_sequence(x, lengths, False)
    y, *last = run(flat, sizes, hx, *rest)
    return (_VF._pad_packed_sequence(y, sizes, False, 0.0, T)[0], *last)


class _Remembered(Dict[Any, Any]):
    """What a module remembers of its calls; a copy's is empty. (Parametrised modules are copied by PyTorch attribute by attribute.)"""

    def __deepcopy__(self, _memo: Any) -> "_Remembered":
        return _Remembered()


class _Known:
    """A module's call over an input and states that `alike` knows: with the parameters as they were, of the same dtypes, shapes, strides."""

    __slots__ = ("call", "alike", "method", "turned", "learns", "plain")

    def __init__(self, call: _Call, alike: Any, method: str, turned: bool, tensors: Sequence[Tensor]) -> None:
        self.call, self.alike, self.method, self.turned = call, alike, method, turned
        self.learns = any(t.requires_grad for t in tensors)
        self.plain = all(t.is_contiguous() and not t.is_neg() for t in tensors)


class _Recurrent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, places: Optional[List[int]], turned: bool, lengths: Optional[Tensor], x: Tensor,
                h0: Optional[Tensor], c0: Optional[Tensor], *parameters: Tensor) -> Tuple[Tensor, ...]:  # fmt: skip
        """`places`: where the parameters lie, of tensors that were looked at and lie as the library wants them. `turned`: y is
        [B][T][..], no view of another tensor, so that it may be detached in place as nn.GRU's. x is contiguous, a copy that is saved where
        the input was not: that one may be written into before the way back, as with nn.GRU."""
        keeps = not saved_elsewhere()  # else the way back runs the network once more
        if places is None:
            y, ht, ct, waiting = call.forward(x, h0, c0, lengths, parameters, keeps)
        else:
            y, ht, ct, waiting = call.run(places, x, h0, c0, lengths, keeps)
        if turned:
            y.transpose_(0, 1)
        ctx.set_materialize_grads(False)
        ctx.call, ctx.waiting, ctx.shape, ctx.version, ctx.turned = call, waiting, x.shape, y._version, turned
        if waiting is not None:
            # The way back reads y too. It is not saved: whoever writes into it, as into nn.GRU's, has the network run again, where PyTorch
            # counts the writes: not those of y.data, of y.detach().numpy() or by DLPack. A copy of y would cost every pass what few need.
            waiting.kept = y.detach()
        ctx.save_for_backward(x, h0, c0, lengths, *parameters)
        return (y, ht) if ct is None else (y, ht, ct)

    @staticmethod
    def backward(ctx: Any, *given: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        x, h0, c0, lengths, *parameters = ctx.saved_tensors
        wants, call, waiting = ctx.needs_input_grad[4:], ctx.call, ctx.waiting
        given += (None,) * (3 - len(given))
        if ctx.turned and given[0] is not None:
            given = (given[0].transpose(0, 1), *given[1:])
        if torch.is_grad_enabled() or of_many(given) or wrapped(*given):
            return (None, None, None, None, *_twice(call.form, x, h0, c0, lengths, parameters, given, wants))
        if waiting is None:
            expect("x", x, ctx.shape, call.dtype)
        y = None if waiting is None else waiting.kept  # None: it was used up
        if y is not None and y._version != ctx.version:  # written into
            waiting.end()
            y = None
        return (None, None, None, None, *call.backward(waiting, x, h0, c0, lengths, parameters, y, given, wants))


def _twice(form: _engine.Form, x: Tensor, h0: Optional[Tensor], c0: Optional[Tensor], lengths: Optional[Tensor],
           parameters: List[Tensor], given: Sequence[Optional[Tensor]], wants: Sequence[bool]) -> List[Optional[Tensor]]:
    """Gradients that have gradients themselves, or of many losses at once: by PyTorch's operators."""
    if not form.mixed:
        raise UnsupportedError.of(f"{form.kind}'s derivatives", "second derivatives, or of many losses at once", "first ones of one loss")
    with torch.enable_grad():
        inputs: List[Any] = apart([x, h0, c0, *parameters])
        outputs = [(o, g) for o, g in zip(_pytorch(form, inputs[0], inputs[1], inputs[2], lengths, inputs[3:]), given) if g is not None]
    asked = [t for t, w in zip(inputs, wants) if w and t is not None]
    found = iter(torch.autograd.grad([o for o, _ in outputs], asked, [g for _, g in outputs], create_graph=torch.is_grad_enabled(),
                                     allow_unused=True))  # fmt: skip
    return [next(found) if w and t is not None else None for t, w in zip(inputs, wants)]


# ---- the operator that torch.compile and torch.export keep; its backward pass runs the network anew ----

_SCHEMA = ("Tensor x, Tensor? h0, Tensor? c0, Tensor? lengths, Tensor[] parameters, str kind, int hidden, int layers, "
           "bool bidirectional, bool bias, int projection, int token, str method")  # fmt: skip


def _called(x: Tensor, h0: Optional[Tensor], c0: Optional[Tensor], lengths: Optional[Tensor], kind: str, hidden: int, layers: int,
            bidirectional: bool, bias: bool, projection: int, token: int, method: str) -> _Call:  # fmt: skip
    """The call of an operator whose arguments may come from anywhere."""
    one_of("kind", kind, _engine.KINDS)
    one_of("method", method, METHODS)
    floats("x", x)
    if x.ndim != 3:
        raise ArgumentError.of("x's shape", tuple(x.shape), "[T][B][inputs]")
    form = _engine.Form(kind, CODES[x.dtype], x.shape[2], hidden, layers, bidirectional, bias, projection)
    call = _Call(_engine.engine_of(token, form), method, False)
    if c0 is not None and not call.cell:
        raise ArgumentError.of("c0", "given", f"none of {kind}")
    call.expect(x, h0, c0)
    expect("lengths", lengths, x.shape[1:2], torch.int64)
    return call


@operator("deeppcr::recurrent", f"({_SCHEMA}) -> (Tensor, Tensor, Tensor)")
def _operator(x: Tensor, h0: Optional[Tensor], c0: Optional[Tensor], lengths: Optional[Tensor], parameters: List[Tensor],
              *options: Any) -> Tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    y, ht, ct, _ = _called(x, h0, c0, lengths, *options).forward(x, h0, c0, lengths, parameters, False)
    return y, ht, x.new_empty(0) if ct is None else ct


@_operator.register_fake
def _(x: Tensor, h0: Optional[Tensor], c0: Optional[Tensor], lengths: Optional[Tensor], parameters: List[Tensor], kind: str,
      hidden: int, layers: int, bidirectional: bool, bias: bool, projection: int, token: int, method: str) -> Any:  # fmt: skip
    D, T, B, P = 2 if bidirectional else 1, x.shape[0], x.shape[1], projection or hidden
    cell = (layers * D, B, hidden) if kind in ("lstm", "paralstm") else 0
    return x.new_empty(T, B, D * P), x.new_empty(layers * D, B, P), x.new_empty(cell)


@operator("deeppcr::recurrent_vjp", f"({_SCHEMA}, Tensor dy, Tensor dht, Tensor dct) -> Tensor[]")
def _operator_vjp(x: Tensor, h0: Optional[Tensor], c0: Optional[Tensor], lengths: Optional[Tensor], parameters: List[Tensor],
                  *rest: Any) -> List[Tensor]:  # fmt: skip
    *options, dy, dht, dct = rest
    call = _called(x, h0, c0, lengths, *options)
    given = dy, dht, dct if call.cell else None
    call.expect(x, given[1], given[2], "dh", "dc")
    expect("dy", dy, (*x.shape[:2], call.width), x.dtype)
    found = call.backward(None, x, h0, c0, lengths, parameters, None, given, (True, h0 is not None, c0 is not None))
    return [x.new_empty(0) if g is None else g for g in found]


@_operator_vjp.register_fake
def _(x: Tensor, h0: Optional[Tensor], c0: Optional[Tensor], lengths: Optional[Tensor], parameters: List[Tensor],
      *rest: Any) -> Any:  # fmt: skip
    return [x.new_empty(0) if t is None else t.new_empty(t.shape) for t in (x, h0, c0, *parameters)]


def _setup(ctx: Any, inputs: Tuple[Any, ...], output: Any) -> None:
    x, h0, c0, lengths, parameters, *ctx.options = inputs
    ctx.save_for_backward(x, h0, c0, lengths, *parameters)


def _operator_backward(ctx: Any, *given: Tensor) -> Tuple[Any, ...]:
    x, h0, c0, lengths, *parameters = ctx.saved_tensors
    found = _traced_vjp(x, h0, c0, lengths, parameters, *ctx.options, *(g.contiguous() for g in given))
    nothing = [None] * len(ctx.options)
    return (found[0], None if h0 is None else found[1], None if c0 is None else found[2], None, list(found[3:]), *nothing)


_traced = differentiable(_operator, _operator_backward, _setup)
_traced_vjp = differentiable(_operator_vjp)


# ---- modules ----


def _list_weights(module: Any) -> None:
    """Makes RNNBase's list of a module's parameters."""
    if hasattr(module, "_init_flat_weights"):
        module._init_flat_weights()
    else:  # PyTorch 1
        module._flat_weights = [module._parameters[name] for name in module._flat_weights_names]



_DOC = """{first}

    Parameters
    ----------
    input_size, hidden_size : int
        Numbers of an input, I, and of a state, H.
    num_layers : int
        Each reads the outputs of the one below.
    {own}bias : bool
    batch_first : bool
        Inputs and outputs are [B][T][..] instead of [T][B][..]; states stay as they are.
    dropout : float
        While training: the share of the outputs of each layer but the last that are zero.
    bidirectional : bool
        Two directions (D = 2), the second against time.
    {last}device, dtype : optional
        Of the parameters; what runs here is torch.float32 and torch.float64 on the processor.
    method : str
        How the time steps run, as in `deeppcr.solve`; "auto" looks at the network over its first long sequence.
    {fallback}
    Raises
    ------
    ArgumentError
        Of sizes that are none, words for yes or no, a method that there is not.

    `forward` has the shapes of inputs and results. {parameters}
    """
_NO_PROJECTION = """proj_size : int
        0: projections are LSTM's.
    """
_PROJECTION = """proj_size : int
        Numbers of h where they are fewer than hidden_size; 0: as many.
    """
_FALLBACK = """fallback : bool
        What this package does not do (CUDA, autocast, bfloat16) is done by PyTorch's own code instead of being refused.
"""
_THEIRS = "Parameters, their names and their initialisation are torch.nn.{0}'s, so that its state_dict fits."
_OURS_ALONE = """Parameters go by PyTorch's names, `weight_hh_l0` a vector; there is no bias_hh. What meets the
    input begins as in torch.nn.Linear, the rest as U(-1/2, 1/2). First gradients only: torch.nn has no such module."""


class _Module(torch.nn.RNNBase):
    """What the modules have in common."""

    _theirs: Any = None
    __prepare_scriptable__ = no_script

    def __init__(self, mode: str, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
                 dropout: float = 0.0, bidirectional: bool = False, *args: Any, method: str = "auto", fallback: bool = False,
                 **kwargs: Any) -> None:  # fmt: skip
        sizes = [whole_number(name, size, 1) for name, size in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers))]
        super().__init__(mode, *sizes, flag("bias", bias), flag("batch_first", batch_first), _share(dropout),
                         flag("bidirectional", bidirectional), *args, **kwargs)  # fmt: skip
        self.method, self.fallback = one_of("method", method, METHODS), flag("fallback", fallback)
        self._number()

    def _number(self) -> None:
        self._token = _engine.token()  # for the operator, whose engines are known by it
        self._calls, self._known = _Remembered(), _Remembered()
        self._none: List[Optional[Tensor]] = [None, None] if self.mode in ("LSTM", "PARALSTM") else [None]  # no states
        weakref.finalize(self, _engine.drop, self._token)

    def __getstate__(self) -> Dict[str, Any]:
        state = super().__getstate__() if hasattr(torch.nn.RNNBase, "__getstate__") else self.__dict__
        return {name: value for name, value in state.items() if name not in ("_calls", "_known", "_none")}

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self._number()  # copies plan for themselves

    def _kind(self) -> str:
        return self.mode.lower()

    def _weights(self) -> List[Any]:
        """The parameters in order, as they are now: torch.func.functional_call, pruning and parametrizations put others in their
        places without a word."""
        own, listed = self._parameters, self._flat_weights
        for name, weight in zip(self._flat_weights_names, listed):
            if own.get(name) is not weight:
                return [getattr(self, name) for name in self._flat_weights_names]
        return listed

    def _refusal(self, x: Tensor, weight: Tensor) -> Optional[Tuple[str, Any, str]]:
        """What this package does not do."""
        if not (x.is_cpu and weight.is_cpu):
            return "the device", weight.device if x.is_cpu else x.device, "cpu"
        if x.layout is not torch.strided:
            return "the layout", x.layout, "torch.strided"
        if not tracing() and x.is_nested:
            return "the input", "a nested tensor", "a tensor of one shape or a PackedSequence"
        if not tracing() and jit_traces():
            return "torch.jit.trace", "on", "torch.export or torch.compile"
        if autocasting():
            return "autocast", "on", "off: numbers are float32 or float64"
        if weight.dtype not in CODES:
            return "the dtype", weight.dtype, "torch.float32 or torch.float64"
        if self.hidden_size > MOST_HIDDEN:
            return "hidden_size", self.hidden_size, f"{MOST_HIDDEN} at most"
        if self.num_layers > MOST_LAYERS:
            return "num_layers", self.num_layers, f"{MOST_LAYERS} at most"
        return None

    def forward(self, input: Any, hx: Any = None) -> Any:  # noqa: A002  PyTorch's name
        """Runs the network.

        Parameters
        ----------
        input : Tensor or PackedSequence
            [T][B][I], with batch_first [B][T][I], or [T][I] for one sequence.
        hx : Tensor, or a pair of them where the state is (h, c), optional
            h0 [num_layers D][B][proj_size or H] and c0 [num_layers D][B][H]; without B for one sequence. Zeros without it.

        Returns
        -------
        output, hx : as nn.GRU and nn.LSTM give them
            [T][B][D (proj_size or H)], laid out as the input is, and the last states, like h0 and c0.

        Raises
        ------
        ArgumentError
            Of shapes and dtypes that do not fit, with what was given and what is wanted.
        UnsupportedError
            Of other devices, dtypes and layouts, and under autocast, where `fallback` is not set.
        """
        if type(input) is not Tensor or self.dropout and self.training or tracing() or going_forward() or jit_traces() or input.is_nested:
            return self._anew(input, hx)
        states = () if hx is None else hx if len(self._none) == 2 else (hx,)
        if type(states) is not tuple or not states and hx is not None:  # an empty pair has the key of none
            return self._anew(input, hx)
        key = (input.shape, len(states))
        known = self._known.get(key)
        weights = tuple(map(self._parameters.get, self._flat_weights_names))
        if known is None or not known.alike(*weights, input, *states) or known.method != self.method or known.turned != self.batch_first:
            found = self._anew(input, hx)
            self._know(key, (*weights, input, *states))
            return found
        return self._again(known, weights, input, states)

    def _again(self, known: _Known, weights: Any, x: Tensor, states: Tuple[Tensor, ...]) -> Any:
        """What `_anew` gives, of tensors that look like those of a call before."""
        call, single, turned = known.call, x.ndim == 2, known.turned
        if single:
            x, states, turned = x[:, None], tuple([s[:, None] for s in states]), False
        elif turned:
            x = x.transpose(0, 1)
        h0, c0 = (None, None) if not states else states if len(states) == 2 else (states[0], None)
        places = list(map(_data_ptr, weights)) if known.plain and not turned else None
        if known.learns and torch.is_grad_enabled():
            found = _Recurrent.apply(call, places, turned, None, plain(x), h0, c0, *weights)
        elif places is not None:
            found = call.run(places, x, h0, c0, None, False)
        else:
            found = call.forward(x, h0, c0, None, weights, False)
            if turned:
                found[0].transpose_(0, 1)
        y, ht = found[0], found[1]
        if single:
            return y[:, 0], (ht[:, 0], found[2][:, 0]) if call.cell else ht[:, 0]
        return y, (ht, found[2]) if call.cell else ht

    def _know(self, key: Any, tensors: Tuple[Any, ...]) -> None:
        """Keeps what a call that went well may be known by."""
        if tensors[0] is None or self._refusal(tensors[-1 - key[1]], tensors[0]) is not None:  # PyTorch's own code may have run
            return
        call = self._calls.get((tensors[0].dtype, key[0][-1], self.num_layers, self.method))
        alike = None if call is None or len(call.shapes) + 1 + key[1] != len(tensors) or wrapped(*tensors) else looks(tensors)
        if call is not None and alike is not None:
            if len(self._known) >= _KNOWN:
                self._known = _Remembered()
            self._known[key] = _Known(call, alike, self.method, self.batch_first, tensors)

    def _anew(self, input: Any, hx: Any) -> Any:  # noqa: A002
        packed = isinstance(input, PackedSequence)
        data = input.data if packed else input
        if isinstance(data, Proxy):
            wanted = "torch.export or torch.compile, or a Tracer to which this module is a leaf"
            raise UnsupportedError.of(f"{type(self).__name__}: torch.fx.symbolic_trace", "on", wanted)
        if not isinstance(data, Tensor):
            raise ArgumentError.of("the input", type(data).__name__, "a tensor or a PackedSequence")
        weights = self._weights()
        refused = self._refusal(data, weights[0])
        if refused is not None:
            if self.fallback and self._theirs is not None:
                # torch.compile fails at the way back of oneDNN's LSTM, and leaves nn.LSTM out itself.
                apart = self.mode == "LSTM" and REGISTERS and torch.compiler.is_compiling() and torch.is_grad_enabled()
                return self._left_out(input, hx, weights) if apart else self._by_pytorch(input, hx, weights)
            other = " (or fallback=True)" if self._theirs is not None else ""
            raise UnsupportedError.of(f"{type(self).__name__}: {refused[0]}", refused[1], refused[2] + other)
        if data.dtype != weights[0].dtype:
            raise ArgumentError.of("the input's dtype", data.dtype, f"the parameters', {weights[0].dtype}")
        if packed:
            if data.ndim != 2:
                raise ArgumentError.of("the input's dimensions", data.ndim, "2 of a PackedSequence's data")
            if data.shape[-1] != self.input_size:
                raise ArgumentError.of("the input's last dimension", data.shape[-1], str(self.input_size))
            return self._packed(input, hx, weights)
        shape = input.shape
        if len(shape) not in (2, 3):
            raise ArgumentError.of("the input's dimensions", len(shape), "2, or 3 with a batch")
        single = len(shape) == 2
        first = self.batch_first and not single
        x = input.transpose(0, 1) if first else input[:, None] if single else input
        if shape[-1] != self.input_size:
            raise ArgumentError.of("the input's last dimension", shape[-1], str(self.input_size))
        if shape[1 if first else 0] == 0:
            raise ArgumentError.of("the length", 0, "1 or more")
        given = self._none if hx is None else self._states(hx, 1 if single else shape[0 if first else 1], single, weights[0].dtype)
        y, states = self._run(x, given, None, weights, first)
        if single:
            return y[:, 0], self._out([s[:, 0] for s in states])
        return y, self._out(states)

    def _by_pytorch(self, input: Any, hx: Any, weights: List[Any]) -> Any:  # noqa: A002
        stand_in = object.__new__(self._theirs)
        # The parameters as they are now, also where a property of this class gives them, as of a parametrised module.
        stand_in.__dict__ = {**self.__dict__, **dict(zip(self._flat_weights_names, weights)), "_flat_weights": weights}
        return stand_in.forward(input, hx)

    _left_out = eagerly(_by_pytorch)

    def _out(self, states: Sequence[Tensor]) -> Any:
        return states[0] if len(states) == 1 else tuple(states)

    def _states(self, hx: Any, batch: int, single: bool, dtype: torch.dtype) -> List[Optional[Tensor]]:
        """[h0] or [h0, c0], [N][B][H] each."""
        lstm = len(self._none) == 2
        if lstm and (not isinstance(hx, (tuple, list)) or len(hx) != 2):
            raise ArgumentError.of("hx", type(hx).__name__, "a pair (h0, c0)")
        given: List[Tensor] = list(hx) if lstm else [hx]
        N = self.num_layers * (2 if self.bidirectional else 1)
        widths = (self.proj_size or self.hidden_size, self.hidden_size)
        for name, state, width in zip(("h0", "c0"), given, widths):
            wanted = (N, width) if single else (N, batch, width)
            if not isinstance(state, Tensor):
                raise ArgumentError.of(name, type(state).__name__, "a tensor")
            if tuple(state.shape) != wanted:
                raise ArgumentError.of(f"{name}'s shape", tuple(state.shape), str(wanted))
            if state.dtype != dtype or state.device.type != "cpu":
                raise ArgumentError.of(f"{name}", f"of {state.dtype} on {state.device}", f"{dtype} on cpu")
        return [state[:, None] if single else state for state in given]

    @eagerly
    def _packed(self, input: PackedSequence, hx: Any, weights: List[Tensor]) -> Any:  # noqa: A002
        data, sizes, order, back = input
        steps = sizes.shape[0]
        x, lengths = _VF._pad_packed_sequence(data, sizes, False, 0.0, steps)
        given = self._none if hx is None else self._states(hx, x.shape[1], False, weights[0].dtype)
        if order is not None:
            given = [None if s is None else s.index_select(1, order) for s in given]
        y, states = self._run(x, given, lengths, weights)
        flat = _VF._pack_padded_sequence(y, lengths, False)[0]
        if back is not None:
            states = [s.index_select(1, back) for s in states]
        return PackedSequence(flat, sizes, order, back), self._out(states)

    def _run(self, x: Tensor, states: List[Optional[Tensor]], lengths: Optional[Tensor], weights: List[Tensor],
             turned: bool = False) -> Tuple[Tensor, List[Tensor]]:  # fmt: skip
        """`turned`: y is to be [B][T][..]."""
        layers, D = self.num_layers, 2 if self.bidirectional else 1
        if not (self.dropout and self.training and layers > 1):
            return self._pass(x, states, lengths, weights, layers, turned)
        each, out = len(weights) // layers, []
        for layer in range(layers):  # dropout lies between them
            part = slice(layer * D, layer * D + D)
            own = [None if s is None else s[part] for s in states]
            top = layer + 1 == layers
            x, last = self._pass(x, own, lengths, weights[layer * each : layer * each + each], 1, turned and top)
            out.append(last)
            if not top:
                x = self._drop_out(x, lengths)
        return x, [torch.cat(parts) for parts in zip(*out)]

    def _drop_out(self, x: Tensor, lengths: Optional[Tensor]) -> Tensor:
        p = self.dropout
        if lengths is None:
            return functional.dropout(x, p, True)
        flat, sizes = _VF._pack_padded_sequence(x, lengths, False)  # over the numbers that there are, as PyTorch does
        return _VF._pad_packed_sequence(functional.dropout(flat, p, True), sizes, False, 0.0, x.shape[0])[0]

    def _pass(self, x: Tensor, states: List[Optional[Tensor]], lengths: Optional[Tensor], weights: List[Tensor], layers: int,
              turned: bool) -> Tuple[Tensor, List[Tensor]]:  # fmt: skip
        h0, c0 = states[0], states[1] if len(states) == 2 else None
        hidden, bidirectional, bias = self.hidden_size, self.bidirectional, self.bias
        kind, projection = self._kind(), self.proj_size
        if going_forward():  # as PyTorch's own operators have these derivatives
            form = _engine.Form(kind, CODES[x.dtype], x.shape[2], hidden, layers, bidirectional, bias, projection)
            if not form.mixed:
                raise UnsupportedError.of(f"forward derivatives of {kind}", "asked for", "a kind that torch.nn has")
            y, *last = _pytorch(form, x, h0, c0, lengths, weights)
            return y.transpose(0, 1) if turned else y, last
        own = type(x) is Tensor or type(x) is torch.nn.Parameter
        if tracing() or REGISTERS and not own or wrapped(x, h0, c0, *weights):
            y, ht, ct = _traced(x, h0, c0, lengths, weights, kind, hidden, layers, bidirectional, bias,
                                                    projection, self._token, self.method)  # fmt: skip
            y = y.transpose(0, 1) if turned else y
        else:
            key = (x.dtype, x.shape[2], layers, one_of("method", self.method, METHODS))
            call = self._calls.get(key)
            if call is None:
                form = _engine.Form(kind, CODES[x.dtype], x.shape[2], hidden, layers, bidirectional, bias, projection)
                call = self._calls[key] = _Call(_engine.Engine(form), self.method)
            if wanted(*weights, x, h0, c0):
                found = _Recurrent.apply(call, None, turned, lengths, plain(x), h0, c0, *weights)
            else:
                found = call.forward(x, h0, c0, lengths, weights, False)
                if turned:
                    found[0].transpose_(0, 1)
            y, ht, ct = found[0], found[1], found[2] if call.cell else None
        return y, [ht] if ct is None or kind not in ("lstm", "paralstm") else [ht, ct]

    @property
    def sentences(self) -> List[str]:
        """Why the chains of the last pass ran as they did, a layer and direction each."""
        engines = [call.engine for call in self._calls.values()]
        engines += [engine for (number, _), engine in _engine._engines.kept.items() if number == self._token]
        return [text for engine in engines for text in engine.sentences()]


def _share(dropout: Any) -> float:
    share = number("dropout", dropout)
    if not 0 <= share <= 1:
        raise ArgumentError.of("dropout", share, "0 to 1")
    return share


def _refuse_projection(size: Any) -> None:
    if isinstance(size, bool) or size != 0:
        raise ArgumentError.of("proj_size", shown(size), "0: projections are LSTM's")


class RNN(_Module):
    __doc__ = _DOC.format(first="torch.nn.RNN, many times faster on a CPU.", last=_NO_PROJECTION, fallback=_FALLBACK, parameters=_THEIRS.format("RNN"),
                          own='''nonlinearity : str
        "tanh" or "relu".
    ''')  # fmt: skip
    _theirs = torch.nn.RNN

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", bias: bool = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, device: Any = None,
                 dtype: Any = None, *, method: str = "auto", fallback: bool = False) -> None:  # fmt: skip
        _refuse_projection(proj_size)
        self.nonlinearity = one_of("nonlinearity", nonlinearity, ("tanh", "relu"))
        super().__init__(f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, bias, batch_first, dropout,
                         bidirectional, device=device, dtype=dtype, method=method, fallback=fallback)  # fmt: skip


class GRU(_Module):
    __doc__ = _DOC.format(first="torch.nn.GRU, many times faster on a CPU.", own="", last=_NO_PROJECTION, fallback=_FALLBACK,
                          parameters=_THEIRS.format("GRU"))  # fmt: skip
    _theirs = torch.nn.GRU

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
                 dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, device: Any = None, dtype: Any = None, *,
                 method: str = "auto", fallback: bool = False) -> None:  # fmt: skip
        _refuse_projection(proj_size)
        super().__init__("GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device=device, dtype=dtype,
                         method=method, fallback=fallback)  # fmt: skip


class LSTM(_Module):
    __doc__ = _DOC.format(first="torch.nn.LSTM, faster on a CPU; states are pairs (h, c).", own="", last=_PROJECTION, fallback=_FALLBACK,
                          parameters=_THEIRS.format("LSTM"))  # fmt: skip
    _theirs = torch.nn.LSTM

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
                 dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, device: Any = None, dtype: Any = None, *,
                 method: str = "auto", fallback: bool = False) -> None:  # fmt: skip
        proj_size = whole_number("proj_size", proj_size, 0, whole_number("hidden_size", hidden_size, 1) - 1)
        super().__init__("LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device=device,
                         dtype=dtype, method=method, fallback=fallback)  # fmt: skip


def _doc_of_ours(name: str, states: str = "") -> str:
    first = f"""`deeppcr.recurrent.{name}`, which has the formulas, as a module{states}.

    Units do not mix, so that long sequences are solved in parallel at any width."""
    return _DOC.format(first=first, own="", last="", fallback="", parameters=_OURS_ALONE)


class _Unmixed(_Module):
    """A module whose units do not mix: torch.nn has none such."""

    _mode = ""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
                 dropout: float = 0.0, bidirectional: bool = False, *, device: Any = None, dtype: Any = None, method: str = "auto") -> None:
        torch.nn.Module.__init__(self)  # not RNNBase's, which knows no such mode
        mode = self._mode
        one_of("method", method, METHODS)
        for name, given in (("bias", bias), ("batch_first", batch_first), ("bidirectional", bidirectional)):
            flag(name, given)
        for name, size in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
            whole_number(name, size, 1)
        share = _share(dropout)
        self.mode, self.input_size, self.hidden_size, self.num_layers = mode, input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout, self.bidirectional, self.proj_size = bias, batch_first, share, bidirectional, 0
        self.method, self.fallback = method, False
        form = _engine.Form(mode.lower(), 1, input_size, hidden_size, num_layers, bidirectional, bias)
        self._bounds = {name: bound for name, _, bound in form.bounds()}
        for name, shape, _ in form.bounds():
            self.register_parameter(name, torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        self._flat_weights_names = list(self._bounds)
        each = len(self._bounds) // (num_layers * (2 if bidirectional else 1))
        self._all_weights = [self._flat_weights_names[i : i + each] for i in range(0, len(self._bounds), each)]
        _list_weights(self)
        self.reset_parameters()
        self._number()

    def reset_parameters(self) -> None:
        """What meets the input as in torch.nn.Linear, the rest U(-1/2, 1/2)."""
        with torch.no_grad():
            for name, bound in self._bounds.items():
                getattr(self, name).uniform_(-bound, bound)


class ParaGRU(_Unmixed):
    __doc__ = _doc_of_ours("ParaGRU")

    _mode = "PARAGRU"


class ParaLSTM(_Unmixed):
    __doc__ = _doc_of_ours("ParaLSTM", "; states are pairs (h, c)")

    _mode = "PARALSTM"


class MinGRU(_Unmixed):
    __doc__ = _doc_of_ours("MinGRU")

    _mode = "MINGRU"


_OURS: Dict[Any, Any] = {ours._theirs: ours for ours in (RNN, GRU, LSTM)}


def _attributes(name: str, module: torch.nn.Module, made: torch.nn.Module) -> Dict[str, Any]:
    """The plain attributes that a module was given beside its kind's, for the one `made` in its place. Refused are hooks of calls, of the way
    back, of state_dict and of its loading; buffers, modules, parameters and methods of its own; and what would mean something to `made`."""
    kinds = [kind.strip("_") for kind, hooks in vars(module).items() if kind.endswith("_hooks") and hooks]
    if kinds:
        raise UnsupportedError.of(f"the hooks of {name}", ", ".join(kinds), "none: register them on the new module")
    known = {weight for names in module._all_weights for weight in names}  # type: ignore[union-attr]
    fresh = vars(type(module)(1, 1, device="meta"))  # type: ignore[arg-type,call-arg]
    given = {own: value for own, value in vars(module).items() if own not in fresh}
    meant = [own for own, value in given.items() if hasattr(made, own) or getattr(value, "__self__", None) is module]
    others = [*module._buffers, *module._modules, *(own for own in module._parameters if own not in known), *meant]
    if others:
        raise UnsupportedError.of(f"what {name} has of its own", ", ".join(sorted(others)), "nothing: give it to the new module")
    return given


def from_torch(module: torch.nn.Module, *, method: str = "auto", fallback: bool = False) -> torch.nn.Module:
    """The same network as a torch.nn.RNN, GRU or LSTM, with the very same parameters, in this package's form.

    Parameters
    ----------
    module : torch.nn.RNN, GRU or LSTM
    method, fallback
        As in `deeppcr.torch.GRU`.

    Returns
    -------
    RNN, GRU or LSTM : of this package, training where the module is, with the plain attributes that it was given.

    Raises
    ------
    ArgumentError
        Of another module, or what is no method.
    UnsupportedError
        Of a module with hooks of any kind, or with buffers, modules, parameters or methods that its kind has not, or an attribute by a name
        that means something here (`method`): they are not taken over.
    """
    if type(module) not in _OURS:
        raise ArgumentError.of("the module", type(module).__name__, "a torch.nn.RNN, GRU or LSTM")
    return _converted("the module", module, method, fallback)


def _converted(name: str, module: torch.nn.Module, method: str, fallback: bool) -> torch.nn.Module:
    ours = _OURS[type(module)]
    options = {"num_layers": module.num_layers, "bias": module.bias, "batch_first": module.batch_first,
               "dropout": module.dropout, "bidirectional": module.bidirectional, "method": method, "fallback": fallback}  # fmt: skip
    if ours is LSTM:
        options["proj_size"] = module.proj_size
    if ours is RNN:
        options["nonlinearity"] = module.nonlinearity
    made = ours(module.input_size, module.hidden_size, device="meta", **options)  # type: ignore[arg-type]
    vars(made).update(_attributes(name, module, made))
    for own, parameter in module._parameters.items():
        made._parameters[own] = parameter
    _list_weights(made)
    return made.train(module.training)


def replace_in(model: torch.nn.Module, *, method: str = "auto", fallback: bool = False) -> int:
    """Puts this package's modules in the place of every torch.nn.RNN, GRU and LSTM inside `model`, with their parameters.

    Parameters
    ----------
    model : torch.nn.Module
        That holds them; one that is one itself goes to `from_torch`.
    method, fallback
        As in `deeppcr.torch.GRU`.

    Returns
    -------
    int : how many there were; one that is there in several places is one, and stays one.

    Raises
    ------
    UnsupportedError
        As `from_torch`.
    ArgumentError
        Of what is no such model, or no method. Whatever is raised, the model is as it was.
    """
    if not isinstance(model, torch.nn.Module) or type(model) in _OURS:
        raise ArgumentError.of("the model", type(model).__name__, "a module that may hold such modules: from_torch takes one itself")
    found = [(path, parent, name, child) for path, parent in model.named_modules() for name, child in parent._modules.items()
             if type(child) in _OURS]  # fmt: skip
    made: Dict[int, torch.nn.Module] = {}
    for path, _, name, child in found:
        if id(child) not in made:
            made[id(child)] = _converted(f"{path}.{name}" if path else name, child, method, fallback)
    for _, parent, name, child in found:
        parent._modules[name] = made[id(child)]
    return len(made)
