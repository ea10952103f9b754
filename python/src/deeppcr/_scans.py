# SPDX-License-Identifier: MIT
"""What the scans share, the selective one and linear attention: arrays of which some may not be there go in, by number in the order of
their names; a result for every step and the last states come out, and the way back gives a gradient for every array. `Kind` tells of
one to PyTorch and JAX."""
from __future__ import annotations

import ctypes
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from . import _abi
from . import _library as library
from .errors import ArgumentError, UnsupportedError

ARRAY = np.ndarray
Shape = Tuple[int, ...]
Shapes = Sequence[Optional[Shape]]


def refuse_complex(name: str, dtype: Any) -> None:
    if "complex" in str(dtype):
        raise UnsupportedError.of(f"{name}'s dtype", dtype, "real numbers: scans of complex states are not computed here")


def common(names: Sequence[str], needed: int, given: Sequence[Any], **more: Any) -> List[Optional[ARRAY]]:
    """Arrays of one float dtype, of which the first `needed` have to be there."""
    named = {**dict(zip(names, given)), **more}
    there = {name: library.array(x, name) for name, x in named.items() if x is not None or name in names[:needed]}
    for name, x in there.items():
        refuse_complex(name, x.dtype)
    dtype = library.common(**there)
    dtype = np.dtype(np.float64) if dtype == np.uint32 else dtype
    return [library.cast(there[name], dtype, name) if name in there else None for name in named]


def _at(views: Sequence[Any]) -> List[Optional[int]]:
    return [None if view is None else ctypes.addressof(view) for view in views]


def _views(arrays: Sequence[Optional[ARRAY]]) -> List[Any]:
    return [None if x is None else library.of(x) for x in arrays]


class Scan:
    """Arrays of one float dtype as the library takes them, by functions that are alike but for their names."""

    CALL: str  # dpcr_<CALL>_scan
    FIELDS: Tuple[str, ...]  # of its structures, in the order of the arrays
    INTO: Any  # the structure for what goes in, and that for gradients
    GRADIENTS: Any
    structure: Any

    def _of_arrays(self, arrays: Sequence[Optional[ARRAY]], **more: Any) -> Tuple[Any, Any]:
        """The structure, and the views that it points to."""
        views = _views(arrays)
        return self.INTO(size=ctypes.sizeof(self.INTO), **dict(zip(self.FIELDS, _at(views))), **more), views

    def results(self) -> Tuple[Shape, Shape]:
        """The shapes of what comes out at every step and of the last states."""
        raise NotImplementedError

    def flops(self) -> Tuple[float, float]:
        """About how many the pass takes, and the way back."""
        raise NotImplementedError

    def kept_bytes(self) -> int:
        return int(getattr(library.lib, f"dpcr_{self.CALL}_kept_bytes")(ctypes.byref(self.structure)))

    def run(self, out: ARRAY, last: Optional[ARRAY], kept: int) -> None:
        """Fills out, last and, where that is not 0, what lies at `kept`."""
        error, error_ref = library.error_place()
        views, owner = _views((out, last)), library.context.get()  # which another thread's set_threads may put another in the place of
        call = getattr(library.lib, f"dpcr_{self.CALL}_scan")
        library.check(call(owner.address, ctypes.byref(self.structure), *_at(views), kept or None, error_ref), error)

    def back(self, gout: Optional[ARRAY], glast: Optional[ARRAY], kept: int, found: Sequence[Optional[ARRAY]]) -> None:
        """Fills the gradients that are wanted: those of `found`, which lie as what they belong to."""
        raise NotImplementedError

    def _adjoint(self, gout: Optional[ARRAY], glast: Optional[ARRAY], kept: int, found: Sequence[Optional[ARRAY]]) -> None:
        views = _views((gout, glast, *found))
        at = _at(views)
        gradients = self.GRADIENTS(size=ctypes.sizeof(self.GRADIENTS), **dict(zip(self.FIELDS, at[2:])))
        (error, error_ref), owner = library.error_place(), library.context.get()
        call = getattr(library.lib, f"dpcr_{self.CALL}_adjoint")
        library.check(call(owner.address, ctypes.byref(self.structure), *at[:2], kept or None, ctypes.byref(gradients), error_ref), error)


class Kind(NamedTuple):
    name: str  # of the operators
    what: str  # in a sentence
    names: Tuple[str, ...]
    needed: int
    gradients: Tuple[str, str]  # the names of what comes back by what came out at every step, and by the last states
    like: int  # what comes out has the shape of this array
    scan: Callable[[Sequence[Optional[ARRAY]], Any], Scan]  # of the arrays and an option
    check: Callable[[Shapes], Any]  # refuses shapes that do not fit together
    last: Callable[[Shapes], Shape]  # the last states' shape, of shapes that do

    def check_gradients(self, scan: Scan, given: Shapes) -> None:
        for name, shape, wanted in zip(self.gradients, given, scan.results()):
            if shape is not None and shape != wanted:
                raise ArgumentError.of(f"{name}'s shape", shape, str(wanted))
