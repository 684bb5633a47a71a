"""One record says all about a scheme: everything that has to know one knows every record."""

from __future__ import annotations

import re
import sys
import tomllib
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import schemes
from holdfast.admin import doctor
from holdfast.admin.copy_ends import check_places, way_out
from holdfast.backends.cache import CachedStorage
from holdfast.backends.locations import loaded, open_storage
from holdfast.backends.memory import MemoryStorage
from holdfast.backends.s3 import _Options as S3Options
from holdfast.clients.cassandra import CassandraOptions
from holdfast.clients.dynamodb import DynamoDbOptions
from holdfast.clients.options import ClientOptions
from holdfast.conf import StateStoreConf, setting_of_option
from holdfast.engine.storage import Storage
from holdfast.errors import CONDITIONS, InvalidArgument
from holdfast.schemes import SCHEMES, Scheme, scheme_of
from holdfast.spark.interop import hadoop
from holdfast.spark.state import location
from holdfast.testing.faults import FaultyStorage
from holdfast.types import parse_schema
from holdfast.views import View, ViewSchema, ViewSpec, open_view
from pyspark_holdfast.options import ReadOptions

SECRET = "hunter2"
NO_SESSION: Any = None
ROOT = Path(__file__).parents[2]
GUIDE, VIEWS, SETTINGS = (
    (ROOT / "docs" / page).read_text() for page in ("guide.md", "views.md", "settings.md")
)
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
OPTIONS: dict[str, type[ClientOptions]] = {
    "s3": S3Options, "cassandra": CassandraOptions, "dynamodb": DynamoDbOptions,
}  # fmt: skip
REMOTE = [scheme for scheme in SCHEMES if scheme.is_remote]
WITH_CLIENT = [scheme for scheme in SCHEMES if scheme.client is not None]
DATABASES = [scheme for scheme in SCHEMES if scheme.is_database]
WITH_VIEWS = [scheme for scheme in SCHEMES if scheme.view is not None]
WITH_OPTIONS = [scheme for scheme in SCHEMES if scheme.options]


def by_name(records: list[Scheme]) -> Any:
    return pytest.mark.parametrize("scheme", records, ids=lambda scheme: scheme.name)


def test_every_name_leads_to_one_record() -> None:
    names = [name for scheme in SCHEMES for name in scheme.names]
    assert len(set(names)) == len(names)
    for scheme in SCHEMES:
        assert scheme_of(scheme.form) is scheme
        assert all(scheme_of(f"{name}://a/b") is scheme for name in scheme.names if name)
    assert scheme_of("gs://bucket/x") is None


@by_name(list(SCHEMES))
def test_what_a_record_names_is_there(scheme: Scheme) -> None:
    assert callable(loaded(scheme, scheme.storage))
    if scheme.view is not None:
        assert issubclass(loaded(scheme, scheme.view), View)


@by_name(REMOTE)
def test_every_remote_root_is_behind_the_cache(scheme: Scheme, tmp_path: Path) -> None:
    conf = StateStoreConf(cache_location=str(tmp_path))
    storage = open_storage(scheme.form.replace("port", "1"), conf=conf)
    assert isinstance(storage, CachedStorage)
    assert storage.source.is_remote
    assert isinstance(storage.source, loaded(scheme, scheme.storage))


@by_name(WITH_CLIENT)
def test_a_missing_client_is_named_with_its_extra(
    scheme: Scheme, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, str(scheme.client), None)
    with pytest.raises(InvalidArgument) as refused:
        open_storage(scheme.form)
    assert f'pip install "holdfast[{scheme.extra}]"' in str(refused.value)
    assert f"the package {scheme.package}," in str(refused.value)


@by_name(WITH_CLIENT)
def test_the_extra_brings_the_package_with_the_client(scheme: Scheme) -> None:
    required = [re.split(r"[<>=!~]", each)[0] for each in EXTRAS[str(scheme.extra)]]
    assert required == [scheme.package]
    top = str(scheme.client).partition(".")[0]
    assert scheme.package in metadata.packages_distributions()[top]
    assert str(scheme.extra) in re.findall(r"\w+", EXTRAS["all"][0])


