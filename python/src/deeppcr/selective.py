# SPDX-License-Identifier: MIT
"""The selective scan of state-space models (Mamba): a diagonal chain whose transitions are made from its input as it runs."""
from __future__ import annotations

from typing import Any, List, Literal, NamedTuple, Optional, Sequence, Tuple, Union, overload

import numpy as np

from . import _abi, _scans
from . import _library as library
from ._scans import ARRAY, Shape
from .errors import ArgumentError, flag

# What goes in, in this order everywhere below; None where an array is not there.
NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "h0")
_GROUPED = (3, 4)  # B and C


class SelectiveGradients(NamedTuple):
    """The gradients of what goes into `selective_scan`, in the order of its arguments; None of what was not given."""

    u: ARRAY
    delta: ARRAY
    A: ARRAY
    B: ARRAY
    C: ARRAY
    D: Optional[ARRAY]
    z: Optional[ARRAY]
    delta_bias: Optional[ARRAY]
    h0: Optional[ARRAY]


def check(shapes: Sequence[Optional[Shape]]) -> Tuple[int, int, int, int]:
    """(batch, dim, L, N) of what goes in, refused where shapes do not fit together."""
    u, A = shapes[0], shapes[2]
    assert u is not None and A is not None
    if len(u) != 3:
        raise ArgumentError.of("u's shape", u, "(batch, dim, L)")
    batch, dim, length = u
    if len(A) != 2 or A[0] != dim or not A[1]:
        raise ArgumentError.of("A's shape", A, f"({dim}, N), as u has channels, N 1 or more")
    states = A[1]
    wanted = {1: u, 5: (dim,), 6: u, 7: (dim,), 8: (batch, dim, states)}
    for i, shape in enumerate(shapes):
        if i in wanted and shape is not None and shape != wanted[i]:
            raise ArgumentError.of(f"{NAMES[i]}'s shape", shape, str(wanted[i]))
        if i in _GROUPED and shape is not None:
            groups = shape[1] if len(shape) == 4 else 1
            whole = (batch, groups, states, length) if len(shape) == 4 else (batch, states, length) if len(shape) == 3 else (dim, states)
            if shape != whole or groups < 1 or dim % groups:
                raise ArgumentError.of(f"{NAMES[i]}'s shape", shape, f"({batch}, {states}, {length}), ({batch}, G, {states}, {length}) "
                                       f"where G divides {dim}, or ({dim}, {states})")  # fmt: skip
    return batch, dim, length, states


