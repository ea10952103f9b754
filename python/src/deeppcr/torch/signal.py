# SPDX-License-Identifier: MIT
"""`deeppcr.signal`'s filters for tensors, with gradients of signal, initial states and coefficients."""
from __future__ import annotations

import math
from typing import Any, Optional, Tuple, Union

import numpy as np
import torch
from torch import Tensor

from .. import _library as library
from .. import signal as numbers
from ..errors import ArgumentError, UnsupportedError, whole_number
from ._registry import array, differentiable, expect, floats, going_forward, no_forward, operator, refuse_many, tracing, wanted, wrapped

# Everywhere below a is None of a cascade, whose b is sos [sections][6]; x is [..][L], zi and zf [..][sections][order] but in what is
# public, where they lie as SciPy's.


def _states(b: Tensor, a: Optional[Tensor], x: Tensor) -> Tuple[int, ...]:
    return (*x.shape[:-1], len(b), 2) if a is None else (*x.shape[:-1], 1, max(len(a), len(b)) - 1)


def _check(b: Tensor, a: Optional[Tensor], x: Tensor) -> None:
    """Refuses coefficients and a signal that are none."""
    for name, tensor in (("b" if a is not None else "sos", b), ("x", x), *([] if a is None else [("a", a)])):
        floats(name, tensor)
    if a is not None:
        numbers.check_vector("b", b.shape)
        numbers.check_vector("a", a.shape)
    else:
        numbers.check_sections(b.shape)
    if x.ndim == 0:
        raise ArgumentError.of("x's shape", (), "one dimension or more")


