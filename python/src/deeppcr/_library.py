# SPDX-License-Identifier: MIT
"""The shared library: loading it, its context, errors as exceptions, memory for its work, Ctrl-C and fork."""
from __future__ import annotations

import ctypes
import math
import os
import pathlib
import re
import signal
import sys
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterable, List, NoReturn, Optional, Set, Tuple

import numpy as np

from . import __version__, _abi, errors

Array = _abi.Array


def _load() -> ctypes.CDLL:
    """DEEPPCR_LIBRARY in the environment, the library in a folder of the package, or the system's."""
    places = [pathlib.Path(folder).resolve() / "libdeeppcr.so" for folder in sys.modules[__package__].__path__]  # two of an editable install
    path = os.environ.get("DEEPPCR_LIBRARY") or next((str(place) for place in places if place.exists()), "libdeeppcr.so.0")
    try:
        library = ctypes.CDLL(path)
        library.dpcr_version.restype = ctypes.c_char_p
        found = library.dpcr_version().decode()
        if found.split(".")[:2] != __version__.split(".")[:2]:  # before 1.0 a minor version may change the interface
            raise ImportError(f"deeppcr: the library {path} is of version {found}, wanted {__version__}, whatever its last number")
        _abi.declare(library)
    except (OSError, AttributeError) as error:
        raise ImportError(f"deeppcr: no usable library {path} ({error})") from None
    return library


lib = _load()

# ---- errors ----

_CANCELLED = _abi.CONSTANTS["DPCR_ERROR_CANCELLED"]
_CLASSES = {
    _abi.CONSTANTS["DPCR_ERROR_ARGUMENT"]: errors.ArgumentError,
    _abi.CONSTANTS["DPCR_ERROR_UNSUPPORTED"]: errors.UnsupportedError,
    _abi.CONSTANTS["DPCR_ERROR_MEMORY"]: errors.OutOfMemory,
    _abi.CONSTANTS["DPCR_ERROR_OVERFLOW"]: errors.OutOfMemory,
    _abi.CONSTANTS["DPCR_ERROR_FORMAT"]: errors.ArgumentError,
}

_local = threading.local()


def error_place() -> Any:
    """(dpcr_error of this thread, reference to it)."""
    try:
        return _local.error
    except AttributeError:
        error = _abi.Error()
        _local.error = (error, ctypes.byref(error))
        return _local.error


# ---- memory ----

_KEPT_BYTES = 256 << 20  # of free buffers that wait for the next call
_KEPT_BUFFERS = 16
_LENT_BYTES = 1 << 24, _KEPT_BYTES // 4  # of a result whose memory is lent: least, most
_LENT_NUMBERS = _LENT_BYTES[0] // 8  # fewer are less
_free: List[np.ndarray] = []
_returned: Deque[np.ndarray] = deque(maxlen=2)  # what results have left, beside the kept ones until the next call
_free_lock = threading.Lock()


def take(size: int) -> np.ndarray:
    """A buffer for `size` bytes of the library's work, 64 to spare: the smallest of the kept ones that serves, or a new one."""
    room = size + 64
    with _free_lock:
        _keep_returned()
        best = -1
        for i, buffer in enumerate(_free):
            if room <= buffer.nbytes <= 4 * room + 65536 and (best < 0 or buffer.nbytes < _free[best].nbytes):
                best = i
        if best >= 0:
            return _free.pop(best)
    try:
        return np.empty(room, np.uint8)
    except MemoryError:
        raise errors.OutOfMemory(f"no memory for {size} bytes of work", "work", size) from None


def give(buffer: np.ndarray) -> None:
    """Keeps a buffer for the next call."""
    with _free_lock:
        _free.append(buffer)
        _keep_returned()


def _keep_returned() -> None:
    """What results have left joins the kept buffers, of which there are no more than may be. Under the lock."""
    while _returned:
        _free.append(_returned.popleft())
    while len(_free) > _KEPT_BUFFERS or sum(b.nbytes for b in _free) > _KEPT_BYTES:
        _free.pop(0)


class _Lent:
    """The memory of a large result, which goes back to the kept buffers with the last array or tensor that has it: an operating
    system clears each page that it hands out, which takes longer than a network's run. Any thread may be the last, and the
    collector in the middle of anything: no lock is taken there."""

    __slots__ = ("buffer", "__array_interface__")

    def __init__(self, buffer: np.ndarray, shape: Tuple[int, ...], dtype: Any) -> None:
        self.buffer = buffer
        self.__array_interface__ = {"shape": shape, "typestr": np.dtype(dtype).str, "data": (aligned(buffer), False), "version": 3}

    def __del__(self) -> None:
        _returned.append(self.buffer)


