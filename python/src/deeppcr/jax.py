# SPDX-License-Identifier: MIT
"""For JAX, on the CPU, with jit, grad and vmap: `linear_chain`, `rnn`, `gru`, `lstm` and their like, `sosfilt`, `lfilter`,
`selective_scan`, `linear_attention`.

Compiled programs call the library on their own buffers, without copies, by jax.ffi (see _xla.py), with gradient rules of their own
(jax.custom_vjp). A vmap becomes a batch: of a chain always, of a network or a filter where its parameters are not mapped over.
"""
from __future__ import annotations

import ctypes
import functools
import math
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from . import _engine, _xla
from . import _library as library
from . import linear as numbers
from . import signal as filters
from ._jax_calls import CODES, Array, Shapes, as_array, as_inputs, ask, expect, first_gradients, lane, shape_of
from ._jax_scans import linear_attention, selective_scan
from ._ready import Here, Ready
from .errors import ArgumentError, one_of, whole_number
from .nonlinear import METHODS

__all__ = [
    "gru", "lfilter", "linear_attention", "linear_chain", "lstm", "mingru", "paragru", "paralstm", "rnn", "selective_scan", "sosfilt",
]  # fmt: skip


def _one_call(name: str, run: Callable[..., Any], shared: Callable[[int], slice], fold: Callable[..., Any]) -> Callable[..., Any]:
    """run(*arrays, **words), which has a gradient rule, as a primitive whose vmap is one call on a larger batch.

    `shared` tells, of the number of arrays, which are parameters. Where those are not mapped over, `fold` makes (results, axes)
    of (size, arrays, axes, words). jax.custom_vjp alone would not do: its vmap asks each row for its own
    gradients of the parameters, and sums them after.
    """
    made = Primitive(name)
    made.multiple_results = True
    made.def_impl(run)
    made.def_abstract_eval(lambda *avals, **words: [jax.core.ShapedArray(s.shape, s.dtype) for s in jax.eval_shape(
        functools.partial(run, **words), *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals))])  # fmt: skip
    mlir.register_lowering(made, mlir.lower_fun(run, multiple_results=True))

    def derivative(primals: Sequence[Array], tangents: Sequence[Any], **words: Any) -> Any:
        moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]

        def some(*values: Array) -> Any:
            whole = list(primals)
            for i, value in zip(moving, values):
                whole[i] = value
            return run(*whole, **words)

        return jax.jvp(some, [primals[i] for i in moving], [tangents[i] for i in moving])

    def batched(arrays: Sequence[Array], axes: Sequence[Any], **words: Any) -> Any:
        if any(axis is not None for axis in axes[shared(len(axes))]):
            found = jax.vmap(functools.partial(run, **words), tuple(axes))(*arrays)
            return list(found), [0] * len(found)
        size = next(x.shape[axis] for x, axis in zip(arrays, axes) if axis is not None)
        return fold(size, arrays, axes, words)

    ad.primitive_jvps[made] = derivative
    batching.primitive_batchers[made] = batched
    return made.bind  # type: ignore[no-any-return]


def _in_front(size: int, x: Array, axis: Optional[int], to: int) -> Array:
    """What vmap maps over as dimension `to`, whether x has it or not."""
    if axis is not None:
        return jnp.moveaxis(x, axis, to)
    return jnp.broadcast_to(jnp.expand_dims(x, to), (*x.shape[:to], size, *x.shape[to:]))


# ---- linear chains ----


class _Folded:
    """A chain's arrays under vmap: the mapped dimensions become sequences. b is [mapped..][L][w] or [mapped..][L][B][w]."""

    def __init__(self, shape: Sequence[int], rank: int, structure: str) -> None:
        if len(shape) < rank:
            raise ArgumentError.of("a result's shape", tuple(shape), f"{rank} dimensions or more")
        self.mapped, own = tuple(shape[: len(shape) - rank]), tuple(shape[len(shape) - rank :])
        self.rank, self.length, self.width = rank, own[0], own[-1]
        self.batch = own[1] if rank == 3 else 1
        self.count = math.prod(self.mapped) * self.batch
        self.dims = numbers.STRUCTURES[structure]

    def _grid(self, x: np.ndarray) -> np.ndarray:
        """[L][mapped..][B][values..] of [mapped..][L][B][values..]: a view."""
        return np.moveaxis(x, len(self.mapped), 0)

    def states(self, x: np.ndarray) -> np.ndarray:
        """[L][count][w], a view of x where it can be one."""
        full = np.broadcast_to(x, (*self.mapped, *x.shape[len(self.mapped) :])).reshape(*self.mapped, self.length, self.batch, self.width)
        return self._grid(full).reshape(self.length, self.count, self.width)

    def start(self, x: np.ndarray) -> np.ndarray:
        full = np.broadcast_to(x, (*self.mapped, *x.shape[len(self.mapped) :]))
        return np.ascontiguousarray(full).reshape(self.count, self.width)

    def lead(self, shape: Sequence[int]) -> Tuple[int, ...]:
        """A transition's dimensions before its values, [mapped..][L or 1][B or 1], of its own shape."""
        own = tuple(shape[len(self.mapped) : len(shape) - self.dims])
        own = (1,) * (self.rank - 1 - len(own)) + own
        return (*shape[: len(self.mapped)], *own, *(() if self.rank == 3 else (1,)))

    def transitions(self, A: np.ndarray, whole: bool) -> np.ndarray:
        """[L or 1][count or 1][values..]; whole: with every step and sequence, which may share memory."""
        values = A.shape[A.ndim - self.dims :]
        lead = self.lead(A.shape)
        A = A.reshape(*lead, *values)
        steps, k = lead[len(self.mapped)], len(self.mapped)
        if not whole and math.prod(lead[:k]) * lead[-1] == 1:
            return A.reshape(steps, 1, *values)
        steps = self.length if whole else steps
        full = np.broadcast_to(A, (*self.mapped, steps, self.batch, *values))
        return self._grid(full).reshape(steps, self.count, *values)

    def unfold(self, x: np.ndarray) -> np.ndarray:
        """[mapped..][L][B][values..] of [L][count][values..]."""
        return np.moveaxis(x.reshape(self.length, *self.mapped, self.batch, *x.shape[2:]), 0, len(self.mapped))


