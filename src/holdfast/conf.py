"""Settings of a store, as plain data. `SETTINGS` feeds the parser, the docs and the tests."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from holdfast import schemes
from holdfast.errors import InvalidArgument

log = logging.getLogger(__name__)

STATE_STORE_PREFIX = "spark.sql.streaming.stateStore."
HOLDFAST_PREFIX = "spark.holdfast."
VIEW_PREFIX = HOLDFAST_PREFIX + "view."
_OPTIONS_OF_SINKS = frozenset({"compression"})
"""Settings without a short option: their short names are options of Spark's own sinks."""
_LOGGED: set[str] = set()
"""Keys that the log has already named as unused."""

_SECOND = 1_000
_DURATIONS_MS = {
    "ms": 1, "s": _SECOND, "m": 60 * _SECOND, "min": 60 * _SECOND, "h": 3600 * _SECOND,
    "d": 86_400 * _SECOND,
}  # fmt: skip
_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its Python name, its Spark name, its type, its default and what it does.

    `at_least` is the lowest value of a number, `one_of` the values of a text, where limited.
    """

    name: str
    spark_name: str
    type: str
    default: Any
    help: str
    at_least: int | None = None
    one_of: tuple[str, ...] = ()

    @property
    def option(self) -> str | None:
        """The shortest name of the stream writer's option for it; None where there is none."""
        if not self.spark_name.startswith(HOLDFAST_PREFIX):
            return None
        short = self.spark_name.removeprefix(HOLDFAST_PREFIX)
        return self.spark_name if short in _OPTIONS_OF_SINKS else short

    def parse(self, value: object) -> Any:
        """Return `value` in this setting's type; raise InvalidArgument when it does not fit."""
        try:
            parsed = _PARSERS[self.type](value)
        except (TypeError, ValueError, KeyError, AttributeError):
            raise self._refusal(value, f"is not of the type {self.type}") from None
        if self.at_least is not None and parsed < self.at_least:
            raise self._refusal(value, f"is below {self.at_least}")
        if self.one_of and parsed not in self.one_of:
            raise self._refusal(value, f"is not one of {', '.join(self.one_of)}")
        return parsed

    def _refusal(self, value: object, why: str) -> InvalidArgument:
        return InvalidArgument(
            f"{self.name} ({self.spark_name}) cannot be {value!r}: it {why}. {self.help}",
            condition="STATE_STORE_INVALID_SETTING",
        )


def _parse_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    return int(value)


def _parse_duration_ms(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", str(value).lower())
    if match is None:
        raise ValueError
    return int(match[1]) * _DURATIONS_MS[match[2] or "ms"]


def _parse_bytes(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"\s*(\d+)\s*([bkmg]?)(?:i?b)?\s*", str(value).lower())
    if match is None:
        raise ValueError
    return int(match[1]) * _SIZES[match[2]]


def _parse_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}[str(value).strip().lower()]


def _parse_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


_PARSERS: dict[str, Callable[[object], Any]] = {
    "integer": _parse_int,
    "duration": _parse_duration_ms,
    "size": _parse_bytes,
    "boolean": _parse_bool,
    "text": _parse_text,
}

