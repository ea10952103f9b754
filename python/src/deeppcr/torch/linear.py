# SPDX-License-Identifier: MIT
"""`linear_chain` for tensors: derivatives of any order, backward and forward, and an operator that torch.compile and torch.export keep."""
from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .. import _library as library
from .. import linear as numbers
from ..errors import ArgumentError
from ._registry import CODES, array, differentiable, expect, going_forward, on_cpu, operator, refuse_many, tracing, wanted, wrapped


_TAKEN = {*CODES, getattr(torch, "uint32", None)}  # those that results have too, which operators promise


def _check(**tensors: Optional[Tensor]) -> None:
    """Refuses what are no tensors of one dtype of the library's."""
    dtype = None
    for name, tensor in tensors.items():
        if tensor is not None or name != "z0":
            on_cpu(name, tensor)
            assert tensor is not None
            if dtype is not None and tensor.dtype is not dtype:
                raise ArgumentError.of(f"{name}'s dtype", tensor.dtype, f"A's, {dtype}")
            if tensor.dtype not in _TAKEN:
                raise ArgumentError.of(f"{name}'s dtype", tensor.dtype, "torch.float32, torch.float64 or torch.uint32")
            dtype = tensor.dtype


def _structure(A: Tensor, b: Tensor, structure: Optional[str]) -> str:
    """As the NumPy function tells it from the shapes."""
    if structure is not None:
        return structure
    return {1: "dense", 0: "diagonal", -1: "scalar"}.get(A.ndim - b.ndim, "scalar" if A.ndim == 0 else "dense")


def _by_operations(chain: Any, A: Tensor, z0: Optional[Tensor], z: Tensor, g: Tensor, transposed: bool, scheme: str,
                   structure: str) -> Tuple[Optional[Tensor], ...]:  # fmt: skip
    """The gradients by operations that have derivatives themselves: for second ones, and for transposed chains."""
    if z.numel() == 0:  # no step, or no sequence
        nothing = 0 * g.sum()  # zeros that know where they come from, for gradients of them
        dA = None if structure == "identity" else torch.zeros_like(A) + nothing
        return dA, g.clone(), None if z0 is None else torch.zeros_like(z0) + nothing, None, None, None
    if structure == "identity":
        direct = g.cumsum(0) if transposed else g.flip(0).cumsum(0).flip(0)
        return None, direct, None if z0 is None else direct[0].clone(), None, None, None
    direct = chain(A, g.contiguous(), None, not transposed, scheme, structure)
    nothing = torch.zeros_like(g[:1])
    block = A.shape[-1] if structure == "block" else 0
    outer = lambda left, right: numbers.outer(left, right, structure, block).sum_to_size(A.shape)  # noqa: E731
    if transposed:  # dA_l = z_l mu_{l-1}^T
        return outer(z, torch.cat([nothing, direct[:-1]])), direct, None, None, None, None
    before = torch.cat([nothing if z0 is None else z0[None], z[:-1]])
    first = None
    if z0 is not None:
        lead = A.ndim - numbers.STRUCTURES[structure]
        A0 = A[0] if lead == g.ndim - 1 else A
        first = numbers.back_through(A0, structure, direct[0])
    return outer(direct, before), direct, first, None, None, None


def _tangent(chain: Any, saved: Sequence[Any], options: Sequence[Any], dA: Tensor, db: Tensor, dz0: Optional[Tensor]) -> Tensor:
    """The derivative along (dA, db, dz0), a chain as well: dz_l = A_l dz_{l-1} + (dA_l z_{l-1} + db_l)."""
    A, z0, z = saved
    transposed, _, structure = options
    if z.numel() == 0:  # no step, or no sequence
        return db.clone()
    if structure != "identity":
        nothing = torch.zeros_like(z[:1])
        if transposed:  # dA_{l+1}^T z_{l+1}
            db = db + torch.cat([numbers.back_through(dA, structure, z)[1:], nothing])
        else:
            db = db + numbers.through(dA, structure, torch.cat([nothing if z0 is None else z0[None], z[:-1]]))
    return chain(A, db.contiguous(), dz0, *options)


