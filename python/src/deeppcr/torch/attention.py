# SPDX-License-Identifier: MIT
"""`deeppcr.linear_attention` for tensors, with gradients, and operators that torch.compile and torch.export keep; `gated_delta_rule` with
the arguments of models that have it."""
from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from .. import attention as numbers
from ..errors import ArgumentError, UnsupportedError, flag
from ..selective import refuse_complex
from ._others import send_home
from ._registry import array, differentiable, expect, floats, going_forward, no_forward, on_cpu, operator, refuse_many, tracing, wanted

Given = Sequence[Optional[Tensor]]  # as numbers.NAMES


def _check(tensors: Given) -> numbers.Extents:
    """Refuses what are no tensors of one float dtype whose shapes fit together."""
    for name, tensor in zip(numbers.NAMES, tensors):
        if tensor is None and name not in numbers.NAMES[: numbers.NEEDED]:
            continue
        on_cpu(name, tensor)
        assert tensor is not None and tensors[0] is not None
        refuse_complex(name, tensor.dtype)
        floats(name, tensor)
        if tensor.dtype is not tensors[0].dtype:
            raise ArgumentError.of(f"{name}'s dtype", tensor.dtype, f"q's, {tensors[0].dtype}")
    return numbers.check([None if t is None else tuple(t.shape) for t in tensors])


def _last(q: Tensor, v: Tensor) -> Tensor:
    return q.new_empty((v.shape[0], v.shape[2], q.shape[3], v.shape[3]))


def _arrays(tensors: Given) -> List[Any]:
    return [array(t) for t in tensors]


def _forward(tensors: Given, scale: float, tells: bool, keeps: bool) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
    """o, the last states and what the way back keeps, where they are wanted."""
    q, v = tensors[0], tensors[2]
    assert q is not None and v is not None
    scan = numbers.Scan(_arrays(tensors), scale)
    o, last = torch.empty_like(v), _last(q, v) if tells else None
    kept = torch.empty(scan.kept_bytes(), dtype=torch.uint8) if keeps else None  # which PyTorch aligns to 64 bytes
    send_home(scan.extents.flops())
    scan.run(array(o), array(last), _place(kept))
    return o, last, kept


def _place(kept: Optional[Tensor]) -> int:
    """Where it lies, or 0 where the library cannot use it."""
    if kept is None:
        return 0
    at = kept.data_ptr()
    return at if at % 64 == 0 and kept.is_cpu and kept.is_contiguous() else 0


def _backward(tensors: Given, scale: float, kept: Optional[Tensor], go: Optional[Tensor], glast: Optional[Tensor],
              needed: Sequence[bool]) -> List[Optional[Tensor]]:  # fmt: skip
    found = [torch.empty_like(t) if t is not None and need else None for t, need in zip(tensors, needed)]
    scan = numbers.Scan(_arrays(tensors), scale)
    numbers.check_gradients(scan, *(None if g is None else tuple(g.shape) for g in (go, glast)))
    send_home(3 * scan.extents.flops())
    whole = kept is not None and kept.numel() == scan.kept_bytes()  # else inputs have got other shapes since
    into = [None if g is None else _writable(g) for g in found]
    scan.back(array(go), array(glast), _place(kept) if whole else 0, [array(g) for g in into])
    for g, made in zip(found, into):
        if g is not None and made is not None and made is not g:
            g.copy_(made)
    return found


def _writable(g: Tensor) -> Tensor:
    """Itself, or numbers of its own where places are shared."""
    return g if all(s for s, n in zip(g.stride(), g.shape) if n > 1) else g.new_empty(g.shape)


class _Attention(torch.autograd.Function):
    jvp = staticmethod(no_forward)

    @staticmethod
    def forward(ctx: Any, scale: float, tells: bool, keeps: bool, *tensors: Optional[Tensor]) -> Any:
        o, last, kept = _forward(tensors, scale, tells, keeps)
        ctx.save_for_backward(*tensors, kept)
        ctx.scale = scale
        ctx.set_materialize_grads(False)
        return o if last is None else (o, last)

    @staticmethod
    def backward(ctx: Any, go: Optional[Tensor], glast: Optional[Tensor] = None) -> Tuple[Optional[Tensor], ...]:
        if torch.is_grad_enabled():  # PyTorch's once_differentiable loses what reaches no go, without a word
            raise UnsupportedError.of("linear attention's derivatives", "second derivatives", "first ones")
        refuse_many("linear attention", (go, glast))
        *tensors, kept = ctx.saved_tensors
        if go is None and glast is None:
            return (None,) * (3 + len(tensors))
        return (None, None, None, *_backward(tensors, ctx.scale, kept, go, glast, ctx.needs_input_grad[3:]))


