# SPDX-License-Identifier: MIT
"""Scans (`deeppcr._scans`) for JAX: `selective_scan` and `linear_attention` of `deeppcr.jax`. A vmap is a call a row."""
from __future__ import annotations

import functools
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import jax
import numpy as np

from . import _xla, attention, selective
from ._jax_calls import CODES, Array, as_array, as_inputs, ask, expect, first_gradients, lane, shape_of
from ._scans import Kind, Scan, refuse_complex
from .errors import ArgumentError, finite, flag, whole_number


class _Form(NamedTuple):
    kind: Kind
    rank: int  # dimensions of the first array, and of what comes out at every step
    option: Callable[[str], Any]  # of its word in a call


_FORMS = {
    "selective": _Form(selective.KIND, 3, lambda word: whole_number("softplus", int(word), 0, 1)),
    "attention": _Form(attention.KIND, 4, lambda word: finite("scale", float(word))),
}


def _indices(kind: Kind, there: str) -> List[int]:
    """Of the word that has a bit for each of a kind's arrays."""
    least = (1 << kind.needed) - 1
    bits = whole_number("what is there", int(there), least, (1 << len(kind.names)) - 1)
    if bits & least != least:
        raise ArgumentError.of("what is there", bits, f"{', '.join(kind.names[: kind.needed])} among it")
    return [i for i in range(len(kind.names)) if bits >> i & 1]


def _whole(kind: Kind, there: Sequence[int], some: Sequence[Any]) -> List[Any]:
    """All arrays of a kind, None where one is not there."""
    found = dict(zip(there, some))
    return [found.get(i) for i in range(len(kind.names))]


def _rows(form: _Form, once: Callable[..., None], there: List[int], gradients: int) -> _xla.Run:
    """A call a row of what vmap maps over; `gradients` are given in front."""

    def run(given: List[np.ndarray], found: List[np.ndarray]) -> None:
        if len(given) != gradients + len(there) or len(found) != (len(there) if gradients else 2) or found[0].ndim < form.rank:
            raise ArgumentError.of("the arrays", (len(given), len(found)), f"{gradients} gradients and {len(there)} others")
        k = found[0].ndim - form.rank
        mapped = found[0].shape[:k]
        for x, shared in (*((x, True) for x in given), *((x, False) for x in found)):
            if x.dtype != found[0].dtype or x.dtype not in CODES:
                raise ArgumentError.of("an array's dtype", x.dtype, "float32 or float64, as the others")
            if x.ndim < k or any(n != m and not (shared and n == 1) for n, m in zip(x.shape, mapped)):
                raise ArgumentError.of("an array's shape", x.shape, f"{mapped} in front")
        for index in np.ndindex(*mapped):
            once(_whole(form.kind, there, lane(given[gradients:], index)), lane(given[:gradients], index), lane(found, index))

    return run


def _call(form: _Form, option: str, there: str) -> _xla.Run:
    """What is there of a kind's arrays -> what comes out at every step, the last states."""
    of = form.option(option)

    def once(arrays: List[Optional[np.ndarray]], _: List[np.ndarray], found: List[np.ndarray]) -> None:
        scan: Scan = form.kind.scan(arrays, of)
        expect(list(zip(("a result", "the last states"), scan.results())), found, found[0].dtype, ())
        scan.run(found[0], found[1], 0)

    return _rows(form, once, _indices(form.kind, there), 0)


def _vjp_call(form: _Form, option: str, there: str) -> _xla.Run:
    """The gradients of both results, what is there of a kind's arrays -> the gradients of that."""
    of, indices = form.option(option), _indices(form.kind, there)

    def once(arrays: List[Optional[np.ndarray]], given: List[np.ndarray], found: List[np.ndarray]) -> None:
        scan: Scan = form.kind.scan(arrays, of)
        form.kind.check_gradients(scan, [x.shape for x in given])
        expect([(name, x.shape) for name, x in zip(form.kind.names, arrays) if x is not None], found, found[0].dtype, ())
        scan.back(given[0], given[1], 0, _whole(form.kind, indices, found))

    return _rows(form, once, indices, 2)


for _name, _form in _FORMS.items():
    _xla.functions[_name] = functools.partial(_call, _form)
    _xla.functions[f"{_name}_vjp"] = functools.partial(_vjp_call, _form)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _scanned(name: str, option: Any, there: int, arrays: Tuple[Array, ...]) -> Any:
    kind = _FORMS[name].kind
    whole = _whole(kind, _indices(kind, str(there)), arrays)
    last = jax.ShapeDtypeStruct(kind.last([None if x is None else x.shape for x in whole]), arrays[0].dtype)
    return tuple(ask(f"{name} {option!r} {there}", [shape_of(whole[kind.like]), last], *arrays))


