"""Settings: defaults, refusals, and what Spark's configuration turns into."""

from __future__ import annotations

import json
import logging
from dataclasses import fields, replace
from typing import Any

import pytest

from holdfast import conf as conf_module
from holdfast.conf import (
    HOLDFAST_PREFIX,
    SETTINGS,
    STATE_STORE_PREFIX,
    Setting,
    StateStoreConf,
    setting_of_option,
)
from holdfast.errors import InvalidArgument

DEFAULTS = {
    "min_deltas_for_snapshot": 10,
    "min_versions_to_retain": 100,
    "max_versions_to_retain_in_memory": 2,
    "provider_class": "holdfast.backends.hdfs_backed.HDFSBackedStateStoreProvider",
    "maintenance_interval_ms": 60_000,
    "compression": "none",
    "pack_threshold_bytes": 256 << 10,
    "grace_period_ms": 600_000,
}


class SparkConfLike:
    """`getAll()` gives pairs."""

    def __init__(self, entries: dict[str, str]) -> None:
        self._entries = entries

    def getAll(self) -> list[tuple[str, str]]:
        return list(self._entries.items())


class RuntimeConfLike:
    """`getAll` is a property that gives a dict."""

    def __init__(self, entries: dict[str, str]) -> None:
        self.getAll = entries


FORMS = pytest.mark.parametrize("form", [dict, SparkConfLike, RuntimeConfLike])


def test_defaults_are_those_of_the_seeds() -> None:
    conf = StateStoreConf()
    assert {name: getattr(conf, name) for name in DEFAULTS} == DEFAULTS
    assert StateStoreConf.empty == conf == StateStoreConf.from_spark({})
    assert conf.confs == {}


def test_every_field_is_a_setting_with_its_default_and_help() -> None:
    own = {f.name: f.default for f in fields(StateStoreConf) if f.name != "confs"}
    assert own == {setting.name: setting.default for setting in SETTINGS}
    assert len({setting.spark_name for setting in SETTINGS}) == len(SETTINGS)
    assert all(setting.help.endswith(".") for setting in SETTINGS)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("min_versions_to_retain", 1, "below 2"),
        ("min_versions_to_retain", -5, "below 2"),
        ("min_deltas_for_snapshot", 0, "below 1"),
        ("min_deltas_for_snapshot", "ten", "is not of the type integer"),
        ("min_deltas_for_snapshot", 2.5, "is not of the type integer"),
        ("min_deltas_for_snapshot", True, "is not of the type integer"),
        ("min_deltas_for_snapshot", None, "is not of the type integer"),
        ("max_versions_to_retain_in_memory", -1, "below 0"),
        ("maintenance_interval_ms", "soon", "is not of the type duration"),
        ("maintenance_interval_ms", "1.5s", "is not of the type duration"),
        ("maintenance_interval_ms", "5 parsecs", "is not of the type duration"),
        ("maintenance_interval_ms", 0, "below 1"),
        ("grace_period_ms", None, "is not of the type duration"),
        ("pack_threshold_bytes", "1q", "is not of the type size"),
        ("pack_threshold_bytes", -1, "below 0"),
        ("compression", "gzip", "not one of none, lz4, zstd"),
        ("compression", 4, "is not of the type text"),
        ("provider_class", "", "is not of the type text"),
        ("merge_fanout", 1, "below 2"),
        ("progress", "perhaps", "is not of the type boolean"),
        ("metrics_port", -2, "below -1"),
    ],
)
def test_ill_typed_setting_is_refused_by_name(name: str, value: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why) as caught:
        StateStoreConf(**{name: value})
    setting = next(setting for setting in SETTINGS if setting.name == name)
    assert str(caught.value).startswith(f"{name} ({setting.spark_name}) cannot be {value!r}")
    assert caught.value.condition == "STATE_STORE_INVALID_SETTING"
    with pytest.raises(InvalidArgument, match=name):
        replace(StateStoreConf(), **{name: value})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("maintenance_interval_ms", "60s", 60_000),
        ("maintenance_interval_ms", " 5 min ", 300_000),
        ("maintenance_interval_ms", "2H", 7_200_000),
        ("maintenance_interval_ms", "250", 250),
        ("pack_threshold_bytes", "64k", 65_536),
        ("pack_threshold_bytes", "1 MiB", 1 << 20),
        ("pack_threshold_bytes", "2gb", 2 << 30),
        ("pack_threshold_bytes", "0", 0),
        ("min_versions_to_retain", "7", 7),
        ("compression", "zstd", "zstd"),
        ("progress", "False", False),
        ("metrics_port", "9400", 9400),
    ],
)
def test_text_is_understood(name: str, text: str, value: Any) -> None:
    assert getattr(StateStoreConf(**{name: text}), name) == value  # type: ignore[arg-type]


def test_unknown_setting_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match="'min_deltas'") as caught:
        StateStoreConf.of({"min_deltas": 5})
    assert "min_deltas_for_snapshot" in str(caught.value)
    assert caught.value.condition == "STATE_STORE_INVALID_SETTING"


def test_settings_are_taken_by_python_name() -> None:
    assert StateStoreConf.of({"compression": "lz4"}) == StateStoreConf(compression="lz4")