_byte_of: Any = ctypes.c_char.from_buffer  # NumPy's types know the buffer protocol from Python 3.12 on
_address_of = ctypes.addressof


def address(array: np.ndarray) -> int:
    """Where an array's numbers begin, by the buffer protocol where that may say it: NumPy's own way takes three times as long."""
    try:
        return _address_of(_byte_of(array))
    except (TypeError, ValueError, BufferError):  # read-only, with gaps, or empty
        return int(array.__array_interface__["data"][0])


# All memory as one buffer, in which bytes are read where they lie: ctypes.string_at takes twice as long.
MEMORY: Any = (ctypes.c_char * sys.maxsize).from_address(0)


def bytes_at(address: int, size: int) -> bytes:
    return MEMORY[address : address + size]  # type: ignore[no-any-return]


def aligned(buffer: np.ndarray) -> int:
    """The buffer's first address at a multiple of 64 (buffers have 64 bytes to spare)."""
    return (address(buffer) + 63) & ~63


# ---- the context ----


class Handle:
    """Something that the library made and has to destroy, after all that was made from it, in whatever order the collector
    drops them. A child after fork leaves it alone: its locks may be taken."""

    __slots__ = ("address", "destroy", "owner", "fork", "_left", "_children", "_dropped", "__weakref__")

    def __init__(self, address: Any, destroy: Any, owner: Optional["Handle"] = None) -> None:
        self.address, self.destroy, self.owner, self.fork = address, destroy, owner, context.forks
        # Sets and lists, whose pop and discard nothing comes between: finalisers may run at any time and on any thread.
        self._left, self._dropped = [address], False
        self._children: Set[int] = set()
        if owner is not None:
            owner._children.add(id(self))

    def __del__(self) -> None:
        self._dropped = True
        self._end()

    def _end(self) -> None:
        if not self._dropped or self._children or context is None or self.fork != context.forks:
            return
        try:
            address = self._left.pop()
        except IndexError:
            return
        self.destroy(address)
        if self.owner is not None:
            self.owner._children.discard(id(self))
            self.owner._end()


class Unchanging:
    """Something that a copy may share, and that a pickle makes anew, of the arguments in `_made_of`."""

    _made_of: Tuple[Any, ...]

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, _memo: Any) -> Any:
        return self

    def __reduce__(self) -> Any:
        return type(self), self._made_of


# Asks for SIGINT, of which only the main thread is told, and runs no Python for it: neither ours nor, as a callback of ctypes's would, other
# packages' audit hooks, which a SIGINT would tear away. See check(). It outlives the module: at the end daemon threads still ask.
_ASK = _abi.LockedCancel(*(ctypes.cast(function, ctypes.c_void_p) for function in (
    ctypes.pythonapi.PyGILState_Ensure, ctypes.pythonapi.PyOS_InterruptOccurred, ctypes.pythonapi.PyGILState_Release)))  # fmt: skip
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_ASK))
INTERRUPTED, INTERRUPTED_USER = ctypes.cast(lib.dpcr_cancel_locked, ctypes.c_void_p), ctypes.addressof(_ASK)


