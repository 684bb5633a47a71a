"""Claims: of several drivers on one root, the newest one continues.

A driver that starts creates `claims/<n>`, where n follows the highest number there, before it
reads the version it starts from. A driver with a lower number stops at its next step.

Claims only decide who continues. They need no clocks or leases, because they do not have to be
exact: a driver that has not yet noticed a newer claim may finish a step, and creating the manifest
still decides who commits the version.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from holdfast.engine.files.filenames import CLAIMS, claim_number, claim_path
from holdfast.engine.storage import BlobNotFound, Runtime, Storage
from holdfast.errors import Conflict, Unavailable

log = logging.getLogger(__name__)
_KEPT = 20
"""Claims that stay: a driver looks for the claim after its own, so recent ones must exist."""
_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class Claim:
    """One driver's claim: its number, and who holds it."""

    number: int
    holder: str
    """The random id of the holder, by which it recognises its claim after a lost reply."""
    process: str
    """The holder as an error message names it."""
    at_ms: int

    @property
    def description(self) -> str:
        """Who holds it, and since when."""
        since = datetime.fromtimestamp(self.at_ms / 1000, UTC)
        return f"{self.process}, started {since:%Y-%m-%d %H:%M:%S} UTC"

    def encode(self) -> bytes:
        """The bytes of its file."""
        return json.dumps(
            {"holder": self.holder, "process": self.process, "at_ms": self.at_ms}
        ).encode()


class Claims:
    """The claims on one root, as one driver sees them."""

    def __init__(self, storage: Storage, runtime: Runtime, by: str | None = None) -> None:
        """`by` is what others are told has claimed the root, by default a driver's process."""
        self._storage, self._runtime, self._by = storage, runtime, by
        self._own: Claim | None = None

    def take(self) -> Claim:
        """Claim the root: from now on every driver with an earlier claim stops.

        Requires: this driver reads the newest version after this, not before.
        """
        holder, process = self._runtime.new_id(), this_process()
        if self._by is not None:
            process = f"{self._by} ({process})"
        for _ in range(_ATTEMPTS):
            number = self._highest() + 1
            claim = Claim(number, holder, process, self._runtime.clock_ms())
            # The first list may have been out of date, and the number below one that is taken:
            # such a claim would lose to a driver that started earlier.
            if self._create(claim) and self._highest() <= number:
                self._own = claim
                self._forget(number - _KEPT)
                return claim
        raise Unavailable(
            f"Could not claim {self._storage.location}: other drivers keep starting on it. Start "
            "one of them."
        )

    @property
    def is_newest(self) -> bool:
        """Whether this driver's claim is the newest one, as far as the storage tells."""
        return self._own is not None and self.successor() is None

    def successor(self) -> Claim | None:
        """The newest claim after this driver's own; None where there is none."""
        if self._own is None:
            return None
        following = self._own.number + 1
        if self._storage.size(claim_path(following)) is None:
            return None
        return self._load(max(following, self._highest())) or self._load(following)

    def conflict(self) -> Conflict | None:
        """The conflict with a driver that has claimed the root after this one, if any has."""
        successor = self.successor()
        if successor is None:
            return None
        return Conflict(
            f"Another driver has taken over {self._storage.location}: {successor.description}. "
            "This one must stop."
        )

    def check(self) -> None:
        """Raise Conflict where another driver has claimed the root after this one."""
        conflict = self.conflict()
        if conflict is not None:
            raise conflict

    def _highest(self) -> int:
        listed = (claim_number(blob.path) for blob in self._storage.list(CLAIMS))
        return max((number for number in listed if number is not None), default=0)

    def _create(self, claim: Claim) -> bool:
        """Whether the claim is this driver's, even where creating it got no clear answer."""
        try:
            return self._storage.create_if_absent(claim_path(claim.number), claim.encode())
        except Unavailable:
            found = self._load(claim.number)
            if found is None:
                raise
            return found.holder == claim.holder

    def _load(self, number: int) -> Claim | None:
        try:
            body: dict[str, Any] = json.loads(bytes(self._storage.read(claim_path(number))))
            return Claim(number, str(body["holder"]), str(body["process"]), int(body["at_ms"]))
        except BlobNotFound:
            return None
        except (ValueError, KeyError, TypeError):  # damaged, but still somebody's claim
            return Claim(number, "", "an unknown process", 0)

    def _forget(self, upto: int) -> None:
        for number in (claim_number(blob.path) for blob in self._storage.list(CLAIMS)):
            if number is not None and number <= upto:
                self._storage.delete(claim_path(number))


def this_process() -> str:
    """This process as messages of others name it."""
    return f"process {os.getpid()} on {socket.gethostname()}"
