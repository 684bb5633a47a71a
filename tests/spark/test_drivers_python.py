"""On a local master tasks run the driver's Python, unless somebody chose another."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast import stateful
from holdfast.spark.interop.sessions import share_python


def _session(executable: str, **settings: str) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(pythonExec=executable, _conf=settings))


@pytest.mark.parametrize(
    ("executable", "environment", "settings", "chosen"),
    [
        ("python3", {}, {}, sys.executable),
        ("python3", {"PYSPARK_PYTHON": "python3"}, {}, "python3"),
        ("python3", {}, {"spark.pyspark.python": "other"}, "python3"),
        ("/opt/python", {}, {}, "/opt/python"),
    ],
    ids=["nobody chose", "the environment", "a setting", "the environment at the start"],
)
def test_only_what_nobody_chose_becomes_the_drivers_python(
    monkeypatch: pytest.MonkeyPatch,
    executable: str,
    environment: dict[str, str],
    settings: dict[str, str],
    chosen: str,
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    session = _session(executable, **settings)
    share_python(session)
    assert session.sparkContext.pythonExec == chosen


@pytest.mark.spark
@pytest.mark.parametrize(("master", "chosen"), [("local[2]", sys.executable), ("yarn", "python3")])
def test_a_cluster_keeps_the_python_of_its_hosts(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, master: str, chosen: str
) -> None:
    rows = spark.range(1)
    context = spark.sparkContext
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(context, "pythonExec", "python3")
    monkeypatch.setattr(context, "master", master)
    stateful(rows)
    assert context.pythonExec == chosen