class _Context:
    """One a process, made at first use; a new one for another number of threads, and in a child after fork."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.forks = 0
        self.generation = 0  # of the context: what was made from an earlier one is made again
        self.threads = 0
        self.handle: Optional[Handle] = None

    def get(self) -> Handle:
        handle = self.handle  # looked at once: another thread may renew it
        if handle is None:
            with self.lock:
                handle = self.handle
                if handle is None:
                    handle = self.handle = self._create()
        return handle

    def _create(self) -> Handle:
        options = _abi.ContextOptions(size=ctypes.sizeof(_abi.ContextOptions), threads=self.threads, cancel=INTERRUPTED,
                                      cancel_user=INTERRUPTED_USER)  # fmt: skip
        place, (error, error_ref) = ctypes.c_void_p(), error_place()
        check(lib.dpcr_context_create(ctypes.byref(options), ctypes.byref(place), error_ref), error)
        return Handle(place.value, lib.dpcr_context_destroy)

    def renew(self) -> None:
        self.handle = None
        self.generation += 1  # after it: who reads the new number gets the new context
        for cache in Cache.all:
            cache.forget()


context: Any = None


def hosted(function: Callable[..., None], *arguments: Any) -> None:
    """Calls a function for a host that runs the handler of SIGINT itself, and later. SIGINT is heard where a function begins or a call
    returns: not between the end of `function`, however it ends, and the last line here."""
    before = getattr(_local, "hosted", False)  # one may run within another
    try:
        _local.hosted = True
        function(*arguments)
    finally:
        _local.hosted = before


def interrupt() -> NoReturn:
    """Raises what SIGINT means: what the handler raises that Python would have run. One that raises nothing cannot bring back what was
    given up halfway."""
    if not getattr(_local, "hosted", False):
        signal.raise_signal(signal.SIGINT)
    raise KeyboardInterrupt


def check(status: int, error: Any) -> None:
    """Raises what a status other than DPCR_OK means."""
    if status == 0:
        return
    if status == _CANCELLED:
        interrupt()
    text = error.text.decode("utf-8", "replace")
    match = re.fullmatch(r"(?:\w+: )?(.*?)(?: is |: | )(.*?)[,;] wanted (.*)", text)
    raise _CLASSES.get(status, errors.RunError)(text, *(match.groups() if match else (None, None, None)))


def _after_fork() -> None:
    global _free_lock
    _free_lock = threading.Lock()
    context.lock = threading.RLock()
    context.forks += 1
    context.renew()


def threads() -> int:
    """Threads that the library works with."""
    owner = context.get()
    return int(lib.dpcr_context_threads(owner.address))


def set_threads(count: int) -> None:
    """Sets the number of threads that the library works with. Of a method and a scheme that are named results do not depend on it,
    bit for bit; "auto" may choose another for another number, whose results are the same within tolerances.

    Parameters
    ----------
    count : int
        0 for as many as this process may run on.

    Returns
    -------
    None

    Raises
    ------
    ArgumentError
        Of what is no whole number from 0 to 4096.
    """
    count = errors.whole_number("threads", count, 0, 4096)
    with context.lock:
        context.threads = count
        context.renew()


class Cache:
    """The things last used, by key. Plans cost more than short calls, and most programs use few shapes."""

    all: List[Any] = []  # and the others that have `forget`

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.kept: Dict[Any, Any] = {}
        self.lock = threading.RLock()  # finalisers of modules come here too, on any thread, at any time
        Cache.all.append(self)

    def put(self, key: Any, value: Any) -> None:
        with self.lock:
            self.kept[key] = value
            while len(self.kept) > self.limit:
                self.kept.pop(next(iter(self.kept)), None)

    def forget(self) -> None:
        self.lock = threading.RLock()
        self.kept = {}


class Recent(Dict[Any, Any]):
    """Calls made ready, of which those used last are kept. Who uses one takes it out and puts it back after: a signal's handler that
    comes in between makes its own."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def keep(self, key: Any, call: Any) -> None:
        while len(self) >= self.limit:
            self.pop(next(iter(self)), None)
        self[key] = call


class Own:
    """Calls made ready, of each thread's own: forgotten with the context, which they keep."""

    def __init__(self, limit: int = 256) -> None:
        self.limit = limit
        self.forget()
        Cache.all.append(self)

    def kept(self) -> Recent:
        local = self.local
        try:
            return local.kept  # type: ignore[no-any-return]
        except AttributeError:
            local.kept = Recent(self.limit)
            return local.kept  # type: ignore[no-any-return]

    def keep(self, key: Any, call: Any) -> None:
        """Keeps it where the key is one: an array may be a number among the options, and is none."""
        try:
            self.kept().keep(key, call)
        except TypeError:
            pass

    def forget(self) -> None:
        self.local = threading.local()


context = _Context()
os.register_at_fork(after_in_child=_after_fork)

# ---- arrays ----

DTYPES = {np.dtype(np.float32): 1, np.dtype(np.float64): 2, np.dtype(np.uint32): 3}
NAMES: Dict[int, Any] = {code: dtype for dtype, code in DTYPES.items()}
_HOST = _abi.Device(_abi.CONSTANTS["DPCR_HOST"], 0)


