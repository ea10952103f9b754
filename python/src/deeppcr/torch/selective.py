# SPDX-License-Identifier: MIT
"""`deeppcr.selective_scan` for tensors, with gradients, and operators that torch.compile and torch.export keep."""
from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from .. import selective as numbers
from ..errors import ArgumentError, UnsupportedError, flag
from ._others import send_home
from ._registry import array, differentiable, expect, floats, going_forward, no_forward, on_cpu, operator, refuse_many, tracing, wanted

Given = Sequence[Optional[Tensor]]  # as numbers.NAMES


def _check(tensors: Given) -> None:
    """Refuses what are no tensors of one float dtype whose shapes fit together."""
    for name, tensor in zip(numbers.NAMES, tensors):
        if tensor is None and name not in numbers.NAMES[:5]:
            continue
        on_cpu(name, tensor)
        assert tensor is not None and tensors[0] is not None
        numbers.refuse_complex(name, tensor.dtype)
        floats(name, tensor)
        if tensor.dtype is not tensors[0].dtype:
            raise ArgumentError.of(f"{name}'s dtype", tensor.dtype, f"u's, {tensors[0].dtype}")
    numbers.check([None if t is None else tuple(t.shape) for t in tensors])


def _like(x: Tensor) -> Tensor:
    """A new tensor of x's shape, lying as x does where NumPy's function has it so."""
    if x.ndim < 3 or not numbers.swapped(x.shape, x.stride()):
        return x.new_empty(x.shape)
    *lead, n, m = x.shape
    strides = [n * m, 1, n] if x.ndim == 3 else [x.shape[1] * n * m, n * m, 1, n]
    return x.new_empty_strided((*lead, n, m), strides)


def _last(u: Tensor, A: Tensor) -> Tensor:
    return u.new_empty((u.shape[0], u.shape[1], A.shape[1]))


def _arrays(tensors: Given) -> List[Any]:
    return [array(t) for t in tensors]


def _forward(tensors: Given, softplus: bool, tells: bool, keeps: bool) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
    """y, the last states and what the way back keeps, where they are wanted."""
    u, A = tensors[0], tensors[2]
    assert u is not None and A is not None
    scan = numbers.Scan(_arrays(tensors), softplus)
    y, last = _like(u), _last(u, A) if tells else None
    kept = torch.empty(scan.kept_bytes(), dtype=torch.uint8) if keeps else None  # which PyTorch aligns to 64 bytes
    send_home(20.0 * u.numel() * scan.states)
    scan.run(array(y), array(last), 0 if kept is None else _place(kept))
    return y, last, kept


def _place(kept: Tensor) -> int:
    """Where it lies, or 0 where the library cannot use it."""
    at = kept.data_ptr()
    return at if at % 64 == 0 and kept.is_cpu and kept.is_contiguous() else 0


def _backward(tensors: Given, softplus: bool, kept: Optional[Tensor], gy: Optional[Tensor], glast: Optional[Tensor],
              needed: Sequence[bool]) -> List[Optional[Tensor]]:  # fmt: skip
    found = [_like(t) if t is not None and need else None for t, need in zip(tensors, needed)]
    scan = numbers.Scan(_arrays(tensors), softplus)
    numbers.check_gradients(scan, *(None if g is None else tuple(g.shape) for g in (gy, glast)))
    send_home(50.0 * scan.batch * scan.dim * scan.length * scan.states)
    whole = kept is not None and kept.numel() == scan.kept_bytes()  # else inputs have got other shapes since
    scan.back(array(gy), array(glast), _place(kept) if whole and kept is not None else 0, [array(g) for g in found])
    return found


class _Selective(torch.autograd.Function):
    jvp = staticmethod(no_forward)

    @staticmethod
    def forward(ctx: Any, softplus: bool, tells: bool, keeps: bool, *tensors: Optional[Tensor]) -> Any:
        y, last, kept = _forward(tensors, softplus, tells, keeps)
        ctx.save_for_backward(*tensors, kept)
        ctx.softplus = softplus
        ctx.set_materialize_grads(False)
        return y if last is None else (y, last)

    @staticmethod
    def backward(ctx: Any, gy: Optional[Tensor], glast: Optional[Tensor] = None) -> Tuple[Optional[Tensor], ...]:
        if torch.is_grad_enabled():  # PyTorch's once_differentiable loses what reaches no gy, without a word
            raise UnsupportedError.of("the selective scan's derivatives", "second derivatives", "first ones")
        refuse_many("the selective scan", (gy, glast))
        *tensors, kept = ctx.saved_tensors
        needed = ctx.needs_input_grad[3:]
        if gy is None and glast is None:
            return (None,) * (3 + len(tensors))
        return (None, None, None, *_backward(tensors, ctx.softplus, kept, gy, glast, needed))