def _chain_rank(structure: str, scheme: str, rank: str) -> int:
    """Of the words of a chain's call, refused where there is no such."""
    one_of("structure", structure, numbers.STRUCTURES)
    one_of("scheme", scheme, numbers.SCHEMES)
    return int(one_of("the rank", rank, ("2", "3")))


def _chain_call(structure: str, scheme: str, transposed: str, rank: str) -> _xla.Run:
    back, dims = one_of("transposed", transposed, ("0", "1")) == "1", _chain_rank(structure, scheme, rank)

    def run(given: List[np.ndarray], found: List[np.ndarray]) -> None:
        (A, b, *rest), (z,) = given, found
        if len(rest) > 1:
            raise ArgumentError.of("the number of arrays", len(given), "A, b and at most z0")
        expect([("z", z.shape)], found, None, ())
        if z.ndim == dims:
            expect([("z", b.shape)], found, b.dtype, ())
            numbers._into(A, b, rest[0] if rest else None, z, back, scheme, structure)
            return
        f = _Folded(z.shape, dims, structure)
        expect([("z", z.shape)], found, b.dtype, ())
        out = f.states(z)
        mine = np.shares_memory(out, z)
        numbers._into(f.transitions(A, False), f.states(b), f.start(rest[0]) if rest else None, out, back, scheme, structure)
        if not mine:
            z[...] = f.unfold(out).reshape(z.shape)

    return run


def _chain_vjp_call(structure: str, scheme: str, rank: str) -> _xla.Run:
    dims = _chain_rank(structure, scheme, rank)

    def run(given: List[np.ndarray], found: List[np.ndarray]) -> None:
        (A, z, g, *rest), (dA, db, *dz0) = given, found
        if len(rest) > 1 or len(dz0) != len(rest):
            raise ArgumentError.of("the number of arrays", f"{len(given)} and {len(found)} results", "A, z, g and dA, db, or z0 and dz0 too")
        expect([("a gradient", r.shape) for r in found], found, None, ())
        if db.ndim == dims:
            expect([("dA", A.shape), ("db", g.shape), *(("dz0", r.shape) for r in rest)], found, g.dtype, ())
            numbers._vjp_into(A, z, g, rest[0] if rest else None, dA, db, dz0[0] if dz0 else None, scheme, structure)
            return
        f = _Folded(db.shape, dims, structure)
        gA, gb, gz0 = numbers._vjp_into(f.transitions(A, True), f.states(z), f.states(g), f.start(rest[0]) if rest else None,
                                        None, None, None, scheme, structure)  # fmt: skip
        db[...] = f.unfold(gb).reshape(db.shape)
        if gz0 is not None:
            dz0[0][...] = gz0.reshape(dz0[0].shape)
        each, lead = f.unfold(gA), f.lead(dA.shape)
        shared = tuple(i for i in range(len(lead)) if lead[i] == 1 and each.shape[i] != 1)
        dA[...] = (each.sum(shared) if shared else each).reshape(dA.shape)

    return run


def _ready(step: str, call: library.Call, order: Sequence[Optional[int]]) -> _xla.Again:
    """A call of the library over arrays of a frame, in the order of the call's own."""
    if call.work is None or call.workspace > _xla.OWN_BYTES:  # so much that only a pool can keep it
        return lambda at: call.run([0 if i is None else at[i] for i in order], *([None] if step == "CHAIN" else []))
    views = [None if view is None else ctypes.addressof(view) for view in call.views]
    places = [(i, view) for i, view in zip(order, views) if i is not None and view is not None]
    given = (call.owner.address, *views, library.aligned(call.work))
    return Ready([(step, given, call.workspace, 0)], places, call.workspace, call)


def _chain_again(words: List[str], given: List[np.ndarray], found: List[np.ndarray]) -> _xla.Again:
    structure, scheme, back, rank = words
    if found[0].ndim != int(rank):
        return None
    A, b, *rest = given
    call = numbers.call_like(A, b, rest[0] if rest else None, found[0], back == "1", scheme, structure)
    return None if call is None else _ready("CHAIN", call, (0, 1, 2, 3) if rest else (0, 1, None, 2))


def _chain_vjp_again(words: List[str], given: List[np.ndarray], found: List[np.ndarray]) -> _xla.Again:
    structure, scheme, rank = words
    if found[1].ndim != int(rank):
        return None
    A, z, g, *rest = given
    dA, db, *first = found
    call = numbers.gradients_like(A, z, g, rest[0] if rest else None, dA, db, first[0] if first else None, scheme, structure)
    return None if call is None else _ready("CHAIN_VJP", call, (0, 3, 1, 2, 4, 5, 6) if rest else (0, None, 1, 2, 3, 4, None))


_xla.functions.update(chain=_chain_call, chain_vjp=_chain_vjp_call)
_xla.repeats.update(chain=_chain_again, chain_vjp=_chain_vjp_again)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _chain(A: Array, b: Array, z0: Optional[Array], transposed: bool, scheme: str, structure: str) -> Array:
    z = ask(f"chain {structure} {scheme} {int(transposed)} {b.ndim}", shape_of(b), A, b, *([] if z0 is None else [z0]))
    return as_inputs([z], [b])[0]


def _chain_forward(A: Array, b: Array, z0: Optional[Array], transposed: bool, scheme: str, structure: str) -> Any:
    z = _chain(A, b, z0, transposed, scheme, structure)
    return z, (A, z0, z)