def view(address: int, dtype: int, shape: Iterable[int], strides: Optional[Tuple[int, ...]] = None) -> Any:
    """A dpcr_array; strides in elements, contiguous without."""
    made = Array()
    made.data = address
    made.dtype = dtype
    made.device = _HOST
    shape = tuple(shape)
    made.ndim = len(shape)
    made.shape[: len(shape)] = shape
    if strides is None:
        step, counted = 1, []
        for n in reversed(shape):
            counted.append(step)
            step *= n
        strides = tuple(reversed(counted))
    made.strides[: len(shape)] = strides
    return made


def of(array: np.ndarray) -> Any:
    """A dpcr_array over a NumPy array of one of the library's dtypes."""
    size = array.itemsize
    strides = tuple(s // size for s in array.strides) if array.size else None  # NumPy's mean nothing there
    return view(array.ctypes.data, DTYPES[array.dtype], array.shape, strides)


_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t


def bare(function: Any) -> Any:
    """One of the library's functions that return a status, or nothing (then what comes back means nothing), for arguments of ctypes' own
    types, which are not looked at: that takes 0.7 us less where there are eight. None is NULL; no numbers."""
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.cast(function, _POINTER).value or 0)


OWN_BYTES = 1 << 16  # of work that a call made ready keeps for itself


class Call:
    """One of the library's functions with its arguments, all but the addresses: made once for arrays that look alike. `owner`, a plan
    or a handle, has the address of the first; the arrays come as the library takes them, None where there is none; `workspace` is
    the size of the work that such a function takes after them."""

    __slots__ = ("function", "owner", "views", "given", "workspace", "size", "work", "error", "error_ref")

    def __init__(self, function: Any, owner: Any, arrays: Iterable[Optional[np.ndarray]], workspace: Optional[int] = None) -> None:
        self.function, self.owner = function, owner
        self.views = [None if array is None else of(array) for array in arrays]
        self.given: List[Any] = [_POINTER(owner.address), *[None if view is None else ctypes.byref(view) for view in self.views]]
        self.workspace, self.size, self.work = workspace or 0, 0, None
        if workspace is not None and workspace > OWN_BYTES:
            self.size = workspace
        elif workspace is not None:
            self.work = np.empty(workspace + 64, np.uint8)
            self.given += [_POINTER(aligned(self.work)), _SIZE(workspace)]
        self.error = _abi.Error()
        self.error_ref = ctypes.byref(self.error)

    def run(self, addresses: Iterable[int], *rest: Any) -> None:
        """`rest` are the arguments between the work and the error: of ctypes' own types, or None."""
        for view, at in zip(self.views, addresses):
            if view is not None:
                view.data = at
        if self.size:
            work = take(self.size)
            status = self.function(*self.given, _POINTER(aligned(work)), _SIZE(self.size), *rest, self.error_ref)
            give(work)
        else:
            status = self.function(*self.given, *rest, self.error_ref)
        if status:
            check(status, self.error)


def common(**arrays: Any) -> np.dtype:
    """The dtype that a call works in: float32, float64 or uint32 where all agree, else as NumPy promotes, in floats."""
    there = {name: array for name, array in arrays.items() if array is not None}
    for name, array in there.items():
        real(array, name)
    dtype = np.result_type(*[array.dtype for array in there.values()])  # NumPy 1 would weigh the values of those without dimensions
    if dtype in DTYPES:
        return np.dtype(dtype.newbyteorder("="))
    if dtype.kind in "biu":
        return np.dtype(np.float64)
    if dtype == np.float16:
        return np.dtype(np.float32)
    raise errors.ArgumentError.of("dtype", dtype, "float32, float64 or uint32")


def dtype_of(given: Any, known: str) -> np.dtype:
    """What names one of the `known` dtypes. None, which to NumPy is float64, names none."""
    try:
        dtype = np.dtype(given)
    except Exception:  # what it raises is whatever the object's own attributes do
        dtype = given
    if given is None or str(dtype) not in known.split():
        got = str(dtype) if given is not None and isinstance(dtype, np.dtype) else errors.shown(given)
        raise errors.ArgumentError.of("dtype", got, " or ".join(known.split()))
    return dtype


def real(array: np.ndarray, name: str) -> None:
    """Refuses complex numbers, text, objects, and numbers of more than 64 bits."""
    if array.dtype.kind not in "fiub":
        raise errors.ArgumentError.of(f"{name}'s dtype", array.dtype, "real numbers")
    if array.dtype.itemsize > 8:
        raise errors.ArgumentError.of(f"{name}'s dtype", array.dtype, "float64 or less: nothing here is computed in more")


