# SPDX-License-Identifier: MIT
"""XLA's foreign function interface: how a compiled program of JAX calls the library, on its own buffers.

XLA calls the library's handler (deeppcr/xla.h) with one structure, the frame, whose layout XLA keeps for all versions 0.x of it. Frames
of calls that were made ready, a `Ready` each, the handler runs by itself; this is its host, which is asked of all others, and of failures. What is
read of a frame is declared here; XLA refuses the handler if its major version is another, and a frame that is smaller is refused here. So nothing
is compiled against jaxlib's headers, and one package serves every jaxlib. A call is told by an attribute, text such as "chain dense auto 0 3 1",
from which `functions` makes what runs: programs that are exported and read back in another process run there too.
"""
from __future__ import annotations

import atexit
import ctypes
import functools
import math
import os
import struct
import threading
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import numpy as np

from . import _abi
from . import _library as library
from ._ready import Ready
from .errors import ArgumentError

# XLA_FFI_CallFrame: size, extension, api, (context), stage; arguments and results of (size, extension), count, (types), items each;
# attributes of (size, extension), count, types, (names), items. What stands in brackets is not read.
_FRAME = struct.Struct("QQQ8xi4x" + "16xq8xQ" * 2 + "16xqQ8xQ")
_API = struct.Struct("QQ" + "QQii" + "QQ")  # size, extension, version (size, extension, major, minor), internal, error_create
_BUFFER = struct.Struct("QQi4xQqQ")  # size, extension, dtype, data, rank, dims
_EXTENSION = struct.Struct("Qi4xQQ")  # size, type, next, metadata
_TEXT, _TEXT_AT, _INT = struct.Struct("QQ"), struct.Struct("Q"), struct.Struct("i")
_VERSION_OF_METADATA = 8 + 16  # bytes before major and minor


class _ErrorArguments(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("extension", ctypes.c_void_p), ("message", ctypes.c_char_p), ("code", ctypes.c_int)]


_MAJOR, _METADATA, _EXECUTE, _STRING = 0, 1, 3, 4
_CANCELLED, _INVALID, _EXHAUSTED, _INTERNAL = 1, 3, 8, 13
_DTYPES = {1: np.dtype(np.bool_), 4: np.dtype(np.int32), 5: np.dtype(np.int64), 8: np.dtype(np.uint32), 11: np.dtype(np.float32),
           12: np.dtype(np.float64)}  # fmt: skip
_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)

Run = Callable[[List[np.ndarray], List[np.ndarray]], None]
functions: Dict[str, Callable[..., Run]] = {}  # by the first word of a call: takes the others
# What makes, of the words and arrays of a call, what runs such a call again: a Ready, a function of the addresses, or None.
repeats: Dict[str, Callable[..., "Again"]] = {}


@functools.lru_cache(512)
def _run_of(call: bytes) -> Run:
    words = call.decode().split(" ")
    try:
        return functions[words[0]](*words[1:])
    except (IndexError, KeyError, TypeError, ValueError):
        raise ArgumentError.of("the call", repr(call.decode()), "one that deeppcr.jax made") from None


def _array(kind: int, address: int, shape: Tuple[int, ...]) -> np.ndarray:
    """A view of a buffer."""
    dtype = _DTYPES.get(kind)
    if dtype is None:
        raise ArgumentError.of("a buffer's dtype", f"XLA's number {kind}", "booleans, int32, int64, uint32, float32 or float64")
    count = math.prod(shape)
    return numbers_at(address, dtype, count).reshape(shape) if count else np.empty(shape, dtype)


_MEMORY = library.MEMORY


def numbers_at(address: int, dtype: Any, count: int) -> np.ndarray:
    """Numbers where they lie."""
    return np.frombuffer(_MEMORY, dtype, count, address)


@functools.lru_cache(None)
def _words(count: int) -> Callable[[Any, int], Tuple[int, ...]]:
    return struct.Struct(f"{count}q").unpack_from


def _numbers(address: int, count: int) -> Tuple[int, ...]:
    return _words(count)(_MEMORY, address) if count else ()


def _call_of(count: int, types: int, items: int) -> bytes:
    if count != 1 or _INT.unpack_from(_MEMORY, types)[0] != _STRING:
        raise RuntimeError("a call without its one attribute")
    at, size = _TEXT.unpack_from(_MEMORY, _TEXT_AT.unpack_from(_MEMORY, items)[0])
    return _MEMORY[at : at + size]