def _chain_backward(transposed: bool, scheme: str, structure: str, kept: Any, g: Array) -> Any:
    A, z0, z = kept
    if g.size == 0:  # no step, or no sequence
        return jnp.zeros_like(A), g, None if z0 is None else jnp.zeros_like(z0)
    if transposed:  # by operations that have derivatives, like the chain itself
        direct = _chain(A, g, None, False, scheme, structure)
        before = jnp.concatenate([jnp.zeros_like(g[:1]), direct[:-1]])
        return as_inputs((_outer(z, before, structure, A), direct, None), (A, z, None))
    return _gradients(A, z, g, z0, scheme, structure)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _gradients(A: Array, z: Array, g: Array, z0: Optional[Array], scheme: str, structure: str) -> Any:
    shapes = [shape_of(A), shape_of(g), *([] if z0 is None else [shape_of(z0)])]
    found = ask(f"chain_vjp {structure} {scheme} {g.ndim}", shapes, A, z, g, *([] if z0 is None else [z0]))
    return as_inputs((found[0], found[1], None if z0 is None else found[2]), (A, z, z0))


def _gradients_forward(A: Array, z: Array, g: Array, z0: Optional[Array], scheme: str, structure: str) -> Any:
    return _gradients(A, z, g, z0, scheme, structure), (A, z, g, z0)


def _gradients_backward(scheme: str, structure: str, kept: Any, given: Any) -> Any:
    def same(A: Array, z: Array, g: Array, z0: Optional[Array]) -> Any:
        """The gradients by operations that have derivatives."""
        if g.size == 0:
            return jnp.zeros_like(A), g, None if z0 is None else jnp.zeros_like(z0)
        direct = _chain(A, g, None, True, scheme, structure)
        before = jnp.concatenate([jnp.zeros_like(z[:1]) if z0 is None else z0[None], z[:-1]])
        lead = A.ndim - numbers.STRUCTURES[structure]
        A0 = A[0] if lead == g.ndim - 1 else A[(None,) * (g.ndim - 2 - lead)]
        first = None if z0 is None else numbers.back_through(A0, structure, direct[0])
        return _outer(direct, before, structure, A), direct, first

    return jax.vjp(same, *kept)[1](given)


_gradients.defvjp(_gradients_forward, _gradients_backward)


def _outer(left: Array, right: Array, structure: str, A: Array) -> Array:
    """left right^T in A's structure, summed to A's shape."""
    out = numbers.outer(left, right, structure, A.shape[-1] if structure == "block" else 0)
    lead = out.ndim - A.ndim
    out = out.sum(tuple(range(lead))) if lead else out
    shared = tuple(i for i, (n, m) in enumerate(zip(A.shape, out.shape)) if n == 1 and m != 1)
    return out.sum(shared, keepdims=True) if shared else out


_chain.defvjp(_chain_forward, _chain_backward)


def linear_chain(A: Array, b: Array, z0: Optional[Array] = None, transposed: bool = False, scheme: str = "auto", *,
                 structure: Optional[str] = None) -> Array:  # fmt: skip
    """`deeppcr.linear_chain` for JAX arrays, with gradients of A, b and z0.

    Parameters
    ----------
    A, b, z0, transposed, scheme, structure
        As there: A [L][w][w], [L][w] or [L] and so on, b [L][w] or [L][B][w], z0 [w] or [B][w], of float32 or float64. An identity's
        chain is jax.lax.cumsum, whatever the scheme, and its A is taken for 1 where it is traced.

    Returns
    -------
    z : of b's shape.

    Raises
    ------
    ArgumentError, UnsupportedError
        As there, when it is traced; of numbers that jax.export leaves open, when it runs, as JAX's own error.
    """
    A, b = as_array("A", A), as_array("b", b)
    z0 = None if z0 is None else as_array("z0", z0)
    identity = structure is not None and one_of("structure", structure, numbers.STRUCTURES) == "identity"
    dtype = jnp.result_type(*([] if identity else [A]), b, *([] if z0 is None else [z0]))  # an identity's A is 1 in every dtype
    if np.dtype(dtype) not in CODES:
        raise ArgumentError.of("dtype", dtype, "float32 or float64")
    if structure is None:
        structure = "scalar" if A.ndim == 0 else {1: "dense", 0: "diagonal", -1: "scalar"}.get(A.ndim - b.ndim)
        if structure is None:
            raise ArgumentError.of("A's shape", A.shape, "a structure, or one more, as many or one less dimensions than b")
    known = identity and not isinstance(A, jax.core.Tracer)  # whether A is 1
    if all(isinstance(n, int) for x in (A, b, z0) if x is not None for n in x.shape):
        plain = lambda x: np.broadcast_to(np.ones((), dtype), x.shape)  # noqa: E731  shapes are checked now, not when it runs
        numbers.problem(np.asarray(A) if known else plain(A), plain(b), None if z0 is None else plain(z0), transposed, scheme, structure, 0)
    else:  # jax.export's, of any size: what is left to check is when it runs
        numbers.check_words(transposed, scheme, structure, z0 is not None)
        numbers.check_vectors(b.shape, None if z0 is None else z0.shape)
        numbers.check_transitions(A.shape, b.shape, structure)
        if known:
            numbers.check_identity(np.asarray(A))
    b, z0 = b.astype(dtype), None if z0 is None else z0.astype(dtype)
    if identity:
        z = jax.lax.cumsum(b, 0, reverse=bool(transposed))
        return z if z0 is None else z + z0[None]
    return _chain(A.astype(dtype), b, z0, transposed, scheme, structure)


# ---- recurrent networks ----

_tokens: Dict[_engine.Form, int] = {}


