"""The kinds of reads: state, changes, stores and versions, with their columns and readers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property, partial

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import (
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from holdfast.errors import InvalidArgument
from holdfast.reading import InspectedStore, Root, choose_store, open_root
from holdfast.types import Schema
from pyspark_holdfast.changes import ChangeReader, ChangeStreamReader
from pyspark_holdfast.listing import ListingReader, listing_schema
from pyspark_holdfast.options import ReadOptions
from pyspark_holdfast.reading import FilteredStateReader, StateReader


def kind_of(options: ReadOptions) -> ReadKind:
    """The kind of read that the options ask for."""
    if options.metadata is not None:
        return _Listing(options)
    return _Changes(options) if options.feed else _State(options)


class ReadKind(ABC):
    """One kind of read."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    @abstractmethod
    def schema(self) -> StructType:
        """The columns."""

    @abstractmethod
    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of the rows."""

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of the rows as a stream."""
        raise InvalidArgument(
            "Only changes can be read as a stream: set the option readChangeFeed to true. The "
            "state of a version, and lists of stores and versions, are read with spark.read."
        )

    def _check(self, schema: StructType) -> None:
        own = self.schema()
        if schema.simpleString() != own.simpleString():
            raise InvalidArgument(
                f"The columns are {own.simpleString()}, not {schema.simpleString()}. Leave out "
                "`schema`; the option `columns` picks some."
            )


class _Listing(ReadKind):
    def schema(self) -> StructType:
        open_root(self.options.path, options=self.options.storage)
        return listing_schema(str(self.options.metadata))

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check(schema)
        return ListingReader(self.options)


class _State(ReadKind):
    """Keys and values as structs, and the partition they are in."""

    @cached_property
    def _root(self) -> Root:
        options = self.options
        return open_root(options.path, options.operator, options.store, options=options.storage)

    @cached_property
    def _store(self) -> InspectedStore:
        return choose_store(self._root, self.options.operator, self.options.store)

    def schema(self) -> StructType:
        return StructType([*self._pairs(), StructField("partition_id", IntegerType(), False)])

    def _pairs(self) -> list[StructField]:
        """`key` and `value` with the selected columns; neither if none is selected."""
        picked = self.options.columns
        known = self._store.arrow_schema(picked).names
        fields = []
        for name, schema in [("key", self._store.key_schema), ("value", self._store.value_schema)]:
            struct = _spark_type(schema)
            kept = StructType([field for field in struct.fields if field.name in known])
            if kept.fields or picked is None:
                fields.append(StructField(name, kept, nullable=name == "value"))
        return fields

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check(schema)
        kind = FilteredStateReader if self.options.push_filters else StateReader
        return kind(self.options, schema)


class _Changes(_State):
    """Rows with the version that wrote them and the type of the change."""

    def schema(self) -> StructType:
        return StructType(
            [
                StructField("version", LongType(), False),
                StructField("change_type", StringType(), False),
                *super().schema().fields,
            ]
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check(schema)
        self.options.check_range()
        return ChangeReader(self.options, schema)

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        self._check(schema)
        self.options.check_stream()
        return ChangeStreamReader(self.options, schema, partial(_change_columns, self.options))


def _change_columns(options: ReadOptions) -> StructType:
    """The columns of a change feed as the root has them now."""
    return _Changes(options).schema()


def _spark_type(schema: Schema) -> StructType:
    return StructType.fromJson(schema.json())