class _LinearChain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, A: Tensor, b: Tensor, z0: Optional[Tensor], transposed: bool, scheme: str, structure: str) -> Tensor:
        z = torch.from_numpy(numbers.linear_chain(array(A), array(b), array(z0), transposed, scheme, structure=structure))
        _setup(ctx, (A, b, z0, transposed, scheme, structure), z)
        return z

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, db: Tensor, dz0: Optional[Tensor], *_: Any) -> Tensor:
        refuse_many("linear_chain", (dA, db, dz0))
        return _tangent(_LinearChain.apply, ctx.saved_tensors, ctx.options, dA, db, dz0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tuple[Optional[Tensor], ...]:
        refuse_many("linear_chain", (g,))
        A, z0, z = ctx.saved_tensors
        transposed, scheme, structure = ctx.options
        if not torch.is_grad_enabled() and not going_forward() and not transposed and structure != "identity":
            found = numbers.linear_chain_vjp(array(A), array(z), array(g), array(z0), scheme, structure=structure)
            dA, db, dz0 = (None if x is None else torch.from_numpy(x) for x in found)
            return dA, db, dz0, None, None, None
        return _by_operations(_LinearChain.apply, A, z0, z, g, transposed, scheme, structure)


@operator("deeppcr::linear_chain", "(Tensor A, Tensor b, Tensor? z0, bool transposed, str scheme, str structure) -> Tensor")
def _operator(A: Tensor, b: Tensor, z0: Optional[Tensor], transposed: bool, scheme: str, structure: str) -> Tensor:
    _check(A=A, b=b, z0=z0)
    return torch.from_numpy(numbers.linear_chain(array(A), array(b), array(z0), transposed, scheme, structure=structure))


@_operator.register_fake
def _(A: Tensor, b: Tensor, z0: Optional[Tensor], transposed: bool, scheme: str, structure: str) -> Tensor:
    return torch.empty_like(b, memory_format=torch.contiguous_format)


@operator(
    "deeppcr::linear_chain_vjp",
    "(Tensor A, Tensor z, Tensor g, Tensor? z0, bool transposed, str scheme, str structure) -> (Tensor, Tensor, Tensor)",
)  # fmt: skip
def _operator_vjp(A: Tensor, z: Tensor, g: Tensor, z0: Optional[Tensor], transposed: bool, scheme: str,
                  structure: str) -> Tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    _check(A=A, z=z, g=g, z0=z0)
    expect("z", z, g.shape, g.dtype)
    with torch.no_grad():
        ctx = _Saved((A, z0, z), (transposed, scheme, structure))
        dA, db, dz0 = _LinearChain.backward(ctx, g)[:3]
    assert db is not None
    # PyTorch's sums and products of uint32 have 64 bits.
    return torch.zeros_like(A) if dA is None else dA.to(A.dtype), db.to(g.dtype), g.new_empty(0) if dz0 is None else dz0


class _Saved:
    def __init__(self, tensors: Tuple[Optional[Tensor], ...], options: Tuple[Any, ...]) -> None:
        self.saved_tensors, self.options = tensors, options


@_operator_vjp.register_fake
def _(A: Tensor, z: Tensor, g: Tensor, z0: Optional[Tensor], transposed: bool, scheme: str, structure: str) -> Any:
    form = torch.contiguous_format
    return (torch.empty_like(A, memory_format=form), torch.empty_like(g, memory_format=form),
            g.new_empty(0) if z0 is None else torch.empty_like(z0, memory_format=form))  # fmt: skip


def _setup(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
    A, _, z0, *options = inputs
    ctx.save_for_backward(A, z0, output)
    if going_forward():
        ctx.save_for_forward(A, z0, output)
    ctx.options = options


def _operator_backward(ctx: Any, g: Tensor) -> Tuple[Optional[Tensor], ...]:
    A, z0, z = ctx.saved_tensors
    if not torch.compiler.is_compiling():  # torch.func, whose derivatives have derivatives
        return _by_operations(_traced, A, z0, z, g, *ctx.options)
    dA, db, dz0 = _traced_vjp(A, z, g.contiguous(), z0, *ctx.options)
    return dA, db, None if z0 is None else dz0, None, None, None


_traced = differentiable(_operator, _operator_backward, _setup, lambda ctx, saved, *ways: _tangent(_traced, saved, ctx.options, *ways[:3]))
_traced_vjp = differentiable(_operator_vjp)


_calls = library.Own()


def _plain(A: Tensor, b: Tensor, z0: Optional[Tensor], transposed: bool, scheme: str, structure: str) -> Tensor:
    """Without gradients. Chains like one before are known by their shapes and need no arrays of NumPy."""
    whole = A.is_contiguous() and b.is_contiguous() and not (A.is_neg() or b.is_neg())
    at = [A.data_ptr(), b.data_ptr(), 0]
    if z0 is not None:
        whole, at[2] = whole and z0.is_contiguous() and not z0.is_neg(), z0.data_ptr()
    key = (A.shape, b.shape, None if z0 is None else z0.shape, b.dtype, transposed, type(transposed), scheme, structure)
    kept, call = _calls.kept(), None
    if whole and not (at[0] | at[1] | at[2]) & (b.element_size() - 1):
        try:
            call = kept.pop(key, None)
        except TypeError:  # an option that is no key: refused below
            pass
        if call is not None:
            z = torch.empty_like(b)
            call.run((*at, z.data_ptr()), None)
            kept[key] = call
            return z
    z = torch.from_numpy(numbers.linear_chain(array(A), array(b), array(z0), transposed, scheme, structure=structure))
    if whole and z.numel():
        call = numbers.call_like(array(A), array(b), array(z0), array(z), transposed, scheme, structure)
        if call is not None:
            _calls.keep(key, call)
    return z


def linear_chain(A: Tensor, b: Tensor, z0: Optional[Tensor] = None, transposed: bool = False, scheme: str = "auto", *,
                 structure: Optional[str] = None) -> Tensor:  # fmt: skip
    """`deeppcr.linear_chain` for tensors of one dtype (float32, float64, uint32) on the CPU, with gradients of A, b and z0, and theirs.

    Derivatives forward too: torch.func's jvp, jacfwd and hessian, torch.autograd.forward_ad.

    Parameters
    ----------
    A, b, z0, transposed, scheme, structure
        As there: A [L][w][w], [L][w] or [L] and so on, b [L][w] or [L][B][w], z0 [w] or [B][w].

    Returns
    -------
    z : of b's shape.

    Raises
    ------
    ArgumentError, UnsupportedError
        As there, and of other dtypes and devices.
    """
    _check(A=A, b=b, z0=z0)
    named = _structure(A, b, structure)
    if tracing() or wrapped(A, b, z0):
        return _traced(A, b, z0, transposed, scheme, named)
    if wanted(A, b, z0) or going_forward() or type(A) is not Tensor or type(b) is not Tensor:
        return _LinearChain.apply(A, b, z0, transposed, scheme, named)
    return _plain(A, b, z0, transposed, scheme, named)
