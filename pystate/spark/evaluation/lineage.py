"""Which operators of an evaluation feed a frame, from the text of its analysed plan.

A plan's text has a line per node, and what a node reads stands below it, further to the right. An
operator's node has a number that is unique in Spark's session. What stands below it fed the
operator, and not the frame. All other nodes that read nothing are sources, but for these:

- A *materialised* output (`localCheckpoint`) has no operator's node any more, only a
  ``LogicalRDD``, whose columns still have the numbers of the operator's. In a self-join Spark gives
  them new numbers; then the RDD itself tells, if some other node, or the operator, has it.
- A reference to a common table expression stands for a part of the plan that is there as well.
- A subquery in an expression supplies no rows.

Some things cannot be seen: an RDD that was made from a frame, and what a union that the pipeline
materialises has but for its first part.

Thread safety: functions without state; immutable types.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import NamedTuple

from pystate.spark.base.jvm import numbers_in

#: A node's function, and Spark's number of the expression.
_OPERATOR = re.compile(r"^[ :+-]*MapInArrow .*?\)#(\d+), \[", re.MULTILINE)
_LINE = re.compile(r"((?::  |   )*)([:+]- )(.+)")
#: A column that a projection takes as it is, with or without another name.
_PLAIN_COLUMN = re.compile(r"\w+#(\d+)L?(?: AS \w+#(\d+)L?)?")
#: A column that only gets another name, among the items of a node.
_ALIAS = re.compile(r"(?:\[|, )[^#,\[\]()]+#(\d+)L? AS [^#,\[\]()]+#(\d+)")
_UNION = "Union"
_PROJECT = re.compile(r"Project \[(.*)\]")
_RDD_NODE = "LogicalRDD "
_REFERENCE = "CTERelationRef "
#: Characters that the begin of a line has for each level of the tree.
_INDENT = 3


class Lineage(NamedTuple):
    """Where the rows of a frame come from."""

    operators: frozenset[str]
    """The operators that it reads, by uid."""
    materialised: tuple[frozenset[str], ...]
    """Materialised frames that it reads, each by the numbers of its columns."""
    sources: bool
    """Whether it reads anything else."""


def node_numbers(text: str) -> list[str]:
    """The numbers of the nodes in a plan's text that may be operators, the topmost first."""
    return _OPERATOR.findall(text)


def columns_of(text: str) -> frozenset[str]:
    """The numbers of the columns in a text."""
    return frozenset(numbers_in(text))


def selection_of(text: str, tops: Container[str]) -> tuple[str, list[str] | None] | None:
    """Find what a plan only selects columns of, by the first lines of the texts of other plans.

    Returns the line of `tops` that is reached through projections alone, and the numbers of its
    columns that the plan has, in the plan's order; None for all of them. If a projection computes
    anything, the result is None.
    """
    columns: list[str] | None = None
    for line in text.splitlines():
        node = line.lstrip(" ").removeprefix("+- ")
        if node in tops:
            return node, columns
        project = _PROJECT.fullmatch(node)
        if project is None:
            return None
        items = [_PLAIN_COLUMN.fullmatch(item) for item in project[1].split(", ")]
        sources = {item[2] or item[1]: item[1] for item in items if item is not None}
        if columns is None:
            columns = list(sources)
        if len(sources) < len(items) or not sources.keys() >= set(columns):
            return None
        columns = [sources[column] for column in columns]
    return None


def lineage(text: str, operators: Mapping[str, str]) -> Lineage:
    """Read an analysed plan's text; `operators` are uids by the numbers of their nodes."""
    uids: set[str] = set()
    materialised: list[frozenset[str]] = []
    sources = False
    nodes = list(_outer(text, operators))
    for (depth, node), (next_depth, _) in zip(nodes, [*nodes[1:], (0, "")], strict=True):
        uid = _operator(node, operators)
        if uid is not None:
            uids.add(uid)
        elif next_depth > depth:
            continue
        elif node.startswith(_RDD_NODE):
            materialised.append(columns_of(node))
        elif not node.startswith(_REFERENCE):
            sources = True
    return Lineage(frozenset(uids), tuple(materialised), sources)


def original(
    text: str, operators: Mapping[str, str], column: str, known: Container[str]
) -> str | None:
    """The number that a column of a plan had before it was renamed; None if that is not known.

    Of a union it is not known: Spark numbers its columns as those of its first part. `known` are
    the numbers that are looked for.
    """
    renamed: dict[str, str] = {}
    for _, node in _outer(text, operators):
        if node.startswith(_UNION):
            return None
        renamed.update((new, old) for old, new in _ALIAS.findall(node))
    while column not in known and column in renamed:
        column = renamed.pop(column)
    return column if column in known else None


def _operator(node: str, operators: Mapping[str, str]) -> str | None:
    number = _OPERATOR.match(node)
    return None if number is None else operators.get(number[1])


def _outer(text: str, operators: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """The nodes that are neither below an operator nor in a subquery."""
    hidden: int | None = None
    above = -1
    for depth, node in _nodes(text):
        if hidden is not None and depth > hidden:
            continue
        hidden = None
        if depth > above + 1:
            # Spark writes the plans of a node's subqueries before what it reads, and further in.
            continue
        above = depth
        if _operator(node, operators) is not None:
            hidden = depth
        yield depth, node


def _nodes(text: str) -> Iterator[tuple[int, str]]:
    """The depth of each node, and its line; a literal with line breaks may continue a line."""
    lines = text.split("\n")
    yield 0, lines[0]
    for line in lines[1:]:
        match = _LINE.fullmatch(line)
        if match is not None:
            yield len(match[1]) // _INDENT + 1, match[3]
