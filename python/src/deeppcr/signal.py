# SPDX-License-Identifier: MIT
"""Recursive filters with SciPy's arguments and numbers, over long signals in stretches that run side by side."""
from __future__ import annotations

import ctypes
import math
from typing import Any, Callable, Optional, Tuple, Union, overload

import numpy as np

from . import _library as library
from .errors import ArgumentError, UnsupportedError, whole_number

__all__ = ["lfilter", "lfilter_vjp", "sosfilt", "sosfilt_vjp"]

ARRAY = np.ndarray
ORDER = 128  # of a transfer function, at most
_filters = library.Cache(64)
_execute, _vjp = library.bare(library.lib.dpcr_filter_execute), library.bare(library.lib.dpcr_filter_gradient)


def _refuse_not_finite(name: str, coefficients: ARRAY) -> None:
    library.refuse_first(name, ~np.isfinite(coefficients), coefficients, "a finite number")


def made(kind: str, *coefficients: ARRAY) -> Tuple[ctypes.c_void_p, library.Handle]:
    """A new filter of the library, of sos or of b and a, which are contiguous doubles; and the context that it is of."""
    owner, place, (error, error_ref) = library.context.get(), ctypes.c_void_p(), library.error_place()
    if kind == "sos":
        (sos,) = coefficients
        _refuse_not_finite("sos", sos)
        # Which frontends that trace cannot see; gradients are of divided coefficients.
        library.refuse_first("sos", (np.arange(6) == 3) & (sos != 1), sos, "1")
        status = library.lib.dpcr_filter_create_sos(owner.address, len(sos), sos.ctypes.data, ctypes.byref(place), error_ref)
    else:
        b, a = coefficients
        for name, c in (("b", b), ("a", a)):
            _refuse_not_finite(name, c)
        if a[0] == 0:
            raise ArgumentError.of("a[0]", a[0], "another number: coefficients are divided by it")
        status = library.lib.dpcr_filter_create_ba(owner.address, b.size, b.ctypes.data, a.size, a.ctypes.data,
                                                   ctypes.byref(place), error_ref)  # fmt: skip
    library.check(status, error)
    return place, owner


def _filter(kind: str, *coefficients: ARRAY) -> library.Handle:
    key = (kind, *(c.tobytes() for c in coefficients))
    kept = _filters.kept.get(key)
    if kept is None:
        place, owner = made(kind, *coefficients)
        kept = library.Handle(place.value, library.lib.dpcr_filter_destroy, owner)
        _filters.put(key, kept)
    return kept  # type: ignore[no-any-return]


_calls = library.Own(64)


class _Known:
    """A filter run over arrays that look alike, time last and contiguous, without initial states or with ones that lie as the
    library wants them."""

    __slots__ = ("call", "shape", "dtype", "last")

    def __init__(self, handle: library.Handle, x: ARRAY, zi: Optional[ARRAY], sections: int, order: int) -> None:
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        state = None if zi is None else library.empty((rows.shape[0], sections, order), np.float64)
        self.shape, self.dtype, self.last = x.shape, x.dtype, None if zi is None else zi.shape
        self.call = library.Call(_execute, handle, (rows, state, rows, state))

    def run(self, x: ARRAY, zi: Optional[ARRAY]) -> Union[ARRAY, Tuple[ARRAY, ARRAY]]:
        y = library.empty(self.shape, self.dtype)
        if zi is None or self.last is None:
            self.call.run((library.address(x), 0, library.address(y)))
            return y
        zf = library.empty(self.last, np.float64)
        self.call.run((library.address(x), library.address(zi), library.address(y), library.address(zf)))
        return y, zf


def _key(name: str, coefficients: Tuple[Any, ...], x: Any, axis: int, zi: Any) -> Any:
    """By what a call is known, where it may be: None for arrays that want more than their addresses looked at."""
    if type(x) is not ARRAY or type(axis) is not int or not (axis == -1 or axis == x.ndim - 1) or not (zi is None or type(zi) is ARRAY) or x.ndim == 0:
        return None
    key: Any = (name, x.shape, x.dtype, None if zi is None else (zi.shape, zi.dtype))
    for c in coefficients:
        if type(c) is not ARRAY:
            return None
        key += (c.tobytes(), c.dtype, c.shape)
    return key if x.flags.c_contiguous and x.flags.aligned and (zi is None or zi.flags.c_contiguous and zi.flags.aligned) else None


