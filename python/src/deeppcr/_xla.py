# SPDX-License-Identifier: MIT
"""A handler of XLA's foreign function interface: how a compiled program of JAX calls the library, on its own buffers.

The interface is a call of C with one structure, the frame, whose layout XLA keeps for all versions 0.x of it; what is read of it
is declared here; XLA refuses the handler if its major version is another, and a frame that is smaller is refused here. So nothing is compiled against
jaxlib's headers, and one package serves every jaxlib. A call is told by an attribute, text such as "chain dense auto 0 3 1", from which
`functions` makes what runs: programs that are exported and read back in another process run there too.
"""
from __future__ import annotations

import _thread
import ctypes
import functools
import math
import struct
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

from . import _library as library
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
# What makes, of the words and arrays of a call, a function of the addresses that runs such a call again, or None.
repeats: Dict[str, Callable[..., Optional[Callable[[List[int]], None]]]] = {}


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


def _failure(api: int, raised: BaseException) -> Optional[int]:
    code = _INVALID if isinstance(raised, ValueError) else _EXHAUSTED if isinstance(raised, MemoryError) else _INTERNAL
    if isinstance(raised, KeyboardInterrupt):
        _thread.interrupt_main()  # raised again where the program was called
        code = _CANCELLED
    kind = type(raised)
    text = f"{kind.__module__}.{kind.__qualname__}: {raised}".encode("utf-8", "replace")
    arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, text, code)
    return _ERROR(_API.unpack_from(_MEMORY, api)[7])(ctypes.addressof(arguments))  # type: ignore[no-any-return]


def _version(api: int) -> Tuple[int, int]:
    return _API.unpack_from(_MEMORY, api)[4:6]


_GAP = 4096  # bytes between structures of which those between may be read: a page
_KEPT = 256  # of each of these two
_kinds: Dict[Any, "_Kind"] = {}  # calls, by their words and the dtypes and shapes of their arrays
_frames: Dict[Any, "_Frame"] = {}  # by where a frame's parts lie: XLA uses few frames for a program, again and again


class _Kind:
    """Calls over arrays that look alike. `ready` has what runs one more such, taken out while it runs: programs run on threads that
    may end with the call, so nothing is a thread's own."""

    __slots__ = ("generation", "ready", "frames")

    def __init__(self, generation: int) -> None:
        self.generation, self.frames = generation, 0
        self.ready: List[Any] = []

    def take(self) -> Any:
        """One of what is ready; None where all of it is at work on other threads."""
        try:
            return self.ready.pop()
        except IndexError:
            return None


class _Kinds:
    """What forgets them with the context."""

    @staticmethod
    def forget() -> None:
        _kinds.clear()
        _frames.clear()


library.Cache.all.append(_Kinds)


class _Frame:
    """A frame as it was: whether it is the same but for where its arrays' numbers lie is told in a few looks."""

    __slots__ = ("kind", "pieces", "looks", "numbers")

    def __init__(self, kind: _Kind, pieces: List[Tuple[int, int]], groups: List[Tuple[int, ...]]) -> None:
        """`pieces` (address, end) of memory where each leads to the next; then groups of buffers, by address."""
        self.kind, self.pieces = kind, [(slice(at, end), _MEMORY[at:end]) for at, end in pieces]
        self.looks: List[Any] = []
        self.numbers: List[Any] = []
        for group in groups:
            first, looks, numbers = _layout(group)
            self.looks.append((looks, first, looks(_MEMORY, first)))
            self.numbers.append((numbers, first))

    def addresses(self) -> Optional[List[int]]:
        """Those of the arrays' numbers; None where this is another frame by now."""
        memory = _MEMORY
        for place, text in self.pieces:
            if memory[place] != text:
                return None
        found: List[int] = []
        for (looks, first, seen), (numbers, _) in zip(self.looks, self.numbers):
            if looks(memory, first) != seen:
                return None
            found += numbers(memory, first)
        return found


def _layout(places: Tuple[int, ...]) -> Tuple[int, Any, Any]:
    """(first byte, what reads dtypes and shapes, what reads the addresses of the numbers) of buffers that lie near one another, in
    order, as XLA's do. Raises ValueError of others."""
    looks, numbers, used = [], [], []
    for place in places:
        _, _, _, _, rank, dims = _BUFFER.unpack_from(_MEMORY, place)
        looks += [(place + 16, "4s", 4), (place + 32, "16s", 16), *([(dims, f"{8 * rank}s", 8 * rank)] if rank else [])]
        numbers.append((place + 24, "Q", 8))
        used += [(place, _BUFFER.size), *([(dims, 8 * rank)] if rank else [])]
    used.sort()
    if list(places) != sorted(places) or any(not 0 <= b - (a + n) < _GAP for (a, n), (b, _) in zip(used, used[1:])):
        raise ValueError
    return used[0][0], _reader(used[0][0], looks), _reader(used[0][0], numbers)