def _fail(answer: Any, api: int, raised: BaseException) -> None:
    code = _INVALID if isinstance(raised, ValueError) else _EXHAUSTED if isinstance(raised, MemoryError) else _INTERNAL
    if isinstance(raised, KeyboardInterrupt):
        code, answer.interrupted = _CANCELLED, 1  # raised again where the program was called
    kind = type(raised)
    text = f"{kind.__module__}.{kind.__qualname__}: {raised}".encode("utf-8", "replace")
    arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, text, code)
    answer.error = _ERROR(_API.unpack_from(_MEMORY, api)[7])(ctypes.addressof(arguments))


def _version(api: int) -> Tuple[int, int]:
    return _API.unpack_from(_MEMORY, api)[4:6]


# ---- calls made ready ----

_lib = library.lib
OWN_BYTES = 1 << 20  # that a Ready keeps to itself
_ALL_BYTES = 64 << 20  # that all of them do
_TAKEN, _NEVER, _FULL = 1, 0, -1  # of dpcr_xla_keep


Again = Union[Ready, Callable[[List[int]], None], None]


class _Table:
    """What the handler has of ours. What it forgot lives on while it runs."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.kept: List[Ready] = []
        self.leaving: List[Ready] = []
        self.size, self.closed = 0, False

    def keep(self, frame: int, ready: Ready, generation: int) -> bool:
        """For frames like this one; of the context that had this number before anything of it was made. False where the handler takes no
        such frame."""
        with self.lock:
            if self.closed or generation != library.context.generation:
                return True
            if self.size + ready.size > _ALL_BYTES:
                self.forget()
            taken = self._hand(frame, ready)
            if taken == _FULL:
                self.forget()
                taken = self._hand(frame, ready)
            return taken != _NEVER

    def _hand(self, frame: int, ready: Ready) -> int:
        """To the handler. It is ours before and let go after: a Ctrl-C may come between any two lines."""
        kept = self.kept
        kept.append(ready)
        self.size += ready.size
        taken: int = _lib.dpcr_xla_keep(frame, ctypes.addressof(ready.call))
        if self.kept is not kept:  # a signal's handler forgot everything meanwhile
            self.kept.append(ready)
            self.forget()
        elif taken != _TAKEN:
            kept.remove(ready)
            self.size -= ready.size
        return taken

    def forget(self) -> None:
        _kinds.clear()
        with self.lock:
            _lib.dpcr_xla_forget()
            self.leaving += self.kept
            self.kept, self.size = [], 0
            self.leaving = [ready for ready in self.leaving if _lib.dpcr_xla_busy(ctypes.addressof(ready.call))]

    def close(self) -> None:
        """At the end. Threads of XLA's run calls still when all objects of Python's are gone, and one that came to Python then, as a host or to
        ask whether to stop, would end there, and XLA wait for it for ever. So what runs now is waited for, and what comes later fails. The
        wait is the library's: Ctrl-C is not looked at before the solves that run have ended."""
        self.closed = True
        _lib.dpcr_xla_set_host(_abi.XLA_HOST(), None, None, None)
        self.forget()


# ---- calls that Python makes ----

_KEPT = 256
_kinds: Dict[Any, "_Kind"] = {}  # by their words and the dtypes and shapes of their arrays


class _Kind:
    """Calls over arrays that look alike. `ready` has what runs one more such, taken out while it runs: programs run on threads that
    may end with the call, so nothing is a thread's own. `ours`: the handler takes no such call."""

    __slots__ = ("ready", "ours")

    def __init__(self) -> None:
        self.ready: List[Any] = []
        self.ours = False

    def take(self) -> Any:
        """One of what is ready; None where all of it is at work on other threads."""
        try:
            return self.ready.pop()
        except IndexError:
            return None


_table = _Table()
library.Cache.all.append(_table)
os.register_at_fork(before=_table.lock.acquire, after_in_parent=_table.lock.release, after_in_child=_table.lock.release)
atexit.register(_table.close)


