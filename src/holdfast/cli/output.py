"""What commands say, once for people and once for scripts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from holdfast.admin import CopyPlan, CopyResult
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

Status = Literal["ok", "note", "failed"]


@dataclass(frozen=True, slots=True)
class Check:
    """One finding of the doctor; `advice` says what to do where it is not ok."""

    name: str
    status: Status
    found: str
    advice: str = ""


class Output(ABC):
    """Everything a command can say."""

    @abstractmethod
    def roots(self, roots: Sequence[RootInfo]) -> None:
        """The roots at a location with their stores."""

    @abstractmethod
    def version(
        self, root: RootInfo, version: VersionDetails, chains: Sequence[PartitionChain] | None
    ) -> None:
        """One version; `chains` where its files were asked for."""

    @abstractmethod
    def history(self, root: RootInfo, lines: Sequence[VersionInfo]) -> None:
        """The versions of a root, newest first; maybe not all of them."""

    @abstractmethod
    def value(self, store: InspectedStore, version: int, key: Row, value: Row | None) -> None:
        """The value of a key, None where there is none."""

    @abstractmethod
    def key_history(self, store: InspectedStore, key: Row, lines: Sequence[KeyVersion]) -> None:
        """The versions in which a key changed, oldest first."""

    @abstractmethod
    def rows(self, store: InspectedStore, version: int, table: pa.Table, more: bool) -> None:
        """Rows of a version; `more` says that there are others."""

    @abstractmethod
    def diff(self, store: InspectedStore, diff: Diff) -> None:
        """How two versions differ."""

    @abstractmethod
    def verification(self, results: Sequence[Verification]) -> None:
        """What was checked and what is wrong."""

    @abstractmethod
    def copy_plan(self, plan: CopyPlan) -> None:
        """What a copy would do."""

    @abstractmethod
    def confirm_copy(self, plan: CopyPlan) -> bool:
        """Whether the user wants it. Raises InvalidArgument where nobody can be asked."""

    @abstractmethod
    def copied(self, copied: CopyResult) -> None:
        """What a copy did."""

    @abstractmethod
    def checks(self, checks: Sequence[Check]) -> None:
        """What the doctor found."""

    @abstractmethod
    def warning(self, message: str) -> None:
        """What went well only by a detour, such as round a damaged file; on stderr."""

    @abstractmethod
    def error(self, error: HoldfastError) -> None:
        """Why a command failed, on stderr."""

    @abstractmethod
    def progress(self, title: str) -> AbstractContextManager[Progress]:
        """A bar on stderr while something long runs."""


def nobody_to_ask(plan: CopyPlan) -> InvalidArgument:
    """Why a copy does not begin without --yes."""
    return InvalidArgument(
        f"Nothing was copied: this would write to {plan.target}, and there is nobody to ask. Say "
        "--yes to let it, or --dry-run to see what it would do."
    )
