# SPDX-License-Identifier: MIT
"""For JAX, on the CPU: `linear_chain`, `rnn`, `gru`, `lstm` with jit, grad and vmap.

The library is called back from the compiled program (jax.pure_callback) with a gradient rule of its own (jax.custom_vjp). A
call through jax.ffi would save the copies that a callback makes (some tens of microseconds and a pass over memory), but wants a
handler compiled against jaxlib's headers, which would tie the package to one of its versions.
"""
from __future__ import annotations

import ctypes
import functools
from typing import Any, Dict, List, Optional, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np

from . import _engine
from . import _library as library
from . import linear as numbers
from .errors import ArgumentError

Array = Any
_CODES = {np.dtype(np.float32): 1, np.dtype(np.float64): 2}


def _callback(function: Any, shapes: Any, *arguments: Array) -> Any:
    return jax.pure_callback(function, shapes, *arguments, vmap_method="sequential")


def _shape(array: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


# ---- linear chains ----


def _chain_numbers(A: Any, b: Any, z0: Any, transposed: bool, scheme: str, structure: str) -> np.ndarray:
    z0 = None if z0 is None else np.asarray(z0)
    found = numbers.linear_chain(np.asarray(A), np.asarray(b), z0, transposed, scheme, structure=structure)
    assert isinstance(found, np.ndarray)
    return found


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _chain(A: Array, b: Array, z0: Optional[Array], transposed: bool, scheme: str, structure: str) -> Array:
    run = functools.partial(_chain_numbers, transposed=transposed, scheme=scheme, structure=structure)
    if z0 is None:
        return _callback(lambda A, b: run(A, b, None), _shape(b), A, b)
    return _callback(run, _shape(b), A, b, z0)


def _chain_forward(A: Array, b: Array, z0: Optional[Array], transposed: bool, scheme: str, structure: str) -> Any:
    z = _chain(A, b, z0, transposed, scheme, structure)
    return z, (A, z0, z)


def _chain_backward(transposed: bool, scheme: str, structure: str, kept: Any, g: Array) -> Any:
    A, z0, z = kept
    if transposed:  # by operations that have derivatives, like the chain itself
        direct = _chain(A, g, None, False, scheme, structure)
        before = jnp.concatenate([jnp.zeros_like(g[:1]), direct[:-1]])
        return _outer(z, before, structure, A), direct, None
    shapes = [_shape(A), _shape(g)] + ([] if z0 is None else [_shape(z0)])

    def run(A: Any, z: Any, g: Any, *rest: Any) -> Any:
        found = numbers.linear_chain_vjp(np.asarray(A), np.asarray(z), np.asarray(g), np.asarray(rest[0]) if rest else None, scheme,
                                         structure=structure)  # fmt: skip
        return [x for x in found if x is not None]

    found = _callback(run, shapes, A, z, g, *([] if z0 is None else [z0]))
    return found[0], found[1], None if z0 is None else found[2]


def _outer(left: Array, right: Array, structure: str, A: Array) -> Array:
    if structure == "dense":
        out = left[..., :, None] * right[..., None, :]
    elif structure == "block":
        k = A.shape[-1]
        out = left.reshape(*left.shape[:-1], -1, k, 1) * right.reshape(*right.shape[:-1], -1, 1, k)
    else:
        out = left * right
        out = out.sum(-1) if structure == "scalar" else out
    lead = out.ndim - A.ndim
    out = out.sum(tuple(range(lead))) if lead else out
    shared = tuple(i for i, (n, m) in enumerate(zip(A.shape, out.shape)) if n == 1 and m != 1)
    return out.sum(shared, keepdims=True) if shared else out


_chain.defvjp(_chain_forward, _chain_backward)


def linear_chain(A: Array, b: Array, z0: Optional[Array] = None, transposed: bool = False, scheme: str = "auto", *,
                 structure: Optional[str] = None) -> Array:  # fmt: skip
    """`deeppcr.linear_chain` for JAX arrays, with gradients of A, b and z0."""
    A, b = jnp.asarray(A), jnp.asarray(b)
    z0 = None if z0 is None else jnp.asarray(z0)
    dtype = jnp.result_type(A, b, *([] if z0 is None else [z0]))
    if np.dtype(dtype) not in _CODES:
        raise ArgumentError.of("dtype", dtype, "float32 or float64")
    if structure is None:
        structure = {1: "dense", 0: "diagonal", -1: "scalar"}.get(A.ndim - b.ndim)
        if structure is None:
            raise ArgumentError.of("A's shape", A.shape, "a structure, or one more, as many or one less dimensions than b")
    if structure == "identity":
        raise ArgumentError.of("structure", repr(structure), "another: an identity's chain is a cumulative sum")
    return _chain(A.astype(dtype), b.astype(dtype), None if z0 is None else z0.astype(dtype), transposed, scheme, structure)


# ---- recurrent networks ----

_tokens: Dict[_engine.Form, int] = {}


def _run(form: _engine.Form, method: str, arrays: Sequence[np.ndarray], training: bool) -> Any:
    x, h0, c0, *parameters = arrays
    N, T, B, H = form.layers * form.directions, x.shape[0], x.shape[1], form.hidden
    y, ht, ct = (np.empty(s, x.dtype) for s in ((T, B, form.directions * H), (N, B, H), (N, B, H)))
    lstm = form.kind == "lstm"
    waiting = _engine.engine_of(_tokens.setdefault(form, _engine.token()), form).forward(
        [p.ctypes.data for p in parameters], T, B, x.ctypes.data, h0.ctypes.data, c0.ctypes.data if lstm else 0, 0, y.ctypes.data,
        ht.ctypes.data, ct.ctypes.data if lstm else 0, training, method)  # fmt: skip
    return (y, ht, ct) if lstm else (y, ht, np.zeros_like(ht)), waiting


def _arrays(given: Sequence[Any]) -> List[np.ndarray]:
    return [library.whole(a) for a in given]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _network(form: _engine.Form, method: str, x: Array, h0: Array, c0: Array, parameters: Tuple[Array, ...]) -> Any:
    outputs = jax.ShapeDtypeStruct((*x.shape[:2], form.directions * form.hidden), x.dtype)
    return _callback(lambda *a: _run(form, method, _arrays(a), False)[0], (outputs, _shape(h0), _shape(h0)), x, h0, c0, *parameters)


def _network_forward(form: _engine.Form, method: str, x: Array, h0: Array, c0: Array, parameters: Tuple[Array, ...]) -> Any:
    return _network(form, method, x, h0, c0, parameters), (x, h0, c0, parameters)


def _network_backward(form: _engine.Form, method: str, kept: Any, given: Any) -> Any:
    """Runs the network anew: what it leaves for its way back is no JAX array."""
    x, h0, c0, parameters = kept

    def run(dy: Any, dht: Any, dct: Any, *rest: Any) -> Any:
        inputs, (dy, dht, dct) = _arrays(rest), _arrays((dy, dht, dct))
        (y, ht, ct), waiting = _run(form, method, inputs, True)
        lstm, x, h0, c0 = form.kind == "lstm", *inputs[:3]
        dx, dh0, dc0 = np.empty_like(x), np.empty_like(h0), np.zeros_like(c0)
        at = lambda a, there=True: a.ctypes.data if there else None  # noqa: E731
        waiting.backward(at(x), at(h0), at(c0) if lstm else 0, 0, at(y), at(ht), at(ct) if lstm else 0,
                         (at(dy), at(dht), at(dct, lstm)), (at(dx), at(dh0), at(dc0, lstm)))  # fmt: skip
        flat = np.empty(waiting.slot.bytes // x.itemsize, x.dtype)
        ctypes.memmove(flat.ctypes.data, waiting.slot.gradient, waiting.slot.bytes)
        waiting.end()
        sizes = [p.size for p in inputs[3:]]
        parts = np.split(flat, np.cumsum(sizes)[:-1])
        return (dx, dh0, dc0, *(g.reshape(p.shape) for g, p in zip(parts, inputs[3:])))

    shapes = tuple(map(_shape, (x, h0, c0, *parameters)))
    dx, dh0, dc0, *rest = _callback(run, shapes, *given, x, h0, c0, *parameters)
    return dx, dh0, dc0, tuple(rest)


_network.defvjp(_network_forward, _network_backward)


def _call(kind: str, parameters: Dict[str, Array], x: Array, state: Any, method: str) -> Any:
    names, x = list(parameters), jnp.asarray(x)
    if "weight_hh_l0" not in parameters or x.ndim not in (2, 3):
        raise ArgumentError.of("parameters and x", (names, x.shape), "PyTorch's names, and [T][B][inputs] or [T][inputs]")
    if np.dtype(x.dtype) not in _CODES:
        raise ArgumentError.of("x's dtype", x.dtype, "float32 or float64")
    directions = 2 if "weight_hh_l0_reverse" in parameters else 1
    layers = sum(name.startswith("weight_hh_l") for name in names) // directions
    form = _engine.Form(kind, _CODES[np.dtype(x.dtype)], x.shape[-1], parameters["weight_hh_l0"].shape[1], layers, directions == 2,
                        "bias_ih_l0" in parameters)  # fmt: skip
    wanted = dict(form.parameters())
    found = {name: tuple(p.shape) for name, p in parameters.items()}
    if found != wanted:
        raise ArgumentError.of("the parameters' shapes", found, str(wanted))
    single = x.ndim == 2
    rows = x[:, None] if single else x
    shape = (layers * directions, rows.shape[1], form.hidden)
    lstm = kind == "lstm"
    h0, c0 = (state if lstm else (state, None)) if state is not None else (None, None)
    given = []
    for name, one in (("h0", h0), ("c0", c0)):
        one = jnp.zeros(shape, x.dtype) if one is None else jnp.asarray(one, x.dtype)
        one = one[:, None] if single and one.ndim == 2 else one
        if one.shape != shape:
            raise ArgumentError.of(f"{name}'s shape", one.shape, str(shape))
        given.append(one)
    y, ht, ct = _network(form, method, rows, *given, tuple(jnp.asarray(parameters[n], x.dtype) for n in wanted))
    if single:
        y, ht, ct = y[:, 0], ht[:, 0], ct[:, 0]
    return y, ((ht, ct) if lstm else ht)


_DOC = """{0} over x [T][B][inputs] (or [T][inputs]), with PyTorch's formulas.

    `parameters` is a dict by PyTorch's names ("weight_ih_l0", ...), whose shapes tell layers, directions and biases; `state` {1}
    [layers D][B][hidden], zeros without it. Returns y [T][B][D hidden] and the last state.
    """


def rnn(parameters: Dict[str, Array], x: Array, state: Any = None, *, nonlinearity: str = "tanh", method: str = "auto") -> Any:
    if nonlinearity not in ("tanh", "relu"):
        raise ArgumentError.of("nonlinearity", repr(nonlinearity), "'tanh' or 'relu'")
    return _call(f"rnn_{nonlinearity}", parameters, x, state, method)


def gru(parameters: Dict[str, Array], x: Array, state: Any = None, *, method: str = "auto") -> Any:
    return _call("gru", parameters, x, state, method)


def lstm(parameters: Dict[str, Array], x: Array, state: Any = None, *, method: str = "auto") -> Any:
    return _call("lstm", parameters, x, state, method)


rnn.__doc__ = _DOC.format("torch.nn.RNN", "h0")
gru.__doc__ = _DOC.format("torch.nn.GRU", "h0")
lstm.__doc__ = _DOC.format("torch.nn.LSTM", "(h0, c0)")
