# SPDX-License-Identifier: MIT
"""PyTorch's own threads. After each of its parallel operators they wait for the next one at full speed, for some milliseconds, on the
processors that a call of this package is about to use. OpenMP lets them be sent home: they come again with the next operator."""
from __future__ import annotations

import ctypes
import os
from typing import Any, Callable, Optional

import torch

from .. import _library as library

LONG = 2e8  # flops, about a millisecond: calling the threads back takes a twentieth of that
_SOFT = 1  # omp_pause_soft
_pause: Optional[Callable[[int], Any]] = None
_looked = False


def _find() -> Optional[Callable[[int], Any]]:
    """OpenMP 5's omp_pause_resource_all of the library that PyTorch has loaded, where it is one that has it."""
    try:
        with open("/proc/self/maps") as maps:
            paths = {line.split(None, 5)[5].strip() for line in maps if "/libgomp" in line}
        if len(paths) != 1:  # with two of them nobody knows whose threads they are
            return None
        return ctypes.CDLL(paths.pop(), os.RTLD_NOLOAD | os.RTLD_NOW).omp_pause_resource_all  # type: ignore[no-any-return]
    except (OSError, AttributeError, IndexError):
        return None


def send_home(flops: float) -> None:
    """Before a call of so much work. Not in a child after fork, whose threads are the parent's."""
    global _looked, _pause
    if flops < LONG or library.context.forks or torch.get_num_threads() < 2:
        return
    if not _looked:
        _looked, _pause = True, _find()
    if _pause is not None and library.threads() > 1:
        _pause(_SOFT)
