"""One record for each scheme that an address may have, as plain data.

`SCHEMES` is the table. Everything that has to know a scheme asks its record: what opens roots and
views, settings, the clients' options, errors, `holdfast doctor`, `holdfast copy`, streams and the
data source. To add a backend, write its `Storage` and add a row here. Tests compare the rows with
pyproject.toml and the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """What there is to know about the addresses of one scheme. Paths are `module:name`."""

    names: tuple[str, ...]
    """What addresses begin with. The first is the one it is called by; "" is a plain path."""
    form: str
    """What the address of a root looks like."""
    storage: str
    """What opens a root: called with the address, the options and the settings."""
    is_remote: bool = True
    """Whether copies of its blobs are worth keeping on the local disk."""
    is_lasting: bool = True
    """Whether a root outlives the process that made it."""

    extra: str | None = None
    """The extra of `holdfast` that brings the client, where one is needed."""
    package: str | None = None
    """The distribution that holds the client."""
    client: str | None = None
    """The module of the client that has to be importable."""

    options: tuple[str, ...] | None = ()
    """The options that say how it is reached; None for any, which the client checks."""
    secrets: frozenset[str] = frozenset()
    """Those of them that are never shown, logged or kept."""
    credentials: str = "variables of the environment"
    """The variables of the environment that stand in for the secrets."""
    hadoop: Mapping[str, str] = field(default_factory=dict)
    """By option, what Hadoop calls it after `fs.s3a.`, where a stream takes it from there."""
    is_complete: bool = False
    """Whether an address names everything. Spark's default file system completes others."""

    is_database: bool = False
    """Whether it is a database: its addresses are names, without '@', '?' and '#'."""
    port: int = 0
    """The port of hosts that name none, where an address is a list of hosts in any order."""
    view: str | None = None
    """The class of a view in it, called with a `ViewSpec`; None where it cannot hold views."""
    view_form: str = ""
    """What the address of a view looks like."""
    remains: str = "Remove it, or name another place."
    """What to do about a copy that nobody can finish. `{name}` is the first part of the path."""
    remains_below: str = ""
    """The same for a root in a folder below that, where it differs."""

    @property
    def name(self) -> str:
        """What it is called in settings and messages."""
        return self.names[0]

    @property
    def is_set_in_spark(self) -> bool:
        """Whether `spark.holdfast.<name>.<option>` says how a stream reaches it."""
        return bool(self.options) and not self.hadoop


_AWS_OPTIONS = ("endpoint_url", "key", "secret", "token")
_AWS_SECRETS = frozenset({"key", "secret", "token"})
_AWS_CREDENTIALS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"

LOCAL = Scheme(
    names=("file", "local", ""),
    form="/folder",
    storage="holdfast.backends.local:LocalStorage.at",
    is_remote=False,
)
MEMORY = Scheme(
    names=("memory",),
    form="memory://name",
    storage="holdfast.backends.memory:MemoryStorage.at",
    is_remote=False,
    is_lasting=False,
)
HDFS = Scheme(
    names=("hdfs",),
    form="hdfs://host:port/folder",
    storage="holdfast.backends.hdfs:HdfsStorage",
    extra="hdfs",
    package="hdfs-native",
    client="hdfs_native",
    options=None,
)
S3 = Scheme(
    names=("s3", "s3a"),
    form="s3://bucket/folder",
    storage="holdfast.backends.s3:S3Storage",
    extra="s3",
    package="boto3",
    client="boto3",
    options=(*_AWS_OPTIONS, "region", "path_style"),
    secrets=_AWS_SECRETS,
    credentials=_AWS_CREDENTIALS,
    hadoop={
        "endpoint_url": "endpoint",
        "region": "endpoint.region",
        "path_style": "path.style.access",
        "key": "access.key",
        "secret": "secret.key",
        "token": "session.token",
    },
    is_complete=True,
)
CASSANDRA = Scheme(
    names=("cassandra",),
    form="cassandra://host:port/keyspace/name",
    storage="holdfast.backends.cassandra:CassandraStorage",
    extra="cassandra",
    package="cassandra-driver",
    client="cassandra",
    options=("username", "password", "tls", "ca", "local_dc", "consistency"),
    secrets=frozenset({"password"}),
    credentials="HOLDFAST_CASSANDRA_USERNAME and HOLDFAST_CASSANDRA_PASSWORD",
    is_complete=True,
    is_database=True,
    port=9042,
    view="holdfast.views.cassandra.view:CassandraView",
    view_form="cassandra://host:port/keyspace/table",
    remains="Name another place; nothing else in that keyspace minds what is left there.",
)
DYNAMODB = Scheme(
    names=("dynamodb",),
    form="dynamodb://region/table-prefix",
    storage="holdfast.backends.dynamodb:DynamoDbStorage",
    extra="dynamodb",
    package="boto3",
    client="boto3",
    options=_AWS_OPTIONS,
    secrets=_AWS_SECRETS,
    credentials=_AWS_CREDENTIALS,
    is_complete=True,
    is_database=True,
    view="holdfast.views.dynamodb.view:DynamoDbView",
    view_form="dynamodb://region/table",
    remains="Drop the table {name}-holdfast, or name another place.",
    remains_below="Name another place; nothing else in the table {name}-holdfast minds it.",
)
SCHEMES = (LOCAL, MEMORY, HDFS, S3, CASSANDRA, DYNAMODB)
"""Every scheme that can be written. Other addresses can be read, as far as fsspec knows them."""


def name_in(location: str) -> str:
    """The scheme of an address as it is written there, "" for a path."""
    if "://" not in location and not location.startswith("file:"):
        return ""
    from urllib.parse import urlsplit  # here, as `import holdfast` needs only the table

    return urlsplit(location).scheme


def scheme_of(location: str) -> Scheme | None:
    """The record of an address's scheme; None for a scheme without one."""
    name = name_in(location)
    return next((scheme for scheme in SCHEMES if name in scheme.names), None)


def remote_names() -> str:
    """The remote schemes that can be written, for people: "hdfs://, … or dynamodb://"."""
    return in_words([f"{scheme.name}://" for scheme in SCHEMES if scheme.is_remote])


def in_words(names: list[str]) -> str:
    """Alternatives as people say them: "a, b or c"."""
    return " or ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