def _execute(address: int, frame: Tuple[int, ...]) -> None:
    many, given, more, found, attributes, types, items = frame[4:]
    call = _call_of(attributes, types, items)
    arguments, results = _numbers(given, many), _numbers(found, more)
    generation = library.context.generation  # before anything is made
    kind, at, placed = _kind_of(call, arguments, results, generation)
    again = kind.take() if placed else None
    if again is None or not _repeated(again, at):
        again = _first(call, arguments, results, placed)
    if isinstance(again, Ready) and not kind.ours:
        kind.ours = not _table.keep(address, again, generation)
    if again is not None and (kind.ours or not isinstance(again, Ready)):
        kind.ready.append(again)


def _repeated(again: Any, at: List[int]) -> bool:
    """Whether it has run."""
    if isinstance(again, Ready):
        return again.run(at)
    again(at)
    return True


def _kind_of(call: bytes, arguments: Tuple[int, ...], results: Tuple[int, ...], generation: int) -> Tuple[_Kind, List[int], bool]:
    """The kind of a call, the addresses of its arrays, and whether those are multiples of their numbers' size."""
    key: List[Any] = [call, len(arguments), generation]
    at, low = [], 0
    for place in arguments + results:
        _, _, dtype, address, rank, dims = _BUFFER.unpack_from(_MEMORY, place)
        at.append(address)
        low |= address
        key += dtype, _MEMORY[dims : dims + 8 * rank]
    name = tuple(key)
    kind = _kinds.get(name)
    if kind is None:
        if len(_kinds) >= _KEPT:
            _kinds.clear()
        kind = _kinds[name] = _Kind()
    placed = not low & 7 or not any(a % _DTYPES[d].itemsize for a, d in zip(at, key[3::2]) if d in _DTYPES)
    return kind, at, placed


def _first(call: bytes, arguments: Tuple[int, ...], results: Tuple[int, ...], placed: bool) -> Again:
    """Runs a call over arrays such as there were none before; returns what runs it again, None for arrays that are not in their place."""
    buffers = [_BUFFER.unpack_from(_MEMORY, at) for at in arguments + results]
    arrays = [_array(b[2], b[3], _numbers(b[5], b[4])) for b in buffers]
    given, found = arrays[: len(arguments)], arrays[len(arguments) :]
    _run_of(call)(given, found)
    name, *words = call.decode().split(" ")
    return repeats[name](words, given, found) if placed and name in repeats and all(a.size for a in arrays) else None


@_abi.XLA_HOST
def host(address: int, failed: Optional[int], status: int, at: int) -> None:
    """dpcr_xla_host: runs what the handler does not know, and says what failed. A Ctrl-C that comes where nothing takes it any more tears it
    away, unfinished, which the handler sees."""
    answer, frame = _abi.XlaAnswer.from_address(at), _FRAME.unpack_from(_MEMORY, address)
    try:
        library.hosted(_answer, address, frame, failed, status)
    except BaseException as raised:  # noqa: B902  nothing may pass through XLA
        _fail(answer, frame[2], raised)
    answer.finished = 1


def _answer(address: int, frame: Tuple[int, ...], failed: Optional[int], status: int) -> None:
    size, extension, api, stage = frame[:4]
    if extension:
        _, kind, _, metadata = _EXTENSION.unpack_from(_MEMORY, extension)
        if kind == _METADATA:  # asked at registration: the version is XLA's own, for what is read is in all of 0.x
            told = (ctypes.c_int * 2).from_address(metadata + _VERSION_OF_METADATA)
            told[0], told[1] = _MAJOR, max(1, _version(api)[1])  # XLA of version 0.1 does not say it
            return
    if size < _FRAME.size:
        raise RuntimeError(f"a frame of {size} bytes; wanted {_FRAME.size} or more, as of version 0.x of XLA's interface")
    if failed:
        library.check(status, _abi.XlaCall.from_address(failed).error)
    elif stage == _EXECUTE:
        _execute(address, frame)


_lib.dpcr_xla_set_host(host, ctypes.cast(ctypes.pythonapi.PyErr_SetInterrupt, ctypes.c_void_p), library.INTERRUPTED,
                       library.INTERRUPTED_USER)  # fmt: skip


def capsule(function: Any = _lib.dpcr_xla_handler) -> Any:
    """What jax.ffi.register_ffi_target takes."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.cast(function, ctypes.c_void_p), None, None)
