# SPDX-License-Identifier: MIT
"""`deeppcr.selective_scan` for tensors, with gradients, and operators that torch.compile and torch.export keep."""
from __future__ import annotations

from typing import Optional, Sequence, Tuple, Union

from torch import Tensor
from torch.nn import functional

from .. import selective as numbers
from ..errors import ArgumentError, flag
from ._registry import floats, wanted
from ._scans import Scans
from .attention import linear_attention


def _like(x: Tensor) -> Tensor:
    """A new tensor of x's shape, lying as x does where NumPy's function has it so."""
    if x.ndim < 3 or not numbers.swapped(x.shape, x.stride()):
        return x.new_empty(x.shape)
    *lead, n, m = x.shape
    strides = [n * m, 1, n] if x.ndim == 3 else [x.shape[1] * n * m, n * m, 1, n]
    return x.new_empty_strided((*lead, n, m), strides)


_scan = Scans(numbers.KIND, "bool softplus", _like)


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
    _scan.check(tensors)
    return _scan(tensors, softplus, tells)


def _expect_shapes(shapes: Sequence[Tuple[str, Optional[Tensor], Tuple[int, ...]]]) -> None:
    for name, tensor, shape in shapes:
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ArgumentError.of(f"{name}'s shape", tuple(tensor.shape), str(shape))


def _as_attention(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, skip: Optional[Tensor], z: Optional[Tensor], bias: Optional[Tensor],
    states: Optional[Tensor], softplus: bool, tells: bool,
) -> Union[Tensor, Tuple[Tensor, Tensor]]:  # fmt: skip
    """Queries C, keys B, values t x and decays exp(t A)."""
    t = dt if bias is None else dt + bias
    t = functional.softplus(t, threshold=80) if softplus else t
    found = linear_attention(C, B, t[..., None] * x, t * A, scale=1.0, initial_state=None if states is None else states.mT, return_final_state=tells)
    y, last = found if isinstance(found, tuple) else (found, None)
    y = y if skip is None else y + skip * x
    y = y if z is None else y * functional.silu(z)
    return y if last is None else (y, last.mT)


def mamba2_scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Optional[Tensor] = None, z: Optional[Tensor] = None,
    dt_bias: Optional[Tensor] = None, initial_states: Optional[Tensor] = None, dt_softplus: bool = False,
    return_final_states: bool = False,
) -> Union[Tensor, Tuple[Tensor, Tensor]]:  # fmt: skip
    """The scan of Mamba-2: `selective_scan` over heads of P channels that share a step size and a rate, with the arguments of
    mamba_ssm's mamba_chunk_scan_combined but for its chunk_size. Where gradients will be asked for it goes as the linear attention
    that it is too, whose way back is the faster one; the two agree within rounding.

    Parameters
    ----------
    x : Tensor
        [batch][L][H][P], H heads of P channels; float32 or float64, as all of them.
    dt : Tensor
        Step sizes, [batch][L][H].
    A : Tensor
        [H], real; at most 0 where gradients will be asked for.
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
    softplus, tells = flag("dt_softplus", dt_softplus), flag("return_final_states", return_final_states)
    given = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias, "initial_states": initial_states}
    for name, tensor in given.items():
        if tensor is not None or name in ("x", "dt", "A", "B", "C"):
            floats(name, tensor)
            if tensor.dtype != x.dtype:
                raise ArgumentError.of(f"{name}'s dtype", tensor.dtype, f"x's, {x.dtype}")
    for name, tensor, ndim, wanted_shape in (("x", x, 4, "(batch, L, H, P)"), ("A", A, 1, "(H,)"), ("B", B, 4, "(batch, L, G, N)")):
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
    if wanted(x, dt, A, B, C, D, z, dt_bias, initial_states):
        return _as_attention(x, dt, A, B, C, skip, z, dt_bias, initial_states, softplus, tells)
    channels = lambda t: t.reshape(batch, length, heads * each).transpose(1, 2)  # noqa: E731
    found = selective_scan(
        channels(x), channels(dt[..., None].expand(x.shape)), A.repeat_interleave(each)[:, None].expand(heads * each, states),
        B.permute(0, 2, 3, 1), C.permute(0, 2, 3, 1), None if skip is None else skip.reshape(-1), None if z is None else channels(z),
        None if dt_bias is None else dt_bias.repeat_interleave(each), softplus, tells,
        h0=None if initial_states is None else initial_states.reshape(batch, heads * each, states),
    )  # fmt: skip
    y, last = found if isinstance(found, tuple) else (found, None)
    y = y.transpose(1, 2).reshape(x.shape)
    return y if last is None else (y, last.reshape(batch, heads, each, states))