def float_of(dtype: np.dtype) -> np.dtype:
    """float32, in this processor's order of bytes, of float32 in either; else float64."""
    return np.dtype(np.float32 if dtype.newbyteorder("=") == np.float32 else np.float64)


def refuse_first(name: str, wrong: np.ndarray, array: np.ndarray, wanted: str) -> None:
    """Refuses the first of an array's numbers that is wrong."""
    at = np.flatnonzero(wrong)
    if at.size:
        place = ", ".join(map(str, np.unravel_index(at[0], array.shape)))
        raise errors.ArgumentError.of(f"{name}[{place}]", array.flat[at[0]], wanted)


def no_memory(name: str, shape: Iterable[int]) -> errors.Error:
    return errors.OutOfMemory.of(f"{name}'s shape", tuple(shape), "one that there is memory for")


_REFUSED = MemoryError, ValueError  # by NumPy: more than there is, more than there can be


def empty(shape: Tuple[int, ...], dtype: Any, name: str = "the result") -> np.ndarray:
    """A new array."""
    try:
        count = math.prod(shape)
        if count >= _LENT_NUMBERS and _LENT_BYTES[0] <= count * np.dtype(dtype).itemsize <= _LENT_BYTES[1]:
            return np.asarray(_Lent(take(count * np.dtype(dtype).itemsize), shape, dtype))
        return np.empty(shape, dtype)
    except _REFUSED:
        raise no_memory(name, shape) from None


def empty_like(array: np.ndarray, dtype: Any = None) -> np.ndarray:
    """A new array for a result, which lies in the order that another one does."""
    try:
        return np.empty_like(array, dtype)
    except _REFUSED:
        raise no_memory("the result", array.shape) from None


def copied(array: np.ndarray, name: str = "the result") -> np.ndarray:
    """The numbers in a new array, one after another."""
    try:
        return array.copy()
    except _REFUSED:
        raise no_memory(name, array.shape) from None


def cast(array: np.ndarray, dtype: Any, name: str) -> np.ndarray:
    """The numbers in that dtype: the array itself where it has it."""
    if array.dtype is dtype:
        return array
    try:
        return array.astype(dtype, copy=False)
    except _REFUSED:
        raise no_memory(name, array.shape) from None


def reshaped(array: np.ndarray, shape: Tuple[int, ...], name: str) -> np.ndarray:
    """The numbers in that shape: a view where there is one."""
    try:
        return array.reshape(shape)
    except MemoryError:
        raise no_memory(name, array.shape) from None


def like(what: str, values: Any, shape: Tuple[int, ...], dtype: Any) -> np.ndarray:
    """Real numbers as a view of that shape, which they may be repeated to."""
    made = array(values, what)
    real(made, what)
    try:
        return np.broadcast_to(cast(made, dtype, what), shape)
    except ValueError:
        raise errors.ArgumentError.of(f"{what}'s shape", made.shape, str(tuple(shape))) from None


