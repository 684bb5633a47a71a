"""How a view is brought from version to version, in a view that is a dictionary."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast import admin
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import InvalidArgument, Unavailable
from holdfast.standalone import view as standalone_view
from holdfast.types import parse_schema
from holdfast.views import View, ViewSchema, ViewSpec, open_view
from holdfast.views.view import BegunVersion, ViewProgress

TOTALS = {"key": "user string", "value": "total long"}
Rows = dict[Any, tuple[int, Any]]


class Kept:
    """What a database keeps."""

    def __init__(self) -> None:
        self.rows: Rows = {}
        self.encoded: Rows | None = None
        self.standing = ViewProgress()
        self.calls: list[str] = []
        self.fails_at: str | None = None
        self.meanwhile: dict[str, Callable[[], None]] = {}
        """What others do, once, before a call."""


class DictView(View):
    """Keeps the newest version of a key, and what went as None."""

    number_sizes = (0.0, 1e308)
    is_by_columns = True

    def __init__(self, spec: ViewSpec, kept: Kept) -> None:
        self.spec, self._kept = spec, kept

    def _waits(self, what: str) -> None:
        self._kept.meanwhile.pop(what, lambda: None)()

    def _did(self, what: str) -> None:
        self._kept.calls.append(what)
        if self._kept.fails_at == what:
            raise Unavailable("The dictionary is away.")

    def prepare(self, owner: str, root: str) -> ViewProgress:
        self._waits("prepare")
        self._did("prepare")
        return self._kept.standing

    def standing(self) -> ViewProgress:
        self._did("look")
        return self._kept.standing

    def add_encoded(self) -> None:
        self._did("add")
        self._kept.encoded = self._kept.encoded or {}
        self._kept.standing = replace(self._kept.standing, has_encoded=True)

    def _table(self, encoded: bool) -> Rows:
        if not encoded:
            return self._kept.rows
        assert self._kept.encoded is not None
        return self._kept.encoded

    def _set(self, version: int, rows: pa.Table, encoded: bool, is_put: bool) -> None:
        names = self.spec.schema.keys.names
        for row in rows.to_pylist():
            key = tuple(row[name] for name in names)
            before = self._table(encoded).get(key, (-1, None))
            if before[0] < version:
                value = tuple(row[name] for name in self.spec.schema.values.names)
                self._table(encoded)[key] = (version, value if is_put else None)

    def write(self, version: int, rows: pa.Table, *, encoded: bool) -> None:
        self._waits("write")
        self._set(version, rows, encoded, True)
        self._did("write")

    def remove(self, version: int, rows: pa.Table, *, encoded: bool) -> None:
        self._set(version, rows, encoded, False)
        self._did("remove")

    def remove_older(self, version: int, *, has_encoded: bool) -> int:
        self._did("older")
        removed = 0
        for encoded in (False, True) if has_encoded else (False,):
            table = self._table(encoded)
            for key, (of, value) in table.items():
                if of < version and value is not None:
                    table[key] = (version, None)
                    removed += 1
        return removed

    def note(self, before: ViewProgress, after: ViewProgress) -> ViewProgress:
        begins = after.begun != before.begun
        self._waits("begin" if begins else "note")
        self._did("begin" if begins else "note")
        kept = self._kept.standing
        is_same = (kept.through, kept.commit_id) == (before.through, before.commit_id)
        if is_same and (kept.begun == before.begun or not begins):
            begun = after.begun if begins else kept.begun
            self._kept.standing = replace(after, has_encoded=kept.has_encoded, begun=begun)
        return self._kept.standing


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    kept = Kept()
    monkeypatch.setattr(standalone_view, "open_view", lambda spec: DictView(spec, kept))
    return kept


def _open(root: Path, **more: Any) -> holdfast.VersionedStore:
    return holdfast.open(root, **{**TOTALS, **more}, view="cassandra://host/keyspace/table")


def _put(db: holdfast.VersionedStore, totals: dict[str | None, int | None]) -> None:
    with db.update() as store:
        for user, total in totals.items():
            if total is None:
                store.remove((user,))
            else:
                store.put((user,), (total,))


def _shown(rows: Rows) -> dict[Any, Any]:
    return {key[0]: value[0] for key, (_, value) in rows.items() if value is not None}


def test_each_version_brings_its_changes_alone(kept: Kept, tmp_path: Path) -> None:
    with _open(tmp_path) as db:
        _put(db, {"a": 1, "b": 1})
        _put(db, {"b": None, "c": 2})
    assert kept.rows == {("a",): (1, (1,)), ("b",): (2, None), ("c",): (2, (2,))}
    assert kept.standing.through == 2
    assert kept.calls.count("older") == 1  # when it was made


def test_odd_keys_get_a_table_when_the_first_comes(kept: Kept, tmp_path: Path) -> None:
    with _open(tmp_path) as db:
        _put(db, {"a": 1})
        assert kept.encoded is None
        _put(db, {None: 2, "": 3})
        assert kept.encoded == {(None,): (2, (2,)), ("",): (2, (3,))}
        _put(db, {None: None})
    assert _shown(kept.encoded) == {"": 3}
    assert kept.calls.count("add") == 1


@pytest.mark.parametrize("where", ["begin", "write", "note"])
def test_what_failed_is_made_good_by_the_next_commit(
    kept: Kept, tmp_path: Path, where: str
) -> None:
    with _open(tmp_path) as db:
        _put(db, {"a": 1, "b": 1})
        kept.fails_at = where
        with pytest.raises(
            Unavailable, match=r"Version 2 of .* is committed, but its view is out of date"
        ):
            _put(db, {"a": 2, "c": 2})
        assert db.version == 2
        assert db.get(("a",)) == (2,)
        kept.fails_at = None
        _put(db, {"b": None})
        assert _shown(kept.rows) == {"a": 2, "c": 2}
    assert kept.standing.through == 3


def test_sync_view_catches_up(kept: Kept, tmp_path: Path) -> None:
    with _open(tmp_path) as db:
        kept.fails_at = "write"
        with pytest.raises(Unavailable):
            _put(db, {"a": 1})
        kept.fails_at = None
        db.sync_view()
    assert _shown(kept.rows) == {"a": 1}


def test_evicted_and_expired_keys_are_removed(kept: Kept, tmp_path: Path) -> None:
    more = {"key": "user string, end long", "key_index_ordinal": 1, "partitions": 3}
    with _open(tmp_path, **more) as db:
        with db.update() as store:
            for number in range(30):
                store.put((f"u{number}", number), (number,), expires_ms=100 + number)
        with db.update() as store:
            store.put(("u3", 3), (-3,))
            store.put(("u20", 20), (-20,))  # stays, now without an expiry
            store.evict(9)
        with db.update() as store:
            store.expire(125)
        state = db.scan()
    expected = dict(zip(state.column("user").to_pylist(), state.column("total").to_pylist(),
                        strict=True))  # fmt: skip
    assert sorted(expected) == ["u20", "u26", "u27", "u28", "u29"]
    assert _shown(kept.rows) == expected


def test_a_view_behind_by_more_than_a_version_is_filled(kept: Kept, tmp_path: Path) -> None:
    with _open(tmp_path) as db:
        _put(db, {"a": 1, "b": 1})
    with holdfast.open(tmp_path) as db:
        _put(db, {"b": None})
        _put(db, {"c": 3})
    with _open(tmp_path):
        assert _shown(kept.rows) == {"a": 1, "c": 3}
    assert kept.standing.through == 3


def test_handles_that_take_turns_bring_their_changes_alone(kept: Kept, tmp_path: Path) -> None:
    with _open(tmp_path) as one, _open(tmp_path) as other:
        for number in range(3):
            _put(one, {"a": number, None: number})
            _put(other, {"b": number, None: None})
        assert kept.standing.through == one.refresh() == 6
    assert kept.calls.count("older") == 1  # when it was made
    assert _shown(kept.rows) == {"a": 2, "b": 2}
    assert kept.encoded is not None
    assert _shown(kept.encoded) == {}


@pytest.mark.parametrize("fails", [False, True])
def test_a_removed_key_stays_away_when_a_whole_fill_overtakes_its_writer(
    kept: Kept, tmp_path: Path, fails: bool
) -> None:
    def overtake() -> None:
        with holdfast.open(tmp_path) as db:
            _put(db, {"k": None, "b": 2})
        with _open(tmp_path):
            assert _shown(kept.rows) == {"a": 0, "b": 2}
        kept.fails_at = "write" if fails else None

    with _open(tmp_path) as slow:
        _put(slow, {"a": 0})
        kept.meanwhile["write"] = overtake
        if fails:
            with pytest.raises(Unavailable):
                _put(slow, {"k": 1})
            kept.fails_at = None
            _put(slow, {"c": 3})
        else:
            _put(slow, {"k": 1})
        expected = {"a": 0, "b": 2, **({"c": 3} if fails else {})}
        assert _shown(kept.rows) == expected
        before = kept.calls.count("older")
        _put(slow, {"d": 4})
    assert kept.calls.count("older") == before
    assert kept.standing.through == slow.version


def test_a_view_that_is_begun_anew_meanwhile_is_filled(kept: Kept, tmp_path: Path) -> None:
    with _open(tmp_path) as db:
        _put(db, {"a": 1})
        made = kept.standing

        def begin_anew() -> None:
            kept.standing, kept.rows = replace(made, through=None, commit_id=None), {}

        kept.meanwhile["write"] = begin_anew
        _put(db, {"b": 2})
    assert _shown(kept.rows) == {"a": 1, "b": 2}
    assert kept.standing.through == kept.standing.filled == 2


def _gone_back(root: Path, versions: int) -> None:
    """A root that went back to version 1 and on without its view."""
    for newer in range(2, 2 + versions):
        (root / "versions" / str(newer)).unlink(missing_ok=True)
    with holdfast.open(root) as db:
        assert db.version == 1
        for _ in range(versions):
            _put(db, {"b": None, "c": 5})


def test_another_version_of_the_same_number_is_refused(kept: Kept, tmp_path: Path) -> None:
    with _open(tmp_path) as db:
        _put(db, {"a": 1, "b": 1})
        _put(db, {"a": 2})
    _gone_back(tmp_path, 1)
    with pytest.raises(
        InvalidArgument, match=r"version 2 of .* which is another version"
    ) as refused:
        _open(tmp_path)
    assert refused.value.condition == "STATE_STORE_NOT_A_VIEW"
    assert _shown(kept.rows) == {"a": 2, "b": 1}


def test_a_version_after_another_one_than_the_view_shows_is_filled(
    kept: Kept, tmp_path: Path
) -> None:
    with _open(tmp_path) as db:
        _put(db, {"a": 1, "b": 1})
        _put(db, {"a": 2})
    _gone_back(tmp_path, 2)
    with _open(tmp_path):
        assert _shown(kept.rows) == {"a": 1, "c": 5}
    assert kept.standing.through == kept.standing.filled == 3


def _crashed_at_note(kept: Kept, root: Path, totals: dict[str | None, int | None]) -> None:
    """A version whose rows were put, and that was not noted."""
    with _open(root) as db:
        kept.fails_at = "note"
        with pytest.raises(Unavailable):
            _put(db, totals)
        kept.fails_at = None


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_rows_of_a_version_that_was_given_up_before_it_was_noted_are_not_built_on(
    kept: Kept, tmp_path: Path, is_made_anew: bool
) -> None:
    with _open(tmp_path) as db:
        _put(db, {"a": 1, "b": 1})
    _crashed_at_note(kept, tmp_path, {"a": 2})
    (tmp_path / "versions" / "2").unlink()
    if is_made_anew:
        with holdfast.open(tmp_path) as db:
            _put(db, {"b": None})
    why = "which is another version" if is_made_anew else "whose newest is 1"
    with pytest.raises(InvalidArgument, match=rf"has rows of version 2 of .*, {why}") as refused:
        _open(tmp_path)
    assert refused.value.condition == "STATE_STORE_NOT_A_VIEW"


def test_a_version_after_one_that_was_given_up_unnoted_has_the_view_filled(
    kept: Kept, tmp_path: Path
) -> None:
    with _open(tmp_path) as db:
        _put(db, {"a": 1, "b": 1})
    _crashed_at_note(kept, tmp_path, {"a": 2})
    _gone_back(tmp_path, 2)
    with _open(tmp_path):
        assert _shown(kept.rows) == {"a": 1, "c": 5}
    assert kept.standing.through == kept.standing.filled == 3


def test_a_version_that_was_not_noted_brings_its_changes_alone_after_a_crash(
    kept: Kept, tmp_path: Path
) -> None:
    with _open(tmp_path) as db:
        _put(db, {"a": 1})
    _crashed_at_note(kept, tmp_path, {"a": 2})
    with _open(tmp_path):
        assert _shown(kept.rows) == {"a": 2}
    assert kept.standing.through == 2
    assert kept.calls.count("older") == 1  # when it was made


def test_a_version_that_another_began_later_is_no_reason_to_stop(
    kept: Kept, tmp_path: Path
) -> None:
    def go_ahead() -> None:
        with holdfast.open(tmp_path) as db:
            _put(db, {"b": 3})
        with pytest.raises(KeyboardInterrupt):
            _open(tmp_path)
        assert kept.standing.begun is not None
        assert kept.standing.begun.version == 3

    def die() -> None:
        raise KeyboardInterrupt

    with _open(tmp_path) as slow:
        _put(slow, {"a": 1})
        kept.meanwhile |= {"begin": go_ahead, "note": die}
        _put(slow, {"a": 2})
        assert kept.standing.through == 2
        _put(slow, {"c": 4})
    assert _shown(kept.rows) == {"a": 2, "b": 3, "c": 4}


def test_changes_that_an_earlier_release_put_beside_rows_given_up_have_the_view_filled(
    kept: Kept, tmp_path: Path
) -> None:
    with _open(tmp_path) as db:
        _put(db, {"a": 1, "b": 1})
        _put(db, {"b": 2})
        kept.rows["a",] = (2, (7,))
        kept.standing = replace(kept.standing, begun=BegunVersion(2, "given up"))
    with holdfast.open(tmp_path) as db:
        _put(db, {"c": 3})
    with _open(tmp_path):
        assert _shown(kept.rows) == {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize("through", [1, 2])
def test_a_note_without_a_commit_has_the_view_filled_once(
    kept: Kept, tmp_path: Path, through: int
) -> None:
    with _open(tmp_path) as db:
        _put(db, {"a": 1})
        _put(db, {"b": 2})
    kept.standing = ViewProgress(through)
    kept.rows["stale",] = (1, (7,))
    before = kept.calls.count("older")
    for _ in range(2):
        with _open(tmp_path) as db:
            assert _shown(kept.rows) == {"a": 1, "b": 2}
    assert kept.calls.count("older") == before + 1


def test_opening_a_view_that_is_up_to_date_reads_no_version_before(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _open(tmp_path) as db:
        _put(db, {"a": 1})
        _put(db, {"a": 2})
    loaded: list[int] = []
    plain = VersionLog.load

    def load(self: VersionLog, version: int) -> Manifest:
        loaded.append(version)
        return plain(self, version)

    monkeypatch.setattr(VersionLog, "load", load)
    calls = len(kept.calls)
    with _open(tmp_path) as db:
        db.sync_view()
    assert 1 not in loaded
    assert kept.calls[calls:] == ["prepare"]


def test_a_view_of_a_later_version_is_refused(kept: Kept, tmp_path: Path) -> None:
    kept.standing = ViewProgress(7)
    with pytest.raises(InvalidArgument, match=r"shows version 7 of .*, whose newest is 0"):
        _open(tmp_path)


def test_a_view_is_opened_while_another_process_commits(kept: Kept, tmp_path: Path) -> None:
    with _open(tmp_path) as one:
        _put(one, {"a": 1})
        kept.meanwhile["prepare"] = lambda: _put(one, {"a": 2})
        with _open(tmp_path) as other:
            assert kept.standing.through == 2
            _put(other, {"b": 3})
    assert kept.standing.through == 3
    assert kept.calls.count("older") == 1  # when it was made
    assert _shown(kept.rows) == {"a": 2, "b": 3}


def test_names_that_views_use_are_refused() -> None:
    keys, values = parse_schema("user string"), parse_schema("_version long")
    with pytest.raises(InvalidArgument, match="cannot have a column '_version'"):
        ViewSchema(keys, values)
    with pytest.raises(InvalidArgument, match="two columns 'user'"):
        ViewSchema(keys, parse_schema("user long"))


@pytest.mark.parametrize(
    "location", ["/tmp/table", "s3://bucket/table", "redis://host/table", "table"]
)
def test_a_place_that_has_no_views_is_refused(location: str) -> None:
    schema = ViewSchema(parse_schema("user string"), parse_schema("total long"))
    with pytest.raises(InvalidArgument, match=r"A view is at cassandra://host:port/keyspace/table"):
        open_view(ViewSpec(location, schema))


@pytest.mark.parametrize(
    "location",
    ["cassandra://host/keyspace", "cassandra://host/k/my-table", "cassandra://u:hunter2@h/k/t",
     "dynamodb://region", "dynamodb://region/a/b", "dynamodb://key:hunter2@region/t",
     "cassandra://u:x/hunter2@h/k/t", "dynamodb://key:hunter2#x@region/t", "casandra://u:hunter2@h",
     "dynamodb://region/ab", "dynamodb://region/holdfast_views", "dynamodb://region/totals?x",
     "cassandra://host/k/t#x"],
)  # fmt: skip
def test_a_place_that_is_not_whole_is_refused_without_credentials(location: str) -> None:
    schema = ViewSchema(parse_schema("user string"), parse_schema("total long"))
    with pytest.raises(InvalidArgument) as refused:
        open_view(ViewSpec(location, schema))
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("location", "client", "extra"),
    [("cassandra://host/k/t", "cassandra", "cassandra"), ("dynamodb://r/t", "boto3", "dynamodb")],
)
def test_a_missing_client_is_named_with_the_extra_that_brings_it(
    location: str, client: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, client, None)
    schema = ViewSchema(parse_schema("user string"), parse_schema("total long"))
    with pytest.raises(InvalidArgument) as refused:
        open_view(ViewSpec(location, schema))
    assert f'pip install "holdfast[{extra}]"' in str(refused.value)


def test_a_view_is_filled_when_the_history_goes_back(kept: Kept, tmp_path: Path) -> None:
    """What was undone leaves it: keys that were added, and changes of those that stay."""
    with _open(tmp_path) as db:
        _put(db, {"a": 1, "b": 2})
        _put(db, {"a": 10, "c": 3, "b": None})
    assert _shown(kept.rows) == {"a": 10, "c": 3}
    admin.rollback(tmp_path, 1).run()
    with _open(tmp_path) as db:
        assert _shown(kept.rows) == {"a": 1, "b": 2}
        kept.calls.clear()
        _put(db, {"b": 5})
        assert _shown(kept.rows) == {"a": 1, "b": 5}
        assert "older" not in kept.calls, "from there on changes alone"


def test_a_view_that_missed_a_return_is_filled_too(kept: Kept, tmp_path: Path) -> None:
    with _open(tmp_path) as db:
        _put(db, {"a": 1})
        _put(db, {"a": 10, "c": 3})
    admin.rollback(tmp_path, 1).run()
    with holdfast.open(tmp_path) as db:
        _put(db, {"d": 4})
    with _open(tmp_path):
        assert _shown(kept.rows) == {"a": 1, "d": 4}
