"""What the columns that a stateful operator goes by are made of, upstream of it.

The words do not name the columns of sources: renaming one of those changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import xxhash
from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame, SparkSession

from holdfast.spark.interop.classes import java_class, java_object
from holdfast.spark.interop.scala import CATALYST, class_of, scala_list, scala_seq, walk

WORDING = 1
"""Which words this module describes columns in: another number whenever the same column is
described in other words. Texts of different numbers cannot be compared.
"""
_LEAF = re.compile("\0([0-9]+)\0")
"""A column of a source in a text, by its id in the plan."""
_TOKEN = re.compile("holdfast_([0-9]+)_")
_RUN_ID = re.compile("#[0-9]+L?")
"""How a function of the user's is told from another call of it in one plan."""
_SUBQUERIES = ("ScalarSubquery", "Exists", "ListQuery", "InSubquery")
_BY_PARAMETERS = f"{CATALYST}.expressions.InheritAnalysisRules"
"""Functions such as `ifnull`: their only child is what Spark replaces them with."""
_TIMES = ("date", "timestamp", "timestamp_ntz")
_AS_IT_IS = "a column of the source"
_NOT_COMPARED = "something else each time"
_LONGEST = 1_000
"""How many characters of a text are kept; of a longer one the beginning and a hash are."""
_HEAD = 200
"""How much of a longer text is kept; an error shows this and the hash."""

Texts = dict[int, str]


def columns_grouped_by(before: DataFrame, groupings: Sequence[Column]) -> dict[str, str]:
    """What the columns are made of that appear in some groupings of a frame."""
    return _used(before, _plan(before.select(*groupings)))


def columns_aggregated(before: DataFrame, after: DataFrame) -> dict[str, str]:
    """What the columns are made of that appear in keys, inputs and filters of an aggregation."""
    plan = _plan(after)
    while class_of(plan) == "Project":
        plan = plan.child()
    return _used(before, plan)


def describe_columns(before: DataFrame, names: Collection[str]) -> dict[str, str]:
    """What columns of a frame are made of, by name."""
    plan = _plan(before)
    outputs = [node for node in scala_list(plan.output()) if str(node.name()) in names]
    return _told(before.sparkSession, plan, outputs)


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _used(before: DataFrame, top: Any) -> dict[str, str]:
    """What those columns of `before` are made of that the top node of a plan over it uses."""
    below = _plan(before)
    wanted = {_id(node) for node in scala_list(top.references().toSeq())}
    session = before.sparkSession
    texts = _Trace(session, below).of(top.child(), wanted).values()
    used = {int(found) for text in texts for found in _LEAF.findall(text)}
    outputs = [node for node in scala_list(below.output()) if _id(node) in used]
    return _told(session, below, outputs)


def _told(session: SparkSession, plan: Any, outputs: Sequence[Any]) -> dict[str, str]:
    names = {_id(node): str(node.name()) for node in outputs}
    texts = _Trace(session).of(plan, set(names))
    return {
        names[number]: _AS_IT_IS if _LEAF.fullmatch(text) else _anonymous(text)
        for number, text in sorted(texts.items())
    }


def _id(node: Any) -> int:
    return int(node.exprId().id())


def _leaf(number: int) -> str:
    return f"\0{number}\0"


def _anonymous(text: str) -> str:
    """The text with its sources' columns numbered in the order they appear in."""
    numbers: dict[str, int] = {}
    return _LEAF.sub(lambda found: f"_{numbers.setdefault(found[1], len(numbers) + 1)}", text)


def _shortened(text: str) -> str:
    """The text, or the beginning, a hash and the columns of a long one.

    A text has the texts of the columns below it inside, each as often as it is used: unshortened
    they would double with every step. Ids differ from run to run, and so do their lengths: only
    the anonymous text counts.
    """
    words = _anonymous(text)
    if len(words) <= _LONGEST:
        return text
    columns = ", ".join(_leaf(int(number)) for number in dict.fromkeys(_LEAF.findall(text)))
    return f"{words[:_HEAD]}… (hash {xxhash.xxh3_128_hexdigest(words.encode())} of {columns})"