_ARGUMENTS = "Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? delta_bias, Tensor? h0, bool softplus"


@operator("deeppcr::selective_scan", f"({_ARGUMENTS}) -> (Tensor, Tensor)")
def _operator(*arguments: Any) -> Tuple[Tensor, Tensor]:
    *tensors, softplus = arguments
    _check(tensors)
    y, last, _ = _forward(tensors, softplus, True, False)
    assert last is not None
    return y, last


@_operator.register_fake
def _(*arguments: Any) -> Tuple[Tensor, Tensor]:
    return _like(arguments[0]), _last(arguments[0], arguments[2])


# `needed`: a bit an input.
@operator("deeppcr::selective_scan_vjp", f"({_ARGUMENTS}, Tensor gy, Tensor glast, int needed) -> ({', '.join(['Tensor'] * 9)})")
def _operator_vjp(*arguments: Any) -> Tuple[Tensor, ...]:
    *tensors, softplus, gy, glast, needed = arguments
    _check(tensors)
    u, A = tensors[0], tensors[2]
    expect("gy", gy, u.shape, u.dtype)
    expect("glast", glast, (*u.shape[:2], A.shape[1]), u.dtype)
    found = _backward(tensors, softplus, None, gy, glast, [bool(needed >> i & 1) for i in range(9)])
    return tuple(u.new_empty(0) if g is None else g for g in found)


@_operator_vjp.register_fake
def _(*arguments: Any) -> Tuple[Tensor, ...]:
    needed = arguments[-1]
    return tuple(arguments[0].new_empty(0) if t is None or not needed >> i & 1 else _like(t) for i, t in enumerate(arguments[:9]))


def _setup(ctx: Any, inputs: Tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.softplus = inputs
    ctx.save_for_backward(*tensors)


def _operator_backward(ctx: Any, gy: Tensor, glast: Tensor) -> Tuple[Optional[Tensor], ...]:
    tensors, needs = ctx.saved_tensors, ctx.needs_input_grad[-10:-1]  # torch.func's have one more in front
    needed = sum(1 << i for i, need in enumerate(needs) if need and tensors[i] is not None)
    found = _traced_vjp(*tensors, ctx.softplus, gy, glast, needed)
    return (*(g if needed >> i & 1 else None for i, g in enumerate(found)), None)


_traced = differentiable(_operator, _operator_backward, _setup)
_traced_vjp = differentiable(_operator_vjp)


def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Optional[Tensor] = None, z: Optional[Tensor] = None,
    delta_bias: Optional[Tensor] = None, delta_softplus: bool = False, return_last_state: bool = False, *, h0: Optional[Tensor] = None,
) -> Union[Tensor, Tuple[Tensor, Tensor]]:  # fmt: skip
    """`deeppcr.selective_scan` for tensors of one dtype on the CPU, with gradients of all of them (first ones): mamba_ssm's
    selective_scan_fn, whose last states have gradients here too.

    Parameters
    ----------
    u, delta : Tensor
        [batch][dim][L], float32 or float64, with any strides, as what follows.
    A : Tensor
        [dim][N], real.
    B, C : Tensor
        [batch][N][L], [batch][G][N][L], or [dim][N], the same at every step.
    D, delta_bias : Tensor, optional
        [dim]; 0 without.
    z : Tensor, optional
        [batch][dim][L]; no gate without.
    delta_softplus : bool, default False
        Whether the steps are softplus of delta + delta_bias.
    return_last_state : bool, default False
        Whether the last states are returned too.
    h0 : Tensor, optional
        States before the first step, [batch][dim][N]; 0 without.

    Returns
    -------
    y, or y and the last states with `return_last_state` : [batch][dim][L], lying in memory as u does, and [batch][dim][N].

    Raises
    ------
    ArgumentError, UnsupportedError
        Of other shapes, dtypes and devices, and of complex A.
    """
    softplus, tells = flag("delta_softplus", delta_softplus), flag("return_last_state", return_last_state)
    tensors = (u, delta, A, B, C, D, z, delta_bias, h0)
    _check(tensors)
    if tracing():
        y, last = _traced(*tensors, softplus)
        return (y, last) if tells else y
    keeps = wanted(*tensors)
    if keeps or going_forward():
        return _Selective.apply(softplus, tells, keeps, *tensors)
    y, last, _ = _forward(tensors, softplus, tells, False)
    return y if last is None else (y, last)


