"""What is shipped works where nothing else is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = {"numpy", "pyarrow", "fsspec", "xxhash", "typer", "rich"}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel and sdist, as `make dist` builds them."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that holds the wheel and what it needs, nothing else."""
    folder = tmp_path_factory.mktemp("empty")
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
    return folder / "bin"


def run(*command: object, cwd: Path | None = None) -> str:
    """The output of a command that sees nothing of this environment but the PATH and pip's own."""
    kept = ("PATH", "HOME", "LANG", "TMPDIR", "SSL_CERT_FILE")
    env = {k: v for k, v in os.environ.items() if k in kept or k.startswith("PIP_")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_wheel_is_pure_typed_and_licensed(wheel: Path) -> None:
    assert wheel.name == "holdfast-0.1.0-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert "holdfast/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0] for name in names} == {
        "holdfast", "pyspark_holdfast", "holdfast-0.1.0.dist-info",
    }  # fmt: skip


def test_sdist_brings_its_tests_and_documentation(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "Makefile",
        "constraints.txt",
        "docs/guide.md",
        "tests/project/test_packaging.py",
    } <= names
    assert not any(name.startswith(("site/", ".venv/", ".git/")) for name in names)


def test_empty_environment_gets_the_core_and_no_spark(installed: Path) -> None:
    listing = run(installed / "pip", "list", "--format", "freeze")
    names = {line.partition("==")[0].lower() for line in listing.splitlines()}
    assert names >= CORE | {"holdfast"}
    assert not names & {"pyspark", "pandas", "duckdb", "boto3", "cassandra-driver", "hdfs-native"}


def test_package_imports_without_extras(installed: Path, tmp_path: Path) -> None:
    script = "import holdfast, holdfast.errors; print(len(holdfast.errors.CONDITIONS) > 0)"
    assert run(installed / "python", "-W", "error", "-c", script, cwd=tmp_path) == "True\n"


ROUND_TRIP = """
import sys, holdfast, pyarrow as pa
db = holdfast.open("totals", key="user string", value="total long", partitions=1)
with db.update() as store:
    store.put(("Sankar",), (200,))
with db.update() as store:
    store.put_many(pa.table({"user": ["Jade"], "total": [800]}))
again = holdfast.open("totals")
print(again.version, again.at(2).get(("Jade",)), again.at(1).get(("Jade",)))
assert not {"pyspark", "pandas", "duckdb"} & set(sys.modules)
"""


def test_command_line_runs_without_extras(installed: Path, tmp_path: Path) -> None:
    assert "0.1.0" in run(installed / "holdfast", "--version", cwd=tmp_path)
    for command in ("ls", "show", "history", "get", "scan", "diff", "verify", "doctor"):
        assert command in run(installed / "holdfast", "--help", cwd=tmp_path)


def test_store_round_trip_without_extras(installed: Path, tmp_path: Path) -> None:
    printed = run(installed / "python", "-W", "error", "-c", ROUND_TRIP, cwd=tmp_path)
    assert printed == "2 (800,) None\n"
    assert "2" in run(installed / "holdfast", "history", "totals", cwd=tmp_path)