class _Trace:
    """Follows columns down a plan of Catalyst's, as far as `end` where there is one."""

    def __init__(self, session: SparkSession, end: Any = None) -> None:
        self._session = session
        self._end = end

    def of(self, node: Any, wanted: Collection[int]) -> Texts:
        """What the columns with these ids, which come out of a node, are made of."""
        leaves = {number: _leaf(number) for number in wanted}
        kind = class_of(node)
        is_end = self._end is not None and node.fastEquals(self._end)
        if not wanted or is_end or kind == "Aggregate":
            return leaves
        if kind == "Union":
            return self._united(node, wanted)
        made = {number: part for number, part in self._made(node, kind).items() if number in wanted}
        below = {_id(each) for part in made.values() for each in _attributes(part)}
        asked = below.union(number for number in wanted if number not in made)
        found = {number: _leaf(number) for number in asked}
        for child in scala_list(node.children()):
            traced = self.of(child, asked)
            found.update((n, text) for n, text in traced.items() if text != _leaf(n))
        return {n: self._text(made[n], found) if n in made else found[n] for n in wanted}

    def _made(self, node: Any, kind: str) -> dict[int, Any]:
        """The columns that a node makes by itself, by their ids."""
        if kind == "Project":
            named = [each for each in scala_list(node.projectList()) if class_of(each) == "Alias"]
            # A constant is like a source's column: what it says is data.
            return {_id(each): each.child() for each in named if not _is(each.child(), "Literal")}
        if kind == "Expand":  # the windows of a row are in it one by one, and alike
            first = scala_list(node.projections().apply(0))
            pairs = zip(scala_list(node.output()), first, strict=True)
            return {_id(output): part for output, part in pairs if not _is(part, class_of(output))}
        if kind == "Generate":
            return {_id(each): node.generator() for each in scala_list(node.generatorOutput())}
        return {}

    def _united(self, node: Any, wanted: Collection[int]) -> Texts:
        columns = [_id(output) for output in scala_list(node.output())]
        ways: dict[int, set[str]] = {number: set() for number in wanted}
        for child in scala_list(node.children()):
            pairs = zip(columns, map(_id, scala_list(child.output())), strict=True)
            own = {number: theirs for number, theirs in pairs if number in wanted}
            found = self.of(child, set(own.values()))
            for number, theirs in own.items():
                ways[number].add(_anonymous(found[theirs]))
        return {
            number: _leaf(number) if texts <= {"_1"} else self._either(texts)
            for number, texts in ways.items()
        }

    def _either(self, texts: Collection[str]) -> str:
        # A text alone stays what it is without the union.
        return next(iter(texts)) if len(texts) == 1 else _shortened(" or ".join(sorted(texts)))

    def _text(self, expression: Any, known: Mapping[int, str]) -> str:
        """An expression in words; that of an attribute is what it is known to be made of."""
        kind = class_of(expression)
        if kind == "AttributeReference":
            return known[_id(expression)]
        try:
            if not expression.deterministic() or _has_subquery(expression):
                return _NOT_COMPARED
            if kind == "CreateNamedStruct" and (window := self._window(expression, known)):
                return window
            texts = dict(known)
            return _shortened(_words(self._stable(expression, texts), texts))
        except (Py4JError, RecursionError):  # no query fails for want of a text
            return _NOT_COMPARED

    def _stable(self, node: Any, texts: Texts) -> Any:
        """An expression without what differs from run to run, its columns named by their ids.

        A column can stand for a part of it; `texts` gets what that part is.
        """
        kind = class_of(node)
        if kind == "AttributeReference":
            unqualified = node.withQualifier(scala_seq(self._session, []))
            return unqualified.withName(f"holdfast_{_id(node)}_")
        if kind == "Literal" and str(node.dataType().typeName()) in _TIMES:
            # Often the day or the moment of the run.
            literal = java_class(self._session, f"{CATALYST}.expressions.Literal")
            return literal.default(node.dataType())
        if is_instance_of(self._session.sparkContext._gateway, node, _BY_PARAMETERS):
            return self._stand_in(node, texts)
        children = [self._stable(child, texts) for child in scala_list(node.children())]
        if kind == "In":  # a Python set has another order in each process
            children = [
                children[0],
                *sorted(children[1:], key=lambda each: _anonymous(_words(each, texts))),
            ]
        return node.withNewChildren(scala_seq(self._session, children)) if children else node

    def _stand_in(self, node: Any, texts: Texts) -> Any:
        """A column in the place of a function that prints its parameters, not its children."""
        used = node.references()
        parts = scala_list(node.parameters())
        if not all(part.references().subsetOf(used) for part in parts):
            # Spark gives the columns of a frame that is joined or united with itself new ids, in
            # the children alone.
            parts = scala_list(node.children())
        words = ", ".join(_words(self._stable(part, texts), texts) for part in parts)
        nothing = scala_seq(self._session, [])
        named = java_object(self._session, f"{CATALYST}.expressions.NamedExpression")
        number = named.newExprId()
        texts[int(number.id())] = f"{node.prettyName()}({words})"
        attribute = java_class(self._session, f"{CATALYST}.expressions.AttributeReference")
        metadata = java_class(self._session, "org.apache.spark.sql.types.Metadata").empty()
        name = f"holdfast_{int(number.id())}_"
        return attribute(name, node.dataType(), True, metadata, number, nothing)

    def _window(self, struct: Any, known: Mapping[int, str]) -> str | None:
        """The window that a struct is, in the form Spark's analysis gives it; None for others."""
        parts = scala_list(struct.children())
        nodes = list(walk(parts[-1]))
        if len(parts) != 4 or not any(_is(node, "PreciseTimestampConversion") for node in nodes):
            return None
        remainder = next((node for node in nodes if _is(node, "Remainder")), None)
        if remainder is None:
            return self._session_window(nodes, known)
        length = next(node for node in nodes if _is(node, "Add"))
        since = remainder.left()
        slide_us = int(remainder.right().value())
        start_us = int(since.right().value()) % slide_us
        time = self._text(since.left().child(), known)
        length_us = int(length.right().value())
        return f"window({time}, {_span(length_us)}, {_span(slide_us)}, {_span(start_us)})"

    def _session_window(self, nodes: Sequence[Any], known: Mapping[int, str]) -> str | None:
        added = next((node for node in nodes if node.children().size() == 2), None)
        if added is None:
            return None
        time, gap = scala_list(added.children())
        told = str(gap.eval(None).toString()) if gap.foldable() else self._text(gap, known)
        return f"session_window({self._text(time, known)}, {told})"


def _words(expression: Any, texts: Mapping[int, str]) -> str:
    sql = _RUN_ID.sub("", str(expression.sql()))
    return _TOKEN.sub(lambda found: texts.get(int(found[1]), found[0]), sql)


def _is(node: Any, kind: str) -> bool:
    return class_of(node) == kind


def _attributes(expression: Any) -> list[Any]:
    return scala_list(expression.references().toSeq())


def _has_subquery(expression: Any) -> bool:
    return any(class_of(node) in _SUBQUERIES for node in walk(expression))


def _span(micros: int) -> str:
    return f"{micros // 1_000_000} seconds" if micros % 1_000_000 == 0 else f"{micros} microseconds"