class _Network:
    """Passes over contiguous arrays by address: x, h0, c0 and the parameters into y, ht, ct."""

    def __init__(self, form: _engine.Form, method: str, length: int, batch: int) -> None:
        self.engine = _engine.engine_of(_tokens.setdefault(form, _engine.token()), form)
        self.method, self.length, self.batch, self.cell = method, length, batch, form.has_cell
        item, self.inputs = library.NAMES[form.dtype].itemsize, 3 + len(form.parameters())
        state = form.layers * form.directions * batch * form.hidden * item
        self.results = (length * batch * form.directions * form.hidden * item, state, state)  # bytes
        self.room = sum(self.results) + 192
        self.own: Any = None  # memory for what the way back reads, where it keeps some

    def results_in(self, buffer: np.ndarray) -> Tuple[int, int, int]:
        """Where y, ht and ct (0 without a cell) lie in memory for them."""
        y = library.aligned(buffer)
        ht = y + (self.results[0] + 63 & ~63)
        return y, ht, ht + (self.results[1] + 63 & ~63) if self.cell else 0

    def forward(self, at: Sequence[int], y: int, ht: int, ct: int, training: bool = False) -> Any:
        if not self.cell and not training:
            ctypes.memset(ct, 0, self.results[2])
        return self.engine.forward(at[3 : self.inputs], self.length, self.batch, at[0], at[1], at[2] if self.cell else 0, 0, y, ht,
                                   ct if self.cell else 0, training, self.method)  # fmt: skip

    def run(self, at: Sequence[int]) -> None:
        y, ht, ct = at[self.inputs :]
        self.forward(at, y, ht, ct)

    def run_back(self, at: Sequence[int]) -> None:
        """dy, dht, dct, inputs -> gradients of the inputs. Runs the network anew: what it leaves for its way back is no JAX array."""
        given, inputs, (dx, dh0, dc0, *rest) = at[:3], at[3 : 3 + self.inputs], at[3 + self.inputs :]
        buffer = library.take(self.room) if self.own is None else self.own
        y, ht, ct = self.results_in(buffer)
        waiting = self.forward(inputs, y, ht, ct, True)
        cell = self.cell
        waiting.backward(inputs[0], inputs[1], inputs[2] if cell else 0, 0, y,
                         (given[0], given[1], given[2] if cell else 0), (dx, dh0, dc0 if cell else 0), rest)  # fmt: skip
        waiting.end()
        if self.own is None:
            library.give(buffer)
        if not cell:
            ctypes.memset(dc0, 0, self.results[2])


def _gradients_of(arrays: Shapes) -> Shapes:
    return [("d" + name, shape) for name, shape in arrays]


def _at(*arrays: np.ndarray) -> List[int]:
    return [a.ctypes.data for a in arrays]


def _form_of(kind: str, words: Sequence[str]) -> _engine.Form:
    dtype, inputs, hidden, layers, bidirectional, bias = map(int, words)
    one_of("kind", kind, _engine.KINDS)
    one_of("dtype", dtype, CODES.values())
    return _engine.Form(kind, dtype, inputs, hidden, layers, bool(bidirectional), bool(bias)).checked()


def _network_shapes(form: _engine.Form, arrays: Sequence[np.ndarray]) -> Tuple[Shapes, Shapes, Tuple[int, ...]]:
    """Of the call whose x, or its gradient, is the first of some arrays: names and shapes of what goes in, of what comes out, and what
    vmap maps over."""
    *mapped, T, B, _ = (1, 1, 1) if not arrays or arrays[0].ndim < 3 else arrays[0].shape
    state = (form.layers * form.directions, B, form.hidden)
    inputs = [("x", (T, B, form.inputs)), ("h0", state), ("c0", state), *form.parameters()]
    return inputs, [("y", (T, B, form.directions * form.hidden)), ("ht", state), ("ct", state)], tuple(mapped)


def _network_call(method: str, kind: str, *words: str) -> _xla.Run:
    one_of("method", method, METHODS)
    form = _form_of(kind, words)
    dtype = library.NAMES[form.dtype]

    def run(given: List[np.ndarray], found: List[np.ndarray]) -> None:
        inputs, results, mapped = _network_shapes(form, found)
        expect(inputs, given, dtype, mapped, True)
        expect(results, found, dtype, mapped)
        if not mapped:
            _Network(form, method, *found[0].shape[:2]).run(_at(*given, *found))
        elif all(math.prod(p.shape[: len(mapped)]) == 1 for p in given[3:]):  # as one batch
            full = [np.broadcast_to(a, (*mapped, *a.shape[-3:])).reshape(-1, *a.shape[-3:]) for a in given[:3]]
            flat = [np.ascontiguousarray(np.moveaxis(a, 0, 1)).reshape(a.shape[1], -1, a.shape[3]) for a in full]
            outs = [np.empty((o.shape[-3], flat[0].shape[1], o.shape[-1]), o.dtype) for o in found]
            _Network(form, method, *outs[0].shape[:2]).run(_at(*flat, *given[3:], *outs))
            for o, out in zip(found, outs):
                o[...] = np.moveaxis(out.reshape(out.shape[0], -1, o.shape[-2], o.shape[-1]), 1, 0).reshape(o.shape)
        else:
            net = _Network(form, method, *found[0].shape[-3:-1])
            for index in np.ndindex(*mapped):
                net.run(_at(*lane(given, index), *lane(found, index)))

    return run


def _network_vjp_call(method: str, kind: str, *words: str) -> _xla.Run:
    one_of("method", method, METHODS)
    form = _form_of(kind, words)
    dtype = library.NAMES[form.dtype]

    def run(given: List[np.ndarray], found: List[np.ndarray]) -> None:
        inputs, results, mapped = _network_shapes(form, found)
        expect([*_gradients_of(results), *inputs], given, dtype, mapped, True)
        expect(_gradients_of(inputs), found, dtype, mapped)
        net = _Network(form, method, *found[0].shape[-3:-1])
        for index in np.ndindex(*mapped):
            net.run_back(_at(*lane(given, index), *lane(found, index)))

    return run


def _network_again(words: List[str], given: List[np.ndarray], found: List[np.ndarray]) -> _xla.Again:
    method, kind, *rest = words
    if found[0].ndim != 3:
        return None
    form, shape = _form_of(kind, rest), found[0].shape[:2]
    return _network_ready(form, method, shape, False) or _Network(form, method, *shape).run


def _network_vjp_again(words: List[str], given: List[np.ndarray], found: List[np.ndarray]) -> _xla.Again:
    method, kind, *rest = words
    if found[0].ndim != 3:
        return None
    form, shape = _form_of(kind, rest), found[0].shape[:2]
    ready = _network_ready(form, method, shape, True)
    if ready is not None:
        return ready
    net = _Network(form, method, *shape)
    if net.room <= library.OWN_BYTES:
        net.own = np.empty(net.room + 64, np.uint8)
    return net.run_back


