"""What makes a query fail, as one of Holdfast's errors wherever it is one."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException

from holdfast import errors
from holdfast.errors import Conflict, HoldfastError, InvalidArgument, Unavailable

_IN_TASK = re.compile(
    r"^holdfast\.errors\.(?P<kind>\w+): (?P<message>.+)$(?P<notes>(?:\n(?!Traceback)\S.*$)*)",
    re.MULTILINE,
)
"""How a task's traceback ends in one of our errors, with the notes that were added to it."""
_CONDITION = re.compile(r"\[(?P<name>[A-Z_]+)\]")
"""The note of `streams.tasks.task` on an error's condition."""
_TRACEBACK = "Traceback (most recent call last)"
_DISK_IS_FULL = re.compile(
    r"java\.\S+Exception: .*?(?P<why>No space left on device|Disk quota exceeded)"
)
"""What Spark's own writing says; a function of the user's may write elsewhere, in Python."""

_NEEDED = ("holdfast", "numpy", "pyarrow", "fsspec", "xxhash")
_MISSING = re.compile(
    rf"ModuleNotFoundError: No module named '(?P<module>(?:{'|'.join(_NEEDED)})(?:\.[\w.]+)?)'"
)
P = ParamSpec("P")
R = TypeVar("R")


def unwrapped(error: BaseException) -> BaseException:
    """The HoldfastError that an error of Spark's wraps, with that as its cause; else the error.

    An error that a task raises reaches the driver as text, within some thousand characters of
    Python's and Java's stacks.
    """
    if not isinstance(error, (PySparkException, Py4JJavaError)):
        return error
    found = _told_in(str(error))
    if found is None:
        return error
    found.__cause__ = error
    return found


def as_end(error: HoldfastError) -> HoldfastError:
    """The error as the end of a query: of its own class, and a StreamingQueryException as well.

    Code written for Spark's streaming catches that; code written for Holdfast catches its own.
    """
    if isinstance(error, StreamingQueryException):
        return error
    kind: Any = type(error)
    ended: HoldfastError = _end_of(kind)(error.message, condition=error.condition)
    ended.__cause__ = error.__cause__
    for note in getattr(error, "__notes__", ()):
        ended.add_note(note)
    return ended.with_traceback(error.__traceback__)


@cache
def _end_of(kind: type[HoldfastError]) -> type[HoldfastError]:
    """A class that is both `kind` and Spark's for the end of a query."""

    def init(self: Any, message: str, *, condition: str | None = None) -> None:
        kind.__init__(self, message, condition=condition)
        StreamingQueryException.__init__(self, message=message, errorClass=condition)

    def reduce(self: Any) -> tuple[object, ...]:
        return kind(self.message, condition=self.condition).__reduce__()

    body = {
        "__init__": init,
        "__reduce__": reduce,
        "__str__": Exception.__str__,
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
    }
    return type(kind.__name__, (kind, StreamingQueryException), body)


def without_frames(error: BaseException) -> BaseException:
    """A copy of an error, and of what caused it, for who keeps it longer than its query.

    Tracebacks keep the frames that an error went through, with their local variables. The copy has
    their text as a note.
    """
    copied: BaseException = _copied(error, {})
    return copied


def _copied(part: Any, copies: dict[int, BaseException]) -> Any:
    """A copy of an error, and anything else as it is; `copies` are those made so far."""
    if not isinstance(part, BaseException) or id(part) in copies:
        return copies.get(id(part), part)
    base: Any = type(part)
    while base.__module__ != "builtins":  # an __init__ of its own may take anything
        base = base.__base__
    args = base.__reduce__(part)[1]
    copy: BaseException = base.__new__(type(part), *args)
    base.__init__(copy, *args)
    copies[id(part)] = copy
    # PySpark keeps a cause of its own, with a traceback, among them.
    vars(copy).update((name, _copied(held, copies)) for name, held in vars(part).items())
    notes = list(getattr(part, "__notes__", ()))
    if part.__traceback__ is not None:
        where = "".join(traceback.format_tb(part.__traceback__)).rstrip()
        notes.append(f"{_TRACEBACK}:\n{where}")
    if notes:
        vars(copy)["__notes__"] = notes
    for name, held in (
        ("args", tuple(_copied(each, copies) for each in part.args)),
        ("__cause__", _copied(part.__cause__, copies)),
        ("__context__", _copied(part.__context__, copies)),
        ("__suppress_context__", part.__suppress_context__),
    ):
        BaseException.__setattr__(copy, name, held)  # its own may refuse
    return copy


def _told_in(text: str) -> HoldfastError | None:
    # Python's traceback ends where Java's begins, which repeats it. A cause stands before its
    # effect: where another traceback follows, the error was caught, and something else raised.
    block = text[max(text.find(_TRACEBACK), 0) :].partition("\n\tat ")[0]
    for match in reversed(list(_IN_TASK.finditer(block))):
        if _TRACEBACK in block[match.end() :]:
            break
        kind = getattr(errors, match["kind"], None)
        if isinstance(kind, type) and issubclass(kind, HoldfastError):
            return _rebuilt(kind, match["message"], match["notes"].strip().splitlines())
    if full := _DISK_IS_FULL.search(text):
        return Unavailable(
            f"Spark could not write to a disk of the driver or of an executor: {full['why']}. Free "
            "some space and start the query again; nothing committed is lost."
        )
    return None


def _rebuilt(kind: type[HoldfastError], message: str, notes: list[str]) -> HoldfastError:
    conditions = [found["name"] for found in map(_CONDITION.fullmatch, notes) if found]
    known = [name for name in conditions if name in errors.CONDITIONS]
    error = kind(message, condition=known[0] if known else None)
    for note in notes:
        if not _CONDITION.fullmatch(note):
            error.add_note(note)
    return error


# -- raised by other names ---------------------------------------------------------------------


@contextmanager
def explained(root: str) -> Iterator[None]:
    """Turn a failure of tasks that could not import the package into an error that says what to
    do. `root` is that of the query's state. Other errors pass as they are.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        missing = _MISSING.search(str(error))
        if missing is None:
            raise
        raise InvalidArgument(
            f"The executors' Python has no module {missing['module']!r}, which the tasks of the "
            f"query with its state in {root} need. Install holdfast on every host, or ship it "
            "with the application: spark-submit --py-files holdfast.zip, or --archives with a "
            "packed environment. docs/streams.md has the commands under 'Getting the package to "
            "the executors'.",
            condition="STATE_STORE_NOT_ON_EXECUTORS",
        ) from None


class Writer(Protocol):
    """Makes versions, and can see that somebody else does."""

    def overtaken(self) -> Conflict | None:
        """The conflict with a driver that continued from the newest version here, if any has."""
        ...


W = TypeVar("W", bound=Writer)


def fenced(method: Callable[Concatenate[W, P], R]) -> Callable[Concatenate[W, P], R]:
    """Raise Conflict for whatever fails in a method because another writer has continued.

    What it started from, and what it has delivered, may be gone by then: a task does not find its
    version, a sink has seen later ones.
    """

    @wraps(method)
    def call(writer: W, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(writer, *args, **kwargs)
        except Exception as error:
            conflict = None if isinstance(error, Conflict) else writer.overtaken()
            if conflict is None:
                raise
            raise conflict from error

    return call
