# SPDX-License-Identifier: MIT
"""`Chain`: a deep stack of equal steps, linear, norm, activation, residual, as one module."""
from __future__ import annotations

import ctypes
import math
import weakref
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional

from .. import _abi, _engine
from .. import _library as library
from ..errors import ArgumentError, UnsupportedError, finite, flag, one_of, shown, whole_number
from ..nonlinear import METHODS
from ._others import send_home
from ._registry import (
    CODES, apart, autocasting, differentiable, expect, floats, going_forward, no_script, of_many, on_cpu, operator, plain,
    saved_elsewhere, tracing, wrapped,
)  # fmt: skip

_ACTIVATIONS = {n: _abi.CONSTANTS[f"DPCR_ACT_{n.upper()}"] for n in ("identity", "relu", "tanh", "sigmoid", "gelu", "silu")}
_KINDS = {"mlp": "DPCR_MLP", "resnet": "DPCR_RESNET"}
_BRANCHES = {"linear": "DPCR_BRANCH_LINEAR", "two-layer": "DPCR_BRANCH_TWO_LAYER"}


class _Form(NamedTuple):
    kind: str
    dtype: int
    layers: int
    width: int
    hidden: int
    activation: str
    branch: str
    layer_norm: bool
    scale: float

    def checked(self) -> "_Form":
        """Itself, where there is such a chain."""
        for name, value, known in (("kind", self.kind, _KINDS), ("activation", self.activation, _ACTIVATIONS), ("branch", self.branch, _BRANCHES)):
            one_of(name, value, list(known))
        for name, size in (("width", self.width), ("layers", self.layers), ("hidden", self.hidden)):
            whole_number(name, size, 1)
        if finite("scale", self.scale) == 0 and self.kind == "resnet":  # the library's 0 is its default
            raise ArgumentError.of("scale", self.scale, "another number: with 0 the stack would do nothing")
        if self.branch == "two-layer" and self.kind == "mlp":
            raise ArgumentError.of("branch", shown(self.branch), "'linear' with kind 'mlp'")
        return self

    def numbers(self) -> int:
        """Parameters of a step."""
        return sum(math.prod(shape) for _, shape in self.parts())

    def parts(self) -> List[Tuple[str, Tuple[int, ...]]]:
        """A step's parameters by PyTorch's names and shapes, in the order of their memory; weights lie as [in][out]."""
        w, h = self.width, self.hidden
        norm = [("norm.weight", (w,)), ("norm.bias", (w,))] if self.layer_norm else []
        if self.branch == "two-layer":
            norm = [(name, (h,)) for name, _ in norm]
            return [("linear1.weight", (h, w)), ("linear1.bias", (h,)), *norm, ("linear2.weight", (w, h)), ("linear2.bias", (w,))]
        return [("weight", (w, w)), ("bias", (w,)), *norm]


class _Plan:
    def __init__(self, slot: "_Slot", batch: int, training: bool, method: str, z0: Tensor) -> None:
        steps = _abi.Steps(size=ctypes.sizeof(_abi.Steps))
        error, error_ref = library.error_place()
        library.check(library.lib.dpcr_model_steps(slot.model.address, batch, ctypes.byref(steps), error_ref), error)
        start = library.view(z0.data_ptr(), slot.form.dtype, (batch, slot.form.width))
        options = _abi.SolveOptions(size=ctypes.sizeof(_abi.SolveOptions), method=METHODS[method], consume_tape=int(training),
                                    start=ctypes.addressof(start))  # fmt: skip
        if not training or METHODS[method]:  # AUTO is 0; another's bits must not hang on what the planner sees
            options.backward = _abi.CONSTANTS["DPCR_SCHEME_SEQUENTIAL"]
        place = ctypes.c_void_p()
        owner: Any = slot.model.owner
        library.check(library.lib.dpcr_solve_plan_create(owner.address, ctypes.byref(steps), ctypes.byref(options),
                                                         ctypes.byref(place), error_ref), error)  # fmt: skip
        self.handle = library.Handle(place.value, library.lib.dpcr_solve_plan_destroy, slot.model)
        self.address, self.workspace = place.value, library.lib.dpcr_solve_plan_workspace(place.value)
        form, self.training, self.tape = slot.form, training, steps.tape_values if training else 0
        self.row = batch * form.width * z0.element_size()  # bytes of a step's states
        self.states, self.kept = form.layers * self.row, form.layers * batch * self.tape * z0.element_size()
        ends, all_, tape = (batch, form.width), (form.layers, batch, form.width), (form.layers, batch, self.tape)
        self.views = [library.view(0, form.dtype, shape) for shape in (ends, all_, tape, ends, ends)]  # z0, z, tape, g, dz0
        z0_at, z_at, tape_at, g_at, dz0_at = map(ctypes.byref, self.views)
        self.forward = (self.address, z0_at, z_at, tape_at if self.tape else None)
        self.back = (*self.forward, None, g_at, None, dz0_at)

    def call(self, function: Any, arguments: Tuple[Any, ...], *addresses: int) -> None:
        for view, at in zip(self.views, addresses):
            view.data = at
        error, error_ref = library.error_place()
        work = library.take(self.workspace)
        status = function(*arguments, library.aligned(work), self.workspace, None, error_ref)
        library.give(work)
        library.check(status, error)


