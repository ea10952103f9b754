# SPDX-License-Identifier: MIT
"""Linear chains z_l = A_l z_{l-1} + b_l, solved in parallel over their length, and their derivatives."""
from __future__ import annotations

import ctypes
import math
from typing import Any, Dict, Literal, NamedTuple, Optional, Sequence, Tuple, Union, overload

import numpy as np

from . import _abi
from . import _library as library
from ._plot import axes_or_new
from .errors import ArgumentError, UnsupportedError, flag, number, one_of, whole_number

ARRAY = np.ndarray
SCHEMES = {
    name: _abi.CONSTANTS[f"DPCR_SCHEME_{name.upper()}"]
    for name in ("auto", "sequential", "pcr", "blelloch", "chunked", "overlap")
}
_SCHEME_NAMES = {value: name for name, value in SCHEMES.items()}
# Dimensions of a transition's values, by structure.
STRUCTURES = {"dense": 2, "diagonal": 1, "scalar": 0, "block": 3, "identity": 0}


class ChainReport(NamedTuple):
    """What a linear solve did.

    `scheme` ran, `sweeps` over the chunks of overlap (else 1), `finished_from` the step from which it was finished in order
    (else the length), the `compositions` and `applications` of transitions, the `depth` of dependent steps, and `seconds`.
    """

    scheme: str
    sweeps: int
    finished_from: int
    compositions: int
    applications: int
    depth: int
    seconds: float

    def __repr__(self) -> str:
        return (
            f"{self.scheme}: {self.seconds * 1e3:.3g} ms, {self.depth} dependent steps, {self.compositions} products, "
            f"{self.applications} applications"
        )

    def plot(self, axes: Any = None) -> Any:
        """Draws products, applications and dependent steps beside one another; needs matplotlib.

        Parameters
        ----------
        axes : matplotlib's Axes, optional
            A new figure's without it.

        Returns
        -------
        The axes.
        """
        axes = axes_or_new(axes)
        axes.bar(["products", "applications", "dependent steps"], [self.compositions, self.applications, self.depth])
        axes.set(yscale="symlog", ylabel="number", title=f"{self.scheme}, {self.seconds * 1e3:.3g} ms")
        return axes


def report_of(report: Any) -> ChainReport:
    return ChainReport(_SCHEME_NAMES[report.scheme], report.sweeps, report.finished_from, report.compositions,
                       report.applications, report.depth, report.seconds)  # fmt: skip


class Plan(library.Unchanging):
    """A linear chain's plan: its shape, dtype, structure and scheme. See `deeppcr.plan`."""

    def __init__(self, length: int, batch: int, width: int, structure: str, block: int, dtype: np.dtype, transposed: bool,
                 scheme: str, chunk: int) -> None:  # fmt: skip
        self._made_of = (length, batch, width, structure, block, dtype, transposed, scheme, chunk)
        self.length, self.batch, self.width = length, batch, width
        kind = _abi.CONSTANTS[f"DPCR_{structure.upper()}"]
        shape = _abi.ChainShape(
            size=ctypes.sizeof(_abi.ChainShape), length=length, batch=batch, dtype=library.DTYPES[dtype],
            transition=_abi.Transition(kind, width, width, block, None), transposed=int(transposed),
        )  # fmt: skip
        options = _abi.ChainOptions(size=ctypes.sizeof(_abi.ChainOptions), scheme=SCHEMES[scheme], chunk=chunk)
        place, (error, error_ref) = ctypes.c_void_p(), library.error_place()
        owner = library.context.get()
        library.check(
            library.lib.dpcr_chain_plan_create(owner.address, ctypes.byref(shape), ctypes.byref(options),
                                               ctypes.byref(place), error_ref), error)  # fmt: skip
        self.handle = library.Handle(place.value, library.lib.dpcr_chain_plan_destroy, owner)
        self.address = self.handle.address
        self.workspace = library.lib.dpcr_chain_plan_workspace(self.address)

    @property
    def scheme(self) -> str:
        """The scheme that was asked for or chosen."""
        return _SCHEME_NAMES[library.lib.dpcr_chain_plan_scheme(self.address)]

    @property
    def sentence(self) -> str:
        """Why."""
        return library.lib.dpcr_chain_plan_sentence(self.address).decode()

    def __repr__(self) -> str:
        return f"<linear chain of {self.length} steps, batch {self.batch}, width {self.width}: {self.sentence}>"


