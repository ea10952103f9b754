# SPDX-License-Identifier: MIT
"""What is raised. Every exception of the library is a `deeppcr.Error` and the builtin that fits."""
from __future__ import annotations

from typing import Optional


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