class _Slot:
    def __init__(self, form: _Form) -> None:
        self.form, self.generation = form, library.context.generation
        c = _abi.CONSTANTS
        options = _abi.ModelOptions(
            size=ctypes.sizeof(_abi.ModelOptions), architecture=c[_KINDS[form.kind]], dtype=form.dtype, layers=form.layers,
            width=form.width, hidden=form.hidden, activation=_ACTIVATIONS[form.activation], branch=c[_BRANCHES[form.branch]],
            layer_norm=int(form.layer_norm), scale=form.scale, blank=1,
        )  # fmt: skip
        place, (error, error_ref) = ctypes.c_void_p(), library.error_place()
        owner = library.context.get()
        library.check(library.lib.dpcr_model_create(owner.address, ctypes.byref(options), ctypes.byref(place), error_ref), error)
        self.model = library.Handle(place.value, library.lib.dpcr_model_destroy, owner)
        count = ctypes.c_int64()
        self.vector = library.lib.dpcr_model_vector(place.value, ctypes.byref(count))
        self.gradient = library.lib.dpcr_model_gradient_vector(place.value)
        self.count = count.value
        self.plans: Dict[Any, _Plan] = {}

    def plan(self, z0: Tensor, training: bool, method: str) -> _Plan:
        key = (z0.shape[0], training, method)
        found = self.plans.get(key)
        if found is None:
            if len(self.plans) >= 8:
                self.plans.clear()
            found = self.plans[key] = _Plan(self, z0.shape[0], training, method, z0)
        return found


class _Engine(_engine.Slots):
    """A stack's slots."""

    make = _Slot


class _Held(_engine.Waiting):
    """A slot, the states and the tape between a forward pass and its backward pass."""

    __slots__ = ("plan", "states", "tape")

    def __init__(self, engine: _Engine, slot: _Slot, plan: _Plan) -> None:
        super().__init__(engine, slot)
        self.plan, self.states, self.tape = plan, library.take(plan.states), library.take(plan.kept)

    def put_away(self) -> None:
        library.give(self.states)
        library.give(self.tape)


def _run(engine: _Engine, z0: Tensor, flat: Tensor, method: str, training: bool) -> Tuple[Tensor, _Held]:
    """The last states, and what the way back wants."""
    slot = engine.acquire()
    ctypes.memmove(slot.vector, flat.data_ptr(), slot.count * z0.element_size())
    plan = slot.plan(z0, training, method)
    held = _Held(engine, slot, plan)
    send_home(2.0 * flat.numel() * z0.shape[0])
    states = library.aligned(held.states)
    plan.call(library.lib.dpcr_solve_execute, plan.forward, z0.data_ptr(), states, library.aligned(held.tape))
    last = torch.empty_like(z0)
    ctypes.memmove(last.data_ptr(), states + plan.states - plan.row, plan.row)
    return last, held