def _reader(first: int, fields: List[Tuple[int, str, int]]) -> Any:
    text, at = "=", first
    for place, code, size in sorted(fields):
        text += f"{place - at}x{code}"
        at = place + size
    return struct.Struct(text).unpack_from


def _execute(frame: Tuple[int, ...]) -> None:
    key = frame[4:]
    known = _frames.get(key)
    at = None if known is None else known.addresses()
    if known is not None and at is not None and known.kind.generation == library.context.generation:
        again = known.kind.take()
        if again is not None:
            again(at)
            known.kind.ready.append(again)
            return
    many, given, more, found, attributes, types, items = key
    call = _call_of(attributes, types, items)
    arguments, results = _numbers(given, many), _numbers(found, more)
    kind, at = _kind_of(call, arguments, results)
    again = kind.take()
    if again is None:
        again = _first(call, arguments, results)
    else:
        again(at)
    if again is None:
        return
    kind.ready.append(again)
    if (known is None or known.kind is not kind) and kind.frames < 32:
        kind.frames += 1
        span = _TEXT_AT.unpack_from(_MEMORY, items)[0]
        text, size = _TEXT.unpack_from(_MEMORY, span)
        pieces = [(given, given + 8 * many), (found, found + 8 * more), (types, types + 4), (items, items + 8),
                  (span, span + _TEXT.size), (text, text + size)]  # fmt: skip
        try:
            made = _Frame(kind, pieces, [g for g in (arguments, results) if g])
        except ValueError:
            return
        if len(_frames) >= _KEPT:
            _Kinds.forget()
        _frames[key] = made


def _kind_of(call: bytes, arguments: Tuple[int, ...], results: Tuple[int, ...]) -> Tuple[_Kind, List[int]]:
    """The kind of a call, and the addresses of its arrays."""
    generation = library.context.generation
    key: List[Any] = [call, len(arguments), generation]
    at = []
    for place in arguments + results:
        _, _, dtype, address, rank, dims = _BUFFER.unpack_from(_MEMORY, place)
        at.append(address)
        key += dtype, _MEMORY[dims : dims + 8 * rank]
    name = tuple(key)
    kind = _kinds.get(name)
    if kind is None:
        if len(_kinds) >= _KEPT:
            _Kinds.forget()
        kind = _kinds[name] = _Kind(generation)
    return kind, at


def _first(call: bytes, arguments: Tuple[int, ...], results: Tuple[int, ...]) -> Any:
    """Runs a call over arrays such as there were none before; returns what runs it again."""
    buffers = [_BUFFER.unpack_from(_MEMORY, at) for at in arguments + results]
    arrays = [_array(b[2], b[3], _numbers(b[5], b[4])) for b in buffers]
    given, found = arrays[: len(arguments)], arrays[len(arguments) :]
    _run_of(call)(given, found)
    name, *words = call.decode().split(" ")
    return repeats[name](words, given, found) if name in repeats and all(a.size for a in arrays) else None


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def handler(address: int) -> Optional[int]:
    """XLA_FFI_Handler."""
    frame = _FRAME.unpack_from(_MEMORY, address)
    size, extension, api, stage = frame[:4]
    if extension:
        _, kind, _, metadata = _EXTENSION.unpack_from(_MEMORY, extension)
        if kind == _METADATA:  # asked at registration: the version is XLA's own, for what is read is in all of 0.x
            told = (ctypes.c_int * 2).from_address(metadata + _VERSION_OF_METADATA)
            told[0], told[1] = _MAJOR, max(1, _version(api)[1])  # XLA of version 0.1 does not say it
            return None
    try:
        if size < _FRAME.size:
            raise RuntimeError(f"a frame of {size} bytes; wanted {_FRAME.size} or more, as of version 0.x of XLA's interface")
        if stage == _EXECUTE:
            _execute(frame)
        return None
    except BaseException as raised:  # noqa: B902  nothing may pass through XLA
        return _failure(api, raised)


def capsule(function: Any = handler) -> Any:
    """What jax.ffi.register_ffi_target takes."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.cast(function, ctypes.c_void_p), None, None)
