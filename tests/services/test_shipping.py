"""The package reaches executors that do not have it: installed, by --py-files, in an archive.

Each test gives an application to spark-submit, as docs/streams.md says, on a cluster whose
executors have a Python of their own.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import distribution, distributions
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from servers import QUICK_START, SparkCluster

pytestmark = pytest.mark.services
ROOT = Path(__file__).resolve().parents[2]
NEEDED_BY_TASKS = {"numpy", "pyarrow", "fsspec", "xxhash"}
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.executor.memory": "512m",
    "spark.cores.max": "1",
    # Less work for processes that do not live long.
    "spark.driver.extraJavaOptions": " ".join(QUICK_START),
    "spark.executor.extraJavaOptions": " ".join(QUICK_START),
    # The workers may have the sources in theirs, which executors would inherit.
    "spark.executorEnv.PYTHONPATH": "",
}


@dataclass(frozen=True)
class Environment:
    """A virtual environment."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @classmethod
    def of(cls, folder: Path, packages: set[str]) -> Environment:
        """One with links to these packages, as they are installed here, and nothing else."""
        _run(sys.executable, "-m", "venv", "--without-pip", folder)
        (site,) = folder.glob("lib/python*/site-packages")
        tops = {
            Path(str(found.locate_file(file.parts[0])))
            for found in map(distribution, packages)
            for file in found.files or ()
            if file.parts[0] not in ("..", "__pycache__")
        }
        for top in tops:
            (site / top.name).symlink_to(top)
        return cls(folder)

    def install(self, wheel: Path) -> Environment:
        """Install a wheel, not what it depends on."""
        pip = (sys.executable, "-m", "pip", "--python", self.python)
        _run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel)
        return self


@dataclass(frozen=True)
class Environments:
    """The Pythons of the tests, and the wheel of the package."""

    bare: Environment
    """What tasks import, without the package: an executor that nobody prepared."""
    dependencies: Environment
    """All that is here, without the package."""
    installed: Environment
    """All that is here, the package installed from its wheel."""
    wheel: Path


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Environments:
    folder = tmp_path_factory.mktemp("environments")
    _run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    others = {found.name for found in distributions()} - {"holdfast"}
    made = Environments(
        bare=Environment.of(folder / "bare", NEEDED_BY_TASKS),
        dependencies=Environment.of(folder / "dependencies", others),
        installed=Environment.of(folder / "installed", others).install(wheel),
        wheel=wheel,
    )
    for environment in (made.bare, made.dependencies):
        script = f"import {', '.join(NEEDED_BY_TASKS)}, holdfast"
        ended = subprocess.run(
            [environment.python, "-c", script], env=_clean(), capture_output=True, text=True
        )
        assert "No module named 'holdfast'" in ended.stderr
    return made


def _clean() -> dict[str, str]:
    """The variables of this process that do not lead a Python or a Spark to the package."""
    prefixes = ("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV")
    return {name: text for name, text in os.environ.items() if not name.startswith(prefixes)}


def _run(*command: object) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def _write_files(folder: Path, seed: int) -> Counter[int]:
    """Random rows in two files, and their totals."""
    folder.mkdir()
    rnd = random.Random(seed)
    totals: Counter[int] = Counter()
    for number in range(2):
        rows = [(rnd.randrange(20), rnd.randrange(1, 100)) for _ in range(100)]
        users, cells = zip(*rows, strict=True)
        pq.write_table(pa.table({"user": users, "v": cells}), folder / f"{number}.parquet")
        for user, cell in rows:
            totals[user] += cell
    return totals


def _submit(
    folder: Path, master: str, options: list[str], driver: Path, executors: Path | str
) -> subprocess.CompletedProcess[str]:
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", master]
    for name, value in SETTINGS.items():
        command += ["--conf", f"{name}={value}"]
    script = Path(__file__).parents[1] / "support" / "services" / "shipped_app.py"
    return subprocess.run(
        [*command, *options, str(script), str(folder)],
        cwd=folder,
        env={
            **_clean(),
            "PYSPARK_DRIVER_PYTHON": str(driver),
            "PYSPARK_PYTHON": str(executors),
        },
        capture_output=True,
        text=True,
        timeout=280,
    )


def _tasks(
    folder: Path, master: str, options: list[str], driver: Path, executors: Path | str
) -> list[dict[str, Any]]:
    """Run the application, check its totals, and return where its tasks have the package from."""
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    totals = _write_files(folder / "in", seed)
    ended = _submit(folder, master, options, driver, executors)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    report = json.loads((folder / "report.json").read_text())
    assert dict(report["updates"]) == totals
    assert dict(report["state"]) == totals
    assert len(report["tasks"]) == 2
    return list(report["tasks"])


def test_an_installed_package_is_used_by_executors(
    tmp_path: Path, cluster: SparkCluster, environments: Environments
) -> None:
    own = environments.installed
    for task in _tasks(tmp_path, cluster.url, [], own.python, own.python):
        assert task["python"] == str(own.python)
        assert Path(task["holdfast"]).is_relative_to(own.folder)
        assert Path(task["pyspark_holdfast"]).is_relative_to(own.folder)


def test_py_files_bring_the_package_to_driver_and_executors(
    tmp_path: Path, cluster: SparkCluster, environments: Environments
) -> None:
    shutil.copyfile(environments.wheel, tmp_path / "holdfast.zip")
    options = ["--py-files", "holdfast.zip"]
    driver, executors = environments.dependencies.python, environments.bare.python
    for task in _tasks(tmp_path, cluster.url, options, driver, executors):
        assert task["python"] == str(executors)
        assert task["holdfast"].endswith("/holdfast.zip/holdfast/__init__.py")
        assert task["pyspark_holdfast"].endswith("/holdfast.zip/pyspark_holdfast/__init__.py")


def test_an_archive_brings_a_whole_environment_to_executors(
    tmp_path: Path, cluster: SparkCluster, environments: Environments
) -> None:
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz") as archive:
        archive.add(environments.installed.folder, ".")
    options = ["--archives", "environment.tar.gz#environment"]
    driver, executors = environments.installed.python, "./environment/bin/python"
    for task in _tasks(tmp_path, cluster.url, options, driver, executors):
        unpacked = Path(task["python"]).parents[1]
        assert unpacked.name == "environment"
        assert unpacked != environments.installed.folder
        assert Path(task["holdfast"]).is_relative_to(unpacked)
        assert Path(task["pyspark_holdfast"]).is_relative_to(unpacked)


def test_executors_without_the_package_get_an_error_that_says_what_to_do(
    tmp_path: Path, cluster: SparkCluster, environments: Environments
) -> None:
    _write_files(tmp_path / "in", 0)
    driver, executors = environments.installed.python, environments.bare.python
    ended = _submit(tmp_path, cluster.url, [], driver, executors)
    assert ended.returncode != 0
    assert "InvalidArgument: The executors' Python has no module 'holdfast'" in ended.stdout
    assert "--py-files holdfast.zip" in ended.stdout
    assert "ModuleNotFoundError" not in ended.stdout