def _eager(form: _Form, z: Tensor, flat: Tensor) -> Tensor:
    """The stack by PyTorch's operators."""
    act = {"identity": lambda x: x, "gelu": functional.gelu, "silu": functional.silu}.get(form.activation) or getattr(torch, form.activation)
    shapes = form.parts()
    sizes = [math.prod(shape) for _, shape in shapes]
    for row in flat.unbind(0):
        p = {name: part.view(shape[1], shape[0]).t() if len(shape) == 2 else part
             for (name, shape), part in zip(shapes, row.split(sizes))}  # fmt: skip
        first = "linear1." if form.branch == "two-layer" else ""
        x = functional.linear(z, p[first + "weight"], p[first + "bias"])
        if form.layer_norm:
            x = functional.layer_norm(x, x.shape[-1:], p["norm.weight"], p["norm.bias"])
        x = act(x)
        if form.branch == "two-layer":
            x = functional.linear(x, p["linear2.weight"], p["linear2.bias"])
        z = x if form.kind == "mlp" else z + form.scale * x
    return z


def _claimed(engine: _Engine, z0: Tensor, flat: Tensor, method: str) -> _Held:
    """A pass for its way back at once."""
    held = _run(engine, z0, flat, method, True)[1]
    held.claim()
    return held


def _gradients(z0: Tensor, flat: Tensor, g: Tensor, held: _Held) -> Tuple[Tensor, Tensor]:
    """The way back of a pass that `_run` left, and the caller has claimed: gradients of z0 and flat."""
    slot, plan = held.slot, held.plan
    try:
        dz0, g = torch.empty_like(z0), plain(g)
        send_home(4.0 * flat.numel() * z0.shape[0])
        gradient = torch.empty_like(flat, memory_format=torch.contiguous_format)
        library.lib.dpcr_model_zero_gradients(slot.model.address)
        plan.call(library.lib.dpcr_solve_backward, plan.back, z0.data_ptr(), library.aligned(held.states), library.aligned(held.tape),
                  g.data_ptr(), dz0.data_ptr())  # fmt: skip
        ctypes.memmove(gradient.data_ptr(), slot.gradient, slot.count * z0.element_size())
    finally:  # cancelled halfway, it has used up some of its tape
        held.release()
    return dz0, gradient


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, engine: _Engine, method: str, z0: Tensor, flat: Tensor) -> Tensor:
        keeps = not saved_elsewhere()  # else the way back runs the stack once more
        last, ctx.held = _run(engine, z0, flat, method, keeps)
        if not keeps:
            ctx.held.end()
        ctx.engine, ctx.method = engine, method
        ctx.save_for_backward(z0, flat)
        return last

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tuple[Optional[Tensor], ...]:
        z0, flat = ctx.saved_tensors
        if torch.is_grad_enabled() or of_many((g,)) or wrapped(g):  # gradients that have gradients themselves: by PyTorch's operators
            wants = ctx.needs_input_grad[2:]
            with torch.enable_grad():
                own: List[Any] = apart((z0, flat))
                last = _eager(ctx.engine.form, *own)
            asked = [t for t, w in zip(own, wants) if w]
            found = iter(torch.autograd.grad(last, asked, g, create_graph=torch.is_grad_enabled()))
            return (None, None, *(next(found) if w else None for w in wants))
        form, held = ctx.engine.form, ctx.held
        expect("flat", flat, (form.layers, form.numbers()), z0.dtype)  # whose memory may be another's since the pass
        flat = plain(flat)
        if not held.claim():  # the tape is used up, by another thread maybe
            held = _claimed(ctx.engine, z0, flat, ctx.method)
        return (None, None, *_gradients(z0, flat, g, held))


# ---- the operator that torch.compile and torch.export keep; its backward pass runs the stack anew ----

_SCHEMA = ("Tensor z0, Tensor flat, str kind, int hidden, str activation, str branch, bool layer_norm, float scale, int token, "
           "str method")  # fmt: skip


def _engine_for(z0: Tensor, flat: Tensor, kind: str, hidden: int, activation: str, branch: str, layer_norm: bool, scale: float,
                token: int, method: str) -> Tuple[_Engine, str]:  # fmt: skip
    """The engine of an operator's call, whose arguments may come from anywhere."""
    floats("z0", z0)
    if z0.ndim != 2 or flat.ndim != 2:
        raise ArgumentError.of("the shapes of z0 and flat", (tuple(z0.shape), tuple(flat.shape)), "[rows][width] and [layers][numbers of a step]")
    form = _Form(kind, CODES[z0.dtype], flat.shape[0], z0.shape[1], hidden, activation, branch, layer_norm, scale).checked()
    expect("flat", flat, (form.layers, form.numbers()), z0.dtype)
    return _engine.engine_of(token, form, _Engine), one_of("method", method, METHODS)