_ARGUMENTS = "Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? beta, Tensor? initial_state, float scale"


@operator("deeppcr::linear_attention", f"({_ARGUMENTS}) -> (Tensor, Tensor)")
def _operator(*arguments: Any) -> Tuple[Tensor, Tensor]:
    *tensors, scale = arguments
    _check(tensors)
    o, last, _ = _forward(tensors, scale, True, False)
    assert last is not None
    return o, last


@_operator.register_fake
def _(*arguments: Any) -> Tuple[Tensor, Tensor]:
    return torch.empty_like(arguments[2]), _last(arguments[0], arguments[2])


# `needed`: a bit an input.
@operator("deeppcr::linear_attention_vjp", f"({_ARGUMENTS}, Tensor go, Tensor glast, int needed) -> ({', '.join(['Tensor'] * 6)})")
def _operator_vjp(*arguments: Any) -> Tuple[Tensor, ...]:
    *tensors, scale, go, glast, needed = arguments
    extents = _check(tensors)
    expect("go", go, tensors[2].shape, tensors[2].dtype)
    expect("glast", glast, extents.state(), tensors[2].dtype)
    found = _backward(tensors, scale, None, go, glast, [bool(needed >> i & 1) for i in range(6)])
    return tuple(tensors[0].new_empty(0) if g is None else g for g in found)


@_operator_vjp.register_fake
def _(*arguments: Any) -> Tuple[Tensor, ...]:
    needed = arguments[-1]
    return tuple(
        arguments[0].new_empty(0) if t is None or not needed >> i & 1 else torch.empty_like(t) for i, t in enumerate(arguments[:6])
    )


def _setup(ctx: Any, inputs: Tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def _operator_backward(ctx: Any, go: Tensor, glast: Tensor) -> Tuple[Optional[Tensor], ...]:
    tensors, needs = ctx.saved_tensors, ctx.needs_input_grad[-7:-1]  # torch.func's have one more in front
    needed = sum(1 << i for i, need in enumerate(needs) if need and tensors[i] is not None)
    found = _traced_vjp(*tensors, ctx.scale, go, glast, needed)
    return (*(g if needed >> i & 1 else None for i, g in enumerate(found)), None)


_traced = differentiable(_operator, _operator_backward, _setup)
_traced_vjp = differentiable(_operator_vjp)


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor] = None, beta: Optional[Tensor] = None, *, scale: Optional[float] = None,
    initial_state: Optional[Tensor] = None, return_final_state: bool = False,
) -> Union[Tensor, Tuple[Tensor, Tensor]]:  # fmt: skip
    """`deeppcr.linear_attention` for tensors of one dtype on the CPU, with gradients of all of them (first ones).

    Parameters
    ----------
    q, k : Tensor
        [batch][L][G][K], float32 or float64, with any strides, as what follows.
    v : Tensor
        [batch][L][H][V]; G divides H.
    g : Tensor, optional
        Logarithms of decays, [batch][L][H] or [batch][L][H][K]; nothing decays without. -inf forgets all that was before.
    beta : Tensor, optional
        [batch][L][H]; without, nothing is taken out of the state before a step writes.
    scale : float, optional
        1 / sqrt(K) without.
    initial_state : Tensor, optional
        The states before the first step, [batch][H][K][V]; 0 without.
    return_final_state : bool, default False
        Whether the last states are returned too.

    Returns
    -------
    o, or o and the last states with `return_final_state` : [batch][L][H][V], lying in memory as v does, and [batch][H][K][V].

    Raises
    ------
    ArgumentError, UnsupportedError
        Of other shapes, dtypes and devices.
    """
    tells = flag("return_final_state", return_final_state)
    tensors = (q, k, v, g, beta, initial_state)
    extents = _check(tensors)
    factor = numbers.scale_of(scale, extents.keys)
    if tracing():
        o, last = _traced(*tensors, factor)
        return (o, last) if tells else o
    keeps = wanted(*tensors)
    if keeps or going_forward():
        return _Attention.apply(factor, tells, keeps, *tensors)
    o, last, _ = _forward(tensors, factor, tells, False)
    return o if last is None else (o, last)


