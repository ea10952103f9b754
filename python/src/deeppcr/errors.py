# SPDX-License-Identifier: MIT
"""What is raised. Every exception of the library is a `deeppcr.Error` and the builtin that fits."""
from __future__ import annotations

import math
import operator
from typing import Collection, Optional, TypeVar


class Error(Exception):
    """What the library refuses or cannot do.

    Attributes
    ----------
    what : str
        Where, such as an argument's name; None where the text alone says it.
    got, wanted : str
        What was given and what is taken instead; None where the text alone says it.
    """

    def __init__(self, text: str, what: Optional[str] = None, got: object = None, wanted: Optional[str] = None) -> None:
        super().__init__(text)
        self.what = what
        self.got = got
        self.wanted = wanted

    @classmethod
    def of(cls, what: str, got: object, wanted: str) -> "Error":
        return cls(f"{what} is {got}; wanted {wanted}", what, got, wanted)


class ArgumentError(Error, ValueError):
    """An argument that is out of its range, or of another shape or dtype than wanted."""


class UnsupportedError(Error, ValueError):
    """A combination that cannot work; the text names what would."""


class OutOfMemory(Error, MemoryError):
    """Memory was refused, or a size does not fit its type."""


class RunError(Error, RuntimeError):
    """Something failed on the way: the system refused threads, or a callback aborted."""


class NotConverged(RunError):
    """A solve without fallback spent its budget."""


Value = TypeVar("Value")


_MOST_SHOWN = 80  # characters


def shown(given: object) -> str:
    """`given` in a message, in one line. Python itself refuses to write whole numbers of some thousands of digits."""
    if isinstance(given, int) and given.bit_length() > 128:
        return f"a whole number of {given.bit_length()} bits"
    shape, dtype = getattr(given, "shape", ()), getattr(given, "dtype", None)
    if isinstance(shape, tuple) and shape and dtype is not None:
        return f"an array {tuple(shape)} of {dtype}"
    line = " ".join(repr(given).split())
    return line if len(line) <= _MOST_SHOWN else line[: _MOST_SHOWN - 3] + "..."


def one_of(what: str, given: Value, known: Collection[object]) -> Value:
    """`given` where it is one of what is known."""
    try:
        if given in known:
            return given
    except (TypeError, ValueError):  # nothing that could be looked up, or an array, which equals a name here and there
        pass
    raise ArgumentError.of(what, shown(given), "one of " + ", ".join(map(str, known)))


def _reads_as_number(given: object) -> bool:
    """Whether float() takes what is no number: words, yes and no, complex numbers, times; of NumPy's and PyTorch's kinds too."""
    dtype = getattr(given, "dtype", None)
    return isinstance(given, (bool, str, bytes, bytearray)) or getattr(dtype, "kind", "f") in "bcSUmM" or str(dtype) == "torch.bool"


def number(what: str, given: object) -> float:
    """`given` as a float."""
    try:
        if type(given) is not float and type(given) is not int and _reads_as_number(given):
            raise TypeError
        return float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ArgumentError.of(what, shown(given), "a number") from None
    except OverflowError:
        raise ArgumentError.of(what, shown(given), "a number that a double holds") from None


def finite(what: str, given: object) -> float:
    """`given` as a float that is neither infinite nor no number."""
    made = number(what, given)
    if not -math.inf < made < math.inf:  # a comparison, which torch.compile follows where the number changes from call to call
        raise ArgumentError.of(what, made, "a finite number")
    return made


def flag(what: str, given: object) -> bool:
    """`given` as a bool, where it is one: not "no", which Python takes for True."""
    if given is True or given is False:
        return given
    if type(given).__name__ in ("bool", "bool_") or isinstance(given, int) and given in (0, 1):  # NumPy's
        return bool(given)
    raise ArgumentError.of(what, shown(given), "True or False")


def whole_number(what: str, given: object, least: int = 0, most: int = (1 << 63) - 1) -> int:
    """`given` where it is an int of that range."""
    wanted = f"a whole number from {least} to {most}" if most < 1 << 62 else f"a whole number, {least} or more"
    try:
        if isinstance(given, bool):
            raise TypeError
        number = operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError.of(what, shown(given), wanted) from None
    if not least <= number <= most:
        raise ArgumentError.of(what, shown(number) if number.bit_length() > 128 else number, wanted)
    return number