def _network_ready(form: _engine.Form, method: str, shape: Tuple[int, ...], back: bool) -> Optional[Ready]:
    """A pass, and with `back` the way back after it, in a network and memory of its own; None where that is much, or learns as it runs."""
    found = _engine.plan_apart(form, (shape[0], shape[1], back, False, method), _xla.OWN_BYTES)
    if found is None:
        return None
    slot, plan, size = found
    cell, at = form.has_cell, ctypes.addressof
    net = _Network(form, method, *shape)
    own = np.empty(net.room if back else 0, np.uint8)
    first = 3 if back else 0  # of the inputs
    end = first + net.inputs  # of the results
    network, tensors, run, tape = slot.network.address, at(slot.tensors), at(plan.run), plan.own_tape_at if back else None
    places = [(first + i, at(place)) for i, place in enumerate(plan.arrays[:3]) if cell or i < 2]
    places += [(first + 3 + i, tensors + 8 * i) for i in range(len(slot.tensors))]
    steps: List[Any] = [("PARAMETERS", (network, tensors), 0, 0), ("FORWARD", (plan.handle.address, run, tape, plan.work_at), plan.workspace, 0)]
    if back:
        plan.fill(0, 0, 0, 0, *net.results_in(own))
        places += [(i, at(place)) for i, place in enumerate(plan.given[:3]) if cell or i < 2]
        places += [(end + i, at(place)) for i, place in enumerate(plan.given[3:]) if cell or i < 2]
        places += [(end + 3 + i, at(slot.places) + 8 * i) for i in range(len(slot.places))]
        steps.append(("BACKWARD", (network, at(slot.places), plan.handle.address, run, at(plan.gradients), tape, plan.work_at), plan.workspace, 0))
    else:
        places += [(end + i, at(place)) for i, place in enumerate(plan.arrays[3:]) if cell or i < 2]
    if not cell:
        steps.append(("ZERO", (Here(end + 2),), net.results[2], 0))
    return Ready(steps, places, size + own.nbytes, slot, plan, own)


_xla.functions.update(network=_network_call, network_vjp=_network_vjp_call)
_xla.repeats.update(network=_network_again, network_vjp=_network_vjp_again)


def _words(form: _engine.Form, method: str) -> str:
    return f"{method} {form.kind} {form.dtype} {form.inputs} {form.hidden} {form.layers} {int(form.bidirectional)} {int(form.bias)}"


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _network(form: _engine.Form, method: str, x: Array, h0: Array, c0: Array, parameters: Tuple[Array, ...]) -> Any:
    outputs = jax.ShapeDtypeStruct((*x.shape[:2], form.directions * form.hidden), x.dtype)
    return tuple(ask(f"network {_words(form, method)}", [outputs, shape_of(h0), shape_of(h0)], x, h0, c0, *parameters))


def _network_forward(form: _engine.Form, method: str, x: Array, h0: Array, c0: Array, parameters: Tuple[Array, ...]) -> Any:
    return _network(form, method, x, h0, c0, parameters), (x, h0, c0, parameters)


def _network_backward(form: _engine.Form, method: str, kept: Any, given: Any) -> Any:
    x, h0, c0, parameters = kept
    inputs = (x, h0, c0, *parameters)
    dx, dh0, dc0, *rest = as_inputs(first_gradients(form.kind, f"network_vjp {_words(form, method)}", given, inputs), inputs)
    return dx, dh0, dc0, tuple(rest)


_network.defvjp(_network_forward, _network_backward)


def _network_flat(*arrays: Array, form: _engine.Form, method: str) -> Any:
    return _network(form, method, *arrays[:3], arrays[3:])


def _network_folded(size: int, arrays: Sequence[Array], axes: Sequence[Any], words: Any) -> Any:
    """x, h0, c0 [..][size B][..] of [..][B][..]."""
    flat = [_in_front(size, a, axis, 1) for a, axis in zip(arrays[:3], axes)]
    batch = flat[0].shape[2]
    found = _network_one_call(*(a.reshape(a.shape[0], size * batch, a.shape[3]) for a in flat), *arrays[3:], **words)
    return [a.reshape(a.shape[0], size, batch, a.shape[2]) for a in found], [1] * 3


_network_one_call = _one_call("deeppcr_network", _network_flat, lambda count: slice(3, count), _network_folded)


def _call(kind: str, parameters: Dict[str, Array], x: Array, state: Any, method: str) -> Any:
    x = as_array("x", x)
    if not isinstance(parameters, Mapping) or "weight_ih_l0" not in parameters:
        got = list(parameters) if isinstance(parameters, Mapping) else type(parameters).__name__
        by_name = "a dict by PyTorch's names, weight_ih_l0 and so on"
        raise ArgumentError(f"the parameters are {got}; wanted {by_name}", "the parameters", got, by_name)
    if x.ndim not in (2, 3):
        raise ArgumentError.of("x's shape", x.shape, "[T][B][inputs] or [T][inputs]")
    names = list(parameters)
    if np.dtype(x.dtype) not in CODES:
        raise ArgumentError.of("x's dtype", x.dtype, "float32 or float64")
    parameters = {name: as_array(str(name), value, x.dtype) for name, value in parameters.items()}
    if not parameters["weight_ih_l0"].ndim:
        raise ArgumentError.of("weight_ih_l0's shape", (), "a matrix")
    one_of("method", method, METHODS)
    directions = 2 if "weight_ih_l0_reverse" in parameters else 1
    layers = sum(str(name).startswith("weight_ih_l") for name in names) // directions
    hidden = parameters["weight_ih_l0"].shape[0] // _engine.GATES[kind]
    form = _engine.Form(kind, CODES[np.dtype(x.dtype)], x.shape[-1], hidden, layers, directions == 2, "bias_ih_l0" in parameters).checked()
    wanted = dict(form.parameters())
    _engine.refuse_names(names, wanted)
    for name, own in wanted.items():
        if tuple(parameters[name].shape) != own:
            raise ArgumentError.of(f"{name}'s shape", tuple(parameters[name].shape), str(own))
    single = x.ndim == 2
    rows = x[:, None] if single else x
    shape = (layers * directions, rows.shape[1], form.hidden)
    lstm = form.has_cell
    if lstm and state is not None and not (isinstance(state, (tuple, list)) and len(state) == 2):
        raise ArgumentError.of("state", type(state).__name__, "a pair (h0, c0)")
    h0, c0 = (state if lstm else (state, None)) if state is not None else (None, None)
    given = []
    for name, one in (("h0", h0), ("c0", c0)):
        one = jnp.zeros(shape, x.dtype) if one is None else as_array(name, one, x.dtype)
        one = one[:, None] if single and one.ndim == 2 else one
        if one.shape != shape:
            raise ArgumentError.of(f"{name}'s shape", one.shape, str(shape))
        given.append(one)
    y, ht, ct = _network_one_call(rows, *given, *(parameters[n] for n in wanted), form=form, method=method)
    if single:
        y, ht, ct = y[:, 0], ht[:, 0], ct[:, 0]
    return y, ((ht, ct) if lstm else ht)


