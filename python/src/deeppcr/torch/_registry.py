# SPDX-License-Identifier: MIT
"""What differs between versions of PyTorch: operators for torch.compile and torch.export are registered from 2.4 on; older ones
run the modules eagerly."""
from __future__ import annotations

from typing import Any, Callable

import torch

REGISTERS = hasattr(torch.library, "custom_op")


class _Unregistered:
    """Stands for an operator where there is no registry."""

    def register_fake(self, function: Any) -> Any:
        return function

    def register_autograd(self, *_: Any, **__: Any) -> None:
        pass


def operator(name: str, schema: str) -> Callable[[Any], Any]:
    """torch.library.custom_op of an operator that changes none of its arguments."""
    if REGISTERS:
        return torch.library.custom_op(name, mutates_args=(), schema=schema)
    return lambda function: _Unregistered()


def compiling() -> bool:
    """Whether torch.compile or torch.export traces."""
    return REGISTERS and torch.compiler.is_compiling()


def autocasting() -> bool:
    return torch.is_autocast_enabled("cpu") if REGISTERS else torch.is_autocast_cpu_enabled()
