# SPDX-License-Identifier: MIT
"""Linear attention whose state is a matrix: the delta rule, gated or not, gated linear attention and plain linear attention."""
from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, Optional, Sequence, Tuple, Union, overload

import numpy as np

from . import _abi, _scans
from . import _library as library
from ._scans import ARRAY, Shape
from .errors import ArgumentError, finite, flag

# What goes in, in this order everywhere below; None where an array is not there.
NAMES = ("q", "k", "v", "g", "beta", "initial_state")


class AttentionGradients(NamedTuple):
    """The gradients of what goes into `linear_attention`, in the order of its arguments; None of what was not given."""

    q: ARRAY
    k: ARRAY
    v: ARRAY
    g: Optional[ARRAY]
    beta: Optional[ARRAY]
    initial_state: Optional[ARRAY]


class Extents(NamedTuple):
    batch: int
    length: int
    groups: int
    heads: int
    keys: int
    values: int

    def state(self) -> Shape:
        return self.batch, self.heads, self.keys, self.values


def check(shapes: Sequence[Optional[Shape]]) -> Extents:
    """The extents of what goes in, refused where shapes do not fit together."""
    q, v, g = shapes[0], shapes[2], shapes[3]
    assert q is not None and v is not None
    if len(q) != 4 or min(q[2:]) < 1:
        raise ArgumentError.of("q's shape", q, "(batch, L, G, K)")
    if len(v) != 4 or v[:2] != q[:2] or min(v[2:]) < 1 or v[2] % q[2]:
        raise ArgumentError.of("v's shape", v, f"({q[0]}, {q[1]}, H, V) where {q[2]} divides H, as q has it")
    extents = Extents(*q[:3], v[2], q[3], v[3])
    steps = (*q[:2], extents.heads)
    for i, wanted in {1: q, 4: steps, 5: extents.state()}.items():
        shape = shapes[i]
        if shape is not None and shape != wanted:
            raise ArgumentError.of(f"{NAMES[i]}'s shape", shape, str(wanted))
    if g is not None and g not in (steps, (*steps, extents.keys)):
        raise ArgumentError.of("g's shape", g, f"{steps} or {(*steps, extents.keys)}")
    return extents


def scale_of(scale: Any, keys: int) -> float:
    return 1 / math.sqrt(keys) if scale is None else finite("scale", scale)


class Scan(_scans.Scan):
    CALL, INTO, GRADIENTS = "attention", _abi.Attention, _abi.AttentionGradients
    FIELDS = ("q", "k", "v", "g", "beta", "s0")

    def __init__(self, arrays: Sequence[Optional[ARRAY]], scale: float) -> None:
        self.extents = check([None if x is None else x.shape for x in arrays])
        self.arrays = [None if x is None else library.numbers(x, 0) for x in arrays]
        self.structure, self.views = self._of_arrays(self.arrays, scale=scale)

    def results(self) -> Tuple[Shape, Shape]:
        e = self.extents
        return (e.batch, e.length, e.heads, e.values), e.state()

    def flops(self) -> Tuple[float, float]:
        e = self.extents
        numbers = float(e.batch * e.length * e.heads * e.keys * e.values)
        return 6 * numbers, 20 * numbers

    def back(self, gout: Optional[ARRAY], glast: Optional[ARRAY], kept: int, found: Sequence[Optional[ARRAY]]) -> None:
        if gout is None:
            gout = np.broadcast_to(np.zeros(1, self.arrays[0].dtype), self.results()[0])  # type: ignore[union-attr]
        glast = None if glast is None else library.numbers(glast, 0)
        self._adjoint(library.numbers(gout, 0), glast, kept, found)


KIND = _scans.Kind("linear_attention", "linear attention", NAMES, 3, ("go", "gfinal"), 2, Scan, check,
                   lambda shapes: (shapes[2][0], shapes[2][2], shapes[0][3], shapes[2][3]))  # type: ignore[index]  # fmt: skip