def _again(key: Any, x: Any, zi: Any) -> Any:
    """What such a call gives where one like it was kept, else None."""
    kept = _calls.kept() if key is not None else {}
    known = kept.pop(key, None)
    if known is None:
        return None
    found = known.run(x, zi)
    kept[key] = known
    return found


def _knows(key: Any, handle: library.Handle, floats: np.dtype, x: ARRAY, zi: Optional[ARRAY], sections: int, order: int) -> None:
    """Keeps what a call like this one does, where it has a key and needs neither conversion nor a zi that is repeated."""
    if key is None or zi is not None and not zi.size == math.prod(x.shape[:-1]) * sections * order > 0:
        return
    dtype = np.result_type(floats, x) if zi is None else np.result_type(floats, x, zi)
    as_they_are = x.dtype == dtype and x.dtype in (np.float32, np.float64) and x.dtype.isnative
    if as_they_are and (zi is None or zi.dtype == np.float64 and (sections == 1 or x.ndim == 1)):
        _calls.keep(key, _Known(handle, x, zi, sections, order))


def _run(handle: library.Handle, x: ARRAY, zi: Optional[ARRAY], sections: int, order: int) -> Tuple[ARRAY, Optional[ARRAY]]:
    """y like x, whose last axis is time, and the last states [channels][sections][order]."""
    length = x.shape[-1]
    y = library.empty_like(x)  # in x's own order
    one = x[None] if x.ndim == 1 else x if x.ndim == 2 else library.reshaped(x, (math.prod(x.shape[:-1]), length), "x")
    out = y[None] if x.ndim == 1 else y if x.ndim == 2 else library.empty(one.shape, y.dtype)
    one = library.numbers(one, 0)
    zf = None if zi is None else library.empty((one.shape[0], sections, order), np.float64)
    error, error_ref = library.error_place()
    views = [None if v is None else ctypes.byref(library.of(v)) for v in (one, zi, out, zf)]
    library.check(library.lib.dpcr_filter_execute(handle.address, *views, error_ref), error)
    return (y if x.ndim <= 2 else out.reshape(x.shape)), zf


def _complex(real: Any, imag: Any) -> ARRAY:
    """Part by part: 1j times a number that is not finite is NaN in the real part too."""
    found = library.empty_like(real, np.result_type(real.dtype, np.complex64))
    found.real, found.imag = real, imag
    return found


# ---- SciPy's layout of states: time's axis of x (from the front) holds the order, and a cascade's sections come first ----


def states_shape(given: Tuple[int, ...], cascade: bool, shape: Tuple[int, ...], axis: int, sections: int, order: int) -> Tuple[int, ...]:
    """Of the states over x of that shape. `given`, zi's, is refused where it is another; channels of lfilter may share theirs."""
    wanted = ((sections,) if cascade else ()) + shape[:axis] + (order,) + shape[axis + 1 :]
    shared = not cascade and len(given) == len(shape) and given[axis] == order and all(n in (1, m) for n, m in zip(given, wanted))
    if given != wanted and not shared:
        raise ArgumentError.of("zi's shape", given, str(wanted))
    return wanted


def states_in(move: Callable[..., Any], z: Any, cascade: bool, axis: int) -> Any:
    """[..][sections][order] of SciPy's states, by the moveaxis of whose arrays they are."""
    return move(z, (0, axis + 1), (-2, -1)) if cascade else move(z, axis, -1)[..., None, :]


def states_out(move: Callable[..., Any], z: Any, cascade: bool, axis: int) -> Any:
    """And back."""
    return move(z, (-2, -1), (0, axis + 1)) if cascade else move(z[..., 0, :], -1, axis)


