"""Schemas and rows without Spark.

    schema = parse_schema("user string, total long")
    codec = RowCodec(schema)
    row = codec.encode({"user": "Sankar", "total": 200})

`Schema` is the columns of a key or a value, `RowCodec` checks and converts rows of one, and
`columns_of` batches. Nothing here imports PySpark.
"""

from holdfast.deprecation import moved_names
from holdfast.reserved import RESERVED_PREFIXES
from holdfast.types._batch import MOST_COLUMN_BYTES, as_table, columns_of, one_array, parts_of
from holdfast.types._codec import Row, RowCodec
from holdfast.types._columns import UnrepresentableValue, read_column, with_nulls
from holdfast.types._datatypes import (
    LIST_POSITION,
    MILLISECONDS,
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    Field,
    IntervalType,
    MapType,
    StringType,
    StructType,
    TimeType,
)
from holdfast.types._moments import far_number, far_text, is_far, moment, moment_text, parse_far
from holdfast.types._schema import Schema, parse_schema

__all__ = [
    "parse_schema",
    "Schema",
    "Field",
    "RowCodec",
    "Row",
    "RESERVED_PREFIXES",
    "MILLISECONDS",
    "LIST_POSITION",
    "MOST_COLUMN_BYTES",
    "as_table",
    "columns_of",
    "one_array",
    "parts_of",
    "read_column",
    "with_nulls",
    "UnrepresentableValue",
    "far_number",
    "far_text",
    "is_far",
    "moment",
    "moment_text",
    "parse_far",
    "DataType",
    "AtomicType",
    "StringType",
    "DecimalType",
    "TimeType",
    "IntervalType",
    "ArrayType",
    "MapType",
    "StructType",
]

__getattr__ = moved_names(__name__, {"Unrepresentable": "holdfast.types:UnrepresentableValue"})