_DOC = """{0} over x [T][B][inputs] (or [T][inputs]), with PyTorch's formulas.

    Parameters
    ----------
    parameters : dict
        By PyTorch's names ("weight_ih_l0", ...); shapes tell layers, directions (D) and biases.
    x : array_like
    state : array_like, optional
        {1} [layers D][B][hidden]; zeros without it.
    {2}method : str
        How the time steps run, as in `deeppcr.solve`.

    Returns
    -------
    y, state : [T][B][D hidden], and the last state.

    Raises
    ------
    ArgumentError
        Of names, shapes and dtypes that do not fit, when it is traced.
    """


def rnn(parameters: Dict[str, Array], x: Array, state: Any = None, *, nonlinearity: str = "tanh", method: str = "auto") -> Any:
    one_of("nonlinearity", nonlinearity, ("tanh", "relu"))
    return _call(f"rnn_{nonlinearity}", parameters, x, state, method)


def gru(parameters: Dict[str, Array], x: Array, state: Any = None, *, method: str = "auto") -> Any:
    return _call("gru", parameters, x, state, method)


def lstm(parameters: Dict[str, Array], x: Array, state: Any = None, *, method: str = "auto") -> Any:
    return _call("lstm", parameters, x, state, method)


rnn.__doc__ = _DOC.format("torch.nn.RNN", "h0", """nonlinearity : str
        "tanh" or "relu".
    """)  # fmt: skip
gru.__doc__ = _DOC.format("torch.nn.GRU", "h0", "")
lstm.__doc__ = _DOC.format("torch.nn.LSTM", "(h0, c0)", "")


def paragru(parameters: Dict[str, Array], x: Array, state: Any = None, *, method: str = "auto") -> Any:
    return _call("paragru", parameters, x, state, method)


def paralstm(parameters: Dict[str, Array], x: Array, state: Any = None, *, method: str = "auto") -> Any:
    return _call("paralstm", parameters, x, state, method)


def mingru(parameters: Dict[str, Array], x: Array, state: Any = None, *, method: str = "auto") -> Any:
    return _call("mingru", parameters, x, state, method)


for _function, _name, _state in ((paragru, "ParaGRU", "h0"), (paralstm, "ParaLSTM", "(h0, c0)"), (mingru, "MinGRU", "h0")):
    _function.__doc__ = _DOC.format(f"deeppcr.recurrent.{_name}", _state, "").replace("PyTorch's", "its")


# ---- filters ----


def _filter_rank(kind: str, rank: str) -> int:
    """Of the words of a filter's call, refused where there is no such."""
    one_of("kind", kind, ("sos", "ba"))
    return whole_number("the rank", int(rank), 1)


def _filter_shapes(kind: str, dims: int, arrays: Sequence[np.ndarray]) -> Tuple[Shapes, Shapes, Tuple[int, ...]]:
    """Of the call whose coefficients, x and zi, or their gradients, are some arrays, all with what vmap maps over: names and shapes of
    the coefficients, of x and zi, and what vmap maps over."""
    count = 1 if kind == "sos" else 2
    if len(arrays) != count + 2 or arrays[count].ndim < dims:
        raise ArgumentError.of("the number of arrays", len(arrays), f"{count} of coefficients, x of {dims} dimensions, zi")
    k = arrays[count].ndim - dims
    vectors = [(name, tuple(c.shape[k:])) for name, c in zip(("sos",) if kind == "sos" else ("b", "a"), arrays)]
    if kind == "sos":
        filters.check_sections(vectors[0][1])
        states: Tuple[int, ...] = (vectors[0][1][0], 2)
    else:
        for name, shape in vectors:
            filters.check_vector(name, shape)
        states = (1, max(shape[0] for _, shape in vectors) - 1)
    x = arrays[count].shape[k:]
    return vectors, [("x", x), ("zi", (math.prod(x[:-1]), *states))], arrays[count].shape[:k]


def _filter_call(kind: str, rank: str) -> _xla.Run:
    """Coefficients, x [..][L], zi [channels][sections][order] -> y, zf."""
    dims = _filter_rank(kind, rank)

    def once(coefficients: Sequence[np.ndarray], x: np.ndarray, zi: np.ndarray, y: np.ndarray, zf: np.ndarray) -> None:
        handle = filters._filter(kind, *(library.whole(c, np.float64) for c in coefficients))
        found, last = filters._run(handle, x, library.whole(zi, np.float64), *zi.shape[1:])
        y[...], zf[...] = found, last

    def run(given: List[np.ndarray], found: List[np.ndarray]) -> None:
        *coefficients, x, zi = given
        y, zf = found
        vectors, signals, mapped = _filter_shapes(kind, dims, [*coefficients, y, zf])
        expect(vectors, coefficients, None, mapped, True)
        expect(signals[:1], (x,), None, mapped, True)
        expect(signals, (x, zi), x.dtype, mapped, True)
        expect(signals, found, x.dtype, mapped)
        k = len(mapped)
        if all(math.prod(c.shape[:k]) == 1 for c in coefficients):  # more channels
            x, zi = np.broadcast_to(x, y.shape), np.broadcast_to(zi, zf.shape)
            flat = lambda s: s.reshape(math.prod(s.shape[:-2]), *s.shape[-2:])  # noqa: E731  without -1: there may be no numbers
            once([c.reshape(c.shape[k:]) for c in coefficients], x, flat(zi), y, flat(zf))
            return
        for index in np.ndindex(*mapped):
            *own, signal, start = lane(given, index)
            once(own, signal, start, *lane(found, index))

    return run


