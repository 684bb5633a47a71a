"""Write what the tests gave on one PySpark as a Markdown page.

python dev/spark_report.py result.xml page.md
"""

from __future__ import annotations

import platform
import subprocess
import sys
import xml.etree.ElementTree as ET
from importlib.metadata import version
from pathlib import Path


def main(result: Path, page: Path) -> None:
    rows = [
        (f"{case.get('classname')}::{case.get('name')}", outcome(case))
        for case in ET.parse(result).iter("testcase")
    ]
    passed = sum(said == "passed" for _, said in rows)
    lines = [
        f"# Holdfast on PySpark {version('pyspark')}",
        "",
        f"`make test-spark VERSION={version('pyspark')}` writes this file: the use cases and ten "
        f"random queries next to Spark's own streaming. {passed} of {len(rows)} tests passed, with "
        f"Python {platform.python_version()}, Java {java()} and PyArrow {version('pyarrow')}.",
        "",
        "| test | outcome |",
        "|---|---|",
        *(f"| `{name}` | {said} |" for name, said in sorted(rows)),
    ]
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(lines) + "\n")
    print(page)


def outcome(case: ET.Element) -> str:
    found = {child.tag for child in case}
    for tag, said in (("failure", "failed"), ("error", "error"), ("skipped", "skipped")):
        if tag in found:
            return said
    return "passed"


def java() -> str:
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    return said.split('"')[1]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
