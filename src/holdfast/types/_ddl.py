"""Reads Spark DDL ("user string, total long NOT NULL COMMENT 'c'") without Spark."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import NamedTuple

from holdfast.types._datatypes import (
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
    invalid_schema,
)

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<string>[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
      | (?P<quoted>`(?:[^`]|``)*`)
      | (?P<number>[0-9]+(?![A-Za-z0-9_]))
      | (?P<word>[A-Za-z0-9_]+)
      | (?P<mark>[<>(),:])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[0-3][0-7]{2}|.)", re.DOTALL)
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_COLLATION = re.compile(r"(UTF8|UNICODE)(_[A-Z]+)*\Z", re.IGNORECASE)

_NAMES = {
    "boolean": "boolean",
    "byte": "byte",
    "tinyint": "byte",
    "short": "short",
    "smallint": "short",
    "int": "integer",
    "integer": "integer",
    "long": "long",
    "bigint": "long",
    "float": "float",
    "real": "float",
    "double": "double",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "void": "void",
    "variant": "variant",
}
_UNITS = frozenset({"year", "month", "day", "hour", "minute", "second"})
_SIZED = {"char": "char", "character": "char", "varchar": "varchar"}


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


def parse_ddl(text: str) -> StructType:
    """The columns `text` declares: a column list, or one whole `struct<…>`.

    Accepts what Spark's `StructType.fromDDL` accepts, `name: type` included; names keep their case.
    """
    parser = _Parser(text)
    if parser.peek_word() == "struct" and parser.peek_text(1) == "<":
        whole = parser.data_type()
        assert isinstance(whole, StructType)
        fields = whole.fields
    else:
        fields = parser.fields(until="end")
    parser.expect_end()
    return StructType(fields)


@lru_cache(maxsize=1024)
def parse_type(text: str) -> DataType:
    """The one type `text` names, such as "decimal(10,2)" or "interval day to second".

    Each type is parsed once: every manifest that is read names the same few.
    """
    parser = _Parser(text)
    found = parser.data_type()
    parser.expect_end()
    return found


def normal_collation(name: str) -> str:
    """The collation as Spark spells it; locale names keep their case."""
    return name.upper() if _COLLATION.match(name) else name


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._at = 0

    # -- tokens ------------------------------------------------------------------------------

    def _peek(self, ahead: int = 0) -> _Token:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def peek_text(self, ahead: int = 0) -> str:
        return self._peek(ahead).text

    def peek_word(self, ahead: int = 0) -> str:
        token = self._peek(ahead)
        return token.text.lower() if token.kind == "word" else ""

    def _next(self) -> _Token:
        token = self._peek()
        self._at += 1
        return token

    def _skip(self, *words: str) -> bool:
        """Steps over the words or marks if they come next."""
        for ahead, word in enumerate(words):
            token = self._peek(ahead)
            if token.kind not in ("word", "mark") or token.text.lower() != word:
                return False
        self._at += len(words)
        return True

    def _expect(self, mark: str) -> None:
        if not self._skip(mark):
            raise self._unexpected(f"{mark!r}")

    def expect_end(self) -> None:
        if self._peek().kind != "end":
            raise self._unexpected("',' or the end")

    def _unexpected(self, wanted: str) -> Exception:
        token = self._peek()
        found = "the end" if token.kind == "end" else repr(token.text)
        return invalid_schema(
            f"cannot read the schema: expected {wanted} at position {token.start}, found {found}"
        )

    # -- grammar -----------------------------------------------------------------------------

    def fields(self, until: str) -> tuple[Field, ...]:
        found: list[Field] = []
        if self._peek().kind == "end" or (until == ">" and self.peek_text() == ">"):
            return ()
        while True:
            found.append(self._field())
            if not self._skip(","):
                return tuple(found)

    def _field(self) -> Field:
        name = self._name()
        self._skip(":")
        kind = self.data_type()
        nullable = not self._skip("not", "null")
        metadata = "{}"
        if self._skip("comment"):
            metadata = json.dumps({"comment": self._string()})
        return Field(name, kind, nullable, metadata)

    def _name(self) -> str:
        token = self._peek()
        if token.kind == "quoted":
            self._next()
            return token.text[1:-1].replace("``", "`")
        if token.kind != "word":
            raise self._unexpected("a column name (in backquotes if it is not letters and digits)")
        self._next()
        return token.text

    def _string(self) -> str:
        if self._peek().kind != "string":
            raise self._unexpected("a quoted comment")
        parts = []
        while self._peek().kind == "string":
            parts.append(_unquote(self._next().text))
        return "".join(parts)

    def _numbers(self) -> list[int]:
        """A parenthesised list of numbers, or nothing."""
        numbers: list[int] = []
        if not self._skip("("):
            return numbers
        while True:
            if self._peek().kind != "number":
                raise self._unexpected("a number")
            numbers.append(int(self._next().text))
            if not self._skip(","):
                self._expect(")")
                return numbers

    def data_type(self) -> DataType:
        word = self.peek_word()
        if not word:
            raise self._unexpected("a type")
        start = self._next().start
        if word in ("array", "map", "struct"):
            return self._nested(word)
        if word == "interval":
            return self._interval()
        if word in ("timestamp", "time") and (zoned := self._zone_words(word)):
            return zoned
        numbers = self._numbers()
        if word == "string" and not numbers:
            return StringType(self._collation())
        found = _simple(word, numbers)
        if found is None:
            size = f"({','.join(map(str, numbers))})" if numbers else ""
            raise invalid_schema(
                f"{word}{size} at position {start} is not a type that Holdfast can store"
            )
        return found

    def _nested(self, word: str) -> DataType:
        self._expect("<")
        found: DataType
        if word == "array":
            found = ArrayType(self.data_type())
        elif word == "map":
            key = self.data_type()
            self._expect(",")
            found = MapType(key, self.data_type())
        else:
            found = StructType(self.fields(until=">"))
        self._expect(">")
        return found

    def _interval(self) -> DataType:
        start = self.peek_word()
        if start not in _UNITS:
            return AtomicType("interval")
        self._next()
        if not self._skip("to"):
            return IntervalType(start, start)
        end = self.peek_word()
        if end not in _UNITS or end == start:
            raise self._unexpected("a smaller unit")
        self._next()
        return IntervalType(start, end)

    def _zone_words(self, word: str) -> DataType | None:
        if word == "timestamp" and self._skip("with", "local", "time", "zone"):
            return AtomicType("timestamp")
        if word == "timestamp" and self._skip("without", "time", "zone"):
            return AtomicType("timestamp_ntz")
        if word == "time":
            numbers = self._numbers()
            self._skip("without", "time", "zone")
            return TimeType(*numbers[:1])
        return None

    def _collation(self) -> str:
        return normal_collation(self._name()) if self._skip("collate") else StringType().collation


def _simple(word: str, numbers: list[int]) -> DataType | None:
    if word in _NAMES and not numbers:
        return AtomicType(_NAMES[word])
    if word in ("decimal", "dec", "numeric") and len(numbers) <= 2:
        return DecimalType(*numbers)
    if word in _SIZED:
        if len(numbers) != 1:
            raise invalid_schema(f"{word} needs a length, such as {word}(10)")
        return StringType(kind=_SIZED[word], length=numbers[0])
    return None


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise invalid_schema(
                f"cannot read the schema: {text[at]!r} at position {at} must be in backquotes"
            )
        kind = str(match.lastgroup)
        if kind != "space":
            found.append(_Token(kind, match.group(), at))
        at = match.end()
    found.append(_Token("end", "", at))
    return found


def _unquote(literal: str) -> str:
    if literal[0] in "rR":
        return literal[2:-1]
    mark, body = literal[0], literal[1:-1]
    parts = re.split(r"(\\(?:[\s\S]))", body)
    return _ESCAPE.sub(_escaped, "".join(_undouble(p, mark) for p in parts))


def _undouble(part: str, mark: str) -> str:
    return part if part.startswith("\\") else part.replace(mark * 2, mark)


def _escaped(match: re.Match[str]) -> str:
    code = match.group(1)
    if code[0] in "uU" and len(code) > 1:
        return chr(int(code[1:], 16))
    if len(code) == 3:
        return chr(int(code, 8))
    # Spark keeps these two escapes, which LIKE patterns use.
    return "\\" + code if code in "%_" else _ESCAPES.get(code, code)
