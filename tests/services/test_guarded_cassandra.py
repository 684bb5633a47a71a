"""A Cassandra that asks for users and speaks TLS: what it refuses, of roots and of views."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from remotes import refusal
from view_databases import TOTALS, put_totals

import holdfast
from holdfast.errors import InvalidArgument
from servers import Cassandra

pytestmark = pytest.mark.services


def test_wrong_and_missing_users_and_certificates_of_cassandra_are_refused_and_not_shown(
    guarded_cassandra: Cassandra, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, planted = guarded_cassandra, "PLANTED-SECRET-0123456789"
    location = f"cassandra://{node.address}/state/totals"
    ca = {"ca": node.options["ca"]}

    def opening(given: dict[str, str]) -> Callable[[], object]:
        return lambda: holdfast.open(location, "n long", "v long", options=given)

    for options in (ca, {**ca, "username": "cassandra", "password": planted}):
        error = refusal(opening(options))
        assert error.condition == "STATE_STORE_ACCESS_DENIED"
        assert "username" in str(error)
        assert planted not in f"{error!r} {error} {error.__cause__!r}"
    assert "not trusted" in str(refusal(opening({"tls": "true"})))
    assert "option ca" in str(refusal(opening({"ca": "/nowhere.pem"})))
    for name, text in node.options.items():
        monkeypatch.setenv(f"HOLDFAST_CASSANDRA_{name.upper()}", text)
    with holdfast.open(location, "n long", "v long") as db, db.update() as store:
        store.put((1,), (2,))
    command = [sys.executable, "-c", "from holdfast.cli import main; main()"]
    done = subprocess.run(
        [*command, "get", location, "1", "--json"], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert '"v": 2' in done.stdout
    assert planted not in caplog.text


def test_wrong_credentials_of_a_view_are_refused_with_what_to_set(
    guarded_cassandra: Cassandra, tmp_path: Path
) -> None:
    node = guarded_cassandra
    location, ca = f"cassandra://{node.address}/state/shown", {"ca": node.options["ca"]}
    for wrong in (ca, {**ca, "username": "cassandra", "password": "hunter2"}):
        with pytest.raises(InvalidArgument, match="username") as refused:
            holdfast.open(tmp_path, **TOTALS, view=location, view_options=wrong)
        assert refused.value.condition == "STATE_STORE_ACCESS_DENIED"
        assert "hunter2" not in str(refused.value)
    with holdfast.open(tmp_path, **TOTALS, view=location, view_options=node.options) as db:
        put_totals(db, {"a": 1})
