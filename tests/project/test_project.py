"""The repository keeps its own rules."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from holdfast.spark.interop import check

ROOT = Path(__file__).resolve().parents[2]
CORE = {"numpy", "pyarrow", "fsspec", "xxhash", "typer", "rich"}
TARGETS = {
    "help", "install", "demo", "test", "test-services", "test-spark", "test-pyspark-suites", "soak",
    "lint", "bench", "bench-store", "docs", "dist", "clean",
}  # fmt: skip


def tracked_texts() -> dict[str, str]:
    """Every tracked file that is text, by its path."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached"], cwd=ROOT, capture_output=True, check=True
    )
    texts = {}
    for name in filter(None, listing.stdout.decode().split("\0")):
        path = ROOT / name
        content = path.read_bytes() if path.is_file() else b""
        if b"\0" not in content:
            texts[name] = content.decode("utf-8", "replace")
    return texts


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def name_of(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    assert match, requirement
    return match[0].lower().replace("_", "-")


def constraint_lines() -> list[str]:
    text = (ROOT / "constraints.txt").read_text()
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_no_tracked_file_names_a_home_directory_or_a_package_index() -> None:
    # Pieces are joined here, so that this file does not find itself.
    homes = ["/" + "root" + "/", "/" + "work" + "/", "/" + "home" + r"/\w", "/" + "Users" + r"/\w"]
    hosts = ["--" + "index-url", "--" + "find-links", r"https?://[^\s/]*" + "/simple" + r"\b"]
    forbidden = re.compile("|".join(homes + hosts))
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in tracked_texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if forbidden.search(line)
    ]
    assert found == []


def test_constraints_are_names_and_versions_only() -> None:
    bad = [x for x in constraint_lines() if not re.fullmatch(r"[\w.-]+==\d[\w.+!]*", x)]
    assert bad == []


def test_every_dependency_is_pinned() -> None:
    pinned = {name_of(line) for line in constraint_lines()}
    declared = [*project()["dependencies"]]
    for extra in project()["optional-dependencies"].values():
        declared += extra
    for line in (ROOT / "dev" / "requirements.in").read_text().splitlines():
        declared += [line] if line and not line.startswith("#") else []
    assert {name_of(item) for item in declared} - {"holdfast"} <= pinned


def test_the_core_needs_six_packages() -> None:
    assert {name_of(item) for item in project()["dependencies"]} == CORE


def test_all_is_every_other_extra() -> None:
    extras = dict(project()["optional-dependencies"])
    (everything,) = extras.pop("all")
    assert sorted(extras) == sorted(re.findall(r"[\w-]+", everything)[1:])
    assert set(extras) == {"spark", "hdfs", "s3", "cassandra", "dynamodb", "pandas", "sql"}


def test_make_help_lists_the_targets() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = {line.split()[0] for line in done.stdout.splitlines()}
    assert listed >= TARGETS


def test_ci_runs_make_and_nothing_else() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    commands = [x for x in script.splitlines() if x and not x.startswith(("#", "set ", "cd "))]
    assert commands == ["make lint test", "make test-services"]


def script(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def ensure_java(**env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", str(ROOT / "dev" / "ensure_java")], env=env, capture_output=True, text=True
    )


def machine_without_java(folder: Path, user: int) -> str:
    """A PATH with Debian's package tools, whose only JRE is 21, and without Java."""
    for tool in ("sed", "head", "chmod"):
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    script(folder / "id", f"echo {user}")
    script(folder / "apt-cache", 'test "$2" = openjdk-21-jre-headless')
    java = f"{folder}/java"
    script(
        folder / "apt-get",
        f"""test "$1" = install || exit 0
echo '#!/bin/sh' > {java}
echo "echo 'openjdk version \\"21.0.1\\"' >&2" >> {java}
chmod +x {java}""",
    )
    return str(folder)


def test_java_is_installed_on_debian_as_root(tmp_path: Path) -> None:
    done = ensure_java(PATH=machine_without_java(tmp_path, user=0))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "java").exists()


def test_missing_java_is_named_in_one_line_to_others(tmp_path: Path) -> None:
    done = ensure_java(PATH=machine_without_java(tmp_path, user=1000))
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert "Java 17 or newer is needed" in done.stderr


