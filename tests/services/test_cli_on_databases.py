"""The command line on roots in databases, which it reaches by what the environment says."""

from __future__ import annotations

import pytest
from command_line import fails, lines, run, run_json
from remotes import Remote

import holdfast
from servers import DynamoDb

pytestmark = pytest.mark.services
VARIABLES = {
    "endpoint_url": "AWS_ENDPOINT_URL",
    "key": "AWS_ACCESS_KEY_ID",
    "secret": "AWS_SECRET_ACCESS_KEY",
}


@pytest.fixture
def root(on_database: Remote, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store of totals with three versions, and the variables that lead to it."""
    server, location, options = on_database
    if isinstance(server, DynamoDb):
        for option, text in options.items():
            monkeypatch.setenv(VARIABLES[option], text)
    totals = ({"Sankar": 200}, {"Sankar": 500, "Jade": 800}, {"Jade": None})
    with holdfast.open(
        location, key="user string", value="total long", partitions=2, options=options
    ) as db:
        for version in totals:
            with db.update() as store:
                for user, total in version.items():
                    if total is None:
                        store.remove((user,))
                    else:
                        store.put((user,), (total,))
        db.tag("both", 2)
    return location


def test_every_command_reads_a_root_in_a_database(root: str) -> None:
    found = lines(run("ls", root))
    assert found[:2] == [f"root {root} (database)", "versions 4, from 0 to 3"]
    assert "tags both = 2" in found
    assert run_json("show", root)["version"] == 3
    history = lines(run("history", root))[1:]
    keys = {int(line.split()[0]): int(line.split()[2]) for line in history}
    assert keys == {3: 1, 2: 2, 1: 1, 0: 0}
    assert lines(run("get", root, "Sankar")) == ["total 500"]
    assert lines(run("get", root, "Sankar", "--at", "1")) == ["total 200"]
    fails("get", root, "Jade", code=3)
    rows = run_json("scan", root, "--at", "both", "--where", "total >= 600")["rows"]
    assert [(row["user"], row["total"]) for row in rows] == [("Jade", 800)]
    assert "Jade" in run("diff", root, "2", "3", code=1)
    assert run_json("verify", root)["intact"] is True


def test_the_doctor_tries_a_root_in_a_database(root: str) -> None:
    checks = run_json("doctor", root)["checks"]
    tried = [check for check in checks if root in str(check)]
    assert tried
    assert {check["status"] for check in checks} <= {"ok", "note"}
    assert lines(run("ls", root))[1] == "versions 4, from 0 to 3"
