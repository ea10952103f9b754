# SPDX-License-Identifier: MIT
"""What differs between versions of PyTorch: operators for torch.compile and torch.export are registered from 2.4 on; older ones
run the modules eagerly."""
from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..errors import ArgumentError, UnsupportedError

REGISTERS = hasattr(torch.library, "custom_op")
CODES = {torch.float32: 1, torch.float64: 2}  # the library's dtypes


def eagerly(function: Any) -> Any:
    """What torch.compile leaves as it is, between its programs, as it does PyTorch's own handling of packed sequences. The compiler is
    loaded by the first call alone."""
    return getattr(torch, "_disable_dynamo", lambda same: same)(function) if REGISTERS else function


class _Unregistered:
    """Stands for an operator where there is no registry."""

    def register_fake(self, function: Any) -> Any:
        return function

    def register_autograd(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *_: Any) -> Any:
        raise UnsupportedError.of("a tensor's class", "one that answers operators", "torch.Tensor, or PyTorch 2.4, which has some")


def operator(name: str, schema: str) -> Callable[[Any], Any]:
    """torch.library.custom_op of an operator that changes none of its arguments."""
    if REGISTERS:
        return torch.library.custom_op(name, mutates_args=(), schema=schema)
    return lambda function: _Unregistered()


def expect(name: str, tensor: Optional[Tensor], shape: Sequence[int], dtype: torch.dtype) -> None:
    """Refuses what is not of that shape and dtype in the processor's memory: operators may be called with anything."""
    if tensor is None:
        return
    on_cpu(name, tensor)
    if tensor.dtype is not dtype:
        raise ArgumentError.of(f"{name}'s dtype", tensor.dtype, str(dtype))
    if tensor.shape != tuple(shape):
        raise ArgumentError.of(f"{name}'s shape", tuple(tensor.shape), str(tuple(shape)))


def on_cpu(name: str, tensor: Any) -> None:
    """Refuses what is no tensor of numbers one beside the other in the processor's memory, and torch.jit.trace, which would keep them."""
    if not isinstance(tensor, Tensor):
        raise ArgumentError.of(name, type(tensor).__name__, "a tensor")
    if jit_traces() and not tracing():
        raise UnsupportedError.of("torch.jit.trace", "on", "torch.export or torch.compile")
    if not tensor.is_cpu:
        raise UnsupportedError.of(f"{name}'s device", tensor.device, "cpu")
    if tensor.layout is not torch.strided:
        raise UnsupportedError.of(f"{name}'s layout", tensor.layout, "torch.strided")


def floats(name: str, tensor: Any) -> None:
    """Refuses what is no such tensor of float32 or float64."""
    on_cpu(name, tensor)
    if tensor.dtype not in CODES:
        raise ArgumentError.of(f"{name}'s dtype", tensor.dtype, "torch.float32 or torch.float64")


def looks(tensors: Sequence[Tensor]) -> Optional[Callable[..., bool]]:
    """What tells of as many tensors whether each has type, dtype, device, layout, sizes, strides and sign of the one that is its
    like here: what torch.compile guards its programs by, in a quarter of the time that asking for each takes. None where PyTorch has no such thing, and where one tensor is there twice, which guards never are sure of."""
    if len(set(map(id, tensors))) < len(tensors):
        return None
    try:
        made = torch._C._dynamo.guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        return made.check if made.check(*tensors) else None  # type: ignore[no-any-return]
    except (AttributeError, TypeError, RuntimeError):
        return None


jit_traces = torch._C._get_tracing_state  # None where torch.jit.trace is not at work
_transforming = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
_watching = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)  # how many, such as make_fx and counters of flops
_saving = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)  # None where PyTorch cannot tell
_some_autocast = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


def tracing() -> bool:
    """Whether torch.compile, torch.export, a transform of torch.func or a TorchDispatchMode is at work: they know operators, not how
    modules run."""
    return REGISTERS and (_transforming() or torch.compiler.is_compiling() or _watching() > 0)  # the compiler reads as far as its own


_dispatch = getattr(Tensor, "__torch_dispatch__", None)


def wrapped(*tensors: Optional[Tensor]) -> bool:
    """Whether some are of a class that answers operators itself, as DTensor and others that hold tensors do, which have no memory of
    their own."""
    for tensor in tensors:
        if type(tensor) is not Tensor and tensor is not None and getattr(type(tensor), "__torch_dispatch__", None) is not _dispatch:
            return True
    return False


def going_forward() -> bool:
    """Whether derivatives are taken forward: torch.func.jvp and jacfwd, torch.autograd.forward_ad."""
    return forward_ad._current_level >= 0


def no_forward(ctx: Any, *_: Any) -> Any:
    """A jvp that refuses, where a function of torch.autograd has none: without one PyTorch speaks to who wrote the function."""
    raise UnsupportedError.of("a derivative", "one taken forward", "one taken backward")


def no_script(module: Any) -> Any:
    """A `__prepare_scriptable__`, which torch.jit.script calls before it reads a module, that refuses. (One that gave PyTorch's own
    module instead would have it put into the model itself.)"""
    raise UnsupportedError.of(f"{type(module).__name__}: torch.jit.script", "on", "torch.export or torch.compile")


def plain(tensor: Tensor) -> Tensor:
    """The numbers one after another: also of a view that is to be negated, as the imaginary parts of a conjugate are."""
    return tensor if tensor.is_contiguous() and not tensor.is_neg() else tensor.contiguous().resolve_neg()


