# SPDX-License-Identifier: MIT
"""Scans (`deeppcr._scans`) of tensors: with gradients, and as operators that torch.compile and torch.export keep."""
from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from .._scans import Kind, refuse_complex
from ..errors import ArgumentError, UnsupportedError
from ._others import send_home
from ._pages import in_large_pages
from ._registry import array, differentiable, expect, floats, going_forward, no_forward, on_cpu, operator, refuse_many, tracing, wanted, wrapped

Given = Sequence[Optional[Tensor]]  # as the names of a Kind


def _shapes(tensors: Given) -> List[Any]:
    return [None if t is None else tuple(t.shape) for t in tensors]


def _place(kept: Optional[Tensor]) -> int:
    """Where it lies, or 0 where the library cannot use it."""
    if kept is None:
        return 0
    at = kept.data_ptr()
    return at if at % 64 == 0 and kept.is_cpu and kept.is_contiguous() else 0


class Scans:
    """One kind of scan: called with tensors that `check` let pass, its option and whether the last states are told. `option` declares that
    in a schema, `like` makes a tensor that lies as another one does."""

    def __init__(self, kind: Kind, option: str, like: Callable[[Tensor], Tensor]) -> None:
        self.kind, self.like = kind, like
        given = ", ".join(f"Tensor{'?' if i >= kind.needed else ''} {name}" for i, name in enumerate(kind.names))
        more = ", ".join(f"Tensor {name}" for name in kind.gradients)
        run = operator(f"deeppcr::{kind.name}", f"({given}, {option}) -> (Tensor, Tensor)")(self._run)
        run.register_fake(self._run_fake)
        found = ", ".join(["Tensor"] * len(kind.names))
        back = operator(f"deeppcr::{kind.name}_vjp", f"({given}, {option}, {more}, int needed) -> ({found})")(self._run_back)
        back.register_fake(self._run_back_fake)
        self.traced = differentiable(run, self._back_of_run, self._setup)
        self.traced_vjp = differentiable(back)

    def __call__(self, tensors: Given, option: Any, tells: bool) -> Union[Tensor, Tuple[Tensor, Tensor]]:
        if tracing() or wrapped(*tensors):
            out, end = self.traced(*tensors, option)
            return (out, end) if tells else out
        keeps = wanted(*tensors)
        if keeps or going_forward():
            return _Scan.apply(self, option, tells, keeps, *tensors)  # type: ignore[no-any-return]
        out, last, _ = self.forward(tensors, option, tells, False)
        return out if last is None else (out, last)

    def check(self, tensors: Given) -> Any:
        """Refuses what are no tensors of one float dtype whose shapes fit together; tells what the kind's own check does."""
        for i, (name, tensor) in enumerate(zip(self.kind.names, tensors)):
            if tensor is None and i >= self.kind.needed:
                continue
            on_cpu(name, tensor)
            assert tensor is not None and tensors[0] is not None
            refuse_complex(name, tensor.dtype)
            floats(name, tensor)
            if tensor.dtype is not tensors[0].dtype:
                raise ArgumentError.of(f"{name}'s dtype", tensor.dtype, f"{self.kind.names[0]}'s, {tensors[0].dtype}")
        return self.kind.check(_shapes(tensors))

    def forward(self, tensors: Given, option: Any, tells: bool, keeps: bool) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        """What comes out, the last states and what the way back keeps, where they are wanted."""
        scan = self.kind.scan([array(t) for t in tensors], option)
        out, last = in_large_pages(self._out(tensors)), in_large_pages(self._last(tensors)) if tells else None
        kept = in_large_pages(torch.empty(scan.kept_bytes(), dtype=torch.uint8, device="cpu")) if keeps else None  # aligned to 64 bytes
        send_home(scan.flops()[0])
        scan.run(array(out), array(last), _place(kept))
        return out, last, kept

    def backward(self, tensors: Given, option: Any, kept: Optional[Tensor], given: Given, needed: Sequence[bool]) -> List[Optional[Tensor]]:
        found = [in_large_pages(self.like(t)) if t is not None and need else None for t, need in zip(tensors, needed)]
        scan = self.kind.scan([array(t) for t in tensors], option)
        self.kind.check_gradients(scan, _shapes(given))
        send_home(scan.flops()[1])
        whole = kept is not None and kept.numel() == scan.kept_bytes()  # else inputs have got other shapes since
        gout, glast = map(array, given)
        scan.back(gout, glast, _place(kept) if whole else 0, [array(g) for g in found])
        return found

    def _out(self, tensors: Given) -> Tensor:
        return self.like(tensors[self.kind.like])  # type: ignore[arg-type]

    def _last(self, tensors: Given) -> Tensor:
        return tensors[0].new_empty(self.kind.last(_shapes(tensors)))  # type: ignore[union-attr]

    # ---- operators ----

    def _run(self, *arguments: Any) -> Tuple[Tensor, Tensor]:
        *tensors, option = arguments
        self.check(tensors)
        out, last, _ = self.forward(tensors, option, True, False)
        assert last is not None
        return out, last

    def _run_fake(self, *arguments: Any) -> Tuple[Tensor, Tensor]:
        return self._out(arguments[:-1]), self._last(arguments[:-1])

    def _run_back(self, *arguments: Any) -> Tuple[Tensor, ...]:
        """Of `needed`, a bit an input."""
        *tensors, option, gout, glast, needed = arguments
        self.check(tensors)
        for name, g, shape in zip(self.kind.gradients, (gout, glast), (tensors[self.kind.like].shape, self.kind.last(_shapes(tensors)))):
            expect(name, g, shape, tensors[0].dtype)
        found = self.backward(tensors, option, None, (gout, glast), [bool(needed >> i & 1) for i in range(len(tensors))])
        return tuple(tensors[0].new_empty(0) if g is None else g for g in found)

    def _run_back_fake(self, *arguments: Any) -> Tuple[Tensor, ...]:
        needed, tensors = arguments[-1], arguments[: len(self.kind.names)]
        return tuple(arguments[0].new_empty(0) if t is None or not needed >> i & 1 else self.like(t) for i, t in enumerate(tensors))

    @staticmethod
    def _setup(ctx: Any, inputs: Tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.option = inputs
        ctx.save_for_backward(*tensors)

    def _back_of_run(self, ctx: Any, gout: Tensor, glast: Tensor) -> Tuple[Optional[Tensor], ...]:
        tensors = ctx.saved_tensors
        needs = ctx.needs_input_grad[-1 - len(tensors) : -1]  # torch.func's have one more in front
        needed = sum(1 << i for i, need in enumerate(needs) if need and tensors[i] is not None)
        found = self.traced_vjp(*tensors, ctx.option, gout, glast, needed)
        return (*(g if needed >> i & 1 else None for i, g in enumerate(found)), None)


class _Scan(torch.autograd.Function):
    jvp = staticmethod(no_forward)

    @staticmethod
    def forward(ctx: Any, scans: Scans, option: Any, tells: bool, keeps: bool, *tensors: Optional[Tensor]) -> Any:
        out, last, kept = scans.forward(tensors, option, tells, keeps)
        ctx.save_for_backward(*tensors, kept)
        ctx.scans, ctx.option = scans, option
        ctx.set_materialize_grads(False)
        return out if last is None else (out, last)

    @staticmethod
    def backward(ctx: Any, gout: Optional[Tensor], glast: Optional[Tensor] = None) -> Tuple[Optional[Tensor], ...]:
        scans: Scans = ctx.scans
        if torch.is_grad_enabled():  # PyTorch's once_differentiable loses what reaches no gout, without a word
            raise UnsupportedError.of(f"{scans.kind.what}'s derivatives", "second derivatives", "first ones")
        refuse_many(scans.kind.what, (gout, glast))
        *tensors, kept = ctx.saved_tensors
        if gout is None and glast is None:
            return (None,) * (4 + len(tensors))
        return (None,) * 4 + tuple(scans.backward(tensors, ctx.option, kept, (gout, glast), ctx.needs_input_grad[4:]))
