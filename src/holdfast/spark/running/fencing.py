"""A driver that another one has overtaken is told so, however it finds out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from holdfast.errors import Conflict

P = ParamSpec("P")
R = TypeVar("R")


class Writer(Protocol):
    """Makes versions, and can see that somebody else does."""

    def overtaken(self) -> Conflict | None:
        """The conflict with whoever went on from the newest version here, if anyone has."""
        ...


W = TypeVar("W", bound=Writer)


def fenced(method: Callable[Concatenate[W, P], R]) -> Callable[Concatenate[W, P], R]:
    """Whatever fails in a method because another writer went on fails as a Conflict.

    What it went on from, and what it has delivered, may be gone by then: a task does not find its
    version, a sink has seen later ones.
    """

    @functools.wraps(method)
    def call(writer: W, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(writer, *args, **kwargs)
        except Exception as error:
            conflict = None if isinstance(error, Conflict) else writer.overtaken()
            if conflict is None:
                raise
            raise conflict from error

    return call