@by_name(WITH_CLIENT)
def test_doctor_looks_for_the_client(scheme: Scheme, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", {scheme.package: "1"}.get)
    assert str(scheme.extra) in re.findall(r"\w+", doctor._extras().found)
    monkeypatch.setattr(doctor, "_version", {}.get)
    assert str(scheme.extra) in re.findall(r"\w+", doctor._extras().advice)


@by_name(REMOTE)
def test_whoever_cannot_write_is_told_of_it(scheme: Scheme) -> None:
    assert f"{scheme.name}://" in CONDITIONS["STATE_STORE_READ_ONLY"][1]


@by_name(WITH_OPTIONS)
def test_the_client_takes_the_options_and_shows_no_secret(scheme: Scheme) -> None:
    names = [each.name for each in fields(OPTIONS[scheme.name])]
    assert tuple(names) == scheme.options
    assert scheme.secrets <= set(names)
    given = {name: f"<{name}>" for name in names if name not in ("consistency", "tls")}
    shown = repr(OPTIONS[scheme.name].of(given))
    assert {name for name in given if f"<{name}>" not in shown} == scheme.secrets
    with pytest.raises(InvalidArgument, match="has no option 'x'") as refused:
        OPTIONS[scheme.name].of({"x": SECRET})
    assert SECRET not in str(refused.value)


@by_name(WITH_OPTIONS)
def test_the_data_source_takes_the_options_and_shows_none(scheme: Scheme) -> None:
    given = {name: f"<{name}>" for name in scheme.options or ()}
    options = ReadOptions.of({"path": scheme.form, **given})
    assert options.storage == given
    assert "<" not in repr(options)


@by_name(WITH_OPTIONS)
def test_a_stream_takes_the_options_from_its_settings_or_from_hadoop(scheme: Scheme) -> None:
    assert scheme.is_set_in_spark != bool(scheme.hadoop)
    assert set(scheme.hadoop) in (set(), set(scheme.options or ()))
    name = f"spark.holdfast.{scheme.name}.{next(iter(scheme.options or ()))}"
    if scheme.is_set_in_spark:
        assert setting_of_option(name.removeprefix("spark.holdfast.")) == name
        assert StateStoreConf.from_spark({name: "x"}) == StateStoreConf()
    else:
        with pytest.raises(InvalidArgument, match="Unknown setting"):
            StateStoreConf.from_spark({name: "x"})


@by_name(list(SCHEMES))
def test_tasks_of_a_stream_get_the_options(scheme: Scheme, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {name: f"<{name}>" for name in scheme.options or ()}
    asked = {f"fs.s3a.{theirs}": given[ours] for ours, theirs in scheme.hadoop.items()}
    monkeypatch.setattr(hadoop, "setting", lambda session, name: asked.get(name))
    settings = {f"spark.holdfast.{scheme.name}.{name}": text for name, text in given.items()}
    found = location.storage_options(NO_SESSION, scheme.form, settings)
    if scheme.hadoop:
        given["endpoint_url"] = f"https://{given['endpoint_url']}"
    assert found == given


@by_name([scheme for scheme in SCHEMES if scheme.is_complete])
def test_a_stream_takes_a_complete_address_as_it_is(scheme: Scheme) -> None:
    for name in scheme.names:
        wanted = f"{name}://{scheme.form.partition('://')[2]}"
        assert location.state_root(NO_SESSION, "checkpoint", f"{wanted}/") == wanted


@by_name(DATABASES)
def test_an_address_in_a_database_holds_no_secret(scheme: Scheme) -> None:
    with pytest.raises(InvalidArgument) as refused:
        open_storage(scheme.form.replace("://", f"://user:{SECRET}@"))
    assert scheme.credentials in str(refused.value)
    assert SECRET not in "".join(traceback.format_exception(refused.value))


@by_name(WITH_VIEWS)
def test_who_names_a_wrong_place_for_a_view_is_told_of_it(scheme: Scheme) -> None:
    schema = ViewSchema(parse_schema("user string"), parse_schema("total long"))
    with pytest.raises(InvalidArgument) as refused:
        open_view(ViewSpec("s3://bucket/table", schema))
    assert scheme.view_form in str(refused.value)


@by_name(REMOTE)
def test_a_copy_knows_one_place_by_all_its_names(scheme: Scheme) -> None:
    class Named(MemoryStorage):
        def __init__(self, location: str) -> None:
            super().__init__()
            self._location = location

        @property
        def location(self) -> str:
            return self._location

    rest = scheme.form.partition("://")[2].replace(":port", "")
    for name in scheme.names:
        with pytest.raises(InvalidArgument, match="is the root to copy from"):
            check_places(Named(f"{scheme.name}://{rest}"), Named(f"{name}://{rest}/"))
    if scheme.port:
        netloc, _, path = rest.partition("/")
        other = Named(f"{scheme.name}://a,{netloc}:{scheme.port}/{path}")
        with pytest.raises(InvalidArgument, match="is the root to copy from"):
            check_places(Named(f"{scheme.name}://{netloc},a/{path}"), other)


@by_name(list(SCHEMES))
def test_a_copy_that_nobody_can_finish_has_a_way_out(scheme: Scheme) -> None:
    for place in (scheme.form, f"{scheme.form}/below/it"):
        assert re.search(r"\b[Nn]ame another place", way_out(place))
        assert "{" not in way_out(place)


@by_name(REMOTE)
def test_the_guide_tells_of_it(scheme: Scheme) -> None:
    assert f'"{scheme.name}://' in GUIDE
    assert f'pip install "holdfast[{scheme.extra}]"' in GUIDE
    remote = GUIDE.partition("## Remote roots")[2].partition("\n## ")[0]
    assert [name for name in scheme.options or () if f"`{name}`" not in remote] == []
    assert not scheme.is_set_in_spark or f"spark.holdfast.{scheme.name}.<option>" in remote
    assert not scheme.is_set_in_spark or f"`{scheme.name}.…`" in SETTINGS
    assert scheme.view is None or all(f"`{name}`" in VIEWS for name in scheme.options or ())


# -- a scheme that nobody else has heard of --------------------------------------------------------


MADE_UP = Scheme(
    names=("vault",),
    form="vault://host/name",
    storage=f"{__name__}:VaultStorage",
    extra="vault",
    package="vault-client",
    client="json",
    options=("host", "pin"),
    secrets=frozenset({"pin"}),
    credentials="VAULT_PIN",
    is_complete=True,
    is_database=True,
)


@dataclass(frozen=True, kw_only=True)
class VaultOptions(ClientOptions):
    scheme = MADE_UP
    whose = "A vault"

    host: str | None = None
    pin: str | None = None


class VaultStorage(FaultyStorage):
    def __init__(self, location: str, options: Mapping[str, str], conf: StateStoreConf) -> None:
        super().__init__(MemoryStorage.named(location.partition("://")[2]))
        self.options = VaultOptions.of(options)


@pytest.fixture
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemes, "SCHEMES", (*SCHEMES, MADE_UP))


@pytest.mark.usefixtures("_made_up")
def test_one_record_makes_a_root_that_works(tmp_path: Path) -> None:
    conf = {"cache_location": str(tmp_path)}
    options = {"pin": SECRET}
    with holdfast.open(
        "vault://host/x", key="user string", value="total long", conf=conf, options=options
    ) as db:
        with db.update() as store:
            store.put(("Sankar",), (200,))
        assert db.get(("Sankar",)) == (200,)
    assert holdfast.read("vault://host/x", options=options).get("Sankar") == (200,)
    MemoryStorage.forget("host/x")


@pytest.mark.usefixtures("_made_up")
def test_one_record_makes_a_line_of_doctor_and_settings_of_a_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "_version", {"vault-client": "1"}.get)
    assert doctor._extras().found == "installed: vault"
    assert setting_of_option("vault.pin") == "spark.holdfast.vault.pin"
    assert StateStoreConf.from_spark({"spark.holdfast.vault.pin": "1"}) == StateStoreConf()
    assert schemes.remote_names().endswith("or vault://")
    settings = {"spark.holdfast.vault.pin": "1", "spark.holdfast.other.pin": "2"}
    assert location.storage_options(NO_SESSION, "vault://host/z", settings) == {"pin": "1"}


@pytest.mark.usefixtures("_made_up")
def test_one_record_hides_a_secret(tmp_path: Path) -> None:
    conf = StateStoreConf(cache_location=str(tmp_path))
    storage: Storage = open_storage("vault://host/y", {"host": "h", "pin": SECRET}, conf)
    assert isinstance(storage, CachedStorage)
    assert isinstance(storage.source, VaultStorage)
    assert repr(storage.source.options) == "VaultOptions(host='h')"
    read = ReadOptions.of({"path": "vault://host/y", "pin": SECRET})
    assert (read.storage, SECRET in repr(read)) == ({"pin": SECRET}, False)
    with pytest.raises(InvalidArgument, match="VAULT_PIN") as refused:
        open_storage(f"vault://pin:{SECRET}@host/y")
    assert SECRET not in "".join(traceback.format_exception(refused.value))
    MemoryStorage.forget("host/y")
