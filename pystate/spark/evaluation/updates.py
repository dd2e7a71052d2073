"""Frames of updates: rows that replace earlier rows of the same thing.

`aggregate`, `top` and others emit a key again in each epoch that changes it. An operator behind
them must not take two updates of one key for two rows. So such a frame is known by the columns that
say which thing a row tells of, its identity: by Spark's numbers of these columns, which stay the
same through all that only chooses, renames or computes columns. The numbers are looked up in the
analysed plan, and nothing is added to the user's frame.

A frame stays one of updates through projections, sorts, repartitions and filters by the identity.
Whatever else a pipeline does with it, a filter by a count for example, makes rows appear without
saying which ones have disappeared: an operator that takes rows for a table refuses them then.

Thread safety: an `UpdateFrames` belongs to the thread that runs the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pystate.spark.base.jvm import analysed_plan, items, numbers_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


#: An item of a projection that only gives a column another name.
_ALIAS = re.compile(r".* AS .*#(\d+)L?", re.DOTALL)
_KEEPING = ("SubqueryAlias", "Sort", "Repartition", "RepartitionByExpression", "ResolvedHint")
_PROJECT, _FILTER = "Project", "Filter"
#: Names of columns that are taken along, which no user has.
_IDENTITY_NAME = "pystate: identity "


@dataclass(frozen=True)
class _Emitter:
    """An operator that emits updates."""

    frame: DataFrame
    identity: tuple[str, ...]
    unstable: str | None
    """Why a row may have another identity than the one that it replaces; None if it has not."""


@dataclass(frozen=True)
class Updates:
    """What is known of a frame of updates; `identity` are the columns of what a row tells of.

    `problem` says why its rows cannot be taken for the newest ones of a table.
    """

    uid: str
    frame: DataFrame
    identity: tuple[str, ...]
    problem: str | None
    determined: Callable[[str], bool]
    """Whether a column, by its name, follows from the identity."""

    def problem_by(self, keys: Sequence[str]) -> str | None:
        """Why an operator with these key columns cannot take the rows as updates."""
        if self.problem is not None:
            return self.problem
        changing = [key for key in keys if not self.determined(key)]
        if changing:
            return (
                f"the key {', '.join(map(repr, changing))} does not follow from what the updates "
                f"are of ({', '.join(map(repr, self.identity))}), so that an update may leave its "
                "old key"
            )
        return None


class UpdateFrames:
    """The operators of one evaluation that emit updates."""

    def __init__(self) -> None:
        self._emitters: dict[str, _Emitter] = {}

    def __bool__(self) -> bool:
        return bool(self._emitters)

    def add(
        self, uid: str, frame: DataFrame, identity: Sequence[str], unstable: str | None = None
    ) -> None:
        """Note an operator's output, whose rows replace earlier ones of the same identity."""
        self._emitters[uid] = _Emitter(frame, tuple(identity), unstable)

    def find(self, frame: DataFrame, uids: Sequence[str]) -> Updates | None:
        """What is known of a frame that these operators feed; None if it holds no updates."""
        emitting = [uid for uid in uids if uid in self._emitters]
        if not emitting:
            return None
        uid = emitting[0]
        emitter = self._emitters[uid]
        problem = emitter.unstable
        if len(emitting) > 1:
            problem = f"updates of {', '.join(map(repr, emitting))} come together in it"
        walk = _Walk(analysed_plan(frame), emitter)
        problem = problem or walk.problem
        if problem is not None:
            return Updates(uid, frame, emitter.identity, problem, lambda name: False)
        names = walk.identity(frame.columns)
        if names is None:
            frame = walk.with_identity(frame)
            walk = _Walk(analysed_plan(frame), emitter)
            names = walk.identity(frame.columns)
            assert names is not None
        columns = frame.columns

        def determined(name: str) -> bool:
            return walk.determined(walk.numbers[columns.index(name)])

        return Updates(uid, frame, tuple(names), None, determined)


