# SPDX-License-Identifier: MIT
"""New memory of PyTorch's in large pages. The C library gives large blocks back to the system when they are freed, so what a call
returns is new memory each time, of which every 4 KiB come by a fault of their own on the first touch, some microseconds in a virtual
machine: half the time of a pass back whose gradients are 75 MB. Linux makes pages of 2 MiB where it is asked to, in one fault."""
from __future__ import annotations

import ctypes
from typing import Any, Callable, Optional

from torch import Tensor

_LEAST, _PAGE = 1 << 22, 1 << 21  # bytes that are worth it; of a page
_ADVICE = 14  # Linux's MADV_HUGEPAGE


def _find() -> Optional[Callable[..., Any]]:
    try:
        found = ctypes.CDLL(None).madvise
    except (OSError, AttributeError, TypeError):
        return None
    found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return found  # type: ignore[no-any-return]


_advise = _find()


def in_large_pages(made: Tensor) -> Tensor:
    """Itself, a new one that nothing was written to yet; what else its pages hold is left alone. Where Linux has no such pages, or is
    told to make none, nothing comes of it."""
    size = made.numel() * made.element_size()
    if size >= _LEAST and _advise is not None:
        first = -(-made.data_ptr() // _PAGE) * _PAGE
        last = (made.data_ptr() + size) // _PAGE * _PAGE
        if last > first:
            _advise(first, last - first, _ADVICE)
    return made