def _apply(x: Any, axis: int, zi: Any, sections: int, order: int, handle: library.Handle, floats: np.dtype,
           cascade: bool) -> Union[ARRAY, Tuple[ARRAY, ARRAY]]:  # fmt: skip
    """A filter run over x."""
    x = library.array(x, "x")
    if x.ndim == 0:
        raise ArgumentError.of("x's shape", x.shape, "one dimension or more")
    axis = axis_of(axis, x.ndim) % x.ndim
    state = None if zi is None else library.array(zi, "zi")
    for name, given in (("x", x), ("zi", state)):
        if given is not None and given.dtype.kind not in "fiubc":
            raise ArgumentError.of(f"{name}'s dtype", given.dtype, "numbers")
        if given is not None:
            library.real(given.real, name)
    dtype = np.result_type(floats, x, *([] if state is None else [state]))
    if dtype.kind == "c":
        if floats.kind == "c":
            raise UnsupportedError.of("the filter's coefficients", floats, "real ones")
        parts = [None if state is None else p(state) for p in (np.real, np.imag)]
        real = _apply(x.real, axis, parts[0], sections, order, handle, floats, cascade)
        imag = _apply(x.imag, axis, parts[1], sections, order, handle, floats, cascade)
        if state is None:
            return _complex(real, imag)
        return _complex(real[0], imag[0]), _complex(real[1], imag[1])
    dtype = np.dtype(np.float32 if dtype in (np.float32, np.float16) else np.float64)
    moved = np.moveaxis(library.cast(x, dtype, "x"), axis, -1)
    channels = int(np.prod(moved.shape[:-1])) if moved.ndim > 1 else 1
    given = None
    if state is not None:
        state = np.broadcast_to(state, states_shape(state.shape, cascade, x.shape, axis, sections, order))
        given = library.whole(states_in(np.moveaxis, state, cascade, axis).reshape(channels, sections, order), np.float64)
    y, zf = _run(handle, moved, given, sections, order)
    y = np.moveaxis(y, -1, axis)
    if zf is None or state is None:
        return y
    return y, states_out(np.moveaxis, zf.reshape(*moved.shape[:-1], sections, order), cascade, axis).astype(dtype, copy=False)


@overload
def sosfilt(sos: Any, x: Any, axis: int = ..., zi: None = ...) -> ARRAY: ...
@overload
def sosfilt(sos: Any, x: Any, axis: int = ..., zi: Any = ...) -> Any: ...
def sosfilt(sos: Any, x: Any, axis: int = -1, zi: Any = None) -> Union[ARRAY, Tuple[ARRAY, ARRAY]]:
    """scipy.signal.sosfilt: a cascade of biquads over x along an axis.

    Parameters
    ----------
    sos : array_like
        [sections][6]: b_0, b_1, b_2, 1, a_1, a_2 each.
    x : array_like
        Signals; float32 where both are, else float64, complex where x is.
    axis : int
        That time runs along.
    zi : array_like, optional
        Initial states: x's shape but 2 along the axis, after a first dimension [sections]. Zeros without it.

    Returns
    -------
    y, or y and zf with `zi` : of x's shape; the last states, of zi's.

    Raises
    ------
    ArgumentError
        Of shapes that do not fit, an axis that x does not have, coefficients that are not finite or a_0 that is not 1.
    """
    key = _key("sosfilt", (sos,), x, axis, zi)
    known = _again(key, x, zi)
    if known is not None:
        return known
    given = np.atleast_2d(library.array(sos, "sos"))
    check_sections(given.shape)
    library.real(given, "sos")
    n = len(given)
    floats = library.float_of(given.dtype)
    handle = _filter("sos", library.whole(given, np.float64))
    found = _apply(x, axis, zi, n, 2, handle, floats, True)
    _knows(key, handle, floats, x, zi, n, 2)
    return found


def vectors(b: Any, a: Any) -> Tuple[ARRAY, ARRAY]:
    """The coefficients of a transfer function, refused where they are none."""
    found = np.atleast_1d(library.array(b, "b")), np.atleast_1d(library.array(a, "a"))
    for name, c in zip("ba", found):
        library.real(c, name)
        check_vector(name, c.shape)
    return found