def swapped(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the last dimension but one lies closest in memory, as channels do in what came from [batch][L][dim]."""
    return shape[-2] > 1 and shape[-1] > 1 and 0 < strides[-2] < strides[-1]


def like(x: ARRAY, dtype: Any) -> ARRAY:
    """A new array of x's shape, lying as x does."""
    if x.ndim < 3 or not swapped(x.shape, x.strides):
        return library.empty(x.shape, dtype)
    return np.swapaxes(library.empty((*x.shape[:-2], x.shape[-1], x.shape[-2]), dtype), -1, -2)


def _grouped(x: ARRAY, batch: int, dim: int, length: int) -> ARRAY:
    """B or C, or its gradient, as a view [batch][G][N][L]; in what is constant in time strides of 0, which sum gradients."""
    if x.ndim == 2:
        return np.lib.stride_tricks.as_strided(x, (batch, dim, x.shape[1], length), (0, *x.strides, 0))
    return x[:, None] if x.ndim == 3 else x


class Scan(_scans.Scan):
    CALL, INTO, GRADIENTS = "selective", _abi.Selective, _abi.SelectiveGradients
    FIELDS = ("u", "delta", "a", "b", "c", "skip", "z", "delta_bias", "h0")

    def __init__(self, arrays: Sequence[Optional[ARRAY]], softplus: bool) -> None:
        self.batch, self.dim, self.length, self.states = check([None if x is None else x.shape for x in arrays])
        own: List[Optional[ARRAY]] = [None if x is None else library.numbers(x, 0) for x in arrays]
        for i in _GROUPED:
            own[i] = _grouped(own[i], self.batch, self.dim, self.length)  # type: ignore[arg-type]
        self.arrays = own
        self.structure, self.views = self._of_arrays(own, softplus=int(softplus))

    def results(self) -> Tuple[Shape, Shape]:
        return (self.batch, self.dim, self.length), (self.batch, self.dim, self.states)

    def flops(self) -> Tuple[float, float]:
        numbers = float(self.batch * self.dim * self.length * self.states)
        return 20 * numbers, 50 * numbers

    def run(self, out: ARRAY, last: Optional[ARRAY], kept: int) -> None:
        if self.dim:
            super().run(out, last, kept)

    def back(self, gy: Optional[ARRAY], glast: Optional[ARRAY], kept: int, found: Sequence[Optional[ARRAY]]) -> None:
        """Fills the gradients that are wanted: those of `found`, which lie as what they belong to."""
        if not self.batch * self.dim * self.length:  # where NumPy's strides mean nothing
            for i, x in enumerate(found):
                if x is not None:
                    x[...] = 0 if glast is None or i != 8 else glast
            return
        gy = np.broadcast_to(np.zeros(1, self.arrays[0].dtype), (self.batch, self.dim, self.length)) if gy is None else library.numbers(gy, 0)  # type: ignore[union-attr]
        glast = None if glast is None else library.numbers(glast, 0)
        into = list(found)
        for i in _GROUPED:
            if into[i] is not None:
                into[i] = _grouped(into[i], self.batch, self.dim, self.length)  # type: ignore[arg-type]
        self._adjoint(gy, glast, kept, into)


KIND = _scans.Kind("selective_scan", "the selective scan", NAMES, 5, ("gy", "glast"), 0, Scan, check,
                   lambda shapes: (*shapes[0][:2], shapes[2][1]))  # type: ignore[index]  # fmt: skip


@overload
def selective_scan(
    u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any = ..., z: Any = ..., delta_bias: Any = ..., delta_softplus: bool = ...,
    return_last_state: Literal[False] = ..., *, h0: Any = ...,
) -> ARRAY: ...  # fmt: skip
@overload
def selective_scan(
    u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any = ..., z: Any = ..., delta_bias: Any = ..., delta_softplus: bool = ...,
    return_last_state: Literal[True] = ..., *, h0: Any = ...,
) -> Tuple[ARRAY, ARRAY]: ...  # fmt: skip
@overload
def selective_scan(
    u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any = ..., z: Any = ..., delta_bias: Any = ..., delta_softplus: bool = ...,
    return_last_state: bool = ..., *, h0: Any = ...,
) -> Any: ...  # fmt: skip
def selective_scan(
    u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any = None, z: Any = None, delta_bias: Any = None, delta_softplus: bool = False,
    return_last_state: bool = False, *, h0: Any = None,
) -> Union[ARRAY, Tuple[ARRAY, ARRAY]]:  # fmt: skip
    """The selective scan of state-space models, with the arguments of mamba_ssm's selective_scan_fn.

    With t = delta + delta_bias, or log(1 + exp(t)) with `delta_softplus`, each channel d of a sequence has N states
    h_l = exp(t_l A) h_{l-1} + t_l B_l u_l and gives (C_l . h_l + D u_l) silu(z_l).

    Parameters
    ----------
    u, delta : array_like
        [batch][dim][L]; float32 where all arrays are, else computed in float64.
    A : array_like
        [dim][N], real.
    B, C : array_like
        [batch][N][L], [batch][G][N][L] where each of G groups serves dim / G channels, or [dim][N], the same at every step.
    D, delta_bias : array_like, optional
        [dim]; 0 without.
    z : array_like, optional
        [batch][dim][L]; no gate without.
    delta_softplus : bool, default False
        Whether the steps t are softplus of delta + delta_bias.
    return_last_state : bool, default False
        Whether the last states are returned too.
    h0 : array_like, optional
        States before the first step, [batch][dim][N]; 0 without.

    Returns
    -------
    y, or y and the last states with `return_last_state` : [batch][dim][L], lying in memory as u does, and [batch][dim][N].

    Raises
    ------
    ArgumentError, UnsupportedError
        Of shapes that do not fit together, and of complex numbers.
    """
    softplus, tells = flag("delta_softplus", delta_softplus), flag("return_last_state", return_last_state)
    scan = Scan(_scans.common(NAMES, KIND.needed, (u, delta, A, B, C, D, z, delta_bias, h0)), softplus)
    first = scan.arrays[0]
    assert first is not None
    y = like(first, first.dtype)
    last = library.empty((scan.batch, scan.dim, scan.states), first.dtype) if tells else None
    scan.run(y, last, 0)
    return y if last is None else (y, last)


def selective_scan_vjp(
    u: Any, delta: Any, A: Any, B: Any, C: Any, gy: Any, D: Any = None, z: Any = None, delta_bias: Any = None,
    delta_softplus: bool = False, *, glast: Any = None, h0: Any = None,
) -> SelectiveGradients:  # fmt: skip
    """The gradients of a loss with respect to what goes into `selective_scan`.

    Parameters
    ----------
    u, delta, A, B, C, D, z, delta_bias, delta_softplus, h0
        As given to it.
    gy : array_like or None
        dLoss/dy, of u's shape; None: 0.
    glast : array_like, optional
        dLoss/d(last states), [batch][dim][N]; 0 without.

    Returns
    -------
    SelectiveGradients : (u, delta, A, B, C, D, z, delta_bias, h0), each of the shape of what it belongs to, None of what was not given.

    Raises
    ------
    ArgumentError, UnsupportedError
        As `selective_scan`, and of gradients of other shapes.
    """
    softplus = flag("delta_softplus", delta_softplus)
    if gy is None and glast is None:
        raise ArgumentError.of("gy", None, "an array, or glast")
    *arrays, back, end = _scans.common(NAMES, KIND.needed, (u, delta, A, B, C, D, z, delta_bias, h0), gy=gy, glast=glast)
    scan = Scan(arrays, softplus)
    KIND.check_gradients(scan, [None if x is None else x.shape for x in (back, end)])
    found = [None if x is None else like(x, x.dtype) for x in arrays]
    scan.back(back, end, 0, found)
    return SelectiveGradients(*found)  # type: ignore[arg-type]