def _filter_vjp_call(kind: str, rank: str) -> _xla.Run:
    """gy, gzf, coefficients, x, zi -> gradients of the coefficients, x, zi."""
    dims = _filter_rank(kind, rank)

    def run(given: List[np.ndarray], found: List[np.ndarray]) -> None:
        vectors, signals, mapped = _filter_shapes(kind, dims, found)
        count = len(vectors)
        expect(vectors, given[2:-2], None, mapped, True)
        expect(signals[1:], given[-1:], None, mapped, True)
        expect([*signals, *signals], [*given[-2:], *given[:2]], given[-1].dtype, mapped, True)
        expect(vectors, found[:count], None, mapped)
        expect(signals, found[count:], given[-1].dtype, mapped)
        for index in np.ndindex(*mapped):
            gy, gzf, *own, x, zi = lane(given, index)
            wide = [np.asarray(c, np.float64) for c in own]
            made = filters._gradient(kind, wide[0], wide[1] if count == 2 else None, x, zi, gy, gzf, -1, True)
            for out, value in zip(lane(found, index), [m for m in made if m is not None]):
                out[...] = value

    return run


class _OwnFilter:
    """A filter for a Ready, whose steps make it anew where coefficients change: [sections][6], or b and a."""

    def __init__(self, kind: str, coefficients: Sequence[np.ndarray]) -> None:
        wide = [library.whole(c, np.float64) for c in coefficients]
        place, owner = filters.made(kind, *wide)
        self.place, self.handle = place, library.Handle(place, library.lib.dpcr_filter_destroy, owner)
        self.numbers, self.kept = (np.concatenate([c.reshape(-1) for c in wide]) for _ in range(2))
        self.count, self.more = len(wide[0]), 0 if kind == "sos" else len(wide[1])
        at = library.address(self.numbers)
        self.given = (owner.address, at, library.address(self.kept), ctypes.addressof(place))
        self.parts = []  # (address, count) of each array of coefficients
        for c in wide:
            self.parts.append((at, c.size))
            at += c.nbytes
        self.name = "SECTIONS" if kind == "sos" else "COEFFICIENTS"

    def renewed(self, first: int, dtypes: Sequence[Any]) -> List[Any]:
        """Steps that read coefficients, of the frame's arrays from `first` on."""
        read = [_moved(Here(first + i), at, count, dtype) for i, ((at, count), dtype) in enumerate(zip(self.parts, dtypes))]
        return [*read, (self.name, self.given, self.count, self.more)]


def _moved(source: Any, target: Any, count: int, dtype: Any, back: bool = False) -> Any:
    """The step that copies an array's numbers to doubles, or doubles to an array's numbers."""
    return ("NARROW" if back else "WIDEN", (source, target), count, 0) if dtype == np.float32 else ("COPY", (source, target), 8 * count, 0)


def _filter_again(words: List[str], given: List[np.ndarray], found: List[np.ndarray]) -> _xla.Again:
    kind, rank = words
    *coefficients, x, zi = given
    states = [np.empty(zi.shape) for _ in range(2)]  # as the library has them
    if x.ndim != int(rank) or 2 * states[0].nbytes > _xla.OWN_BYTES:
        return None
    own, n = _OwnFilter(kind, coefficients), len(coefficients)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    views = [library.of(a) for a in (rows, states[0], rows, states[1])]
    at = [ctypes.addressof(v) for v in views]
    start, end = map(library.address, states)
    steps = [*own.renewed(0, [c.dtype for c in coefficients]), _moved(Here(n + 1), start, zi.size, zi.dtype),
             ("FILTER", (ctypes.addressof(own.place), *at), 0, 0), _moved(end, Here(n + 3), zi.size, zi.dtype, True)]  # fmt: skip
    return Ready(steps, [(n, at[0]), (n + 2, at[2])], 2 * states[0].nbytes, own, views, states)


def _filter_vjp_again(words: List[str], given: List[np.ndarray], found: List[np.ndarray]) -> _xla.Again:
    kind, rank = words
    gy, gzf, *coefficients, x, zi = given
    if x.ndim != int(rank) or 3 * zi.size * 8 + x.nbytes > _xla.OWN_BYTES:
        return None
    own, n = _OwnFilter(kind, coefficients), len(coefficients)
    rows, order = x.reshape(math.prod(x.shape[:-1]), x.shape[-1]), zi.shape[2]
    start, end, gz = (np.empty(zi.shape) for _ in range(3))
    gb, ga, out, apart = *(np.empty((zi.shape[1], order + 1)) for _ in range(2)), np.empty(own.numbers.size), np.empty_like(rows)
    views = [library.of(a) for a in (rows, start, rows, end, rows, gz)]
    at, memory = [ctypes.addressof(v) for v in views], library.address
    made: Any = ("OF_SECTIONS", (memory(gb), memory(ga), memory(out)))
    if kind == "ba":
        made = ("OF_COEFFICIENTS", (memory(gb), memory(ga), memory(own.numbers), memory(out)))
    steps = [*own.renewed(2, [c.dtype for c in coefficients]), _moved(Here(n + 3), memory(start), zi.size, zi.dtype),
             _moved(Here(1), memory(end), zi.size, zi.dtype),
             ("APART", (at[2], Here(n + 2), memory(apart)), x.nbytes, 0),  # the library wants gy and x apart
             ("FILTER_GRADIENT", (ctypes.addressof(own.place), *at[:4], memory(gb), memory(ga), *at[4:]), gb.size, 0),
             (*made, own.count, own.more), _moved(memory(gz), Here(2 * n + 5), zi.size, zi.dtype, True)]  # fmt: skip
    for i, ((place, count), c) in enumerate(zip(own.parts, coefficients)):
        steps.append(_moved(memory(out) + place - own.parts[0][0], Here(n + 4 + i), count, c.dtype, True))
    places = [(n + 2, at[0]), (0, at[2]), (2 * n + 4, at[4])]
    return Ready(steps, places, 3 * gz.nbytes + x.nbytes, own, views, start, end, gz, gb, ga, out, apart)