def check_sections(shape: Tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[1] != 6 or not shape[0]:
        raise ArgumentError.of("sos's shape", tuple(shape), "[sections][6]")


def check_vector(name: str, shape: Tuple[int, ...]) -> None:
    if len(shape) != 1 or not 1 <= shape[0] <= ORDER + 1:
        raise ArgumentError.of(f"{name}'s shape", tuple(shape), f"a vector of 1 to {ORDER + 1} coefficients")


def axis_of(axis: Any, dimensions: int) -> int:
    """The axis that time runs along, refused where x has none such."""
    return whole_number("axis", axis, -dimensions, dimensions - 1)


@overload
def lfilter(b: Any, a: Any, x: Any, axis: int = ..., zi: None = ...) -> ARRAY: ...
@overload
def lfilter(b: Any, a: Any, x: Any, axis: int = ..., zi: Any = ...) -> Any: ...
def lfilter(b: Any, a: Any, x: Any, axis: int = -1, zi: Any = None) -> Union[ARRAY, Tuple[ARRAY, ARRAY]]:
    """scipy.signal.lfilter: the transfer function b / a over x along an axis.

    Parameters
    ----------
    b, a : array_like
        Coefficients of falling powers, a[0] not 0; the order is max(len(a), len(b)) - 1, at most 128.
    x : array_like
        Signals; float32 where all are, else float64, complex where x is.
    axis : int
        That time runs along.
    zi : array_like, optional
        Initial states: x's shape but the order along the axis, or 1 where channels share them. Zeros without it.

    Returns
    -------
    y, or y and zf with `zi` : of x's shape; the last states.

    Raises
    ------
    ArgumentError
        Of shapes that do not fit, an axis that x does not have, coefficients that are not finite or a[0] that is 0.
    """
    key = _key("lfilter", (b, a), x, axis, zi)
    known = _again(key, x, zi)
    if known is not None:
        return known
    tops, bottoms = vectors(b, a)
    floats = library.float_of(np.result_type(tops, bottoms))
    order = max(tops.size, bottoms.size) - 1
    handle = _filter("ba", library.whole(tops, np.float64), library.whole(bottoms, np.float64))
    found = _apply(x, axis, zi, 1, order, handle, floats, False)
    _knows(key, handle, floats, x, zi, 1, order)
    return found


# ---- gradients ----


def _flat(x: ARRAY, axis: int) -> ARRAY:
    """[channels][L] along the axis, which every frontend of gradients has: a view where it can be one."""
    moved = np.moveaxis(x, axis, -1)
    return library.numbers(library.reshaped(moved, (math.prod(moved.shape[:-1]), moved.shape[-1]), "x"), 0)


def _gradient(kind: str, b: ARRAY, a: Optional[ARRAY], x: ARRAY, zi: Optional[ARRAY], gy: Optional[ARRAY], gzf: Optional[ARRAY],
              axis: int, coefficients: bool) -> Tuple[Optional[ARRAY], Optional[ARRAY], ARRAY, ARRAY]:  # fmt: skip
    """Gradients (b, a, x, zi) of a filter run over x from zi, states [channels][sections][order], given those of y and zf."""
    handle = _filter(kind, *(library.whole(c, np.float64) for c in (b, a) if c is not None))
    sections, order = (len(b), 2) if a is None else (1, max(b.size, a.size) - 1)
    flat = _flat(x, axis)
    wanted = library.empty(np.moveaxis(x, axis, -1).shape, x.dtype)
    gx, gz = wanted.reshape(flat.shape), library.empty((flat.shape[0], sections, order), np.float64)
    back = np.broadcast_to(np.zeros(1, x.dtype), gx.shape) if gy is None else _flat(library.cast(gy, x.dtype, "gy"), axis)
    back = library.copied(back) if np.may_share_memory(back, flat) else back
    start = None if zi is None else library.whole(zi, np.float64)
    end = None if gzf is None else library.whole(gzf, np.float64)
    gb, ga = np.zeros((sections, order + 1)), np.zeros((sections, order + 1))
    error, error_ref = library.error_place()
    refs = [None if v is None else ctypes.byref(library.of(v)) for v in (flat, start, back, end, gx, gz)]
    if coefficients:
        status = library.lib.dpcr_filter_gradient(handle.address, *refs[:4], gb.ctypes.data, ga.ctypes.data, *refs[4:], error_ref)
    else:
        status = library.lib.dpcr_filter_adjoint(handle.address, *refs[2:], error_ref)
    library.check(status, error)
    dx = np.moveaxis(wanted, -1, axis)
    if not coefficients:
        return None, None, dx, gz
    if a is None:
        return np.concatenate([gb, ga], 1), None, dx, gz
    return (*_as_given(b, a, gb, ga), dx, gz)


def _as_given(b: ARRAY, a: ARRAY, gb: ARRAY, ga: ARRAY) -> Tuple[ARRAY, ARRAY]:
    """The gradients of coefficients from those [1][order + 1] of the same divided by a_0."""
    first = float(a[0])
    gb, ga = gb[0] / first, ga[0] / first
    total = 0.0
    for gradient, coefficient in zip((*gb[: b.size], *ga[1 : a.size]), (*b, *a[1:])):  # in order, as the library's handler for XLA does
        total += float(gradient) * float(coefficient)
    ga[0] = -total / first
    return gb[: b.size], ga[: a.size]


def sosfilt_vjp(sos: Any, x: Any, gy: Any, axis: int = -1) -> Tuple[ARRAY, ARRAY]:
    """The gradients of a loss with respect to sos and x of `sosfilt`.

    Parameters
    ----------
    sos, x, axis
        As given to `sosfilt`, without initial states.
    gy : array_like
        dLoss/dy, of x's shape.

    Returns
    -------
    gsos, gx : of sos's and x's shapes; those of sos[:, 3], which has to be 1, are 0.

    Raises
    ------
    ArgumentError
        As `sosfilt`, and of complex signals.
    """
    signal, given, y = library.array(x, "x"), np.atleast_2d(library.array(sos, "sos")), library.array(gy, "gy")
    _checked(signal, y, axis)
    sosfilt(given, signal[:0] if axis % signal.ndim else signal.ravel()[:0])  # the coefficients' checks
    found = _gradient("sos", given, None, _real(signal), None, y, None, axis, True)
    assert found[0] is not None
    return found[0].reshape(np.shape(sos)), found[2]


def lfilter_vjp(b: Any, a: Any, x: Any, gy: Any, axis: int = -1) -> Tuple[ARRAY, ARRAY, ARRAY]:
    """The gradients of a loss with respect to b, a and x of `lfilter`.

    Parameters
    ----------
    b, a, x, axis
        As given to `lfilter`, without initial states.
    gy : array_like
        dLoss/dy, of x's shape.

    Returns
    -------
    gb, ga, gx : of the shapes of b, a and x.

    Raises
    ------
    ArgumentError
        As `lfilter`, and of complex signals.
    """
    signal, y = library.array(x, "x"), library.array(gy, "gy")
    tops, bottoms = (c.astype(np.float64) for c in vectors(b, a))
    _checked(signal, y, axis)
    lfilter(tops, bottoms, np.zeros(0))
    found = _gradient("ba", tops, bottoms, _real(signal), None, y, None, axis, True)
    assert found[0] is not None and found[1] is not None
    return found[0].reshape(np.shape(b)), found[1].reshape(np.shape(a)), found[2]


def _real(x: ARRAY) -> ARRAY:
    return library.cast(x, library.float_of(x.dtype), "x")


def _checked(x: ARRAY, gy: ARRAY, axis: int) -> None:
    if x.ndim == 0:
        raise ArgumentError.of("x's shape", x.shape, "one dimension or more")
    axis_of(axis, x.ndim)
    library.real(x, "x")
    library.real(gy, "gy")
    if gy.shape != x.shape:
        raise ArgumentError.of("gy's shape", gy.shape, f"x's, {x.shape}")
