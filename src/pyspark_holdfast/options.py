"""The options of a read, checked together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from holdfast import schemes
from holdfast.errors import InvalidArgument
from holdfast.reading import Root

_NAMES = (
    "path", "version", "versionAsOf", "timestampAsOf", "batchId", "operatorId", "storeName",
    "stateVarName", "readChangeFeed", "changeStartVersion", "changeEndVersion", "columns",
    "metadata", "pushFilters", "startingVersion", "maxVersionsPerTrigger",
)  # fmt: skip
_WHICH = ("version", "versionasof", "timestampasof", "batchid")
"""What chooses the version to read, as it is compared."""
EARLIEST, LATEST = "earliest", "latest"
_METADATA = {"true": "stores", "stores": "stores", "versions": "versions", "false": None}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read. `version` is a number or tag as text, `moment` a time by which it was
    committed, `batch` its batch id; None of them means the newest version.
    """

    path: str
    version: str | None
    moment: datetime | None
    batch: int | None
    operator: int | None
    store: str | None
    feed: bool
    start: int | None
    end: int | None
    columns: tuple[str, ...] | None
    metadata: str | None
    push_filters: bool
    starting: int | str
    """Where a stream of changes starts: a version, EARLIEST or LATEST."""
    most: int | None
    """How many versions a batch of such a stream has at most."""
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    """How to reach a root on S3 or in a database; may hold credentials."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> ReadOptions:
        """Parse the options of `spark.read`, whose names are compared without case.

        Raises InvalidArgument for any other name, and for options that contradict each other.
        """
        reaching = _reaching_names()
        known = {name.lower() for name in (*_NAMES, *reaching)}
        found = {name.lower(): text.strip() for name, text in given.items()}
        if wrong := sorted(set(found) - known):
            raise InvalidArgument(f"holdfast has no option {wrong[0]!r}; it has {_listed()}.")
        if not found.get("path"):
            raise InvalidArgument(
                'Say which state to read: load("<checkpointLocation>") or option("path", …).'
            )
        options = cls(
            path=found["path"],
            version=found.get("version", found.get("versionasof")),
            moment=_moment(found),
            batch=_number(found, "batchId"),
            operator=_number(found, "operatorId"),
            store=_store(found),
            feed=_flag(found, "readChangeFeed"),
            start=_number(found, "changeStartVersion"),
            end=_number(found, "changeEndVersion"),
            columns=_columns(found),
            metadata=_metadata(found),
            push_filters=_flag(found, "pushFilters"),
            starting=_starting(found),
            most=_number(found, "maxVersionsPerTrigger"),
            storage={name: found[name] for name in reaching if name in found},
        )
        if sum(name in found for name in _WHICH) > 1:
            raise InvalidArgument(
                "version, versionAsOf, timestampAsOf and batchId each choose the version to read. "
                "Give one of them."
            )
        options._check_feed()
        return options

    def version_in(self, root: Root) -> int:
        """The version of a root to read. Raises VersionNotFound where there is none such."""
        if self.moment is not None:
            return root.at_time(self.moment)
        return root.resolve(self.version) if self.batch is None else root.of_batch(self.batch)

    @property
    def _has_version(self) -> bool:
        return (self.version, self.moment, self.batch) != (None, None, None)

    def _check_feed(self) -> None:
        if self.push_filters and (self.feed or self.metadata is not None):
            raise InvalidArgument("pushFilters applies only to reading the state of a version.")
        if not self.feed:
            if self.start is not None or self.end is not None:
                raise InvalidArgument(
                    "changeStartVersion and changeEndVersion need readChangeFeed=true."
                )
            if self._is_for_stream:
                raise InvalidArgument(
                    "startingVersion and maxVersionsPerTrigger need readChangeFeed=true."
                )
            return
        if self._has_version or self.metadata is not None:
            raise InvalidArgument(
                "A change feed goes from changeStartVersion to changeEndVersion; leave out version "
                "and metadata."
            )
        if self.most == 0:
            raise InvalidArgument("maxVersionsPerTrigger must be 1 or above.")
        if self.end is not None and self.start is not None and self.end < self.start:
            raise InvalidArgument(
                f"changeEndVersion {self.end} is before changeStartVersion {self.start}."
            )

    @property
    def _is_for_stream(self) -> bool:
        return self.starting != EARLIEST or self.most is not None

    def check_range(self) -> None:
        """Raise InvalidArgument unless the options say which changes to read in a batch."""
        if self.start is None:
            raise InvalidArgument(
                "readChangeFeed needs changeStartVersion, the first to read. With spark.readStream "
                "the option is startingVersion."
            )
        if self._is_for_stream:
            raise InvalidArgument(
                "startingVersion and maxVersionsPerTrigger are for spark.readStream; leave them "
                "out."
            )

    def check_stream(self) -> None:
        """Raise InvalidArgument unless the options fit a stream of changes."""
        if self.start is not None or self.end is not None:
            raise InvalidArgument(
                "A stream of changes starts at startingVersion and has no end; leave out "
                "changeStartVersion and changeEndVersion."
            )


def _store(found: Mapping[str, str]) -> str | None:
    """The store's name; a state variable is the store of that name."""
    names = {found[name] for name in ("storename", "statevarname") if name in found}
    if len(names) > 1:
        raise InvalidArgument(
            "storeName and stateVarName name the same thing; give one of them, not two that differ."
        )
    return next(iter(names), None)


def _number(found: Mapping[str, str], name: str) -> int | None:
    text = found.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise InvalidArgument(f"{name} must be a whole number, 0 or above, not {text!r}.")
    return int(text)


def _moment(found: Mapping[str, str]) -> datetime | None:
    text = found.get("timestampasof")
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"timestampAsOf must be a time such as 2026-01-31 12:00:00, in UTC unless it has a "
            f"zone, not {text!r}."
        ) from None


def _starting(found: Mapping[str, str]) -> int | str:
    text = found.get("startingversion", EARLIEST)
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    if not (text.isascii() and text.isdecimal()):
        raise InvalidArgument(
            f"startingVersion must be a version's number, {EARLIEST} or {LATEST}, not {text!r}."
        )
    return int(text)


def _flag(found: Mapping[str, str], name: str) -> bool:
    text = found.get(name.lower(), "false").lower()
    if text not in ("true", "false"):
        raise InvalidArgument(f"{name} must be true or false, not {text!r}.")
    return text == "true"


def _columns(found: Mapping[str, str]) -> tuple[str, ...] | None:
    text = found.get("columns")
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise InvalidArgument("columns must be names separated by commas, such as user,total.")
    return names


def _metadata(found: Mapping[str, str]) -> str | None:
    text = found.get("metadata", "false").lower()
    if text not in _METADATA:
        raise InvalidArgument(f"metadata must be one of {', '.join(_METADATA)}, not {text!r}.")
    return _METADATA[text]


def _listed() -> str:
    return ", ".join((*_NAMES, *_reaching_names()))


def _reaching_names() -> tuple[str, ...]:
    """The options that say how a root is reached, of all schemes."""
    return tuple(dict.fromkeys(name for each in schemes.SCHEMES for name in each.options or ()))