def _normal(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _packed(tensors: Sequence[Tensor], ends: Sequence[int], scale: Optional[float], states: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
    """Sequences one after another in one of a batch of one, each with a state of its own."""
    found = [
        linear_attention(*(t[:, a:b] for t in tensors), scale=scale, initial_state=None if states is None else states[i : i + 1],
                         return_final_state=True)
        for i, (a, b) in enumerate(zip(ends, ends[1:]))
    ]  # fmt: skip
    return torch.cat([o for o, _ in found], 1), torch.cat([last for _, last in found])


def _ends(cu_seqlens: Any, batch: int, length: int) -> List[int]:
    ends = [int(e) for e in cu_seqlens]
    if batch != 1 or len(ends) < 2 or ends[0] != 0 or ends[-1] != length or any(b < a for a, b in zip(ends, ends[1:])):
        raise ArgumentError.of("cu_seqlens", ends, f"ends of sequences, from 0 on, rising to {length}, of a batch of 1, not {batch}")
    return ends


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: Optional[float] = None, initial_state: Optional[Tensor] = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Any = None, **ignored: Any,
) -> Tuple[Tensor, Optional[Tensor]]:  # fmt: skip
    """`linear_attention` in the place of chunk_gated_delta_rule, fused_recurrent_gated_delta_rule, chunk_kda and fused_recurrent_kda of
    flash-linear-attention, and of what stands for them in Transformers' Qwen3-Next, Qwen3.5, Olmo Hybrid and Kimi Linear without it.

    Parameters
    ----------
    q, k : Tensor
        [batch][L][G][K], of any float dtype, as what follows. All is computed in float64 where one of them has it, else in float32.
    v : Tensor
        [batch][L][H][V].
    g : Tensor
        Logarithms of decays, [batch][L][H], or [batch][L][H][K] as Kimi Delta Attention has them.
    beta : Tensor
        [batch][L][H].
    scale : float, optional
        1 / sqrt(K) without.
    initial_state : Tensor, optional
        [batch][H][K][V], or [sequences][H][K][V] with `cu_seqlens`; 0 without.
    output_final_state : bool, default False
        Whether the last states are returned.
    use_qk_l2norm_in_kernel : bool, default False
        Whether q and k are divided by their lengths, x / sqrt(x.x + 1e-6).
    cu_seqlens : Tensor or sequence of int, optional
        Where sequences that lie one after another in a batch of one begin, and the last one's end.
    **ignored
        What those functions take besides, such as chunk_size, and which changes no number.

    Returns
    -------
    o and the last states, or None for these : [batch][L][H][V], of v's dtype, and [batch][H][K][V], of the dtype computed in.

    Raises
    ------
    ArgumentError, UnsupportedError
        Of other shapes and devices, and of dtypes that are no floats.
    """
    tells, normal = flag("output_final_state", output_final_state), flag("use_qk_l2norm_in_kernel", use_qk_l2norm_in_kernel)
    given = [("q", q), ("k", k), ("v", v), ("g", g), ("beta", beta)] + ([] if initial_state is None else [("initial_state", initial_state)])
    for name, tensor in given:
        on_cpu(name, tensor)
        if not tensor.is_floating_point():
            raise ArgumentError.of(f"{name}'s dtype", tensor.dtype, "a float")
    dtype = torch.float64 if any(tensor.dtype is torch.float64 for _, tensor in given) else torch.float32
    own = [tensor.to(dtype) for _, tensor in given[:5]]
    if normal:
        own[:2] = [_normal(x) for x in own[:2]]
    states = None if initial_state is None else initial_state.to(dtype)
    if cu_seqlens is None:
        o, last = linear_attention(*own, scale=scale, initial_state=states, return_final_state=True)
    else:
        ends = _ends(cu_seqlens, q.shape[0], q.shape[1])
        if states is not None and states.shape[0] != len(ends) - 1:
            raise ArgumentError.of("initial_state's shape", tuple(states.shape), f"({len(ends) - 1}, H, K, V), one for each sequence")
        o, last = _packed(own, ends, scale, states)
    return o.to(v.dtype), last if tells else None
