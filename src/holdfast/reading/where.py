r"""A small language for filters, read without eval.

    total > 100 and (user = 'Jade' or user is null)

    or, and, not, ( )        = == != <> < <= > >=        is null, is not null
    in (…)        between … and …        like, ilike: % is any text, _ a character, \ escapes

An operand is a column (in `backquotes` where it is no plain word, with a dot into a struct), a
number, text in single or double quotes, true or false. Text is read by the type of the column it
is compared with, so dates and times are written as text; `timestamp` or `date` may stand before it.
A time without a zone is in UTC.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidArgument
from holdfast.reading.cells import parse_field
from holdfast.types import (
    AtomicType,
    DataType,
    DecimalType,
    Field,
    StringType,
    StructType,
    far_number,
)

_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<text>'(?:[^']|'')*'|\"[^\"]*\")"
    r"|(?P<name>(?:[^\W\d]\w*|`(?:[^`]|``)+`)(?:\.(?:[^\W\d]\w*|`(?:[^`]|``)+`))*)"
    r"|(?P<sign><=|>=|!=|<>|==|=|<|>|\(|\)|,))"
)
_PART = re.compile(r"[^\W\d]\w*|`(?:[^`]|``)+`")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne, "<>": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_WORDS = {"and", "or", "not", "in", "is", "null", "true", "false", "between", "like", "ilike"}
_BEFORE_TIMES = {"timestamp", "timestamp_ltz", "timestamp_ntz", "date"}
_DEEPEST = 50


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    place: int


@dataclass(frozen=True, slots=True)
class _Operand:
    """A column with its type, or a literal that waits for the type of what it is compared with."""

    token: _Token
    field: Field | None = None
    expression: Any = None

    @property
    def type(self) -> DataType | None:
        return None if self.field is None else self.field.type


def parse_where(text: str, columns: StructType) -> pc.Expression:
    """The filter for `scan(where=…)`. Raises InvalidArgument saying where reading stopped."""
    parser = _Parser(text, columns)
    expression = parser.disjunction(0)
    parser.expect_end()
    return check_filter(expression, columns)


def check_filter(expression: Any, columns: StructType) -> pc.Expression:
    """A filter that fits the columns. Raises InvalidArgument where it does not."""
    if not isinstance(expression, pc.Expression):
        raise InvalidArgument(
            'A filter is text such as "total > 100" or a pyarrow.compute expression, not '
            f"{type(expression).__name__}."
        )
    try:
        pa.schema(columns.arrow).empty_table().filter(expression)
    except (pa.ArrowException, TypeError):
        names = ", ".join(field.name for field in columns.fields)
        raise InvalidArgument(
            f"The filter does not fit the columns {names}: it names another one, or compares what "
            "cannot be compared that way, since it differs in type or has no order. Arrays, maps "
            "and structs can only be tested by `is null`."
        ) from None
    return expression


class _Parser:
    """Recursive descent: or, then and, then not, then a comparison."""

    def __init__(self, text: str, columns: StructType) -> None:
        self._text = text
        self._columns = columns
        self._tokens = list(self._split(text))
        self._next = 0

    def _split(self, text: str) -> list[_Token]:
        tokens: list[_Token] = []
        place = 0
        while text[place:].strip():
            match = _TOKEN.match(text, place)
            if match is None:
                self._refuse(place, "cannot be read")
            kind = match.lastgroup or ""
            word = match[kind]
            if kind == "name" and word.lower() in _WORDS:
                kind, word = "word", word.lower()
            tokens.append(_Token(kind, word, match.start(kind if kind != "word" else "name")))
            place = match.end()
        return tokens

    def disjunction(self, depth: int) -> pc.Expression:
        if depth > _DEEPEST:
            self._refuse(self._place(), "is nested too deeply")
        found = self._conjunction(depth)
        while self._take("word", "or"):
            found = found | self._conjunction(depth)
        return found

    def _conjunction(self, depth: int) -> pc.Expression:
        found = self._negation(depth)
        while self._take("word", "and"):
            found = found & self._negation(depth)
        return found

    def _negation(self, depth: int) -> pc.Expression:
        negated = False
        while self._take("word", "not"):
            negated = not negated
        found = self._comparison(depth)
        return ~found if negated else found

    def _comparison(self, depth: int) -> pc.Expression:
        if self._take("sign", "("):
            found = self.disjunction(depth + 1)
            self._expect("sign", ")")
            return found
        left = self._operand()
        if self._take("word", "is"):
            return self._null_test(left)
        negated = self._take("word", "not")
        found = self._tested(left)
        if found is not None:
            return ~found if negated else found
        if negated:
            self._refuse(self._place(), "needs in, between or like after not")
        sign = self._sign()
        return self._boolean(left) if sign is None else self._compared(left, sign, self._operand())

    def _compared(self, left: _Operand, sign: str, right: _Operand) -> pc.Expression:
        if left.type is None and right.type is None:
            self._refuse(left.token.place, "compares no column")
        return _COMPARE[sign](self._value(left, right), self._value(right, left))

    def _tested(self, left: _Operand) -> pc.Expression | None:
        """The test after an operand that begins with a word, None where there is none."""
        if self._take("word", "in"):
            return self._membership(left)
        if self._take("word", "between"):
            low = self._operand()
            self._expect("word", "and")
            high = self._operand()
            return self._compared(left, ">=", low) & self._compared(left, "<=", high)
        for word in ("like", "ilike"):
            if self._take("word", word):
                return self._likeness(left, ignore_case=word == "ilike")
        return None

    def _likeness(self, left: _Operand, *, ignore_case: bool) -> pc.Expression:
        column, pattern = self._column(left), self._operand()
        if not isinstance(left.type, StringType):
            self._refuse(left.token.place, f"looks for a pattern in {left.type}, which is no text")
        if pattern.token.kind != "text":
            self._refuse(pattern.token.place, "takes a pattern in quotes here")
        return pc.match_like(column, _text_of(pattern.token), ignore_case=ignore_case)

    def _null_test(self, left: _Operand) -> pc.Expression:
        negated = self._take("word", "not")
        self._expect("word", "null")
        found = self._column(left).is_null()
        return ~found if negated else found

    def _membership(self, left: _Operand) -> pc.Expression:
        column = self._column(left)
        self._expect("sign", "(")
        found = column == self._value(self._operand(), left)
        while self._take("sign", ","):
            found = found | (column == self._value(self._operand(), left))
        self._expect("sign", ")")
        return found

    def _boolean(self, left: _Operand) -> pc.Expression:
        if left.type != AtomicType("boolean"):
            self._refuse(left.token.place, "is compared with nothing")
        return left.expression

    def _sign(self) -> str | None:
        if self._next < len(self._tokens):
            token = self._tokens[self._next]
            if token.kind == "sign" and token.text in _COMPARE:
                self._next += 1
                return token.text
        return None

    def _operand(self) -> _Operand:
        if self._next >= len(self._tokens):
            self._refuse(len(self._text), "ends where a column or a value was due")
        token = self._tokens[self._next]
        self._next += 1
        if token.text.lower() in _BEFORE_TIMES and self._next_kind() == "text":
            return self._operand()
        if token.kind == "name":
            return self._column_named(token)
        literal = token.kind in ("number", "text") or token.text in ("true", "false")
        if not literal:
            self._refuse(token.place, "has no column or value here (null is tested by `is null`)")
        return _Operand(token)

    def _column_named(self, token: _Token) -> _Operand:
        path = [_unquoted(part) for part in _PART.findall(token.text)]
        kind: DataType = self._columns
        match: Field | None = None
        for name in path:
            fields = kind.fields if isinstance(kind, StructType) else ()
            match = next((f for f in fields if f.name == name), None)
            if match is None:
                known = ", ".join(f.name for f in fields) or "no fields"
                self._refuse(token.place, f"names no column {name!r}; there are {known}")
            kind = match.type
        return _Operand(token, match, pc.field(*path))

    def _column(self, operand: _Operand) -> Any:
        if operand.type is None:
            self._refuse(operand.token.place, "takes a column here")
        return operand.expression

    def _value(self, operand: _Operand, other: _Operand) -> Any:
        """An operand as Arrow takes it; a literal is read by the type of the other side."""
        if operand.type is not None:
            return operand.expression
        token = operand.token
        assert other.field is not None
        kind = other.field.type
        if token.kind == "number":
            return self._number(token, kind)
        if token.kind == "word":
            if kind != AtomicType("boolean"):
                self._refuse(token.place, f"compares {token.text} with {kind}")
            return pc.scalar(token.text == "true")
        cell = parse_field(other.field, _text_of(token))
        number = far_number(cell) if isinstance(cell, np.datetime64) else cell
        return pc.scalar(pa.scalar(number, kind.arrow))

    def _number(self, token: _Token, other: DataType) -> Any:
        if isinstance(other, DecimalType):
            return pc.scalar(pa.scalar(Decimal(token.text)))
        if isinstance(other, (StringType, StructType)) or not _is_number(other):
            self._refuse(token.place, f"compares a number with {other}; write it in quotes")
        try:
            number = int(token.text)
            return pc.scalar(number if -(2**63) <= number < 2**63 else float(number))
        except ValueError:
            return pc.scalar(float(token.text))

    def _next_kind(self) -> str | None:
        return self._tokens[self._next].kind if self._next < len(self._tokens) else None

    def _take(self, kind: str, text: str) -> bool:
        taken = self._next_kind() == kind and self._tokens[self._next].text == text
        self._next += taken
        return taken

    def _expect(self, kind: str, text: str) -> None:
        if not self._take(kind, text):
            self._refuse(self._place(), f"needs {text!r} here")

    def expect_end(self) -> None:
        if self._next < len(self._tokens):
            self._refuse(self._place(), "goes on after its end (and, or are missing?)")

    def _place(self) -> int:
        done = self._next >= len(self._tokens)
        return len(self._text) if done else self._tokens[self._next].place

    def _refuse(self, place: int, why: str) -> NoReturn:
        raise InvalidArgument(
            f"The filter {why}, at character {place + 1}. Example: total > 100 and user = 'Jade'"
        )


def _text_of(token: _Token) -> str:
    inside = token.text[1:-1]
    return inside.replace("''", "'") if token.text[0] == "'" else inside


def _is_number(kind: DataType) -> bool:
    return bool(pa.types.is_integer(kind.arrow) or pa.types.is_floating(kind.arrow))


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name
