"""The command line: tables for people, JSON for scripts, exit codes, and errors that help."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import sample_roots
import xxhash
from command_line import fails, lines, run, run_json
from fsspec.implementations.local import LocalFileSystem
from typer.testing import CliRunner

import holdfast
from holdfast import cli, reading
from holdfast.admin import doctor as doctor_module
from holdfast.backends.local import LocalStorage
from holdfast.backends.locations import open_storage
from holdfast.backends.memory import MemoryStorage
from holdfast.cli import app
from holdfast.cli.exits import Exit
from holdfast.cli.texts import clean, size_text, spans
from holdfast.engine.files.filenames import outbox_path
from holdfast.engine.files.manifest_codec import encode
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import CONDITIONS, HoldfastError, InvalidArgument, Unavailable
from holdfast.testing.faults import FaultyStorage

COMMANDS = ("ls", "show", "history", "get", "scan", "diff", "verify", "copy", "doctor")


@pytest.fixture
def shop(tmp_path: Path) -> str:
    return str(sample_roots.shop(tmp_path / "shop"))


def holdfast_process(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from holdfast.cli import main; main()"]
    return subprocess.run(
        [*command, *map(str, arguments)], env={**os.environ, **env}, capture_output=True, text=True
    )


# -- what people see -----------------------------------------------------------------------------


def test_ls_of_one_root_shows_its_versions_tags_and_stores(shop: str) -> None:
    assert lines(run("ls", shop)) == [
        f"root {shop} (database)",
        "versions 5, from 0 to 4",
        "committed TIME",
        "tags two-users = 2",
        "operator store partitions version keys size key value",
        "0 default 2 4 2 7.8 KiB user string total long",
    ]


def test_ls_of_a_folder_shows_every_root_below_it(tmp_path: Path) -> None:
    sample_roots.providers(tmp_path / "alone")
    sample_roots.query(tmp_path / "query")
    found = lines(run("ls", tmp_path))
    assert found[0] == f"below {tmp_path}"
    assert [line.split()[:5] for line in found[2:]] == [
        ["alone/0/0", "0", "default", "1", "2"],
        ["alone/0/0/left", "0", "left", "1", "1"],
        ["alone/0/1", "0", "default", "#1", "3"],
        ["query", "0", "default", "2", "2"],
        ["query", "1", "left", "2", "2"],
        ["query", "1", "right", "2", "2"],
    ]


def test_history_lists_versions_newest_first(shop: str) -> None:
    found = lines(run("history", shop))
    assert found[0] == "version committed keys changed written size tags"
    assert [line.split()[:4] for line in found[1:]] == [
        ["4", "TIME", "2", "2"], ["3", "TIME", "2", "1"], ["2", "TIME", "2", "1"],
        ["1", "TIME", "1", "1"], ["0", "TIME", "0", "0"],
    ]  # fmt: skip
    assert found[3].endswith("two-users")
    assert lines(run("history", shop, "--limit", 1))[-1] == "4 older ones; --limit 0 shows all"


def test_history_says_until_when_a_version_is_kept_for_its_grace_period(tmp_path: Path) -> None:
    conf = {"min_versions_to_retain": 2, "grace_period_ms": 3_600_000}
    with holdfast.open(tmp_path, key="k int", value="v int", conf=conf) as db:
        for number in range(5):
            with db.update() as store:
                store.put((1,), (number,))
        db.tag("kept", 1)
        db.maintain()
    found = run_json("history", tmp_path)["versions"]
    committed = {line["version"]: line["committed_at_ms"] for line in found}
    assert {line["version"]: line["removable_from_ms"] for line in found} == {
        5: None, 4: None, 1: None,
        **{old: committed[old + 2] + 3_600_000 for old in (3, 2, 0)},
    }  # fmt: skip
    head, *rows = lines(run("history", tmp_path))
    assert head.endswith("tags removed after")
    assert [row.split()[0] for row in rows if row.count("TIME") == 2] == ["3", "2", "0"]
    conf = {**conf, "grace_period_ms": 0}
    with holdfast.open(tmp_path, conf=conf) as db:
        db.maintain()
    assert "removed after" not in run("history", tmp_path)


def test_history_marks_a_damaged_version(shop: str) -> None:
    sample_roots.flip_byte(Path(shop) / "versions/3")
    assert "3 damaged" in lines(run("history", shop))


def test_show_tells_the_commit_the_schemas_and_the_partitions(tmp_path: Path) -> None:
    root = sample_roots.query(tmp_path)
    found = lines(run("show", root, "--operator", 1, "--store", "left"))
    assert found == [
        f"root {root} (query)",
        "version 2 (of 0 to 2)",
        "committed TIME",
        "writer ID, epoch 1",
        "tags –",
        "batch id=1, query_id=q",
        "watermark late=0",
        "operator 1, store left",
        "key k int",
        "value v double",
        "partition keys segments size",
        "0 1 2 3.0 KiB",
        "1 3 2 3.1 KiB",
    ]


def test_show_files_prints_the_chain_a_version_loads_from(tmp_path: Path) -> None:
    root = sample_roots.merged_shop(tmp_path)
    found = lines(run("show", root, "--files"))
    start = found.index("files of operator 0, store default, partition 0, newest first")
    assert found[start + 1] == "kind versions rows removed size file"
    assert found[start + 2] == "delta 7 1 0 1.5 KiB 0/0/7-ID.delta"
    assert re.fullmatch(r"snapshot 1–6 7 0 1\.\d KiB 0/0/6-ID\.snapshot", found[start + 3])
    assert [line.split()[:3] for line in found[start + 4 :]] == [
        ["or", "delta", str(version)] for version in (6, 5, 4, 3, 2, 1)
    ]
    next(tmp_path.glob("0/0/*.snapshot")).unlink()
    assert "(missing or cut)" in run("show", root, "--files")


def test_get_prints_a_value_at_any_version(shop: str) -> None:
    assert lines(run("get", shop, "Sankar")) == ["total 500"]
    assert lines(run("get", shop, "Sankar", "--at", 1)) == ["total 200"]
    assert lines(run("get", shop, "Jade", "--at", "two-users")) == ["total 800"]
    assert lines(run("get", shop, "--key-json", '{"user": "Sankar"}')) == ["total 500"]


def test_get_history_prints_how_a_key_changed(shop: str) -> None:
    assert lines(run("get", shop, "Jade", "--history")) == [
        "version committed change total", "2 TIME added 800", "4 TIME removed",
    ]  # fmt: skip


def test_missing_key_is_said_on_stderr_and_ends_with_3(shop: str) -> None:
    assert "no such key in version 4" in fails("get", shop, "Nobody", code=3)
    assert "No version has such a key" in fails("get", shop, "Nobody", "--history", code=3)


def test_scan_filters_picks_columns_and_stops_at_the_limit(shop: str) -> None:
    assert lines(run("scan", shop, "--where", "total > 100")) == [
        "user total", "Sankar 500", "1 row of version 4",
    ]  # fmt: skip
    assert lines(run("scan", shop, "--at", 2, "--columns", "total", "--where", "user='Jade'")) == [
        "total", "800", "1 row of version 2",
    ]  # fmt: skip
    assert "there are more" in run("scan", shop, "--limit", 1)
    assert "2 rows of version 4" in run("scan", shop, "--limit", 0)


def test_diff_shows_both_sides_and_ends_with_1_where_they_differ(shop: str) -> None:
    assert lines(run("diff", shop, "two-users", 4, code=1)) == [
        "user total before total after",
        "- Jade 800",
        "+ Kun 100",
        "~ Sankar 200 500",
        "version 2 to 4: 1 added, 1 changed, 1 removed",
    ]
    assert lines(run("diff", shop, code=1))[-1].startswith("version 3 to 4:")
    assert lines(run("diff", shop, 2, 2)) == ["version 2 to 2: 0 added, 0 changed, 0 removed"]


def test_verify_of_an_intact_root_says_so(shop: str) -> None:
    (found,) = lines(run("verify", shop))
    assert re.fullmatch(
        re.escape(shop) + r": \d+ files, .* checked, all intact, versions 0–4", found
    )


def test_verify_copy_and_find_count_the_same_files(tmp_path: Path) -> None:
    root, new = tmp_path / "root", tmp_path / "new"
    with holdfast.open(root, key="k int", value="v int", partitions=3) as db:
        for number in range(3):
            with db.update() as store:
                for key in range(9):
                    store.put((key,), (number,))
        db.tag("one", 1)

    def on_disk(place: Path) -> int:
        return sum(path.is_file() for path in place.rglob("*"))

    count = on_disk(root)
    assert f": {count} files, " in run("verify", root)
    assert f"to copy {count} files," in " ".join(run("copy", root, new, "--dry-run").split())
    assert f"checked: {count} files written" in run("copy", root, new, "--yes")
    assert on_disk(new) == count
    (checked,) = run_json("verify", new)["roots"]
    assert (checked["file_count"], checked["other_files"]) == (count, 0)
    for name in ("claims/1", "delivered/3-x", "place"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).touch()
    sample_roots.shop(root / "below")
    assert "; 3 files beside them belong to no version" in run("verify", root)


def test_verify_checks_output_that_waits_to_be_delivered(tmp_path: Path) -> None:
    root = sample_roots.query(tmp_path)
    storage = open_storage(root)
    log = VersionLog(storage, Runtime.system())
    path = outbox_path(3, "a" * 32)
    storage.write(path, b"head" + b"rows")
    part = {"path": path, "offset": 4, "size": 4, "checksum": xxhash.xxh3_64_hexdigest(b"rows"),
            "stage": 0, "partition": 0, "rows": 1}  # fmt: skip
    waiting = replace(log.load(2), version=3, parent=2, outbox=(part,))
    storage.create_if_absent("versions/3", encode(waiting))
    (kind,) = [
        each for each in run_json("verify", root)["roots"][0]["files"] if "outbox" in each["path"]
    ]
    assert (kind["kind"], kind["problem"]) == ("outbox", None)
    storage.delete(path)
    storage.write(path, b"head" + b"rowx")
    assert "checksum the manifest says" in run("verify", root, code=1)


def test_verify_lists_damage_and_ends_with_1(tmp_path: Path) -> None:
    root = sample_roots.merged_shop(tmp_path)
    sample_roots.flip_byte(next(tmp_path.glob("0/0/4-*.delta")))
    found = lines(run("verify", root, code=1))
    assert found[1].startswith("delta 0/0/4-ID.delta 4–7 block 0")
    assert found[-2:] == ["versions that can be read: 0–3, 7", "versions that cannot: 4–6"]


def test_verify_shows_progress_on_a_terminal_and_only_there(shop: str) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "verify", shop]
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=theirs) as child:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:
            pass  # Linux ends a terminal that way once the child has gone.
        finally:
            os.close(ours)
        assert child.wait() == 0
    assert b"verify" in shown
    assert b"100%" in shown
    assert holdfast_process("verify", shop).stderr == ""


# -- what scripts see ----------------------------------------------------------------------------


def test_every_command_has_a_json_form(shop: str) -> None:
    for command in COMMANDS:
        assert "--json" in run(command, "--help"), command


def test_json_of_ls_and_show(shop: str) -> None:
    (root,) = run_json("ls", shop)["roots"]
    assert (root["location"], root["kind"], root["newest"]) == (shop, "database", 4)
    (store,) = root["stores"]
    assert (store["key_schema"], store["num_keys"]) == ("user string", 2)
    assert [part["partition"] for part in store["partitions"]] == [0, 1]
    shown = run_json("show", shop, "--at", "two-users", "--files")
    assert (shown["version"], shown["tags"], shown["parent"]) == (2, ["two-users"], 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", shown["committed_at"])
    segments = [segment for part in shown["files"] for segment in part["segments"]]
    assert {segment["kind"] for segment in segments} == {"delta"}
    assert "files" not in run_json("show", shop)


def test_json_of_history(shop: str) -> None:
    found = run_json("history", shop, "--limit", 2)
    assert found["total"] == 5
    assert [line["version"] for line in found["versions"]] == [4, 3]
    assert set(found["versions"][0]) == {
        "version", "committed_at_ms", "committed_at", "num_keys", "changed_rows", "written_bytes",
        "size_bytes", "tags", "problem", "removable_from_ms",
    }  # fmt: skip


def test_json_of_get(shop: str) -> None:
    assert run_json("get", shop, "Sankar") == {
        "location": shop, "operator": 0, "store": "default", "version": 4,
        "key": {"user": "Sankar"}, "found": True, "value": {"total": 500},
    }  # fmt: skip
    missing = run_json("get", shop, "Nobody", code=3)
    assert (missing["found"], missing["value"]) == (False, None)
    changes = run_json("get", shop, "Jade", "--history")["versions"]
    assert [(line["change"], line["value"]) for line in changes] == [
        ("added", {"total": 800}), ("removed", None),
    ]  # fmt: skip


def test_json_of_scan_and_diff(shop: str) -> None:
    found = run_json("scan", shop, "--where", "total < 500")
    assert (found["rows"], found["more"]) == ([{"user": "Kun", "total": 100}], False)
    diff = run_json("diff", shop, 3, code=1)
    assert [diff[name] for name in ("before", "after", "added", "changed", "removed", "total")] == [
        3, 4, 1, 0, 1, 2,
    ]  # fmt: skip
    assert diff["changes"][1] == {
        "change": "added", "key": {"user": "Kun"}, "before": None, "after": {"total": 100},
    }  # fmt: skip


def test_json_of_verify(tmp_path: Path) -> None:
    root = sample_roots.merged_shop(tmp_path)
    assert run_json("verify", root)["intact"] is True
    sample_roots.flip_byte(next(tmp_path.glob("0/0/4-*.delta")))
    found = run_json("verify", root, code=1)
    assert (found["intact"], found["roots"][0]["broken"]) == (False, [4, 5, 6])
    problems = [check for check in found["roots"][0]["files"] if check["problem"]]
    assert [check["kind"] for check in problems] == ["delta"]


def test_json_holds_values_of_any_type(tmp_path: Path) -> None:
    db = holdfast.open(tmp_path, key="k binary", value="d decimal(5,2), f double, l array<date>")
    with db.update() as store:
        store.put((b"\xff",), (None, float("nan"), []))
    db.close()
    found = run_json("get", tmp_path, "ff")
    assert found["value"] == {"d": None, "f": "NaN", "l": []}


def test_errors_are_json_on_stderr_too(shop: str, tmp_path: Path) -> None:
    error = json.loads(fails("show", tmp_path / "nowhere", "--json", code=3))["error"]
    assert (error["condition"], error["exit_code"]) == ("STATE_STORE_NOT_A_STORE", 3)
    error = json.loads(fails("get", shop, "a", "b", "--json", code=2))["error"]
    assert error["condition"] == "STATE_STORE_INVALID_ARGUMENT"


def test_usage_errors_are_json_too(shop: str) -> None:
    for arguments in (["ls", "--json"], ["ls", "--json", "--nope", shop], ["nope", "--json"],
                      ["history", shop, "--limit", "x", "--json"]):  # fmt: skip
        done = holdfast_process(*arguments)
        error = json.loads(done.stderr)["error"]
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert (error["condition"], error["exit_code"]) == ("STATE_STORE_INVALID_ARGUMENT", 2)


# -- errors --------------------------------------------------------------------------------------


def test_folder_that_is_no_store_gets_a_useful_error(tmp_path: Path) -> None:
    for command in ("ls", "show", "history", "scan", "verify", "diff"):
        message = " ".join(fails(command, tmp_path, code=3).split())
        assert "holds no Holdfast state" in message
        assert "For a query, name its checkpoint or its stateLocation" in message
        assert message.endswith("STATE_STORE_NOT_A_STORE")


def test_unknown_version_tag_and_column_are_named(shop: str) -> None:
    assert "which has 0–4" in fails("show", shop, "--at", 9, code=3)
    assert "Tags: two-users" in fails("scan", shop, "--at", "x", code=3)
    assert "no column 'x'" in fails("scan", shop, "--columns", "x", code=2)
    assert "The filter" in fails("scan", shop, "--where", "total >", code=2)
    for command in ("show", "history", "scan"):
        for option in ("--partition", "--operator"):
            assert "0–1" in fails(command, shop, option, 7, code=2)


def test_several_stores_ask_for_a_choice(tmp_path: Path) -> None:
    root = sample_roots.query(tmp_path / "query")
    message = " ".join(fails("scan", root, code=2).split())
    assert "holds several stores. Choose one with --operator and --store" in message
    assert lines(run("scan", root, "--operator", 0, "--where", "word = 'word-1'"))[1] == "word-1 1"
    alone = sample_roots.providers(tmp_path / "alone")
    assert "each with a history of its own" in fails("history", alone, code=2)
    assert lines(run("get", alone, 0, "--partition", 0, "--store", "left")) == ["v left-0"]


# -- parts of keys -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample_roots.processor(tmp_path_factory.mktemp("processor"))


def test_get_prints_every_key_that_begins_with_the_cells(processor: Path) -> None:
    assert lines(run("get", processor, "a", "--store", "seen")) == [
        "user day n", "a mon 1", "a tue 2", "2 rows of version 2",
    ]  # fmt: skip
    asked = ("--store", "seen", "--key-json")
    for part in ('{"day": "mon"}', '{"user": "a"}', '["a"]'):
        users = {row["user"] for row in run_json("get", processor, *asked, part)["rows"]}
        assert users == ({"a", "b"} if "day" in part else {"a"})
    assert "0 rows of version 2" in run("get", processor, "x", "--store", "seen", code=3)
    for wrong in ("[]", "{}", '{"other": 1}', '["a", "mon", 3]'):
        assert "The key is a JSON array" in fails("get", processor, *asked, wrong, code=2)
    message = fails("get", processor, "a", "--history", "--store", "seen", code=2)
    assert "--history is that of one key" in message


def test_a_store_without_a_prefix_is_searched_for_part_of_a_key(tmp_path: Path) -> None:
    db = holdfast.open(tmp_path, key="user string, day date, x double", value="n int", partitions=3)
    rows = [("a", 1, 0.5), ("a", 2, float("nan")), ("b", 1, 0.5)]
    with db, db.update() as store:
        for at, (user, day, x) in enumerate(rows):
            store.put((user, date(2026, 1, day), x), (at,))
    assert [row["n"] for row in run_json("get", tmp_path, "a")["rows"]] == [0, 1]
    assert [row["n"] for row in run_json("get", tmp_path, "a", "2026-01-02")["rows"]] == [1]
    assert [row["n"] for row in run_json("scan", tmp_path, "--prefix", "b")["rows"]] == [2]
    part = '{"day": "2026-01-01", "x": 0.5}'
    assert [row["n"] for row in run_json("get", tmp_path, "--key-json", part)["rows"]] == [0, 2]
    state = holdfast.read(tmp_path)
    assert state.scan(prefix={"x": float("nan")}).column("n").to_pylist() == [1]
    assert sorted(state.scan(["n"], "n < 2", prefix="a").column("n").to_pylist()) == [0, 1]


def test_list_positions_count_from_0_in_every_command(processor: Path) -> None:
    events = (processor, "--store", "events")
    assert lines(run("get", *events, "b")) == [
        "user position n", "b 0 3", "b 1 4", "b 2 5", "b 3 9", "4 rows of version 2",
    ]  # fmt: skip
    assert lines(run("get", *events, "a")) == ["user position n", "a 0 2", "1 row of version 2"]
    assert lines(run("get", *events, "a", 0)) == ["n 2"]
    assert lines(run("get", *events, "a", 0, "--at", 1)) == ["n 1"]
    assert "no such key" in fails("get", *events, "a", 1, code=3)
    assert lines(run("get", *events, "b", 3, "--history"))[1:] == ["2 TIME added 9"]
    found = run_json("scan", *events, "--where", "n > 3", "--columns", "n,position")["rows"]
    assert sorted(map(tuple, map(dict.values, found))) == [(4, 1), (5, 2), (9, 3)]
    assert lines(run("diff", *events, code=1))[1:3] == ["- a 0 1", "+ b 3 9"]
    stored = run_json("scan", *events, "--columns", "n")["rows"]
    assert sorted(row["n"] for row in stored) == [2, 3, 4, 5, 9]


def test_a_list_that_an_earlier_release_made_counts_from_0_and_a_map_of_positions_does_not(
    tmp_path: Path,
) -> None:
    for name, positions in [("list", (5 << 32, 7 << 32)), ("map", (5, 7 << 32))]:
        key = "user string, position long"
        db = holdfast.open(tmp_path / name, key=key, value="n int", num_cols_prefix_key=1)
        with db, db.update() as store:
            for at, position in enumerate(positions):
                store.put(("a", position), (at,))
        found = [row["position"] for row in run_json("get", tmp_path / name, "a")["rows"]]
        assert found == ([0, 1] if name == "list" else list(positions))


def test_timers_are_shown_and_asked_for_as_times(processor: Path) -> None:
    timers = (processor, "--store", "$timers")
    noon = "2026-01-01T12:00:00.000Z"
    assert lines(run("get", *timers, "a"))[1] == f"a {noon} true"
    assert lines(run("get", *timers, "a", noon)) == ["pending true"]
    later = run_json("scan", *timers, "--where", f"expiry_ms > '{noon}'")["rows"]
    assert later == [{"user": "b", "expiry_ms": sample_roots.NOON_MS + 1, "pending": True}]


def test_damaged_state_ends_with_4_and_names_the_file(tmp_path: Path) -> None:
    root = sample_roots.merged_shop(tmp_path)
    next(tmp_path.glob("0/0/7-*.delta")).unlink()
    message = fails("scan", root, code=4)
    assert "STATE_STORE_CORRUPTION" in message
    assert ".delta" in message


def test_storage_that_fails_in_its_own_way_ends_with_5(
    shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoCredentialsError(Exception):
        pass

    def refuse(*_: object, **__: object) -> None:
        raise NoCredentialsError("Unable to locate credentials")

    monkeypatch.setattr(LocalFileSystem, "find", refuse)
    message = fails("ls", f"simplecache::file://{shop}", code=5)
    assert "NoCredentialsError" in message
    assert "STATE_STORE_UNAVAILABLE" in message


def test_detour_round_a_damaged_file_is_told_on_stderr(tmp_path: Path) -> None:
    root = sample_roots.merged_shop(tmp_path)
    sample_roots.flip_byte(next(tmp_path.glob("0/0/*.snapshot")))
    done = CliRunner().invoke(app, ["get", str(root), "user-3"])
    assert (done.exit_code, lines(done.stdout)) == (0, ["total 3"])
    assert "Warning:" in done.stderr
    assert ".snapshot" in done.stderr
    done = CliRunner().invoke(app, ["get", str(root), "user-3", "--json"])
    assert (done.exit_code, done.stderr) == (0, "")


def test_interrupted_command_ends_with_130(shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reading, "verify", interrupt)
    assert fails("verify", shop, code=130) == ""


def test_terminal_without_unicode_gets_escapes(tmp_path: Path) -> None:
    done = holdfast_process("show", sample_roots.shop(tmp_path), PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "tags" in done.stdout


def test_no_error_says_a_cell_that_was_typed_or_stored(tmp_path: Path) -> None:
    db = holdfast.open(tmp_path, key="k int", value="v string", conf={"keep_copies": "off"})
    with db.update() as store:
        store.put((1,), ("secret",))
    db.close()
    pack = next(tmp_path.glob("packs/*"))
    pack.write_bytes(pack.read_bytes()[:100] + pack.read_bytes()[101:])
    for arguments in (["get", tmp_path, "1"], ["scan", tmp_path], ["diff", tmp_path]):
        assert "secret" not in fails(*arguments, code=4)
    assert "hush" not in fails("get", tmp_path, "hush", code=2)


def test_every_condition_has_an_exit_code_and_every_code_a_meaning() -> None:
    for condition in CONDITIONS:
        assert Exit.of(HoldfastError("x", condition=condition)) in Exit
    assert Exit.of(Unavailable("x")) == Exit.UNAVAILABLE == 5
    assert Exit.of(InvalidArgument("x")) == Exit.USAGE == 2
    text = " ".join(run("--help").split())
    assert "A query's checkpoint" in run("ls", "--help")
    for code in Exit:
        assert f"{code.value}: {code.meaning}" in text


def test_data_cannot_steer_the_terminal(tmp_path: Path) -> None:
    db = holdfast.open(tmp_path, key="k string", value="v string")
    with db.update() as store:
        store.put(("k",), ("\x1b[2J\x07[red]bold[/red]",))
    db.close()
    shown = run("get", tmp_path, "k")
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "[red]bold[/red]" in shown
    assert clean("a\tb") == "a\\tb"


def test_sizes_and_spans_read_well() -> None:
    assert [size_text(n) for n in (0, 1023, 1536, 5 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 GiB",
    ]
    assert spans([0, 1, 2, 5, 7, 8]) == "0–2, 5, 7–8"


# -- starting ------------------------------------------------------------------------------------


def test_version_prints_the_version_of_the_package() -> None:
    assert run("--version") == f"holdfast {holdfast.__version__}\n"


def test_version_and_help_load_no_arrow_and_no_command_loads_spark(shop: str) -> None:
    script = (
        "import sys\n"
        "sys.argv = ['holdfast', *sys.argv[1:]]\n"
        "from holdfast.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        "names = ('pyspark', 'py4j', 'pandas', 'duckdb', 'pyarrow', 'numpy')\n"
        "print(','.join(sorted(name for name in names if sys.modules.get(name))))\n"
    )

    def loaded(*arguments: str) -> str:
        command = [sys.executable, "-c", script, *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stdout.splitlines()[-1]

    assert loaded("--version") == ""
    assert loaded("--help") == ""
    assert loaded("scan", shop) == "numpy,pyarrow"
    assert loaded("doctor") == "numpy,pyarrow"


def test_completion_knows_commands_options_and_what_is_in_a_root(tmp_path: Path) -> None:
    done = holdfast_process(
        "--show-completion",
        "bash",
        SHELL="/bin/bash",
        _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1",
    )
    assert done.returncode == 0, done.stderr
    assert "complete" in done.stdout

    def complete(line: str, words: int) -> set[str]:
        command = [str(Path(sys.executable).with_name("holdfast"))]
        env = {**os.environ, "_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": line,
               "COMP_CWORD": str(words)}  # fmt: skip
        return set(subprocess.run(command, env=env, capture_output=True, text=True).stdout.split())

    assert complete("holdfast ", 1) >= set(COMMANDS)
    assert complete("holdfast show --fi", 2) == {"--files"}
    sample_roots.shop(tmp_path)
    assert complete(f"holdfast show {tmp_path} --at ", 4) == {*"01234", "two-users"}
    assert complete(f"holdfast rollback {tmp_path} --to two", 4) == {"two-users"}
    assert complete(f"holdfast show {tmp_path} --store d", 4) == {"default"}
    assert complete(f"holdfast show {tmp_path} --operator ", 4) == {"0"}
    assert complete(f"holdfast show {tmp_path}/nowhere --at ", 4) == set()


def test_without_arguments_the_help_is_printed() -> None:
    done = CliRunner().invoke(app, [])
    assert all(command in done.output for command in COMMANDS)
    assert f"holdfast {' | '.join(COMMANDS)}" in str(cli.__doc__)


def test_real_process_ends_with_the_documented_code(shop: str, tmp_path: Path) -> None:
    assert holdfast_process("diff", shop).returncode == 1
    assert holdfast_process("ls").returncode == 2
    done = holdfast_process("ls", tmp_path / "nowhere")
    assert (done.returncode, done.stdout) == (3, "")
    assert "does not exist" in done.stderr
    piped = subprocess.run(
        f"{sys.executable} -c 'from holdfast.cli import main; main()' scan {shop} | true",
        shell=True,
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in piped.stderr


# -- doctor --------------------------------------------------------------------------------------


def checks_of(*arguments: object, code: int = 0) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in run_json("doctor", *arguments, code=code)["checks"]}


def test_doctor_checks_the_machine_and_a_root_and_leaves_nothing(
    shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    before = sorted(Path(shop).rglob("*"))
    found = checks_of(shop)
    assert list(found) == [
        "Python", "PySpark", "Java", "pandas", "PYSPARK_PYTHON", "extras", "root", "writing",
        "create-if-absent",
    ]  # fmt: skip
    assert {found[name]["status"] for name in ("Python", "writing", "create-if-absent")} == {"ok"}
    assert sorted(Path(shop).rglob("*")) == before


def test_doctor_uses_one_folder_and_only_names_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = FaultyStorage(MemoryStorage("doctored"))
    storage.inner.write("holdfast-doctor/other-blob", b"of another doctor")
    monkeypatch.setattr(doctor_module, "open_storage", lambda location: storage)
    for _ in range(2):
        assert not [check for check in doctor_module.examine("x") if check.status == "failed"]
    written = {call.path for call in storage.calls if call.changes}
    assert {path.rpartition("/")[0] for path in written} == {"holdfast-doctor"}
    assert len(written) == 2 * (1 + doctor_module._RACES)
    assert [blob.path for blob in storage.list("")] == ["holdfast-doctor/other-blob"]


def test_doctor_writes_nothing_beside_a_root_that_does_not_exist_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    monkeypatch.setattr(LocalStorage, "open_writer", lambda _, path: written.append(path))
    monkeypatch.setattr(
        LocalStorage, "create_if_absent", lambda _, path, data: written.append(path)
    )
    found = checks_of(tmp_path / "a" / "b")
    assert found["root"]["status"] == "note"
    assert f"does not exist yet; {tmp_path} says it can be written" in found["root"]["found"]
    assert "make the folder and repeat this" in found["root"]["advice"]
    assert not {"writing", "create-if-absent"} & set(found)
    assert (written, list(tmp_path.iterdir())) == ([], [])


def test_doctor_refuses_a_file_as_root(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "is a file" in checks_of(tmp_path / "file", code=1)["root"]["found"]


def test_doctor_tells_a_root_that_can_only_be_read(tmp_path: Path) -> None:
    found = checks_of(f"simplecache::file://{tmp_path}")
    assert found["create-if-absent"]["status"] == "note"
    assert "only be read" in found["create-if-absent"]["found"]


def test_doctor_fails_a_disk_whose_create_is_not_exclusive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overwrite(self: LocalStorage, path: str, data: bytes) -> bool:
        self.write(path, data)
        return True

    monkeypatch.setattr(LocalStorage, "create_if_absent", overwrite)
    found = checks_of(tmp_path, code=1)["create-if-absent"]
    assert (found["status"], "no single winner" in found["found"]) == ("failed", True)
    assert "Do not write to this root" in found["advice"]
    assert list(tmp_path.iterdir()) == []


def test_doctor_fails_a_root_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: LocalStorage, path: str) -> None:
        raise Unavailable("Could not write: Permission denied.")

    monkeypatch.setattr(LocalStorage, "open_writer", refuse)
    found = checks_of(tmp_path, code=1)["writing"]
    assert (found["status"], found["advice"]) == ("failed", "Could not write: Permission denied.")


def fake_java(folder: Path, version: str) -> None:
    path = folder / "bin" / "java"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("version", "status"),
    [("1.8.0_392", "failed"), ("11.0.2", "failed"), ("17.0.15", "ok"), ("25", "ok")],
)
def test_doctor_wants_java_17(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, status: str
) -> None:
    fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    check = doctor_module._java(needed=True)
    assert check.status == status
    assert version in check.found
    assert bool(check.advice) == (status == "failed")


def test_doctor_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "_version", {"pyspark": "3.5.1", "pandas": "3.0.0"}.get)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "python"))
    found = {check.name: check for check in doctor_module.examine(None)}
    assert {name: check.status for name, check in found.items()} == {
        "Python": "ok", "PySpark": "failed", "Java": "failed", "pandas": "failed",
        "PYSPARK_PYTHON": "failed", "extras": "note",
    }  # fmt: skip
    assert "pyspark>=4" in found["PySpark"].advice
    assert "pandas<3" in found["pandas"].advice
    assert found["PYSPARK_PYTHON"].advice == f"export PYSPARK_PYTHON={sys.executable}"
    assert "holdfast[hdfs,s3" in found["extras"].advice


def test_doctor_without_spark_is_content_without_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_module, "_version", {}.get)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert not [check for check in doctor_module.examine(None) if check.status == "failed"]
