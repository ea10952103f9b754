# SPDX-License-Identifier: MIT
"""`deeppcr.linear_attention` for tensors, with gradients, and operators that torch.compile and torch.export keep; `gated_delta_rule` with
the arguments of models that have it."""
from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from .. import attention as numbers
from ..errors import ArgumentError, UnsupportedError, flag, whole_number
from ._registry import on_cpu
from ._scans import Scans

_scan = Scans(numbers.KIND, "float scale", torch.empty_like)


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
    if isinstance(scale, Tensor):  # which would get no gradient
        raise ArgumentError.of("scale", "a tensor", "a number: multiply q by a tensor")
    tensors = (q, k, v, g, beta, initial_state)
    extents = _scan.check(tensors)
    return _scan(tensors, numbers.scale_of(scale, extents.keys), tells)


def _normal(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _packed(tensors: Sequence[Optional[Tensor]], ends: Sequence[int], scale: Optional[float], states: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
    """Sequences one after another in one of a batch of one, each with a state of its own."""
    found = [
        linear_attention(*(None if t is None else t[:, a:b] for t in tensors), scale=scale, initial_state=None if states is None else states[i : i + 1],
                         return_final_state=True)
        for i, (a, b) in enumerate(zip(ends, ends[1:]))
    ]  # fmt: skip
    return torch.cat([o for o, _ in found], 1), torch.cat([last for _, last in found])


def _ends(cu_seqlens: Any, batch: int, length: int) -> List[int]:
    try:
        ends = list(cu_seqlens)
    except TypeError:
        raise ArgumentError.of("cu_seqlens", type(cu_seqlens).__name__, "ends of sequences, one after another") from None
    ends = [int(e) if type(e) is int else whole_number("cu_seqlens", e) for e in ends]
    if batch != 1 or len(ends) < 2 or ends[0] != 0 or ends[-1] != length or any(b < a for a, b in zip(ends, ends[1:])):
        raise ArgumentError.of("cu_seqlens", ends, f"ends of sequences, from 0 on, rising to {length}, of a batch of 1, not {batch}")
    return ends


# Of flash-linear-attention's functions, what says that numbers come otherwise than they are computed with, or that more is wanted.
_CHANGES = {
    "cp_context", "gk", "gv", "head_first", "inplace_final_state", "num_accepted_tokens", "return_intermediate_states", "ssm_state_indices",
    "state_v_first", "transpose_state_layout", "use_beta_sigmoid_in_kernel", "use_gate_in_kernel",
}  # fmt: skip


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor] = None, beta: Optional[Tensor] = None, *, scale: Optional[float] = None,
    initial_state: Optional[Tensor] = None, output_final_state: Optional[bool] = False, use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Any = None, **ignored: Any,
) -> Tuple[Tensor, Optional[Tensor]]:  # fmt: skip
    """`linear_attention` in the place of chunk_gated_delta_rule, fused_recurrent_gated_delta_rule, chunk_kda and fused_recurrent_kda of
    flash-linear-attention, and of what stands for them in Transformers' Qwen3-Next, Qwen3.5, Olmo Hybrid and Kimi Linear without it.

    Parameters
    ----------
    q, k : Tensor
        [batch][L][G][K], of any float dtype, as what follows. All is computed in float64 where one of them has it, else in float32.
    v : Tensor
        [batch][L][H][V].
    g : Tensor, optional
        Logarithms of decays, [batch][L][H], or [batch][L][H][K] as Kimi Delta Attention has them; nothing decays without.
    beta : Tensor, optional
        [batch][L][H]; 1 without.
    scale : float, optional
        1 / sqrt(K) without.
    initial_state : Tensor, optional
        [batch][H][K][V], or [sequences][H][K][V] with `cu_seqlens`; 0 without.
    output_final_state : bool, default False
        Whether the last states are returned.
    use_qk_l2norm_in_kernel : bool, default False
        Whether q and k are divided by their lengths, x / sqrt(x.x + 1e-6).
    cu_seqlens : Tensor or sequence of int, optional
        Where sequences that lie one after another in a batch of one begin, and the last one's end. Each is a call; under torch.compile
        they are given as ints.
    **ignored
        What those functions take besides, such as chunk_size. What changes numbers, such as use_gate_in_kernel, is refused.

    Returns
    -------
    o and the last states, or None for these : [batch][L][H][V], of v's dtype, and [batch][H][K][V], of the dtype computed in.

    Raises
    ------
    ArgumentError, UnsupportedError
        Of other shapes and devices, and of dtypes that are no floats.
    """
    tells, normal = flag("output_final_state", output_final_state is not None and output_final_state), flag("use_qk_l2norm_in_kernel", use_qk_l2norm_in_kernel)
    for name in _CHANGES & ignored.keys():
        if ignored[name] is not None and ignored[name] is not False:
            raise UnsupportedError.of(name, "given", "g, beta and states as they are computed with")
    names, tensors = ("q", "k", "v", "g", "beta", "initial_state"), (q, k, v, g, beta, initial_state)
    given = {name: tensor for name, tensor in zip(names, tensors) if tensor is not None or name in names[:3]}
    for name, tensor in given.items():
        on_cpu(name, tensor)
        assert tensor is not None
        if not tensor.is_floating_point():
            raise ArgumentError.of(f"{name}'s dtype", tensor.dtype, "a float")
    dtype = torch.float64 if any(t is not None and t.dtype is torch.float64 for t in given.values()) else torch.float32
    own = [None if t is None else t.to(dtype) for t in (q, k, v, g, beta)]
    if normal:
        own[:2] = [_normal(x) for x in own[:2] if x is not None]
    if beta is None:
        own[4] = torch.ones(v.shape[:3], dtype=dtype, device=v.device)
    states = None if initial_state is None else initial_state.to(dtype)
    if cu_seqlens is None:
        o, last = linear_attention(*own, scale=scale, initial_state=states, return_final_state=True)
    else:
        ends = _ends(cu_seqlens, q.shape[0], q.shape[1])
        if states is not None and states.shape[0] != len(ends) - 1:
            raise ArgumentError.of("initial_state's shape", tuple(states.shape), f"({len(ends) - 1}, H, K, V), one for each sequence")
        o, last = _packed(own, ends, scale, states)
    return o.to(v.dtype), last if tells else None