def array(tensor: Optional[Tensor]) -> Any:
    """A tensor's numbers as an array of NumPy, over the same memory."""
    return None if tensor is None else tensor.detach().resolve_neg().numpy()


def wanted(*tensors: Optional[Tensor]) -> bool:
    """Whether gradients of some of these will be asked for."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def saved_elsewhere() -> bool:
    """Whether what is saved for the way back goes through hooks: torch.utils.checkpoint's, which save nothing, and save_on_cpu's. Then
    nothing is to be kept beside it."""
    return _saving(True) is not None


def of_many(given: Sequence[Optional[Tensor]]) -> bool:
    """Whether the losses are many, as for torch.autograd.functional.jacobian(vectorize=True): rows without memory of their own."""
    for g in given:
        if g is not None and not torch._C._has_storage(g):
            return True
    return False


def refuse_many(what: str, given: Sequence[Optional[Tensor]]) -> None:
    if of_many(given):
        raise UnsupportedError.of(f"{what}'s derivatives", "of many losses at once", "of one loss, as without vectorize=True")


def apart(tensors: Sequence[Optional[Tensor]]) -> List[Optional[Tensor]]:
    """The same numbers as variables of their own: gradients of these are partial ones, also where one tensor depends on another, as
    the state that a call of a module left depends on the parameters of the next."""
    return [t.view_as(t) if t is not None and t.requires_grad else t for t in tensors]


def autocasting() -> bool:
    return _some_autocast() and (torch.is_autocast_enabled("cpu") if REGISTERS else torch.is_autocast_cpu_enabled())


def _row(argument: Any, dim: Any, index: int) -> Any:
    if isinstance(argument, (list, tuple)):
        return [_row(a, d, index) for a, d in zip(argument, dim)] if isinstance(dim, (list, tuple)) else argument
    return argument if dim is None else argument.select(dim, index).contiguous()


def _by_rows(call: Any, info: Any, dims: Sequence[Any], arguments: Sequence[Any]) -> Tuple[Any, Any]:
    """torch.func.vmap of what calls an operator: a call a row."""
    if not info.batch_size:
        raise ArgumentError.of("the rows of a vmap", 0, "1 or more")
    rows = [call(*(_row(a, d, i) for a, d in zip(arguments, dims))) for i in range(info.batch_size)]
    if isinstance(rows[0], Tensor):
        return torch.stack(rows), 0
    made: List[Tensor] = [torch.stack(parts) for parts in zip(*rows)]
    return (made, [0] * len(made)) if isinstance(rows[0], list) else (tuple(made), (0,) * len(made))


def _no_backward(ctx: Any, *_: Any) -> Any:
    raise UnsupportedError.of("a derivative", "a second one, of what torch.compile, torch.export or torch.func runs",
                              "a first one, or PyTorch's own module")  # fmt: skip


def differentiable(operator: Any, backward: Any = _no_backward, setup: Any = lambda ctx, inputs, output: None,
                   tangent: Any = no_forward) -> Callable[..., Any]:  # fmt: skip
    """An operator for torch.compile, torch.export and torch.func, with its way back, its vmap and, where it has one, its way forward,
    tangent(ctx, saved, *tangents), saved being what `setup` saved for it.

    torch.func has no derivatives of registered operators that take lists, so for it they go through a function of torch.autograd
    whose arguments are flat.
    """
    operator.register_autograd(backward, setup_context=setup)
    if not hasattr(operator, "register_vmap"):
        return operator
    operator.register_vmap(lambda info, dims, *arguments: _by_rows(operator, info, dims, arguments))

    class Flat(torch.autograd.Function):
        @staticmethod
        def forward(form: Any, *leaves: Any) -> Any:
            found = operator(*tree_unflatten(list(leaves), form))
            return tuple(found) if isinstance(found, list) else found

        @staticmethod
        def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Any) -> None:
            ctx.form = inputs[0]
            setup(ctx, tuple(tree_unflatten(list(inputs[1:]), inputs[0])), output)

        @staticmethod
        def backward(ctx: Any, *given: Any) -> Any:
            return (None, *tree_flatten(backward(ctx, *given))[0])

        @staticmethod
        @eagerly
        def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
            # PyTorch calls this with all ways forward switched off, those of transforms around this one too, whose derivatives of what
            # is done here would be 0, without a word. What was saved has, of this one, its numbers alone.
            with forward_ad._set_fwd_grad_enabled(True):
                saved = [None if t is None else forward_ad.unpack_dual(t).primal for t in ctx.saved_tensors]
                return tangent(ctx, saved, *tree_unflatten(list(tangents), ctx.form))

        @staticmethod
        def vmap(info: Any, dims: Tuple[Any, ...], form: Any, *leaves: Any) -> Tuple[Any, Any]:
            return _by_rows(lambda *row: Flat.apply(form, *row), info, dims[1:], leaves)

    def as_it_is(*arguments: Any) -> Any:
        leaves, form = tree_flatten(arguments)
        return Flat.apply(form, *leaves)

    between = eagerly(as_it_is)

    def run(*arguments: Any) -> Any:
        if not torch.compiler.is_compiling():
            return as_it_is(*arguments)
        # Registered operators have no derivatives forward: a program would take them for 0, without a word.
        return between(*arguments) if going_forward() else operator(*arguments)

    return run
