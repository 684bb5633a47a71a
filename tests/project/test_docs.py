"""The documentation says what the code does, and its site needs nobody else."""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_docs", ROOT / "dev" / "gen_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["errors.md", "settings.md", "cli.md", "streams.md"])
def test_generated_page_is_up_to_date(page: str) -> None:
    committed = (ROOT / "docs" / page).read_text()
    assert generator().PAGES[page]() == committed, "run `make docs-generated`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    targets = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    local = [target for target in targets if target and "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_every_decision_is_in_the_index_and_on_the_site() -> None:
    folder = ROOT / "docs" / "decisions"
    index, site = (folder / "index.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    records = sorted(page for page in folder.glob("*.md") if page.name != "index.md")
    for number, record in enumerate(records, 1):
        heading, _, rest = record.read_text().partition("\n")
        title = heading.removeprefix(f"# {number}. ")
        status = rest.partition("**Status:** ")[2].partition("\n")[0]
        assert f"| {number} | [{title}]({record.name}) | {status} |" in index
        assert f"- decisions/{record.name}\n" in site


@pytest.mark.parametrize(
    ("page", "sections"),
    [
        ("README.md", ["Guarantees", "Limitations"]),
        ("CHANGELOG.md", ["Unreleased"]),
        ("CONTRIBUTING.md", ["A change", "House rules"]),
        ("SECURITY.md", ["Reporting"]),
        ("docs/guide.md", ["State", "Stateless and stateful", "Why a state store",
                           "Managed and unmanaged state"]),
        ("docs/recovery.md", ["Two versions, always", "When a file is damaged"]),
    ],
)  # fmt: skip
def test_page_has_its_sections(page: str, sections: list[str]) -> None:
    found = re.findall(r"^## (.+)$", (ROOT / page).read_text(), flags=re.MULTILINE)
    assert [section for section in sections if section not in found] == []


def test_site_builds_strictly_and_asks_no_other_host(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    fetched = re.compile(
        r"""<(?:script|img|iframe)[^>]*\bsrc=["']?https?:"""
        r"""|<link[^>]*rel=["']?(?:stylesheet|preconnect|preload)[^>]*href=["']?https?:"""
    )
    html = {path: path.read_text() for path in tmp_path.rglob("*.html")}
    assert len(html) > 5
    assert [str(path) for path, text in html.items() if fetched.search(text)] == []


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


def test_readme_session_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, session = python_blocks(ROOT / "README.md")
    assert len(session.splitlines()) <= 12
    example = doctest.DocTestParser().get_doctest(session, {}, "README", "README.md", 0)
    assert doctest.DocTestRunner().run(example) == (0, len(example.examples))


@pytest.mark.spark
def test_readme_stream_runs_as_printed(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    rows = spark.sql("SELECT 'apple' AS id, timestamp'2026-11-16 10:12:00' AS time, 10L AS profit")
    rows.write.parquet(str(tmp_path / "in"))
    start = datetime(2026, 11, 16, 10, 10, tzinfo=UTC)
    names = {
        "F": F,
        "trades": spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in")),
        "path": str(tmp_path / "cp"),
        "start": start,
        "end": start + timedelta(minutes=5),
    }
    stream, _ = python_blocks(ROOT / "README.md")
    exec(compile(stream, "README.md", "exec"), names)  # noqa: S102
    query: Any = names["query"]
    query.processAllAvailable()
    assert query.state().get(("apple", names["start"], names["end"])) == (10,)
    query.stop()


def test_guide_examples_give_what_their_comments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in python_blocks(ROOT / "docs" / "guide.md"):
        exec(compile(block, "guide.md", "exec"), names)  # noqa: S102
    db = names["db"]
    assert names["found"].to_pydict() == {
        "user": ["Kun", "Nobody"], "total": [100, None], "_found": [True, False],
    }  # fmt: skip
    assert (db.version, db.at(1).get(("Jade",)), db.at(2).scan().num_rows) == (2, None, 3)
    assert db.at(1).get(("Sankar",)) == (200,)
    assert "before-migration" in db.tags
    state = names["state"]
    assert (state.version, state.get("Sankar"), state.at(1).get("Jade")) == (2, (200,), None)
    rows = state.scan(columns=["user"], where="total >= 200").to_pydict()
    assert rows == {"user": ["Sankar", "Jade"]}
    duckdb = pytest.importorskip("duckdb")
    assert duckdb.sql("select sum(total) from state").fetchall() == [(1100,)]


@pytest.mark.spark
def test_examples_of_processors_run_as_printed(spark: Any, tmp_path: Path) -> None:
    from holdfast.testing import StateTestDriver

    columns = "user string, shopping long"
    names: dict[str, Any] = {
        "transactions": spark.readStream.schema(columns).json(str(tmp_path)),
    }
    for block in python_blocks(ROOT / "docs" / "processors.md"):
        exec(compile(block, "processors.md", "exec"), names)  # noqa: S102
    assert names["totals"].columns == ["user", "total"]
    names["test_a_total_grows"](StateTestDriver)


def sessions(page: Path) -> list[tuple[list[str], list[str]]]:
    """The `$ holdfast …` commands of a page, each with the lines it is said to print."""
    found: list[tuple[list[str], list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", page.read_text(), flags=re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((shlex.split(line)[1:], []))
            elif found:
                found[-1][1].append(line)
    return found


def without_times_and_sizes(lines: list[str]) -> list[str]:
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "TIME", "\n".join(lines))
    return [line.rstrip() for line in re.sub(r" +[\d.]+ (?:B|KiB)", " SIZE", text).splitlines()]


@pytest.mark.parametrize("name", ["README.md", "docs/guide.md"])
def test_commands_of_a_page_print_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in python_blocks(ROOT / name):
        if "stateful(" in block:
            continue  # needs Spark
        for example in doctest.DocTestParser().get_examples(block) or [block]:
            source = example if isinstance(example, str) else example.source
            exec(compile(source, name, "exec"), names)  # noqa: S102
    commands = sessions(ROOT / name)
    assert commands
    for (program, *arguments), printed in commands:
        done = CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "90"})
        assert program == "holdfast"
        assert without_times_and_sizes(done.stdout.splitlines()) == without_times_and_sizes(printed)


@pytest.mark.parametrize("section", ["Guarantees", "Limitations"])
def test_every_promise_names_the_test_that_holds_it(section: str) -> None:
    text = (ROOT / "README.md").read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    promises = re.findall(r"^- (.*?)(?=^- |\Z)", text, flags=re.DOTALL | re.MULTILINE)
    assert len(promises) >= 4
    for promise in promises:
        (named,) = re.findall(r"\[(test_\w+)\]\((tests/[\w/]+\.py)\)", promise)
        assert f"def {named[0]}(" in (ROOT / named[1]).read_text(), promise