def _scanned_forward(name: str, option: Any, there: int, arrays: Tuple[Array, ...]) -> Any:
    return _scanned(name, option, there, arrays), arrays


def _scanned_backward(name: str, option: Any, there: int, arrays: Tuple[Array, ...], given: Any) -> Any:
    return (as_inputs(first_gradients(_FORMS[name].kind.what, f"{name}_vjp {option!r} {there}", given, arrays), arrays),)


_scanned.defvjp(_scanned_forward, _scanned_backward)


def _checked(kind: Kind, given: Sequence[Any]) -> Tuple[List[Any], Any]:
    """Arrays of one float dtype whose shapes fit together, and what the kind's own check tells of them."""
    arrays: List[Any] = [x if x is None and i >= kind.needed else as_array(name, x) for i, (name, x) in enumerate(zip(kind.names, given))]
    for name, x in zip(kind.names, arrays):
        if x is not None:
            refuse_complex(name, x.dtype)
            if np.dtype(x.dtype) not in CODES:
                raise ArgumentError.of(f"{name}'s dtype", x.dtype, "float32 or float64")
            if x.dtype != arrays[0].dtype:
                raise ArgumentError.of(f"{name}'s dtype", x.dtype, f"{kind.names[0]}'s, {arrays[0].dtype}")
    return arrays, kind.check([None if x is None else tuple(x.shape) for x in arrays])


def _scan(name: str, arrays: Sequence[Any], option: Any, tells: bool) -> Any:
    there = sum(1 << i for i, x in enumerate(arrays) if x is not None)
    out, last = _scanned(name, option, there, tuple(x for x in arrays if x is not None))
    return (out, last) if tells else out


def selective_scan(u: Array, delta: Array, A: Array, B: Array, C: Array, D: Any = None, z: Any = None, delta_bias: Any = None,
                   delta_softplus: bool = False, return_last_state: bool = False, *, h0: Any = None) -> Any:  # fmt: skip
    """`deeppcr.selective_scan` with gradients of all arrays (first ones), of one dtype. A vmap is a call a row.

    Parameters
    ----------
    u, delta : array_like
        [batch][dim][L], float32 or float64, as what follows.
    A : array_like
        [dim][N], real.
    B, C : array_like
        [batch][N][L], [batch][G][N][L], or [dim][N], the same at every step.
    D, delta_bias : array_like, optional
        [dim]; 0 without.
    z : array_like, optional
        [batch][dim][L]; no gate without.
    delta_softplus : bool, default False
        Whether the steps are softplus of delta + delta_bias.
    return_last_state : bool, default False
        Whether the last states are returned too.
    h0 : array_like, optional
        States before the first step, [batch][dim][N]; 0 without.

    Returns
    -------
    y, or y and the last states with `return_last_state` : [batch][dim][L] and [batch][dim][N].

    Raises
    ------
    ArgumentError, UnsupportedError
        Of shapes and dtypes that do not fit, and of complex A, when it is traced.
    """
    softplus, tells = flag("delta_softplus", delta_softplus), flag("return_last_state", return_last_state)
    arrays, _ = _checked(selective.KIND, (u, delta, A, B, C, D, z, delta_bias, h0))
    return _scan("selective", arrays, int(softplus), tells)


def linear_attention(q: Array, k: Array, v: Array, g: Any = None, beta: Any = None, *, scale: Any = None, initial_state: Any = None,
                     return_final_state: bool = False) -> Any:  # fmt: skip
    """`deeppcr.linear_attention` with gradients of all arrays (first ones), of one dtype. A vmap is a call a row.

    Parameters
    ----------
    q, k : array_like
        [batch][L][G][K], float32 or float64, as what follows.
    v : array_like
        [batch][L][H][V]; G divides H.
    g : array_like, optional
        Logarithms of decays, [batch][L][H] or [batch][L][H][K]; nothing decays without. -inf forgets all that was before.
    beta : array_like, optional
        [batch][L][H]; without, nothing is taken out of the state before a step writes.
    scale : float, optional
        1 / sqrt(K) without. No traced number: multiply q by one.
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
        Of shapes and dtypes that do not fit when it is traced.
    """
    tells = flag("return_final_state", return_final_state)
    arrays, extents = _checked(attention.KIND, (q, k, v, g, beta, initial_state))
    return _scan("attention", arrays, attention.scale_of(scale, extents.keys), tells)