BESIDE_CHECKPOINT = "checkpoint"
AUTOMATIC = "auto"

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "min_deltas_for_snapshot", STATE_STORE_PREFIX + "minDeltasForSnapshot", "integer", 10,
        "Deltas in a chain before a snapshot is considered.", at_least=1,
    ),
    Setting(
        "min_versions_to_retain", "spark.sql.streaming.minBatchesToRetain", "integer", 100,
        "Newest versions that stay readable; never fewer than 2.", at_least=2,
    ),
    Setting(
        "max_versions_to_retain_in_memory", "spark.sql.streaming.maxBatchesToRetainInMemory",
        "integer", 2,
        "Versions a provider keeps open; 0 opens the files again each time.", at_least=0,
    ),
    Setting(
        "provider_class", HOLDFAST_PREFIX + "providerClass", "text",
        "holdfast.backends.hdfs_backed.HDFSBackedStateStoreProvider",
        "Dotted name of the StateStoreProvider subclass that keeps the state.",
    ),
    Setting(
        "maintenance_interval_ms", STATE_STORE_PREFIX + "maintenanceInterval", "duration", 60_000,
        "Time between two rounds of background maintenance, such as 60s or 5min.", at_least=1,
    ),
    Setting(
        "compression", HOLDFAST_PREFIX + "compression", "text", "none",
        "Compression of segments. Only uncompressed ones can be memory-mapped. As an option, write "
        "the whole name: the short one belongs to Spark's file sinks.",
        one_of=("none", "lz4", "zstd"),
    ),
    Setting(
        "pack_threshold_bytes", HOLDFAST_PREFIX + "packThreshold", "size", 256 << 10,
        "Deltas up to this size share one pack file for each version; 0 turns packs off. It is "
        "lowered in a query with more than 256 partitions, since the driver collects them all.",
        at_least=0,
    ),
    Setting(
        "grace_period_ms", HOLDFAST_PREFIX + "gracePeriod", "duration", 600_000,
        "Time a file stays after the commit that made it unreachable.", at_least=0,
    ),
    Setting(
        "merge_fanout", HOLDFAST_PREFIX + "mergeFanout", "integer", 4,
        "Neighbouring segments of like size that are merged into one.", at_least=2,
    ),
    Setting(
        "max_segments", HOLDFAST_PREFIX + "maxSegments", "integer", 24,
        "Segments in a chain at which a commit merges them before it completes.", at_least=2,
    ),
    Setting(
        "snapshot_lag", HOLDFAST_PREFIX + "snapshotLag", "integer", 1000,
        "Versions after which a changed partition gets a snapshot even if the deltas since the "
        "last one are small; 0 for never.", at_least=0,
    ),
    Setting(
        "state_location", HOLDFAST_PREFIX + "stateLocation", "text", BESIDE_CHECKPOINT,
        "Where a query keeps its state; `checkpoint` is the folder `holdfast` of its checkpoint. "
        "Two queries cannot share one location.",
    ),
    Setting(
        "cache_location", HOLDFAST_PREFIX + "cache.location", "text", AUTOMATIC,
        "Local folder that caches files of remote roots; `auto` is the first of "
        "SPARK_LOCAL_DIRS, or else the temporary folder.",
    ),
    Setting(
        "cache_size_bytes", HOLDFAST_PREFIX + "cache.size", "size", 4 << 30,
        "Bytes that the cache may take in one such folder; 0 turns it off.", at_least=0,
    ),
    Setting(
        "retry_timeout_ms", HOLDFAST_PREFIX + "retryTimeout", "duration", 60_000,
        "Time for which requests to a remote root are retried while it does not answer.",
        at_least=0,
    ),
    Setting(
        "keep_copies", HOLDFAST_PREFIX + "keepCopies", "text", AUTOMATIC,
        "Whether new deltas and packs are stored twice until a merge also holds their rows, so "
        "that one lost or damaged file costs no version; `auto` is on for roots on a local disk.",
        one_of=(AUTOMATIC, "on", "off"),
    ),
    Setting(
        "progress", HOLDFAST_PREFIX + "progress", "boolean", True,
        "Whether a query shows a live line on a terminal or in a notebook.",
    ),
    Setting(
        "metrics_port", HOLDFAST_PREFIX + "metrics.port", "integer", -1,
        "Port on 127.0.0.1 that serves a query's metrics to Prometheus; 0 for any free port, "
        "-1 for none.", at_least=-1,
    ),
    Setting(
        "locality", HOLDFAST_PREFIX + "locality", "text", "on",
        "Whether a query's tasks prefer the executors that hold their state.",
        one_of=("on", "off"),
    ),
)  # fmt: skip
_BY_SPARK_NAME = {setting.spark_name: setting for setting in SETTINGS}
SETTINGS_BY_NAME = {setting.name: setting for setting in SETTINGS}
_BY_OPTION = {
    name.lower(): setting.spark_name
    for setting in SETTINGS
    if setting.option is not None
    for name in (setting.option, setting.spark_name)
}


def _reaching_prefixes() -> tuple[str, ...]:
    """The prefixes of settings that say how a root or a view is reached; stores lack these."""
    names = (scheme.name for scheme in schemes.SCHEMES if scheme.is_set_in_spark)
    return (*(f"{HOLDFAST_PREFIX}{name}." for name in names), VIEW_PREFIX)


def setting_of_option(option: str) -> str | None:
    """Return the Spark name of the setting that a stream writer's option sets; None if none.

    Options may be written in any case, like Spark's own. An option with the whole prefix counts as
    a setting even if there is none of that name: `StateStoreConf.from_spark` then rejects it.
    """
    name = option.lower()
    if name in _BY_OPTION:
        return _BY_OPTION[name]
    for prefix in _reaching_prefixes():
        for start in (prefix, prefix.removeprefix(HOLDFAST_PREFIX)):
            if name.startswith(start):
                return prefix + option[len(start) :]
    if name.startswith(HOLDFAST_PREFIX):
        return HOLDFAST_PREFIX + option[len(HOLDFAST_PREFIX) :]
    return None


