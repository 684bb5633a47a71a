"""Spark as tests, their scripts, recordings and benchmarks start it: quiet, small, on loopback."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
}


def builder(
    name: str, settings: Mapping[str, str] = SETTINGS, master: str = "local[2]"
) -> SparkSession.Builder:
    """A builder of a session with these settings."""
    made = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        made = made.config(key, value)
    return made