@operator("deeppcr::chain", f"({_SCHEMA}) -> Tensor")
def _operator(z0: Tensor, flat: Tensor, *options: Any) -> Tensor:
    engine, method = _engine_for(z0, flat, *options)
    last, held = _run(engine, plain(z0), plain(flat), method, False)
    held.end()
    return last


@_operator.register_fake
def _(z0: Tensor, flat: Tensor, *options: Any) -> Tensor:
    return z0.new_empty(z0.shape)


@operator("deeppcr::chain_vjp", f"({_SCHEMA}, Tensor g) -> (Tensor, Tensor)")
def _operator_vjp(z0: Tensor, flat: Tensor, *rest: Any) -> Tuple[Tensor, Tensor]:
    *options, g = rest
    engine, method = _engine_for(z0, flat, *options)
    expect("g", g, z0.shape, z0.dtype)
    z0, flat = plain(z0), plain(flat)
    return _gradients(z0, flat, g, _claimed(engine, z0, flat, method))


@_operator_vjp.register_fake
def _(z0: Tensor, flat: Tensor, *rest: Any) -> Any:
    return z0.new_empty(z0.shape), flat.new_empty(flat.shape)


def _setup(ctx: Any, inputs: Tuple[Any, ...], output: Any) -> None:
    z0, flat, *ctx.options = inputs
    ctx.save_for_backward(z0, flat)


def _operator_backward(ctx: Any, g: Tensor) -> Tuple[Any, ...]:
    found = _traced_vjp(*ctx.saved_tensors, *ctx.options, g.contiguous())
    return (*found, *[None] * len(ctx.options))


_traced = differentiable(_operator, _operator_backward, _setup)
_traced_vjp = differentiable(_operator_vjp)


def _room(layers: int, numbers: int, dtype: torch.dtype) -> Tensor:
    try:
        return torch.empty(layers, numbers, dtype=dtype)
    except (RuntimeError, TypeError, OverflowError):  # more bytes than there are, or than their number's type holds
        raise library.no_memory("flat", (layers, numbers)) from None