# DLPack's devices whose memory the processor reads, and names for some that it does not.
_READABLE = (1, 3, 11, 13)
_ELSEWHERE = {2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm", 14: "oneapi", 15: "webgpu"}


# What NumPy before 1.24 warns with of lists of uneven shape, which later ones refuse: raised, where warnings are.
_UNEVEN = getattr(np, "VisibleDeprecationWarning", ValueError)


_NO_DISPATCH = "_disabled_torch_dispatch_impl"  # of PyTorch's classes whose tensors have memory of their own


def array(values: Any, name: str = "an array") -> np.ndarray:
    """Values as an array; what speaks DLPack, such as tensors of PyTorch, or the buffer protocol as it lies, without a copy."""
    if type(values) is np.ndarray:
        return values
    kind = type(values).__name__
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise errors.ArgumentError.of(name, f"masked in {np.ma.count_masked(values)} places", "numbers everywhere, as by filled()")
    if not hasattr(values, "__dlpack_device__"):
        try:
            return np.asarray(values)
        except (TypeError, ValueError, _UNEVEN):
            if hasattr(values, "aval"):  # of JAX's, within a transform
                raise errors.ArgumentError.of(name, f"a {kind}, which has no numbers yet", "an array, or the function of deeppcr.jax") from None
            raise errors.ArgumentError.of(name, f"a {kind} of uneven shape", "numbers of one shape") from None
    layout = getattr(values, "layout", "strided")
    if "strided" not in str(layout):
        raise errors.ArgumentError.of(f"{name}'s layout", layout, "a dense one, as by to_dense()")
    if getattr(values, "is_nested", False):
        raise errors.ArgumentError.of(name, "a nested tensor", "numbers of one shape")
    if getattr(getattr(type(values), "__torch_dispatch__", None), "__name__", _NO_DISPATCH) != _NO_DISPATCH:
        raise errors.ArgumentError.of(name, f"a {kind}, whose memory is elsewhere", "a torch.Tensor, or the function of deeppcr.torch")
    try:
        device, number = values.__dlpack_device__()
    except Exception as error:  # noqa: B902  a framework's own, such as for a device without memory
        where = getattr(values, "device", error)
        if str(where) == "cpu":  # PyTorch's, within a transform of torch.func
            raise errors.ArgumentError.of(name, f"a {kind} that a transform follows", "numbers, or the function of deeppcr.torch") from None
        raise errors.UnsupportedError.of(f"{name}'s device", where, "memory that the processor reads") from None
    if device not in _READABLE:
        where = f"{_ELSEWHERE.get(device, f'DLPack device {int(device)}')}:{number}"
        raise errors.UnsupportedError.of(f"{name}'s device", where, "memory that the processor reads")
    if getattr(values, "requires_grad", False):
        raise errors.ArgumentError.of(name, f"a {kind} that requires gradients", "it detached, or the function of deeppcr.torch")
    if hasattr(values, "resolve_neg"):  # PyTorch's views that are to be negated or conjugated, of which DLPack does not tell
        values = values.resolve_neg().resolve_conj()
    if hasattr(values, "data_ptr") and values.numel() and not values.data_ptr():  # for which NumPy takes new memory
        raise errors.ArgumentError.of(name, f"a {kind} without memory, as of a storage that was freed", "numbers")
    found: Any = values
    try:
        found = np.from_dlpack(values)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError):
        pass  # NumPy before 1.22, dtypes that only the framework itself turns into NumPy's
    try:
        return np.asarray(found)
    except Exception as error:  # noqa: B902
        raise errors.ArgumentError.of(f"{name}'s dtype", getattr(values, "dtype", error), "one of NumPy's") from None


def whole(values: Any, dtype: Any, name: str = "an array") -> np.ndarray:
    """Real numbers as a contiguous array, aligned and in the machine's byte order; itself where it is one."""
    made = array(values, name)
    if made.dtype != dtype:
        real(made, name)
    try:
        made = np.asarray(made, dtype)
    except _REFUSED:
        raise no_memory(name, made.shape) from None
    return made if made.flags.c_contiguous and made.flags.aligned else copied(made, name)


def numbers(array: np.ndarray, contiguous: int) -> np.ndarray:
    """The array itself where its strides are whole elements and its last dimensions contiguous, else a copy."""
    size, ok, step = array.itemsize, array.flags.aligned and array.dtype.isnative, array.itemsize
    if ok and not array.size:  # whose strides NumPy 2.4 calls 0
        return array
    for axis in range(array.ndim - 1, -1, -1):
        if axis >= array.ndim - contiguous and array.shape[axis] != 1:
            ok = ok and array.strides[axis] == step
        step *= array.shape[axis]
        ok = ok and array.strides[axis] % size == 0
    if ok:
        return array
    copy = empty(array.shape, array.dtype.newbyteorder("="))
    copy[...] = array
    return copy  # a new one: NumPy calls contiguous what is not aligned


def flush_denormals(flush: bool = True) -> Optional[bool]:
    """Sets whether numbers below 1.2e-38 (float32; 2.2e-308 in float64) become 0 in what this thread computes, here and in NumPy.

    States and gradients that die away end among such numbers and stay there, and many processors, Intel's above all, take up to ten
    times as long with them. The package computes as the thread that calls does, on all its threads; PyTorch's
    `torch.set_flush_denormal` sets the same.

    Parameters
    ----------
    flush : bool, default True
        False: they are computed with, as is the default.

    Returns
    -------
    bool or None
        What it was; None, and nothing is done, on processors other than x86-64 and 64-bit ARM.

    Raises
    ------
    ArgumentError
        Of what is neither True nor False.
    """
    before = int(lib.dpcr_flush_denormals(int(errors.flag("flush", flush))))
    return None if before < 0 else before == 1
