"""What a rollback will do, as data and in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from holdfast.admin.plan import Lines, OperationPlan, OperationResult, driver_line
from holdfast.admin.sources import SourceInput, Standing
from holdfast.errors import HoldfastError, InvalidArgument
from holdfast.reading import Progress
from holdfast.reading.json import JsonBody
from holdfast.reading.words import amount, spans, time_text

_REFUSALS: Mapping[Standing, Callable[[SourceInput], str]] = {
    "lost for good": lambda each: (
        f"Source {each.source} ({each.kind}) gives its rows only once: those of the undone batches "
        "would be lost. Nothing was changed. Start the query with a new checkpoint instead, or "
        "allow it with --lose-input."
    ),
    "gone": lambda each: (
        f"Source {each.source} ({each.kind}) lacks {len(each.gone)} of the files that would come "
        f"again, such as {each.gone[0]}. Nothing was changed. Bring them back, or continue without "
        "them with --lose-input."
    ),
    "not checked": lambda each: (
        f"Source {each.source} ({each.kind}) could not be asked whether it still has what would "
        "come again. Nothing was changed. Check that yourself, then allow it with "
        "--unchecked-input."
    ),
}
"""What is said of input that does not come again for certain."""


@dataclass(frozen=True, kw_only=True)
class RollbackPlan(OperationPlan):
    """A rollback: what state, Spark's checkpoint, sources and sink will be like afterwards."""

    root: str
    to: int
    """The version to go back to."""
    version: int
    """The version that it becomes."""
    newest: int
    """The newest version that can be read now."""
    age_ms: int
    """How long ago that was committed."""
    committed_at_ms: int
    """When the version to go back to was committed."""
    operators: int
    partitions: int
    keys_before: int
    keys_after: int
    watermark_before_ms: int | None
    watermark_after_ms: int | None
    batches: tuple[int, ...]
    """Spark's batches that are taken back."""
    inputs: tuple[SourceInput, ...]
    """What the sources bring again."""
    delivered: int
    """How many of the versions that are undone have put out rows, as far as is known."""
    damaged: tuple[int, ...] = ()
    """Versions above the newest readable one."""
    lose_input: bool = False
    unchecked_input: bool = False
    reason: str | None = None
    kind: str = "rollback"
    fences: bool = True
    is_stream: bool
    """Whether Spark's checkpoint goes back with it."""
    carry_out: Callable[[RollbackPlan], OperationResult] = field(repr=False, compare=False)

    def lines(self) -> Lines:
        undone = spans(range(self.to + 1, self.newest + 1))
        found = [
            ("rollback", f"version {self.to} of {time_text(self.committed_at_ms)} becomes version "
                         f"{self.version}"),
            ("state", f"{amount(self.operators, 'operator')}, "
                      f"{amount(self.partitions, 'partition')}, {self.keys_before:,} → "
                      f"{self.keys_after:,} keys; no data is written"),
        ]  # fmt: skip
        if self.to < self.newest:
            found.append(("versions", f"{undone} stay readable until retention removes them"))
        if self.damaged:
            found.append(("damaged", spans(self.damaged)))
        if self.watermark_before_ms is not None or self.watermark_after_ms is not None:
            found.append(
                ("watermark", f"{_time(self.watermark_before_ms)} → "
                              f"{_time(self.watermark_after_ms)}")
            )  # fmt: skip
        if self.is_stream:
            found += self._query_lines()
        found.append(driver_line(self.age_ms))
        refused = self.refusal()
        return found if refused is None else [*found, ("refused", refused.message)]

    def _query_lines(self) -> list[tuple[str, str]]:
        taken = "no batch is taken back"
        if self.batches:
            which = f"{'batch' if len(self.batches) == 1 else 'batches'} {spans(self.batches)}"
            taken = f"{which} taken back; the entries move to holdfast-undone"
        found = [("spark", taken)]
        found += [(f"source {each.source}", each.line()) for each in self.inputs]
        if self.delivered:
            found.append(
                ("sink", f"the output of {amount(self.delivered, 'version')} was delivered; those "
                         "rows stay where they are")
            )  # fmt: skip
        found.append(("view", "a view of this state is filled again at the next start"))
        return found

    def refusal(self) -> HoldfastError | None:
        allowed = {"there"}
        if self.lose_input:
            allowed |= {"gone", "lost for good"}
        if self.unchecked_input:
            allowed.add("not checked")
        refused = [each for each in self.inputs if each.standing not in allowed]
        return InvalidArgument(_REFUSALS[refused[0].standing](refused[0])) if refused else None

    def json(self) -> JsonBody:
        skipped = {"carry_out", "inputs"}
        names = [name for name in self.__dataclass_fields__ if name not in skipped]
        refused = self.refusal()
        return {
            **{name: getattr(self, name) for name in names},
            "inputs": [each.json() for each in self.inputs],
            "refused": None if refused is None else refused.message,
        }

    def run(self, progress: Progress | None = None) -> OperationResult:
        refused = self.refusal()
        if refused is not None:
            raise refused
        return self.carry_out(self)


def _time(moment_ms: int | None) -> str:
    return "none" if moment_ms is None else time_text(moment_ms)
