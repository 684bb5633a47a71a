"""The interface of output: one implementation is for people, the other for scripts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager

import pyarrow as pa

from holdfast.admin import CopyPlan, CopyResult
from holdfast.admin.columns import StoreColumns
from holdfast.admin.doctor import Check
from holdfast.admin.plan import OperationPlan, OperationResult
from holdfast.engine.versions.journal import JournalLine
from holdfast.errors import HoldfastError, InvalidArgument
from holdfast.reading import (
    Diff,
    InspectedStore,
    KeyVersion,
    PartitionChain,
    Progress,
    RootInfo,
    Verification,
    VersionDetails,
    VersionInfo,
)
from holdfast.store import Row


class Output(ABC):
    """Everything that a command can print."""

    @abstractmethod
    def roots(self, roots: Sequence[RootInfo]) -> None:
        """Print the roots at a location with their stores."""

    @abstractmethod
    def version(
        self, root: RootInfo, version: VersionDetails, chains: Sequence[PartitionChain] | None
    ) -> None:
        """Print one version, with `chains` if its files were asked for."""

    @abstractmethod
    def columns(self, location: str, version: int, stores: Sequence[StoreColumns]) -> None:
        """Print the columns of some stores, and how a repair sets them."""

    @abstractmethod
    def history(self, root: RootInfo, lines: Sequence[VersionInfo]) -> None:
        """Print versions of a root, newest first; possibly not all of them."""

    @abstractmethod
    def value(self, store: InspectedStore, version: int, key: Row, value: Row | None) -> None:
        """Print the value of a key; None if the version does not have it."""

    @abstractmethod
    def key_history(self, store: InspectedStore, key: Row, lines: Sequence[KeyVersion]) -> None:
        """Print the versions in which a key changed, oldest first."""

    @abstractmethod
    def rows(self, store: InspectedStore, version: int, table: pa.Table, more: bool) -> None:
        """Print rows of a version; with `more` there are others."""

    @abstractmethod
    def diff(self, store: InspectedStore, diff: Diff) -> None:
        """Print how two versions differ."""

    @abstractmethod
    def verification(self, results: Sequence[Verification]) -> None:
        """Print what was checked, and any damage."""

    @abstractmethod
    def copy_plan(self, plan: CopyPlan) -> None:
        """Print what a copy would do."""

    @abstractmethod
    def confirm_copy(self, plan: CopyPlan) -> bool:
        """Ask the user whether to copy. Raises InvalidArgument if nobody can be asked."""

    @abstractmethod
    def copied(self, copied: CopyResult) -> None:
        """Print what a copy did."""

    @abstractmethod
    def plan(self, plan: OperationPlan) -> None:
        """Print what an operation would do."""

    @abstractmethod
    def confirm(self, plan: OperationPlan) -> bool:
        """Show a plan and ask whether to run it. Raises InvalidArgument if nobody can be asked."""

    @abstractmethod
    def done(self, result: OperationResult) -> None:
        """Print what an operation did."""

    @abstractmethod
    def operations(self, lines: Sequence[JournalLine]) -> None:
        """Print the journal of a root, newest entry first."""

    @abstractmethod
    def checks(self, checks: Sequence[Check]) -> None:
        """Print the results of the doctor."""

    @abstractmethod
    def warning(self, message: str) -> None:
        """Print a warning on stderr, such as about a damaged file that was read around."""

    @abstractmethod
    def error(self, error: HoldfastError) -> None:
        """Print on stderr why a command failed."""

    @abstractmethod
    def progress(self, title: str) -> AbstractContextManager[Progress]:
        """Show a progress bar on stderr inside the block."""


def nobody_to_confirm(plan: OperationPlan) -> InvalidArgument:
    """The error of an operation without --yes if nobody can be asked."""
    return InvalidArgument(
        f"Nothing was changed: {plan.kind} would write to {plan.root}, and nobody can be asked for "
        "permission. Add --yes to allow it, or --dry-run to see what it would do."
    )


def nobody_to_ask(plan: CopyPlan) -> InvalidArgument:
    """The error of a copy without --yes if nobody can be asked."""
    return InvalidArgument(
        f"Nothing was copied: this would write to {plan.target}, and nobody can be asked for "
        "permission. Add --yes to allow it, or --dry-run to see what it would do."
    )