class Chain(torch.nn.Module):
    """A stack of `layers` steps of one width, as one module with one parameter.

    kind "mlp": z <- act(norm(W z + b)). kind "resnet": z <- z + s f(z), f = act(norm(W z + b)), or with branch "two-layer"
    f = W2 act(norm(W1 z + b1)) + b2; s = 1/sqrt(layers) unless `scale` is given.

    Parameters
    ----------
    width, layers : int
    kind : "resnet" or "mlp"
    activation : "tanh", "relu", "sigmoid", "gelu", "silu" or "identity"
    layer_norm : bool
    scale : float, optional
        s, not 0; with "resnet" alone.
    branch : "linear" or "two-layer"
    hidden : int
        Inner width of "two-layer"; 0: width.
    method : str
        As in `deeppcr.solve`: how the depth is run. "auto" chooses the way back too; under any other the gradients are
        made in order, and no bit of them depends on the threads or on what else is in the batch.
    dtype : torch.float32 or torch.float64

    Raises
    ------
    ArgumentError
        Of sizes that are none, words for yes or no, what is none of the names above.
    OutOfMemory

    The module maps [...][width] to [...][width]. `flat` [layers][numbers of a step] holds all parameters; `layer(l)` gives those of
    a step as views by PyTorch's names and shapes. Where second derivatives are asked for, PyTorch's own operators give them.
    """

    flat: torch.nn.Parameter
    __prepare_scriptable__ = no_script

    def __init__(self, width: int, layers: int, kind: str = "resnet", *, activation: str = "tanh", layer_norm: bool = False,
                 scale: Optional[float] = None, branch: str = "linear", hidden: int = 0, method: str = "auto",
                 dtype: torch.dtype = torch.float32) -> None:  # fmt: skip
        super().__init__()
        one_of("dtype", dtype, list(CODES))
        self.method = one_of("method", method, METHODS)
        if scale is not None and kind == "mlp":
            raise ArgumentError.of("scale", scale, "none: a stack of kind 'mlp' has no s")
        hidden = whole_number("hidden", hidden)
        if hidden and branch == "linear":
            raise ArgumentError.of("hidden", hidden, "none, or branch 'two-layer', which has an inner width")
        form = _Form(kind, CODES[dtype], layers, width, hidden or width, activation, branch, flag("layer_norm", layer_norm), 1.0).checked()
        self.form = form._replace(scale=1 / math.sqrt(layers) if scale is None else finite("scale", scale)).checked()
        self.flat = torch.nn.Parameter(_room(layers, form.numbers(), dtype))
        self.reset_parameters()
        self._number()

    def _number(self) -> None:
        self._token = _engine.token()
        weakref.finalize(self, _engine.drop, self._token)

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self._number()

    def reset_parameters(self) -> None:
        """torch.nn.Linear's and LayerNorm's initialisation, step by step."""
        with torch.no_grad():
            for l in range(self.form.layers):
                parts = self.layer(l)
                for name, part in parts.items():
                    if name.startswith("norm"):
                        part.fill_(1.0 if name == "norm.weight" else 0.0)
                    else:
                        weight = parts[name.replace("bias", "weight")]
                        bound = 1 / math.sqrt(weight.shape[1])
                        part.uniform_(-bound, bound)

    def layer(self, l: int) -> Dict[str, Tensor]:
        """The parameters of step l: views into `flat`, without gradient, by PyTorch's names and shapes."""
        row, at, out = self.flat.detach()[l], 0, {}
        for name, shape in self.form.parts():
            size = math.prod(shape)
            part = row[at : at + size]
            out[name] = part.view(shape[1], shape[0]).t() if len(shape) == 2 else part
            at += size
        return out

    def layers(self) -> Iterator[Dict[str, Tensor]]:
        """`layer(l)` of all steps, in order."""
        return (self.layer(l) for l in range(self.form.layers))

    def extra_repr(self) -> str:
        f = self.form
        norm = ", layer_norm" if f.layer_norm else ""
        return f"{f.width}, {f.layers}, {f.kind}, {f.branch}, {f.activation}{norm}"

    def forward(self, z0: Tensor) -> Tensor:
        """Runs the stack over each row of z0, [...][width]; the result has its shape. ArgumentError and UnsupportedError of other
        widths, dtypes and devices, and under autocast."""
        flat = self.flat
        if autocasting():
            raise UnsupportedError.of("Chain: autocast", "on", "off: numbers are float32 or float64")
        floats("flat", flat)
        on_cpu("the input", z0)  # and where torch.jit.trace is not at work
        if z0.dtype is not flat.dtype:
            raise ArgumentError.of("the input's dtype", z0.dtype, f"the parameters', {flat.dtype}")
        if z0.ndim < 1 or z0.shape[-1] != self.form.width:
            raise ArgumentError.of("the input's shape", tuple(z0.shape), f"[...][{self.form.width}]")
        f = self.form  # torch.compile of 2.6 follows neither _replace nor a slice of it
        form = _Form(f.kind, CODES[flat.dtype], f.layers, f.width, f.hidden, f.activation, f.branch, f.layer_norm, f.scale)
        expect("flat", flat, (form.layers, form.numbers()), flat.dtype)
        if going_forward():  # as PyTorch's own operators have these derivatives
            return _eager(form, z0, flat)
        count = math.prod(z0.shape[:-1])
        if tracing() or wrapped(z0, flat):
            rows = z0.reshape(count, form.width)
            last = _traced(rows, flat, form.kind, form.hidden, form.activation, form.branch, form.layer_norm,
                                           form.scale, self._token, self.method)  # fmt: skip
            return last.reshape(z0.shape)
        method, engine = one_of("method", self.method, METHODS), _engine.engine_of(self._token, form, _Engine)
        rows, stored = plain(z0.reshape(count, form.width)), plain(flat)
        if torch.is_grad_enabled() and (z0.requires_grad or flat.requires_grad):
            last = _Chain.apply(engine, method, rows, stored)
        else:
            last, held = _run(engine, rows, stored, method, False)
            held.end()
        return last.reshape(z0.shape)
