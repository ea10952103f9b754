# SPDX-License-Identifier: MIT
"""What the functions of `deeppcr.jax` are made of: calls of the library out of compiled programs (_xla.py), checks of what such a call
comes with, first gradients."""
from __future__ import annotations

import functools
from typing import Any, List, Sequence, Tuple

import jax
import jax.ffi
import jax.numpy as jnp
import numpy as np

from . import _xla
from .errors import ArgumentError, UnsupportedError

Array = Any
Shapes = List[Tuple[str, Tuple[int, ...]]]  # arrays by name
CODES = {np.dtype(np.float32): 1, np.dtype(np.float64): 2}

jax.ffi.register_ffi_target("deeppcr", _xla.capsule(), platform="cpu")


def ask(call: str, shapes: Any, *arguments: Array) -> Any:
    """One call of the library; what vmap maps over comes as leading dimensions, 1 where an argument is not mapped."""
    return jax.ffi.ffi_call("deeppcr", shapes, vmap_method="expand_dims")(*arguments, call=call)


def shape_of(array: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


_type_of, _reshard = getattr(jax, "typeof", None), getattr(jax.sharding, "reshard", None)


def as_inputs(found: Sequence[Any], inputs: Sequence[Any]) -> Tuple[Any, ...]:
    """Gradients over a mesh's devices as what they belong to, which JAX asks for where its axes are explicit: calls give them whole."""
    if _type_of is None or _reshard is None:
        return tuple(found)
    made = []
    for g, x in zip(found, inputs):
        wanted = None if g is None or x is None else _type_of(x).sharding
        made.append(g if wanted is None or wanted.mesh.empty or _type_of(g).sharding == wanted else _reshard(g, wanted))
    return tuple(made)


def as_array(name: str, value: Any, dtype: Any = None) -> Array:
    """A value as an array, of real numbers where it is to become one of `dtype`."""
    if isinstance(value, np.ndarray) and not value.dtype.isnative:  # which JAX does not take
        value = value.astype(value.dtype.newbyteorder("="))
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError):  # None, text, masked arrays
        kind = f" of {value.dtype}" if isinstance(value, np.ndarray) else ""
        raise ArgumentError.of(name, type(value).__name__ + kind, "an array of numbers") from None
    if dtype is None:
        return array
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise ArgumentError.of(f"{name}'s dtype", array.dtype, "real numbers")
    return array.astype(dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def first_gradients(what: str, call: str, given: Sequence[Array], inputs: Sequence[Array]) -> Any:
    """The gradients of `what` by its inputs, given those of its results: by a call that has none itself."""
    return tuple(ask(call, [*map(shape_of, inputs)], *given, *inputs))


def _first_gradients_forward(what: str, call: str, given: Sequence[Array], inputs: Sequence[Array]) -> Any:
    return first_gradients(what, call, given, inputs), None


def _first_gradients_backward(what: str, *_: Any) -> Any:
    raise UnsupportedError.of(f"{what}'s derivatives", "second derivatives", "first ones")


first_gradients.defvjp(_first_gradients_forward, _first_gradients_backward)


def expect(wanted: Shapes, arrays: Sequence[np.ndarray], dtype: Any, mapped: Tuple[int, ...], shared: bool = False) -> None:
    """Refuses arrays of a call that have other shapes after what vmap maps over (`shared`: or 1), or another dtype (None: no float): a
    call may come from any program."""
    if len(arrays) != len(wanted):
        raise ArgumentError.of("the number of arrays", len(arrays), f"{len(wanted)}: {', '.join(name for name, _ in wanted)}")
    k = len(mapped)
    for (name, shape), array in zip(wanted, arrays):
        if array.dtype != dtype if dtype is not None else array.dtype not in CODES:
            raise ArgumentError.of(f"{name}'s dtype", array.dtype, str(dtype or "float32 or float64"))
        lead = array.shape[:k]
        if array.shape[k:] != shape or not (lead == mapped or shared and all(n in (1, m) for n, m in zip(lead, mapped))):
            raise ArgumentError.of(f"{name}'s shape", array.shape, str(mapped + shape))


def lane(arrays: Sequence[np.ndarray], index: Tuple[int, ...]) -> List[np.ndarray]:
    k = len(index)
    return [a[tuple(min(i, n - 1) for i, n in zip(index, a.shape[:k]))] for a in arrays]
