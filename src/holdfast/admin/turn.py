"""The turn of one run at a root that it makes: a mark is there until the last file is."""

from __future__ import annotations

from holdfast.admin.copy_ends import Mark, read_mark, write_mark
from holdfast.engine.files.filenames import COPYING, VERSIONS, turn_number, turn_path
from holdfast.engine.storage import Storage
from holdfast.errors import Conflict


class Turn:
    """A run's turn at an unfinished copy or fork. No root with the mark can be opened.

    `what` is the word for it in messages. Of several runs the one that resumed it last continues.
    """

    def __init__(self, target: Storage, what: str) -> None:
        self._target, self._what = target, what
        self.mark: Mark | None = read_mark(target)
        """That of the unfinished one that is there, or None."""
        self.resumes = self.mark is not None
        """Whether another run has begun it."""
        self._number = 0

    def begin(self, source: str, mark: Mark) -> None:
        """Mark the target. Raises Conflict where another run was faster."""
        if not write_mark(self._target, source, mark):
            raise self._just_begun()
        self.mark = mark

    def resume(self) -> None:
        """Go on where another run ended. Raises Conflict where a third one was faster.

        The mark stays in place, so that the root can never be opened in between.
        """
        assert self.mark is not None
        number = _last_turn(self._target, self.mark) + 1
        if not self._target.create_if_absent(turn_path(self.mark.copy_id, number), b""):
            raise self._just_begun()
        self._number = number
        self.check()

    def check(self) -> None:
        """Raise Conflict if another run has finished it, or has resumed it."""
        mark, where = self.mark, self._target.location
        assert mark is not None
        if read_mark(self._target) != mark:
            if self._number:
                self._target.delete(turn_path(mark.copy_id, self._number))
            raise Conflict(
                f"Another {self._what} to {where} has ended meanwhile. Run this one again."
            )
        if _last_turn(self._target, mark) != self._number:
            raise Conflict(
                f"Another run has resumed the {self._what} to {where}. Let that one end."
            )

    def end(self) -> None:
        """Remove the mark, so that the root can be opened."""
        assert self.mark is not None
        for number in _turns(self._target, self.mark):
            self._target.delete(turn_path(self.mark.copy_id, number))
        self._target.delete(COPYING)

    def _just_begun(self) -> Conflict:
        return Conflict(
            f"Another {self._what} to {self._target.location} has just begun. Let it end, then run "
            "this one again."
        )


def _last_turn(storage: Storage, mark: Mark) -> int:
    """The number of the run that resumed an unfinished copy last; 0 is the first run."""
    return max(_turns(storage, mark), default=0)


def _turns(storage: Storage, mark: Mark) -> list[int]:
    found = (turn_number(mark.copy_id, blob.path) for blob in storage.list(VERSIONS))
    return [number for number in found if number is not None]