def _expect_shapes(shapes: Sequence[Tuple[str, Optional[Tensor], Tuple[int, ...]]]) -> None:
    for name, tensor, shape in shapes:
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ArgumentError.of(f"{name}'s shape", tuple(tensor.shape), str(shape))


def mamba2_scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Optional[Tensor] = None, z: Optional[Tensor] = None,
    dt_bias: Optional[Tensor] = None, initial_states: Optional[Tensor] = None, dt_softplus: bool = False,
    return_final_states: bool = False,
) -> Union[Tensor, Tuple[Tensor, Tensor]]:  # fmt: skip
    """The scan of Mamba-2: `selective_scan` over heads of P channels that share a step size and a rate, with the arguments of
    mamba_ssm's mamba_chunk_scan_combined but for its chunk_size, since nothing goes in chunks here.

    Parameters
    ----------
    x : Tensor
        [batch][L][H][P], H heads of P channels; float32 or float64, as all of them.
    dt : Tensor
        Step sizes, [batch][L][H].
    A : Tensor
        [H], real.
    B, C : Tensor
        [batch][L][G][N]; each of G groups serves H / G heads.
    D : Tensor, optional
        [H] or [H][P]; 0 without.
    z : Tensor, optional
        [batch][L][H][P]; no gate without.
    dt_bias : Tensor, optional
        [H]; 0 without.
    initial_states : Tensor, optional
        [batch][H][P][N]; 0 without.
    dt_softplus : bool, default False
        Whether the steps are softplus of dt + dt_bias.
    return_final_states : bool, default False
        Whether the last states are returned too.

    Returns
    -------
    y, or y and the last states with `return_final_states` : [batch][L][H][P] and [batch][H][P][N].

    Raises
    ------
    ArgumentError, UnsupportedError
        As `selective_scan`.
    """
    for name, tensor, ndim, wanted_shape in (("x", x, 4, "(batch, L, H, P)"), ("A", A, 1, "(H,)"), ("B", B, 4, "(batch, L, G, N)")):
        on_cpu(name, tensor)
        if tensor.ndim != ndim:
            raise ArgumentError.of(f"{name}'s shape", tuple(tensor.shape), wanted_shape)
    batch, length, heads, each = x.shape
    groups, states = B.shape[2], B.shape[3]
    if groups < 1 or heads % groups:
        raise ArgumentError.of("B's groups", groups, f"a divisor of {heads} heads")
    _expect_shapes((("dt", dt, (batch, length, heads)), ("A", A, (heads,)), ("B", B, (batch, length, groups, states)),
                    ("C", C, (batch, length, groups, states)), ("D", D, (heads, each) if D is not None and D.ndim == 2 else (heads,)), ("z", z, tuple(x.shape)), ("dt_bias", dt_bias, (heads,)),
                    ("initial_states", initial_states, (batch, heads, each, states))))  # fmt: skip
    skip = D if D is None or D.ndim == 2 else D[:, None].expand(heads, each)
    channels = lambda t: t.reshape(batch, length, heads * each).transpose(1, 2)  # noqa: E731
    found = selective_scan(
        channels(x), channels(dt[..., None].expand(x.shape)), A.repeat_interleave(each)[:, None].expand(heads * each, states),
        B.permute(0, 2, 3, 1), C.permute(0, 2, 3, 1), None if skip is None else skip.reshape(-1), None if z is None else channels(z),
        None if dt_bias is None else dt_bias.repeat_interleave(each), dt_softplus, return_final_states,
        h0=None if initial_states is None else initial_states.reshape(batch, heads * each, states),
    )  # fmt: skip
    y, last = found if isinstance(found, tuple) else (found, None)
    y = y.transpose(1, 2).reshape(x.shape)
    return y if last is None else (y, last.reshape(batch, heads, each, states))