def _forward(b: Tensor, a: Optional[Tensor], x: Tensor, zi: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
    shape = _states(b, a, x)
    start = library.whole(array(zi), "f8") if zi is not None else np.zeros(shape)
    handle = numbers._filter(*(("sos",) if a is None else ("ba",)), *(library.whole(array(c), "f8") for c in (b, a) if c is not None))
    y, zf = numbers._run(handle, array(x), start.reshape(math.prod(shape[:-2]), *shape[-2:]), *shape[-2:])
    assert zf is not None
    return torch.from_numpy(y), torch.from_numpy(zf.reshape(shape)).to(x.dtype)


def _backward(b: Tensor, a: Optional[Tensor], x: Tensor, zi: Optional[Tensor], gy: Optional[Tensor], gzf: Optional[Tensor],
              coefficients: bool) -> Tuple[Optional[Tensor], Optional[Tensor], Tensor, Tensor]:  # fmt: skip
    shape = _states(b, a, x)
    start, end = (None if t is None else array(t).reshape(math.prod(shape[:-2]), *shape[-2:]) for t in (zi, gzf))
    found = numbers._gradient("sos" if a is None else "ba", array(b).astype("f8"), None if a is None else array(a).astype("f8"),
                              array(x), start, array(gy), end, -1, coefficients)  # fmt: skip
    gb, ga = (None if g is None or c is None else torch.from_numpy(np.ascontiguousarray(g)).to(c.dtype) for g, c in zip(found, (b, a)))
    gx, gzi = (torch.from_numpy(np.ascontiguousarray(g)) for g in found[2:])
    return gb, ga, gx, gzi.reshape(shape).to(x.dtype)


def _plain(b: Tensor, a: Optional[Tensor], x: Tensor) -> Tensor:
    """From no initial state, without gradients. What was filtered like this before is known by shapes and coefficients, and needs
    no arrays of NumPy."""
    coefficients = (b,) if a is None else (b, a)
    whole = x.is_contiguous() and not x.is_neg() and not x.data_ptr() & (x.element_size() - 1)
    key: Any = (x.shape, x.dtype)
    for c in coefficients:
        if not c.is_contiguous() or c.is_neg():
            whole = False
            break
        key += (c.shape, c.dtype, library.bytes_at(c.data_ptr(), c.numel() * c.element_size()))
    kept = numbers._calls.kept()
    known = kept.pop(key, None) if whole else None
    if known is not None:
        y = torch.empty_like(x)
        known.call.run((x.data_ptr(), 0, y.data_ptr()))
        kept[key] = known
        return y
    handle = numbers._filter("sos" if a is None else "ba", *(library.whole(array(c), "f8") for c in coefficients))
    found = numbers._run(handle, array(x), None, 0, 0)[0]
    if whole and x.numel():
        kept.keep(key, numbers._Known(handle, array(x), None, 0, 0))
    return torch.from_numpy(found)


class _Filter(torch.autograd.Function):
    jvp = staticmethod(no_forward)

    @staticmethod
    def forward(ctx: Any, b: Tensor, a: Optional[Tensor], x: Tensor, zi: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        ctx.save_for_backward(b, a, x, zi)
        ctx.set_materialize_grads(False)
        return _forward(b, a, x, zi)

    @staticmethod
    def backward(ctx: Any, gy: Optional[Tensor], gzf: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        if torch.is_grad_enabled():  # PyTorch's once_differentiable loses what reaches no gy, without a word
            raise UnsupportedError.of("the filter's derivatives", "second derivatives", "first ones")
        refuse_many("the filter", (gy, gzf))
        b, a, x, zi = ctx.saved_tensors
        if gy is None and gzf is None:
            return None, None, None, None
        gb, ga, gx, gzi = _backward(b, a, x, zi, gy, gzf, any(ctx.needs_input_grad[:2]))
        return gb, ga, gx, None if zi is None else gzi


@operator("deeppcr::filter", "(Tensor b, Tensor? a, Tensor x, Tensor? zi) -> (Tensor, Tensor)")
def _operator(b: Tensor, a: Optional[Tensor], x: Tensor, zi: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
    _check(b, a, x)
    expect("zi", zi, _states(b, a, x), x.dtype)
    y, zf = _forward(b, a, x, zi)
    return y.contiguous(), zf


@_operator.register_fake
def _(b: Tensor, a: Optional[Tensor], x: Tensor, zi: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(_states(b, a, x))


@operator("deeppcr::filter_vjp", "(Tensor b, Tensor? a, Tensor x, Tensor? zi, Tensor gy, Tensor gzf) -> (Tensor, Tensor, Tensor, Tensor)")
def _operator_vjp(b: Tensor, a: Optional[Tensor], x: Tensor, zi: Optional[Tensor], gy: Tensor, gzf: Tensor) -> Any:
    _check(b, a, x)
    for name, states in (("zi", zi), ("gzf", gzf)):
        expect(name, states, _states(b, a, x), x.dtype)
    expect("gy", gy, x.shape, x.dtype)
    gb, ga, gx, gzi = _backward(b, a, x, zi, gy, gzf, True)
    return gb, b.new_empty(0) if ga is None else ga, gx.contiguous(), gzi


@_operator_vjp.register_fake
def _(b: Tensor, a: Optional[Tensor], x: Tensor, zi: Optional[Tensor], gy: Tensor, gzf: Tensor) -> Any:
    return b.new_empty(b.shape), b.new_empty(0) if a is None else a.new_empty(a.shape), x.new_empty(x.shape), x.new_empty(_states(b, a, x))


def _setup(ctx: Any, inputs: Tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _operator_backward(ctx: Any, gy: Tensor, gzf: Tensor) -> Tuple[Optional[Tensor], ...]:
    b, a, x, zi = ctx.saved_tensors
    gb, ga, gx, gzi = _traced_vjp(b, a, x, zi, gy.contiguous(), gzf.contiguous())
    return gb, None if a is None else ga, gx, None if zi is None else gzi


_traced = differentiable(_operator, _operator_backward, _setup)
_traced_vjp = differentiable(_operator_vjp)


def _apply(b: Tensor, a: Optional[Tensor], x: Tensor, zi: Optional[Tensor], dim: Optional[int],
           axis: Optional[int]) -> Union[Tensor, Tuple[Tensor, Tensor]]:  # fmt: skip
    _check(b, a, x)
    if zi is not None:
        floats("zi", zi)
    if dim is not None and axis is not None:
        raise ArgumentError.of("axis", axis, "none beside dim, which is another name of it")
    name, given = ("dim", -1 if dim is None else dim) if axis is None else ("axis", axis)
    dim = whole_number(name, given, -x.ndim, x.ndim - 1) % x.ndim
    last = dim == x.ndim - 1
    moved = x if last else x.movedim(dim, -1)
    if zi is not None:
        zi = zi.expand(numbers.states_shape(tuple(zi.shape), a is None, tuple(x.shape), dim, *_states(b, a, moved)[-2:]))
        zi = numbers.states_in(torch.movedim, zi, a is None, dim)
    traced = tracing() or wrapped(b, a, x, zi)
    if zi is None and type(x) is Tensor and not wanted(b, a, x) and not traced and not going_forward():
        y = _plain(b, a, moved)
        return y if last else y.movedim(-1, dim)
    run = _traced if traced else _Filter.apply
    y, zf = run(b, a, moved, None if zi is None else zi.to(x.dtype))
    y = y.movedim(-1, dim)
    return y if zi is None else (y, numbers.states_out(torch.movedim, zf, a is None, dim))


def sosfilt(sos: Tensor, x: Tensor, dim: Optional[int] = None, zi: Optional[Tensor] = None, *,
            axis: Optional[int] = None) -> Union[Tensor, Tuple[Tensor, Tensor]]:  # fmt: skip
    """scipy.signal.sosfilt over a dimension of x, with gradients of sos, x and zi (first ones; 0 for sos[:, 3], which is 1).

    Parameters
    ----------
    sos : Tensor
        [sections][6], float32 or float64, on the CPU, as what follows.
    x : Tensor
        Signals.
    dim, axis : int, optional
        That time runs along, by either name; the last without.
    zi : Tensor, optional
        Initial states, as SciPy's: x's shape but 2 along that dimension, after a first dimension [sections]. Zeros without it.

    Returns
    -------
    y, or y and the last states with `zi` : of x's and zi's shapes, in x's dtype.

    Raises
    ------
    ArgumentError, UnsupportedError
        Of other shapes, dtypes, devices, coefficients that are not finite.
    """
    return _apply(sos, None, x, zi, dim, axis)


def lfilter(b: Tensor, a: Tensor, x: Tensor, dim: Optional[int] = None, zi: Optional[Tensor] = None, *,
            axis: Optional[int] = None) -> Union[Tensor, Tuple[Tensor, Tensor]]:  # fmt: skip
    """scipy.signal.lfilter over a dimension of x, up to order 128, with gradients of b, a, x and zi (first ones).

    Parameters
    ----------
    b, a : Tensor
        Vectors of coefficients, float32 or float64, on the CPU, as what follows; a[0] is not 0.
    x : Tensor
        Signals.
    dim, axis : int, optional
        That time runs along, by either name; the last without.
    zi : Tensor, optional
        Initial states, as SciPy's: x's shape but the order along that dimension, or 1 where channels share them. Zeros without it.

    Returns
    -------
    y, or y and the last states with `zi` : of x's shape; of zi's, each channel its own; in x's dtype.

    Raises
    ------
    ArgumentError, UnsupportedError
        Of other shapes, dtypes, devices, coefficients that are not finite.
    """
    floats("a", a)
    return _apply(b, a, x, zi, dim, axis)