class _Walk:
    """The way from a frame down to the output of an operator, through its analysed plan."""

    def __init__(self, plan: Any, emitter: _Emitter) -> None:
        self._plan = plan
        self._top = top = analysed_plan(emitter.frame)
        numbers = _numbers(top.output())
        columns = emitter.frame.columns
        self._identity = [numbers[columns.index(name)] for name in emitter.identity]
        self._emitted = frozenset(numbers)
        self._attributes = [top.output().apply(columns.index(n)) for n in emitter.identity]
        self._filters: list[Any] = []
        #: Where a column is defined: the projection, and the item's place.
        self._defined: dict[str, tuple[Any, int]] = {}
        self.numbers = _numbers(plan.output())
        self.problem = self._down(plan)

    def _down(self, node: Any) -> str | None:
        while True:
            name = node.nodeName()
            if self._is_emitter(node):
                break
            if name == _PROJECT:
                for i, line in enumerate(_texts(node.projectList())):
                    defined = _ALIAS.fullmatch(line)
                    if defined is not None and defined[1] not in self._emitted:
                        self._defined[defined[1]] = node, i
            elif name == _FILTER:
                self._filters.append(node)
            elif name not in _KEEPING:
                return f"{_node_text(name)} stands between them"
            node = node.children().head()
        for each in self._filters:
            condition = each.condition()
            if not condition.deterministic() or not self._all_determined(condition):
                return (
                    "a filter by what an update changes stands between them, and says nothing of "
                    "rows that no longer pass it"
                )
        return None

    def _is_emitter(self, node: Any) -> bool:
        return bool(node.equals(self._top))

    def determined(self, number: str) -> bool:
        """Whether a column follows from the identity."""
        if number in self._identity:
            return True
        if number not in self._defined:
            return False
        node, i = self._defined[number]
        item = node.projectList().apply(i)
        return bool(item.deterministic()) and self._all_determined(item)

    def _all_determined(self, expression: Any) -> bool:
        numbers = numbers_in(expression.references().toSeq().mkString(" "))
        return all(self.determined(number) for number in numbers)

    def identity(self, columns: Sequence[str]) -> list[str] | None:
        """The frame's columns with the identity, under their names there; None if one is gone."""
        named = {self._source(number): name for number, name in self._pairs(columns)}
        if not named.keys() >= set(self._identity):
            return None
        return [named[number] for number in self._identity]

    def _pairs(self, columns: Sequence[str]) -> list[tuple[str, str]]:
        return list(zip(self.numbers, columns, strict=True))

    def _source(self, number: str) -> str:
        """The column that another one is a mere name of."""
        while number in self._defined:
            node, i = self._defined[number]
            child = node.projectList().apply(i).child()
            if child.getClass().getSimpleName() != "AttributeReference":
                break
            number = str(child.exprId().id())
        return number

    def with_identity(self, frame: DataFrame) -> DataFrame:
        """The frame with the identity's columns behind its own, which projections have dropped."""
        from pyspark.sql import DataFrame

        session = frame.sparkSession
        jvm = session._jvm
        assert jvm is not None
        plan = self._with_identity(self._plan, jvm)
        wide = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)
        names = [f"{_IDENTITY_NAME}{i}" for i in range(len(self._identity))]
        return DataFrame(wide, session).toDF(*frame.columns, *names)

    def _with_identity(self, node: Any, jvm: Any) -> Any:
        if self._is_emitter(node):
            return node
        child = self._with_identity(node.children().head(), jvm)
        if node.nodeName() != _PROJECT:
            return node.withNewChildren(jvm.PythonUtils.toSeq([child]))
        items = node.projectList()
        # In the order of the identity, each of them once more where it is there already.
        for attribute in self._attributes:
            items = items.appended(attribute)
        return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(items, child)


def _texts(expressions: Any) -> list[str]:
    """The texts of expressions, by one call of the JVM unless a name has several lines."""
    lines: list[str] = expressions.mkString("\n").splitlines()
    if len(lines) == expressions.size():
        return lines
    return [each.toString() for each in items(expressions)]


def _numbers(attributes: Any) -> list[str]:
    """The numbers of columns."""
    return [numbers_in(text)[-1] for text in _texts(attributes)]


def _node_text(node: str) -> str:
    return {
        "Union": "a union",
        "Join": "a join of Spark's",
        "Aggregate": "an aggregation of Spark's",
        "GlobalLimit": "a limit",
        "Deduplicate": "a deduplication of Spark's",
        "Distinct": "a deduplication of Spark's",
        "Generate": "an explode",
        "Window": "a window of Spark's",
        "LogicalRDD": "a localCheckpoint",
    }.get(node, f"Spark's {node}")
