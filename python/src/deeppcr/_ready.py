# SPDX-License-Identifier: MIT
"""Calls made ready: several of the library's in one, without Python between."""
from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Sequence, Tuple

from . import _abi
from . import _library as library

_run = library.bare(library.lib.dpcr_xla_run_at)
_DECLINED = 1


class Here(NamedTuple):
    """Where the numbers of an array lie: known when it is called."""

    array: int


class Ready:
    """Calls of the library as one, over arrays that look alike: for its handler of XLA's frames, or for `run`. One such at a time.

    `steps` are (name, pointers, count, more), see deeppcr/xla.h; a pointer is an address, None or `Here`. `places` are (array, address of a
    pointer to it) besides. `keep`: what all of this points to, of `size` bytes.
    """

    __slots__ = ("call", "size", "_at", "_run", "_kept")

    def __init__(self, steps: Sequence[Tuple[str, Sequence[Any], int, int]], places: Sequence[Tuple[int, int]], size: int, *keep: Any) -> None:
        made, pointers = (_abi.XlaStep * len(steps))(), _abi.XlaStep.given.offset
        everything = list(places)
        for step, (name, given, count, more) in zip(made, steps):
            step.what, step.count, step.more = _abi.CONSTANTS[f"DPCR_XLA_{name}"], count, more
            for i, pointer in enumerate(given):
                if isinstance(pointer, Here):
                    everything.append((pointer.array, ctypes.addressof(step) + pointers + 8 * i))
                else:
                    step.given[i] = pointer
        listed = (_abi.XlaPlace * len(everything))(*everything)
        self.call = _abi.XlaCall(size=ctypes.sizeof(_abi.XlaCall), steps=len(made), places=len(listed),
                                 step=ctypes.addressof(made), place=ctypes.addressof(listed))  # fmt: skip
        self.size, self._kept = size, (made, listed, keep)
        self._at = (ctypes.c_void_p * (1 + max((array for array, _ in everything), default=-1)))()
        self._run = (ctypes.byref(self._at), ctypes.byref(self.call))

    def run(self, addresses: Sequence[int]) -> bool:
        """Over arrays at these addresses, 0 for none, one for each. False where it does not serve: coefficients of no filter."""
        self._at[:] = addresses  # type: ignore[call-overload]
        status = _run(*self._run)
        if status and status != _DECLINED:
            library.check(status, self.call.error)
        return bool(status != _DECLINED)