def test_java_home_without_java_is_refused_and_nothing_installed(tmp_path: Path) -> None:
    # Spark would use that JAVA_HOME, whatever else is installed.
    path = machine_without_java(tmp_path, user=0)
    done = ensure_java(PATH=path, JAVA_HOME=str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert not (tmp_path / "java").exists()


@pytest.mark.parametrize(
    ("version", "accepted"),
    [("1.8.0_392", False), ("11.0.2", False), ("17.0.15", True), ("25", True)],
)
def test_java_is_accepted_from_17_on(tmp_path: Path, version: str, accepted: bool) -> None:
    script(tmp_path / "bin" / "java", f"echo 'openjdk version \"{version}\" 2025-01-01' >&2")
    done = ensure_java(PATH="/usr/bin:/bin", JAVA_HOME=str(tmp_path))
    assert (done.returncode == 0) is accepted


def test_tests_run_in_random_order(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.pluginmanager.hasplugin("randomly")
    assert pytestconfig.getoption("randomly_reorganize")


def test_third_party_warnings_are_excepted_one_by_one() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    filters = tomllib.loads(text)["tool"]["pytest"]["ini_options"]["filterwarnings"]
    assert filters[0] == "error"
    for exception in filters[1:]:
        action, message, category, module = (exception.split(":", 3) + [""] * 4)[:4]
        assert action == "ignore", exception
        assert message or module, f"{exception} would silence {category} everywhere"


def test_importing_holdfast_loads_no_optional_package() -> None:
    script = (
        "import sys, holdfast\n"
        "heavy = {'pyspark', 'pandas', 'duckdb', 'hdfs_native', 'boto3', 'cassandra'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


PROMISED = re.compile(r"pyspark(\.errors|\.sql(\.(functions|types|streaming(\.\w+)*))?)?")
"""The modules whose public names PySpark documents."""


SPARK = ROOT / "src" / "holdfast" / "spark"
SEAM = SPARK / "interop"


def _private_uses(path: Path) -> list[str]:
    """What a module uses of other packages' private parts: attributes it does not itself define,
    names and modules of PySpark's, and calls into the JVM.
    """
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls")
    }
    own |= {node.id for node in nodes if isinstance(node, ast.Name)}
    found = []
    for node in nodes:
        if isinstance(node, ast.Attribute):
            is_private = re.match(r"_(?!_)", node.attr) and node.attr not in own
            if is_private or node.attr == "toArrowBatchRdd":
                found.append(ast.unparse(node))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyspark."):
            hidden = [alias.name for alias in node.names if alias.name.startswith("_")]
            if hidden or not PROMISED.fullmatch(node.module or ""):
                found.append(ast.unparse(node))
    return found


def test_private_parts_of_pyspark_are_touched_in_one_place() -> None:
    source = ROOT / "src" / "holdfast"
    with_pyspark = [path for path in source.rglob("*.py") if "pyspark" in path.read_text()]
    uses = {path: _private_uses(path) for path in with_pyspark}
    elsewhere = {
        str(path.relative_to(source)): found
        for path, found in uses.items()
        if found and SEAM not in path.parents
    }
    assert elsewhere == {}
    inside = " ".join(use for found in uses.values() for use in found)
    for name in ("_jdf", "_jvm", "_jsparkSession", "_jrdd", "toArrowBatchRdd"):
        assert name in inside


HANDLES = re.compile(
    "_jvm|_jsc|_sc|_jsparkSession|_jdf|_jgd|_jc|_jrdd|_jschema|_jreader|_jwrite|_jsq|_jsqm|_jseq|"
    "_jmap|_jcols|_jconf|_gateway"
)
"""How PySpark calls its hold on the JVM."""


def _handles(path: Path) -> list[str]:
    """Where a module holds the JVM, be it by the name of an attribute in a text."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            name = node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value
        else:
            continue
        if HANDLES.fullmatch(name):
            found.append(f"{path.name}:{node.lineno} {name}")
    return found


def test_the_jvm_is_held_behind_the_seam_alone() -> None:
    holding = {path: _handles(path) for path in SPARK.parent.rglob("*.py")}
    assert [found for path, found in holding.items() if found and SEAM not in path.parents] == []
    assert sum(map(len, holding.values())) > 30


def test_the_rest_of_spark_knows_the_seam_and_no_module_behind_it() -> None:
    room = "holdfast.spark.interop"
    # The last one decides whether the seam fits a session at all.
    allowed = {(room, "seam"), f"{room}.contract", f"{room}.model", f"{room}.check"}
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        if SEAM in path.parents:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names if alias.name.startswith(room)}
            elif isinstance(node, ast.ImportFrom) and node.module == room:
                found |= {(room, alias.name) for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(room):
                found.add(node.module or "")
            elif isinstance(node, ast.ImportFrom) and node.module == "holdfast.spark":
                found |= {room for alias in node.names if alias.name == "interop"}
    assert found == allowed


def test_whatever_the_seam_offers_is_asked_for_and_nothing_else_is() -> None:
    classes = {
        node.name: node
        for node in ast.parse((SEAM / "contract.py").read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    themes = {
        field.target.id: classes[field.annotation.id]
        for field in classes["Seam"].body
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(field.annotation, ast.Name)
    }
    offered = set()
    for theme, protocol in themes.items():
        for node in protocol.body:
            if isinstance(node, ast.FunctionDef):
                offered.add((theme, node.name))
            elif isinstance(node, ast.AnnAssign):
                offered.add((theme, ast.unparse(node.target)))
    text = "\n".join(path.read_text() for path in SPARK.rglob("*.py") if SEAM not in path.parents)
    assert offered == set(re.findall(r"\bseam\.(\w+)\.(\w+)", text))


def test_the_check_of_a_spark_knows_what_is_used_of_its_context() -> None:
    text = "\n".join(path.read_text() for path in SEAM.glob("*.py"))
    used = set(re.findall(r"\b(?:sparkContext|context)\.(_[a-z]\w*)", text))
    assert used == set(check._OF_CONTEXTS)


def test_windows_is_refused_by_name() -> None:
    script = "import sys; sys.platform = 'win32'; import holdfast"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode != 0
    assert "Windows" in done.stderr