@dataclass(frozen=True)
class StateStoreConf:
    """The settings a store runs with; `SETTINGS` describes each of them.

    Values may be given as text, such as "60s" or "256k". `confs` keeps every
    `spark.sql.streaming.stateStore.*` entry that `from_spark` saw, as text. Raises InvalidArgument
    for a value that does not fit, and names the setting. `StateStoreConf.empty` has the defaults.
    """

    min_deltas_for_snapshot: int = 10
    min_versions_to_retain: int = 100
    max_versions_to_retain_in_memory: int = 2
    provider_class: str = SETTINGS_BY_NAME["provider_class"].default
    maintenance_interval_ms: int = 60_000
    compression: str = "none"
    pack_threshold_bytes: int = 256 << 10
    grace_period_ms: int = 600_000
    merge_fanout: int = 4
    max_segments: int = 24
    snapshot_lag: int = 1000
    state_location: str = BESIDE_CHECKPOINT
    cache_location: str = AUTOMATIC
    cache_size_bytes: int = 4 << 30
    retry_timeout_ms: int = 60_000
    keep_copies: str = AUTOMATIC
    progress: bool = True
    metrics_port: int = -1
    locality: str = "on"
    confs: Mapping[str, str] = field(default_factory=dict)

    empty: ClassVar[StateStoreConf]

    def __post_init__(self) -> None:
        for setting in SETTINGS:
            value = setting.parse(getattr(self, setting.name))
            object.__setattr__(self, setting.name, value)

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> StateStoreConf:
        """Return the settings given by their Python names; raise InvalidArgument for others."""
        unknown = sorted(set(settings) - {f.name for f in fields(cls)})
        if unknown:
            raise InvalidArgument(
                f"Unknown setting {unknown[0]!r}. Known: {', '.join(SETTINGS_BY_NAME)}.",
                condition="STATE_STORE_INVALID_SETTING",
            )
        return cls(**settings)  # type: ignore[arg-type]  # __post_init__ checks every value

    @classmethod
    def from_spark(cls, conf: Any) -> StateStoreConf:
        """Return the settings in a Spark configuration.

        `conf` is a mapping, a SparkConf or a session's `spark.conf`. Keys of Spark's own state
        store that mean nothing here (a JVM providerClass, `rocksdb.*`) are kept in `confs` and
        named once in the log. Settings that say how a database is reached are left to its root.
        Raises InvalidArgument for an unknown `spark.holdfast.*` key, and for a value that does not
        fit.
        """
        entries = _entries(conf)
        reaching = _reaching_prefixes()
        known: dict[str, Any] = {}
        ignored: list[str] = []
        for key, value in entries.items():
            if key in _BY_SPARK_NAME:
                known[_BY_SPARK_NAME[key].name] = _BY_SPARK_NAME[key].parse(value)
            elif key.startswith(reaching):
                continue
            elif key.startswith(HOLDFAST_PREFIX):
                raise _unknown(key)
            elif key.startswith(STATE_STORE_PREFIX):
                ignored.append(key)
        _log_ignored(ignored)
        kept = {k: str(v) for k, v in entries.items() if k.startswith(STATE_STORE_PREFIX)}
        return cls(**known, confs=kept)

    def to_json(self) -> str:
        """Return the settings as JSON text, which `from_json` reads back."""
        return json.dumps({f.name: getattr(self, f.name) for f in fields(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> StateStoreConf:
        """Return the settings in a text that `to_json` wrote."""
        return cls.of(json.loads(text))


StateStoreConf.empty = StateStoreConf()


def _entries(conf: Any) -> dict[str, object]:
    if isinstance(conf, Mapping):
        return dict(conf)
    get_all = getattr(conf, "getAll", None)
    if get_all is None:
        raise InvalidArgument(
            f"from_spark takes a mapping, a SparkConf or spark.conf, not {type(conf).__name__}."
        )
    return dict(get_all() if callable(get_all) else get_all)


def settings_below(prefix: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that start with a prefix, with the prefix removed."""
    return {
        name.removeprefix(prefix): value
        for name, value in settings.items()
        if name.startswith(prefix)
    }


def _unknown(key: str) -> InvalidArgument:
    ours = [name for name in _BY_SPARK_NAME if name.startswith(HOLDFAST_PREFIX)]
    return InvalidArgument(
        f"Unknown setting {key!r}. Known: {', '.join(ours)}, and what starts with "
        f"{', '.join(_reaching_prefixes())}.",
        condition="STATE_STORE_INVALID_SETTING",
    )


def _log_ignored(keys: list[str]) -> None:
    fresh = sorted(set(keys) - _LOGGED)
    if fresh:
        _LOGGED.update(fresh)
        log.info("Not used, as they concern Spark's own state store: %s", fresh)