_xla.functions.update(filter=_filter_call, filter_vjp=_filter_vjp_call)
_xla.repeats.update(filter=_filter_again, filter_vjp=_filter_vjp_again)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _filtered(kind: str, coefficients: Tuple[Array, ...], x: Array, zi: Array) -> Any:
    return tuple(ask(f"filter {kind} {x.ndim}", [shape_of(x), shape_of(zi)], *coefficients, x, zi))


def _filtered_forward(kind: str, coefficients: Tuple[Array, ...], x: Array, zi: Array) -> Any:
    return _filtered(kind, coefficients, x, zi), (coefficients, x, zi)


def _filtered_backward(kind: str, kept: Any, given: Any) -> Any:
    coefficients, x, zi = kept
    inputs = (*coefficients, x, zi)
    *found, gx, gzi = as_inputs(first_gradients("the filter", f"filter_vjp {kind} {x.ndim}", given, inputs), inputs)
    return tuple(found), gx, gzi


_filtered.defvjp(_filtered_forward, _filtered_backward)


def _filtered_flat(*arrays: Array, kind: str) -> Any:
    return _filtered(kind, arrays[:-2], *arrays[-2:])


def _filtered_folded(size: int, arrays: Sequence[Array], axes: Sequence[Any], words: Any) -> Any:
    """x [size][..][L], zi [size channels][..][..]."""
    x, zi = (_in_front(size, a, axis, 0) for a, axis in zip(arrays[-2:], axes[-2:]))
    y, zf = _filtered_one_call(*arrays[:-2], x, zi.reshape(zi.shape[0] * zi.shape[1], *zi.shape[2:]), **words)
    return [y, zf.reshape(zi.shape)], [0, 0]


_filtered_one_call = _one_call("deeppcr_filter", _filtered_flat, lambda count: slice(0, count - 2), _filtered_folded)


def _filter(kind: str, coefficients: Tuple[Array, ...], x: Array, axis: int, zi: Any, sections: int, order: int) -> Any:
    cascade = kind == "sos"
    x = as_array("x", x)
    if np.dtype(x.dtype) not in CODES:
        raise ArgumentError.of("x's dtype", x.dtype, "float32 or float64")
    if x.ndim == 0:
        raise ArgumentError.of("x's shape", x.shape, "one dimension or more")
    axis = filters.axis_of(axis, x.ndim) % x.ndim
    if any(np.dtype(c.dtype) not in CODES for c in coefficients):
        raise ArgumentError.of("the coefficients' dtypes", [str(c.dtype) for c in coefficients], "float32 or float64")
    moved = jnp.moveaxis(x, axis, -1)
    states = (math.prod(moved.shape[:-1]), sections, order)
    if zi is None:
        start = jnp.zeros(states, x.dtype)
    else:
        zi = as_array("zi", zi, x.dtype)
        zi = jnp.broadcast_to(zi, filters.states_shape(zi.shape, cascade, x.shape, axis, sections, order))
        start = filters.states_in(jnp.moveaxis, zi, cascade, axis).reshape(states)
    y, zf = _filtered_one_call(*coefficients, moved, start, kind=kind)
    y = jnp.moveaxis(y, -1, axis)
    return y if zi is None else (y, filters.states_out(jnp.moveaxis, zf.reshape(*moved.shape[:-1], sections, order), cascade, axis))


def sosfilt(sos: Array, x: Array, axis: int = -1, zi: Any = None) -> Any:
    """scipy.signal.sosfilt over an axis of x, with gradients of sos, x and zi (0 for sos[:, 3], which has to be 1).

    Parameters
    ----------
    sos : array_like
        [sections][6], float32 or float64. What is computed is double, but coefficients are what JAX holds: for narrow filters let it
        have doubles (jax_enable_x64).
    x : array_like
        Signals.
    axis : int
        That time runs along.
    zi : array_like, optional
        Initial states, as SciPy's: x's shape but 2 along that axis, after a first dimension [sections]. Zeros without it.

    Returns
    -------
    y, or y and the last states with `zi` : of x's and zi's shapes.

    Raises
    ------
    ArgumentError
        Of shapes and dtypes that do not fit, when it is traced; of coefficients, when it runs, as JAX's own error.
    """
    sos = as_array("sos", sos)
    filters.check_sections(sos.shape)
    return _filter("sos", (sos,), x, axis, zi, sos.shape[0], 2)


def lfilter(b: Array, a: Array, x: Array, axis: int = -1, zi: Any = None) -> Any:
    """scipy.signal.lfilter over an axis of x, up to order 128, with gradients of b, a, x and zi.

    Parameters
    ----------
    b, a : array_like
        Vectors of coefficients, float32 or float64.
    x : array_like
        Signals.
    axis : int
        That time runs along.
    zi : array_like, optional
        Initial states, as SciPy's: x's shape but the order along that axis, or 1 where channels share them. Zeros without it.

    Returns
    -------
    y, or y and the last states with `zi` : of x's shape; of zi's, each channel its own.

    Raises
    ------
    ArgumentError
        Of shapes and dtypes that do not fit, when it is traced; of coefficients, when it runs, as JAX's own error.
    """
    b, a = as_array("b", b), as_array("a", a)
    for name, c in (("b", b), ("a", a)):
        filters.check_vector(name, c.shape)
    return _filter("ba", (b, a), x, axis, zi, 1, max(b.size, a.size) - 1)