@overload
def linear_attention(
    q: Any, k: Any, v: Any, g: Any = ..., beta: Any = ..., *, scale: Optional[float] = ..., initial_state: Any = ...,
    return_final_state: Literal[False] = ...,
) -> ARRAY: ...  # fmt: skip
@overload
def linear_attention(
    q: Any, k: Any, v: Any, g: Any = ..., beta: Any = ..., *, scale: Optional[float] = ..., initial_state: Any = ...,
    return_final_state: Literal[True],
) -> Tuple[ARRAY, ARRAY]: ...  # fmt: skip
@overload
def linear_attention(
    q: Any, k: Any, v: Any, g: Any = ..., beta: Any = ..., *, scale: Optional[float] = ..., initial_state: Any = ...,
    return_final_state: bool = ...,
) -> Any: ...  # fmt: skip
def linear_attention(
    q: Any, k: Any, v: Any, g: Any = None, beta: Any = None, *, scale: Optional[float] = None, initial_state: Any = None,
    return_final_state: bool = False,
) -> Union[ARRAY, Tuple[ARRAY, ARRAY]]:  # fmt: skip
    """Linear attention: H heads with a state S of [K][V], for which at each step

        S = diag(exp(g)) S,   u = beta (v - S^T k),   S = S + k u^T,   o = scale S^T q

    (Gated DeltaNet; with g of K numbers a head Kimi Delta Attention). Without g nothing decays (DeltaNet), without beta u = v (gated
    linear attention, retention), without both it is plain linear attention.

    Parameters
    ----------
    q, k : array_like
        [batch][L][G][K], each of G heads serving H / G of v's; float32 where all arrays are, else computed in float64.
    v : array_like
        [batch][L][H][V].
    g : array_like, optional
        Logarithms of decays, [batch][L][H] or, one for each row of the state, [batch][L][H][K]. -inf forgets all that was before.
    beta : array_like, optional
        [batch][L][H].
    scale : float, optional
        1 / sqrt(K) without.
    initial_state : array_like, optional
        The states before the first step, [batch][H][K][V]; 0 without.
    return_final_state : bool, default False
        Whether the last states are returned too.

    Returns
    -------
    o, or o and the last states with `return_final_state` : [batch][L][H][V] and [batch][H][K][V].

    Raises
    ------
    ArgumentError, UnsupportedError
        Of shapes that do not fit together, and of complex numbers.
    """
    tells = flag("return_final_state", return_final_state)
    arrays = _scans.common(NAMES, KIND.needed, (q, k, v, g, beta, initial_state))
    extents = check([None if x is None else x.shape for x in arrays])
    scan = Scan(arrays, scale_of(scale, extents.keys))
    values = scan.arrays[2]
    assert values is not None
    o = library.empty(values.shape, values.dtype)
    last = library.empty(extents.state(), values.dtype) if tells else None
    scan.run(o, last, 0)
    return o if last is None else (o, last)


def linear_attention_vjp(
    q: Any, k: Any, v: Any, go: Any, g: Any = None, beta: Any = None, *, scale: Optional[float] = None, initial_state: Any = None,
    gfinal: Any = None,
) -> AttentionGradients:  # fmt: skip
    """The gradients of a loss with respect to what goes into `linear_attention`.

    Parameters
    ----------
    q, k, v, g, beta, scale, initial_state
        As given to it.
    go : array_like or None
        dLoss/do, of v's shape; None: 0.
    gfinal : array_like, optional
        dLoss/d(last states), [batch][H][K][V]; 0 without.

    Returns
    -------
    AttentionGradients : (q, k, v, g, beta, initial_state), each of the shape of what it belongs to, None of what was not given.

    Raises
    ------
    ArgumentError, UnsupportedError
        As `linear_attention`, and of gradients of other shapes.
    """
    if go is None and gfinal is None:
        raise ArgumentError.of("go", None, "an array, or gfinal")
    *arrays, back, end = _scans.common(NAMES, KIND.needed, (q, k, v, g, beta, initial_state), go=go, gfinal=gfinal)
    extents = check([None if x is None else x.shape for x in arrays])
    scan = Scan(arrays, scale_of(scale, extents.keys))
    KIND.check_gradients(scan, [None if x is None else x.shape for x in (back, end)])
    found = [None if x is None else library.empty(x.shape, x.dtype) for x in arrays]
    scan.back(back, end, 0, found)
    return AttentionGradients(*found)  # type: ignore[arg-type]