_plans = library.Cache(256)


def plan_for(*key: Any) -> Plan:
    plan = _plans.kept.get(key)
    if plan is None:
        plan = Plan(*key)
        _plans.put(key, plan)
    return plan


class Problem(NamedTuple):
    """A chain's arrays as the library takes them: `a` [L or 1][B or 1][values] or None, `b` [L][B][w], `z0` [B][w] or None."""

    plan: Plan
    a: Optional[ARRAY]
    b: ARRAY
    z0: Optional[ARRAY]
    single: bool  # without a batch dimension
    dims: int  # of a transition's values


def check_vectors(b: Tuple[int, ...], z0: Optional[Tuple[int, ...]]) -> None:
    """Refuses shapes of b and z0. These and A's may have dimensions that are no numbers yet, as jax.export's are not: those are compared
    for being equal, no more."""
    if len(b) not in (2, 3):
        raise ArgumentError.of("b's shape", b, "[length][width] or [length][batch][width]")
    if b[-1] == 0:
        raise ArgumentError.of("b's shape", b, "a width of 1 or more")
    if z0 is not None and z0 != b[1:]:
        raise ArgumentError.of("z0's shape", z0, str(b[1:]))


def check_transitions(a: Tuple[int, ...], b: Tuple[int, ...], structure: Optional[str]) -> Tuple[str, Tuple[int, ...], Tuple[int, ...]]:
    """(structure, (L or 1, B or 1), a step's shape) of A's shape beside b's, or refuses it."""
    width = b[-1]
    if structure is None:
        if len(a) == len(b) + 1:
            structure = "dense"
        elif len(a) == len(b) and a[-1] == width:
            structure = "diagonal"
        elif len(a) == len(b) - 1 or not a:
            structure = "scalar"
        else:
            raise ArgumentError(
                f"A of shape {a} beside b of shape {b}; wanted one more dimension than b (dense), as many "
                "(diagonal), one less (scalar), or a structure", "A", a, "a shape that tells its structure")  # fmt: skip
    dims = STRUCTURES[structure]
    lead, values = a[: len(a) - dims], a[len(a) - dims :]
    wanted = {"dense": (width, width), "diagonal": (width,), "scalar": (), "identity": ()}
    if structure == "block":
        block = values[-1] if values else 0
        wanted["block"] = (width // max(block, 1), block, block)
    if values != wanted[structure]:
        raise ArgumentError(f"A of shape {a} beside b of shape {b}; wanted {structure} transitions "
                            f"[..., {', '.join(map(str, wanted[structure]))}]", "A", a, str(wanted[structure]))  # fmt: skip
    if len(lead) > len(b) - 1:
        raise ArgumentError.of("A's shape", a, f"at most the leading dimensions of b, {b[:-1]}")
    lead = (1,) * (len(b) - 1 - len(lead)) + lead + ((1,) if len(b) == 2 else ())
    length, batch = b[0], 1 if len(b) == 2 else b[1]
    if lead[0] not in (1, length) or lead[1] not in (1, batch):
        raise ArgumentError(f"A of shape {a} beside b of shape {b}; wanted {length} steps or 1, {batch} sequences "
                            "or 1", "A", a, f"leading dimensions ({length} or 1, {batch} or 1)")  # fmt: skip
    return structure, lead, values


def check_identity(a: ARRAY) -> None:
    if not (a == 1).all():
        raise ArgumentError.of("A", a.item() if a.size == 1 else f"an array {a.shape} of other numbers", "1.0, for structure 'identity'")


def check_words(transposed: Any, scheme: str, structure: Optional[str], start: bool) -> bool:
    """`transposed` as a bool; refuses what there is not. start: whether there is a z0."""
    one_of("scheme", scheme, SCHEMES)
    if structure is not None:
        one_of("structure", structure, STRUCTURES)
    back = flag("transposed", transposed)
    if back and start:
        raise UnsupportedError.of("z0", "given to a transposed chain", "none: it starts at b of the last step; add it there")
    return back


def _values(a: ARRAY, b: ARRAY, structure: Optional[str]) -> Tuple[str, int, int, Optional[ARRAY]]:
    """(structure, its dimensions, block, values [L or 1][B or 1][values])."""
    structure, lead, values = check_transitions(a.shape, b.shape, structure)
    dims, block = STRUCTURES[structure], values[-1] if structure == "block" else 0
    if structure == "identity":
        check_identity(a)
        return structure, 0, 0, None
    a = library.numbers(a.reshape(lead + values), dims) if a.shape != lead + values else library.numbers(a, dims)
    count = 1
    for n in values:
        count *= n
    return structure, dims, block, a.reshape(lead + (count,)) if dims != 1 else a


def _transitions(A: Any, **others: Optional[ARRAY]) -> ARRAY:
    """A as an array. A number of Python's has no dtype: it gets the one that the others are computed in, or float64 where that is uint32
    and it is a float."""
    if isinstance(A, (bool, np.bool_)):
        raise ArgumentError.of("A", A, "a number or an array")
    if type(A) is not int and type(A) is not float:
        return library.array(A, "A")
    dtype = library.common(**others)
    if dtype == np.uint32 and type(A) is int:
        whole_number("A", A, 0, (1 << 32) - 1)
    a = np.asarray(number("A", A))
    if dtype == np.uint32 and type(A) is float:
        return a
    with np.errstate(over="ignore"):
        there = a.astype(dtype)
    if np.isfinite(a) and not np.isfinite(there):
        raise ArgumentError.of("A", A, f"a number that {dtype} holds")
    return there


def problem(A: Any, b: Any, z0: Any, transposed: bool, scheme: str, structure: Optional[str], chunk: int) -> Problem:
    b = library.array(b, "b")
    z0 = None if z0 is None else library.array(z0, "z0")
    a = _transitions(A, b=b, z0=z0)
    transposed = check_words(transposed, scheme, structure, z0 is not None)
    chunk = whole_number("chunk", chunk)
    counted: Optional[ARRAY] = a
    if structure == "identity":  # 1 in every dtype
        library.real(a, "A")
        counted = None
    dtype = b.dtype
    if (counted is not None and a.dtype is not dtype) or dtype not in library.DTYPES or (z0 is not None and z0.dtype is not dtype):
        dtype = library.common(A=counted, b=b, z0=z0)
        a = a if counted is None else library.cast(a, dtype, "A")
        b = library.cast(b, dtype, "b")
        z0 = None if z0 is None else library.cast(z0, dtype, "z0")
    check_vectors(b.shape, None if z0 is None else z0.shape)
    single, width = b.ndim == 2, b.shape[-1]
    structure, dims, block, values = _values(a, b, structure)
    if z0 is not None:
        z0 = library.numbers(z0.reshape(-1, width), 1)
    b = library.numbers(b.reshape(b.shape[0], 1, width) if single else b, 1)
    plan = plan_for(b.shape[0], b.shape[1], width, structure, block, dtype, transposed, scheme, chunk)
    return Problem(plan, values, b, z0, single, dims)


def _ref(array: Optional[ARRAY]) -> Any:
    return None if array is None else ctypes.byref(library.of(array))


_execute, _vjp = library.bare(library.lib.dpcr_chain_execute), library.bare(library.lib.dpcr_chain_vjp)
_calls = library.Own()
_kept, _keep = _calls.kept, _calls.keep


def _call(function: Any, plan: Plan, arrays: Sequence[Optional[ARRAY]]) -> library.Call:
    return library.Call(function, plan, arrays, plan.workspace)


def _like(array: Optional[ARRAY]) -> Any:
    """What a call's structures hang on."""
    return None if array is None else (array.shape, array.strides, array.dtype)


def _address(array: Optional[ARRAY]) -> int:
    return 0 if array is None else _address_of(array)


_address_of = library.address


def _unchanged(pairs: Sequence[Tuple[Optional[ARRAY], Any]]) -> bool:
    """Whether the library takes the arrays where they lie; not where it does not take one at all: an identity's A is looked at in every call."""
    return all(given is None if mine is None else _address(mine) == _address(given) for mine, given in pairs)


def _grid(array: ARRAY) -> ARRAY:
    """[L][B][w] of [L][w]."""
    return array if array.ndim == 3 else array[:, None]


@overload
def linear_chain(A: Any, b: Any, z0: Any = ..., transposed: bool = ..., scheme: str = ..., *, structure: Optional[str] = ...,
                 chunk: int = ..., out: Optional[ARRAY] = ..., report: Literal[False] = ...) -> ARRAY: ...  # fmt: skip
@overload
def linear_chain(A: Any, b: Any, z0: Any = ..., transposed: bool = ..., scheme: str = ..., *, structure: Optional[str] = ...,
                 chunk: int = ..., out: Optional[ARRAY] = ..., report: Literal[True]) -> Tuple[ARRAY, ChainReport]: ...  # fmt: skip
@overload
def linear_chain(A: Any, b: Any, z0: Any = ..., transposed: bool = ..., scheme: str = ..., *, structure: Optional[str] = ...,
                 chunk: int = ..., out: Optional[ARRAY] = ..., report: bool) -> Any: ...  # fmt: skip
def linear_chain(
    A: Any, b: Any, z0: Any = None, transposed: bool = False, scheme: str = "auto", *, structure: Optional[str] = None,
    chunk: int = 0, out: Optional[ARRAY] = None, report: bool = False,
) -> Union[ARRAY, Tuple[ARRAY, ChainReport]]:  # fmt: skip
    """Solves z_l = A_l z_{l-1} + b_l for l = 0..L-1, with z_{-1} = z0, in parallel over l.

    Parameters
    ----------
    A : array_like
        Transitions: dense [L][w][w] or [L][B][w][w] (one dimension more than `b`), diagonal [L][w] or [L][B][w] (as many), or
        scalar [L] or [L][B] (one less). Leading dimensions may be 1, or be left out where `structure` is given, to share the
        transitions over steps or sequences. A number is a scalar shared by all.
    b : array_like
        [L][w], or [L][B][w] for a batch of B sequences.
    z0 : array_like, optional
        [w] or [B][w]; zero without it. The first transition is then not looked at.
    transposed : bool
        Solves z_l = A_{l+1}^T z_{l+1} + b_l from the last step instead (z0 is then refused): the adjoint of the chain.
    scheme : str
        "auto", "sequential", "pcr", "blelloch", "chunked" or "overlap": the way, not the result.
    structure : str, optional
        "dense", "diagonal", "scalar", "block" (values [w/k][k][k]) or "identity" where the shapes do not tell.
    chunk : int
        Steps a chunk, for the schemes that have some; 0 for the default.
    out : ndarray, optional
        Where the result goes: shape and dtype of the result, its last dimension contiguous. May be `b`; where
        products of the transitions lose what the states keep, "chunked" then raises `UnsupportedError`.
    report : bool
        Also return a `ChainReport`.

    Returns
    -------
    ndarray of b's shape: the states z_0 .. z_{L-1}. With `report`, a pair of it and the report.

    Raises
    ------
    ArgumentError, UnsupportedError
        Of shapes that do not fit, dtypes that are no real numbers, masked numbers, z0 of a transposed chain.
    OutOfMemory

    Float32, float64 and uint32 (which wraps around) are computed in as they are; other numbers become floats. An `A` that is an int or
    a float of Python's goes with the dtype of b and z0, but for a float beside uint32, which is computed in float64, and an int that
    uint32 does not hold, which is refused there. An identity's `A` has no part in the dtype.
    """
    filled = _abi.ChainReport(size=ctypes.sizeof(_abi.ChainReport)) if flag("report", report) else None
    place = None if filled is None else ctypes.byref(filled)
    plain = type(A) is ARRAY and type(b) is ARRAY and (z0 is None or type(z0) is ARRAY)
    if out is None and plain:
        z = _into(A, b, z0, None, transposed, scheme, structure, chunk, place)
    else:
        p = problem(A, b, z0, transposed, scheme, structure, chunk)
        z = library.empty(_shape(p), p.b.dtype) if out is None else _checked_out(out, p)
        _call(_execute, p.plan, (p.a, p.b, p.z0, _grid(z))).run([_address(x) for x in (p.a, p.b, p.z0, z)], place)
        z = z if out is None else out
    return z if filled is None else (z, report_of(filled))


def _shape(p: Problem) -> Tuple[int, ...]:
    return (p.b.shape[0], p.b.shape[2]) if p.single else p.b.shape


def _into(A: ARRAY, b: ARRAY, z0: Optional[ARRAY], out: Optional[ARRAY], transposed: bool, scheme: str, structure: Optional[str],
          chunk: int = 0, report: Any = None) -> ARRAY:  # fmt: skip
    """`linear_chain` of arrays, into `out` where there is one: of the result's shape and dtype, apart from the rest."""
    kept = _kept()
    key = (A.shape, A.strides, A.dtype, b.shape, b.strides, b.dtype, None if z0 is None else (z0.shape, z0.strides, z0.dtype),
           _like(out), transposed, type(transposed), scheme, structure, chunk, type(chunk))  # fmt: skip
    try:
        found = kept.pop(key, None)
    except TypeError:  # an option that is no key: refused below, or an array that is a number
        found = None
    if found is not None:
        call, shape, dtype = found
        a, c, start = _address_of(A), _address_of(b), 0 if z0 is None else _address_of(z0)
        if not (a | c | start) & (dtype.itemsize - 1):
            z = library.empty(shape, dtype) if out is None else out
            call.run((a, c, start, _address_of(z)), report)
            kept[key] = found
            return z
    p = problem(A, b, z0, transposed, scheme, structure, chunk)
    z = library.empty(_shape(p), p.b.dtype) if out is None else out
    call = _call(_execute, p.plan, (p.a, p.b, p.z0, _grid(z)))
    call.run([_address(x) for x in (p.a, p.b, p.z0, z)], report)
    if _unchanged(((p.a, A), (p.b, b), (p.z0, z0))):
        _keep(key, (call, _shape(p), p.b.dtype))
    return z


def _meet(a: ARRAY, b: ARRAY) -> bool:
    """Whether the arrays share memory; also where to find out would take long."""
    try:
        return np.shares_memory(a, b, max_work=1 << 12)  # type: ignore[arg-type]  # whose stubs know two numbers
    except Exception:  # numpy's TooHardError, which lies elsewhere in each version
        return True


def _checked_out(out: ARRAY, p: Problem) -> ARRAY:
    shape = _shape(p)
    if isinstance(out, np.ma.MaskedArray):
        raise ArgumentError.of("out", "a masked array", f"an array {shape} of {p.b.dtype} without a mask")
    if not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != p.b.dtype or not out.flags.writeable:
        got = f"{'' if out.flags.writeable else 'read-only '}{out.shape} of {out.dtype}" if isinstance(out, np.ndarray) else type(out).__name__
        raise ArgumentError.of("out", got, f"a writeable array {shape} of {p.b.dtype}")
    z = out.reshape(p.b.shape) if p.single else out
    if library.numbers(z, 1) is not z or (z.size and not np.may_share_memory(z, out)):
        raise ArgumentError.of("out's strides", out.strides, "a contiguous last dimension")
    for given in (p.a, p.z0):
        if given is not None and _meet(given, z):
            raise ArgumentError("out shares memory with A or z0; wanted an array of its own or b itself", "out")
    same = p.b.ctypes.data == z.ctypes.data and p.b.strides == z.strides
    if not same and _meet(p.b, z):
        raise ArgumentError("out shares memory with b; wanted an array of its own or b itself", "out")
    return z


def _unbroadcast(values: ARRAY, A: ARRAY, dims: int) -> ARRAY:
    """The gradient of A from that of its values at every step and sequence."""
    lead = (1,) * (2 - (A.ndim - dims)) + A.shape[: A.ndim - dims]
    if A.ndim - dims == 1 and values.shape[1] == 1:  # [L] of a single sequence
        lead = A.shape[:1] + (1,)
    for axis in (0, 1):
        if lead[axis] == 1 and values.shape[axis] != 1:
            values = values.sum(axis, dtype=values.dtype, keepdims=True)
    return values.reshape(A.shape)


def linear_chain_vjp(
    A: Any, z: Any, g: Any, z0: Any = None, scheme: str = "auto", *, structure: Optional[str] = None, chunk: int = 0,
) -> Tuple[ARRAY, ARRAY, Optional[ARRAY]]:  # fmt: skip
    """The gradients of a loss with respect to A, b and z0 of `linear_chain`, at its solution z.

    Parameters
    ----------
    A : array_like
        [L][..][w][w], [L][..][w] or [L][..], as given to `linear_chain` (untransposed); dimensions of 1 are shared.
    z, g : array_like
        What it returned, [L][w] or [L][B][w], and dLoss/dz of the same shape.
    z0 : array_like, optional
        [w] or [B][w], as given to it.
    scheme, structure, chunk
        As given to it.

    Returns
    -------
    dA, db, dz0 : of the shapes of A, z and z0 (dz0 None without z0); what is shared has the sum.

    Raises
    ------
    ArgumentError
        As `linear_chain`, and where z is not of g's shape.
    """
    z, g, start = library.array(z, "z"), library.array(g, "g"), None if z0 is None else library.array(z0, "z0")
    return _vjp_into(_transitions(A, g=g, z0=start), z, g, start, None, None, None, scheme, structure, chunk)


def _vjp_into(A: ARRAY, z: ARRAY, g: ARRAY, z0: Optional[ARRAY], dA: Optional[ARRAY], db: Optional[ARRAY], dz0: Optional[ARRAY],
              scheme: str, structure: Optional[str], chunk: int = 0) -> Tuple[ARRAY, ARRAY, Optional[ARRAY]]:  # fmt: skip
    """`linear_chain_vjp` of arrays, into dA, db and dz0 where they are given: of A's, g's and z0's shapes, apart from the rest."""
    kept = _kept()
    key = ("vjp", A.shape, A.strides, A.dtype, z.shape, z.strides, z.dtype, g.shape, g.strides, g.dtype, _like(z0),
           _like(dA), _like(db), _like(dz0), scheme, structure, chunk, type(chunk))  # fmt: skip
    try:
        call = kept.pop(key, None)
    except TypeError:
        call = None
    if call is not None:
        at = (_address_of(A), 0 if z0 is None else _address_of(z0), _address_of(z), _address_of(g))
        if not (at[0] | at[1] | at[2] | at[3]) & (g.itemsize - 1):
            found = call.run(at, A, z0, dA, db, dz0)
            kept[key] = call
            return found  # type: ignore[no-any-return]
    call = _Gradients(A, z, g, z0, dA, db, dz0, scheme, structure, chunk)
    given, call.given = call.given, ()
    found = call.run([_address(x) for x in given], A, z0, dA, db, dz0)
    if _unchanged(tuple(zip(given, (A, z0, z, g)))):
        _keep(key, call)
    return found  # type: ignore[no-any-return]


class _Gradients:
    """A call of dpcr_chain_vjp, for arrays that look alike."""

    def __init__(self, A: ARRAY, z: ARRAY, g: ARRAY, z0: Optional[ARRAY], dA: Optional[ARRAY], db: Optional[ARRAY],
                 dz0: Optional[ARRAY], scheme: str, structure: Optional[str], chunk: int) -> None:  # fmt: skip
        for name, array in (("z", z), ("g", g)):
            library.real(array, name)
        if z.shape[:1] != g.shape[:1]:  # before A is held to g, which would tell of names that nobody wrote
            raise ArgumentError.of("z's shape", z.shape, f"g's, {g.shape}")
        p = problem(A, g, z0, False, scheme, structure, chunk)
        self.dtype, self.dims, shape = p.b.dtype, p.dims, p.b.shape
        self.shape = _shape(p)
        if z.shape != self.shape:
            raise ArgumentError.of("z's shape", z.shape, f"g's, {g.shape}")
        state = library.numbers(_grid(library.cast(z, self.dtype, "z")), 1)
        self.given: Tuple[Optional[ARRAY], ...] = (p.a, p.z0, state, p.b)
        self.full = None if p.a is None else shape[:2] + p.a.shape[2:]  # of the gradient at every step and sequence
        grid = None if self.full is None else library.empty(self.full, self.dtype)
        self.direct = False  # whether dA takes it as it is
        if dA is not None and grid is not None and dA.size == grid.size:
            flat = dA.reshape(self.full)
            self.direct = _address(flat) == _address(dA)
            grid = flat if self.direct else grid
        outs = (grid, library.empty(shape, self.dtype) if db is None else _grid(db),
                None if z0 is None else library.empty(shape[1:], self.dtype) if dz0 is None else dz0.reshape(shape[1:]))  # fmt: skip
        self.call = _call(_vjp, p.plan, (*self.given, *outs))
        # Whether a new dA may be what the library fills.
        self.whole = dA is None and self.full is not None and A.size == math.prod(self.full)

    def run(self, given: Sequence[int], A: ARRAY, z0: Optional[ARRAY], dA: Optional[ARRAY], db: Optional[ARRAY], dz0: Optional[ARRAY],
            ) -> Any:  # fmt: skip
        """`given` are the addresses of A, z0, z, g as the library takes them."""
        da: Optional[ARRAY] = dA if self.direct else None
        if self.whole:
            dA = da = library.empty(A.shape, self.dtype)
        elif not self.direct and self.full is not None:
            da = library.empty(self.full, self.dtype)
        if db is None:
            db = library.empty(self.shape, self.dtype)
        if z0 is not None and dz0 is None:
            dz0 = library.empty(self.shape[1:], self.dtype)
        self.call.run((*given, _address(da), _address_of(db), _address(dz0)))
        if not self.direct and not self.whole:
            found = np.zeros(A.shape, self.dtype) if da is None else _unbroadcast(da, A, self.dims)
            if dA is None:
                dA = found
            else:
                dA[...] = found
        return dA, db, dz0


def call_like(A: ARRAY, b: ARRAY, z0: Optional[ARRAY], z: ARRAY, transposed: bool, scheme: str, structure: str) -> Optional[library.Call]:
    """The call of a solve, for addresses of A, b, z0, z; None where some array is not taken as it lies."""
    p = problem(A, b, z0, transposed, scheme, structure, 0)
    same = _unchanged(((p.a, A), (p.b, b), (p.z0, z0)))
    return _call(_execute, p.plan, (p.a, p.b, p.z0, _grid(z))) if same else None


def gradients_like(A: ARRAY, z: ARRAY, g: ARRAY, z0: Optional[ARRAY], dA: ARRAY, db: ARRAY, dz0: Optional[ARRAY], scheme: str,
                   structure: str) -> Optional[library.Call]:  # fmt: skip
    """The call of dpcr_chain_vjp, for addresses of A, z0, z, g, dA, db, dz0; None where arrays are not taken as they lie."""
    made = _Gradients(A, z, g, z0, dA, db, dz0, scheme, structure, 0)
    return made.call if made.direct and _unchanged(tuple(zip(made.given, (A, z0, z, g)))) else None


# ---- what the frameworks' derivatives of derivatives are made of: arrays of any of them ----


def outer(left: Any, right: Any, structure: str, block: int) -> Any:
    """left right^T in a transition's structure."""
    if structure == "dense":
        return left[..., :, None] * right[..., None, :]
    if structure == "block":
        return left.reshape(*left.shape[:-1], -1, block, 1) * right.reshape(*right.shape[:-1], -1, 1, block)
    product = left * right
    return product.sum(-1) if structure == "scalar" else product


def through(A: Any, structure: str, x: Any) -> Any:
    """A x, for one step or for each."""
    if structure == "dense":
        return (A @ x[..., None])[..., 0]
    if structure == "block":
        return (A @ x.reshape(*x.shape[:-1], -1, A.shape[-1], 1)).reshape(x.shape)
    return (A if structure == "diagonal" else A[..., None]) * x


def back_through(A: Any, structure: str, x: Any) -> Any:
    """A^T x, likewise."""
    return through(A.swapaxes(-1, -2) if structure in ("dense", "block") else A, structure, x)


def linear_chain_jvp(
    A: Any, z: Any, dA: Any = None, db: Any = None, dz0: Any = None, z0: Any = None, scheme: str = "auto", *,
    structure: Optional[str] = None, chunk: int = 0,
) -> ARRAY:  # fmt: skip
    """The derivative of `linear_chain` along (dA, db, dz0) at its solution z.

    Parameters
    ----------
    A : array_like
        [L][..][w][w], [L][..][w] or [L][..], as given to `linear_chain` (untransposed); dimensions of 1 are shared.
    z : array_like
        What it returned, [L][w] or [L][B][w].
    dA, db, dz0 : array_like, optional
        Of the shapes of A, z and z0, or repeated to them; None for zero.
    z0 : array_like, optional
        [w] or [B][w], as given to it.
    scheme, structure, chunk
        As given to it.

    Returns
    -------
    dz : [L][w] or [L][B][w], as z.

    Raises
    ------
    ArgumentError
        As `linear_chain`, and of directions of other shapes.
    """
    z, start = library.array(z, "z"), None if z0 is None else library.array(z0, "z0")
    A = _transitions(A, z=z, z0=start)
    p = problem(A, z, start, False, scheme, structure, chunk)
    dtype, shape = p.b.dtype, p.b.shape
    steps: Dict[str, Optional[ARRAY]] = {"da": None, "db": None, "dz0": None}
    da = None if dA is None else library.like("dA", dA, A.shape, dtype)
    if da is not None and p.a is not None:
        values = _values(da, z, structure)[3]
        assert values is not None
        steps["da"] = np.broadcast_to(values, shape[:2] + values.shape[2:])
    if db is not None:
        steps["db"] = library.numbers(library.like("db", db, z.shape, dtype).reshape(shape), 1)
    if dz0 is not None:
        steps["dz0"] = library.whole(library.like("dz0", dz0, z.shape[1:], dtype), dtype).reshape(shape[1:])
    dz = library.empty(shape, dtype)
    (error, error_ref), size = library.error_place(), p.plan.workspace
    work = library.take(size)
    status = library.lib.dpcr_chain_jvp(p.plan.address, _ref(p.a), _ref(p.z0), _ref(p.b), _ref(steps["da"]), _ref(steps["db"]),
                                        _ref(steps["dz0"]), _ref(dz), library.aligned(work), size, error_ref)  # fmt: skip
    library.give(work)
    library.check(status, error)
    return dz.reshape(shape[0], shape[2]) if p.single else dz
