"""Writes what the long tests said, their seeds with it, to `benchmarks/results/soak-*.md`."""

from __future__ import annotations

from pathlib import Path

import pytest

_RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
_PARTS = {
    "tests/engine": "store",
    "tests/recovery": "store",
    "tests/simulator": "simulator",
    "tests/spark": "streams",
    "tests/spark/test_custom_differential.py": "custom",
    "tests/spark/test_aggregations.py": "pipelines",
    "tests/spark/test_frame.py": "pipelines",
    "tests/spark/test_operators.py": "pipelines",
    "tests/spark/test_overflows.py": "pipelines",
    "tests/spark/test_providers.py": "pipelines",
    "tests/spark/test_unions.py": "pipelines",
    "tests/spark/test_watermarks.py": "pipelines",
    "tests/services/test_exactly_once.py": "kills",
    "tests/services/test_takeovers.py": "takeovers",
    "tests/services/test_cluster_kills.py": "cluster",
    "tests/services/test_view_kills.py": "views",
}
_TITLES = {
    "store": "The store under long random use",
    "simulator": "Simulated streams, drivers and faults",
    "streams": "Managed state against Spark's own streaming",
    "custom": "Custom state against Spark's own transformWithState and applyInPandasWithState",
    "pipelines": "Pipelines of the tests against Spark's own streaming, not its recordings",
    "kills": "Streams whose driver is killed",
    "takeovers": "Streams that a second driver takes over",
    "cluster": "Streams on a cluster whose processes and servers are killed",
    "views": "Views whose stream and whose database are killed",
}


class SoakReport:
    """Collects the reports of one run of `make soak`."""

    def __init__(self) -> None:
        self._said: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a long test printed."""
        if report.when != "call" or "soak" not in report.keywords:
            return
        file, _, test = report.nodeid.partition("::")
        part = _PARTS.get(file) or _PARTS.get(file.rpartition("/")[0])
        if part is None:
            return
        name = test.replace("_", " ").removeprefix("test ")
        said = report.capstdout.strip()
        text = f"## {name}: {report.outcome}, {report.duration / 60:.1f} minutes\n\n`{file}`\n"
        self._said.setdefault(part, []).append(f"{text}\n```\n{said}\n```\n" if said else text)

    def pytest_sessionfinish(self) -> None:
        """Write a file for each part that ran."""
        for part, said in self._said.items():
            _RESULTS.mkdir(parents=True, exist_ok=True)
            head = f"# {_TITLES[part]}\n\n`make soak` writes this file.\n"
            (_RESULTS / f"soak-{part}.md").write_text("\n".join([head, *sorted(said)]))


def pytest_configure(config: pytest.Config) -> None:
    """Report on `make soak`, and on nothing less."""
    if config.option.markexpr == "soak" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SoakReport())