@FORMS
def test_every_setting_is_read_from_spark(form: Any) -> None:
    entries = {
        STATE_STORE_PREFIX + "minDeltasForSnapshot": "3",
        "spark.sql.streaming.minBatchesToRetain": "5",
        "spark.sql.streaming.maxBatchesToRetainInMemory": "0",
        STATE_STORE_PREFIX + "maintenanceInterval": "5s",
        "spark.holdfast.compression": "zstd",
        "spark.holdfast.packThreshold": "0",
        "spark.holdfast.gracePeriod": "1h",
        "spark.holdfast.mergeFanout": "8",
        "spark.holdfast.maxSegments": "9",
        "spark.holdfast.progress": "false",
        "spark.holdfast.metrics.port": "0",
        "spark.holdfast.providerClass": "mine.Provider",
        "spark.app.name": "ignored",
    }
    conf = StateStoreConf.from_spark(form(entries))
    assert conf == StateStoreConf(
        min_deltas_for_snapshot=3,
        min_versions_to_retain=5,
        max_versions_to_retain_in_memory=0,
        maintenance_interval_ms=5000,
        compression="zstd",
        pack_threshold_bytes=0,
        grace_period_ms=3_600_000,
        merge_fanout=8,
        max_segments=9,
        progress=False,
        metrics_port=0,
        provider_class="mine.Provider",
        confs={k: v for k, v in entries.items() if k.startswith(STATE_STORE_PREFIX)},
    )


@FORMS
def test_ill_typed_spark_entry_is_refused_by_name(form: Any) -> None:
    with pytest.raises(InvalidArgument, match="minBatchesToRetain"):
        StateStoreConf.from_spark(form({"spark.sql.streaming.minBatchesToRetain": "1"}))


def test_unknown_entry_of_ours_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match=r"'spark\.holdfast\.compresion'") as caught:
        StateStoreConf.from_spark({"spark.holdfast.compresion": "lz4"})
    assert "spark.holdfast.compression" in str(caught.value)


def test_other_objects_are_no_spark_configuration() -> None:
    with pytest.raises(InvalidArgument, match="not int"):
        StateStoreConf.from_spark(5)


def test_spark_only_keys_are_kept_and_named_once_at_info(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conf_module, "_LOGGED", set())
    entries = {
        STATE_STORE_PREFIX + "providerClass": "org.apache.spark.RocksDBStateStoreProvider",
        STATE_STORE_PREFIX + "rocksdb.blockSizeKB": "4",
        STATE_STORE_PREFIX + "minDeltasForSnapshot": "3",
    }
    with caplog.at_level(logging.INFO, logger="holdfast"):
        first = StateStoreConf.from_spark(entries)
        again = StateStoreConf.from_spark(entries)
    assert first == again
    assert first.confs == entries
    assert first.provider_class == DEFAULTS["provider_class"]
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "stateStore.providerClass" in record.getMessage()
    assert "rocksdb.blockSizeKB" in record.getMessage()
    assert "minDeltasForSnapshot" not in record.getMessage()


def test_json_round_trip_keeps_everything() -> None:
    conf = StateStoreConf(
        min_deltas_for_snapshot=3, compression="lz4", confs={STATE_STORE_PREFIX + "x": "1"}
    )
    text = conf.to_json()
    assert StateStoreConf.from_json(text) == conf
    assert json.loads(text)["compression"] == "lz4"
    assert StateStoreConf.from_json(StateStoreConf.empty.to_json()) == StateStoreConf.empty


def test_json_with_an_unknown_setting_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="'nonsense'"):
        StateStoreConf.from_json('{"nonsense": 1}')


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        StateStoreConf.empty.compression = "lz4"  # type: ignore[misc]


@pytest.mark.spark
def test_settings_are_read_from_a_real_session(spark: Any) -> None:
    spark.conf.set("spark.holdfast.compression", "lz4")
    try:
        assert StateStoreConf.from_spark(spark.conf).compression == "lz4"
        assert StateStoreConf.from_spark(spark.sparkContext.getConf()).compression == "none"
    finally:
        spark.conf.unset("spark.holdfast.compression")


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_of_ours_is_an_option_by_its_short_and_by_its_whole_name(
    setting: Setting,
) -> None:
    short = setting.spark_name.removeprefix(HOLDFAST_PREFIX)
    of_ours = short != setting.spark_name
    for name in (setting.spark_name, setting.spark_name.upper()):
        assert setting_of_option(name) == (setting.spark_name if of_ours else None)
    # The short one of this is an option of Spark's file sinks.
    is_short = of_ours and short != "compression"
    for name in (short, short.lower()):
        assert setting_of_option(name) == (setting.spark_name if is_short else None)
    assert setting.option == (short if is_short else setting.spark_name if of_ours else None)


def test_how_a_database_is_reached_is_said_by_options_too() -> None:
    assert setting_of_option("Cassandra.userName") == "spark.holdfast.cassandra.userName"
    assert setting_of_option("spark.holdfast.VIEW.region") == "spark.holdfast.view.region"
    assert setting_of_option("dynamodb.region") == "spark.holdfast.dynamodb.region"
    assert setting_of_option("view") is None
    assert setting_of_option("path") is None
    assert setting_of_option("spark.holdfast.mine") == "spark.holdfast.mine"
