"""An operator's output is computed once per evaluation, however often and far it is read.

Spark computes a frame again for each action and each branch that reads it, and only as far as the
reader reads. If the frame has an operator, each computation gives another state. The tasks' begin
marks (`pystate.checkpoint.begin_marks`) show this: an evaluation in which a range is begun twice,
or begun and not read to its end, does not count. It is repeated with the operator's output
materialised: `localCheckpoint` computes all of it, once, before anything reads it. So a limit,
`isEmpty`, `show`, a sort (which samples its input first), a self-join or a second action work, and
see one evaluation.

Why not always materialise: it writes every row to Spark's block storage and reads it back, which is
wasted if the output is read once to its end, as is usual. The plan cannot decide it either: the
driver sees only the result's plan, and not the actions within the pipeline. So the begin marks
decide; a job remembers the decision for its later epochs, so that only the first one is repeated.

Why `localCheckpoint` and not `persist`: it cuts the lineage. A cached block that was evicted, or
lost with its executor, would be computed again, and with other rows than the state knows.

Thread safety: an `OperatorOutputs` belongs to the thread that runs the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pystate.spark.base.jvm import analysed_plan, items, numbers_in, plan_text
from pystate.spark.evaluation.lineage import (
    columns_of,
    lineage,
    node_numbers,
    original,
    selection_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


#: What stands before the uid of a loop; no uid begins like this.
_LOOP = "\0rows of "


class Loop(Protocol):
    """A loop of the pipeline."""

    uid: str

    def finish(self) -> DataFrame:
        """The output, without rows, of the tasks that take the fed rows."""


class OperatorOutputs:
    """The outputs of the operators of one evaluation; a job's evaluations share `materialised`."""

    def __init__(self, materialised: set[str]) -> None:
        self._materialised = materialised
        self._frames: dict[str, DataFrame] = {}
        self._maps: dict[str, DataFrame] = {}
        #: Operators that run in the tasks of another one, by uid, and that one.
        self._beside: dict[str, str] = {}
        self._held: dict[str, Any] = {}
        self._numbers: dict[str, str] = {}
        self._columns: dict[str, frozenset[str]] = {}
        self._loops: dict[str, DataFrame] = {}
        self._feeding: list[Loop] = []

    def add(
        self,
        uid: str,
        frame: DataFrame,
        beside: Iterable[str] = (),
        mapped: DataFrame | None = None,
    ) -> DataFrame:
        """Register an operator's output, and return the frame for the pipeline.

        Operators `beside` it run in the same tasks, and have no output of their own.
        """
        self._beside.update(dict.fromkeys(beside, uid))
        if uid in self._materialised:
            frame = frame.localCheckpoint()
            self._held[uid] = analysed_plan(frame).rdd()
        elif mapped is not None:
            self._maps[uid] = mapped
        self._frames[uid] = frame
        return frame

    def add_loop(self, uid: str, frame: DataFrame) -> DataFrame:
        """Register the rows of a loop, which are neither an operator's output nor a source's."""
        self._loops[_LOOP + uid] = frame
        return frame

    def add_feeding(self, loop: Loop) -> None:
        """Register a loop, whose fed rows are taken with the pipeline's result."""
        self._feeding.append(loop)

    def with_loops(self, frame: DataFrame) -> DataFrame:
        """Unite a result with the output of the loops' tasks, so that the same action runs them."""
        from pyspark.sql import functions as F

        for loop in self._feeding:
            nothing = self.add(loop.uid, loop.finish())
            nulls = (F.lit(None).cast(field.dataType).alias(field.name) for field in frame.schema)
            frame = frame.union(nothing.select(*nulls))
        return frame

    @property
    def has_loops(self) -> bool:
        """Whether there are rows of a loop."""
        return bool(self._loops)

    def can_be_materialised(self, uids: Iterable[str]) -> bool:
        """Whether all of these are operators over DataFrames that are not materialised yet."""
        owners = self._owners(uids)
        return all(uid in self._frames and uid not in self._materialised for uid in owners)

    def _owners(self, uids: Iterable[str]) -> set[str]:
        """The operators whose output these are evaluated with."""
        return {self._beside.get(uid, uid) for uid in uids}

    def materialise_from(self, uids: Iterable[str]) -> list[str]:
        """Materialise these operators, and those declared after them, in later evaluations.

        Later operators may depend on them, and be read in the same way.
        """
        order = list(self._frames)
        wanted = order[min(order.index(uid) for uid in self._owners(uids)) :]
        self._materialised.update(wanted)
        return wanted

    def is_in(self, uid: str, result: DataFrame) -> bool:
        """Whether a result is computed from an operator's output."""
        frame = self._frames.get(self._beside.get(uid, uid))
        if frame is None:
            return False
        own = node_numbers(plan_text(frame))
        return bool(own) and own[0] in node_numbers(plan_text(result))

    def selection(self, result: DataFrame) -> tuple[str, tuple[int, ...]] | None:
        """Find the operator whose output is the whole result, apart from names and order.

        Returns its uid, and the columns of its tasks' output that the result has.
        """
        if not self._maps:
            return None
        for uid, mapped in self._maps.items():
            if result is mapped:
                return uid, tuple(range(len(result.columns)))
        tops = {plan_text(mapped).partition("\n")[0]: uid for uid, mapped in self._maps.items()}
        selection = selection_of(plan_text(result), tops)
        if selection is None:
            return None
        uid = tops[selection[0]]
        output = self._maps[uid]
        numbers = _numbers(output)
        columns = numbers if selection[1] is None else selection[1]
        if len(numbers) != len(output.columns) or not set(columns) <= set(numbers):
            return None
        return uid, tuple(map(numbers.index, columns))

    def of_tasks(self, uid: str) -> DataFrame:
        """The output of an operator's tasks."""
        return self._maps[uid]

    def operators_of(self, frame: DataFrame) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
        """Find the operators, in the order of their declaration, and loops that a frame is made of.

        The third result says whether it has rows of something else, too.
        """
        for uid, output in self._known_frames().items():
            if uid not in self._held and uid not in self._numbers.values():
                self._numbers[node_numbers(plan_text(output))[0]] = uid
        origin = lineage(plan_text(frame), self._numbers)
        uids, sources = set(origin.operators), origin.sources
        if origin.materialised:
            fed, others = self._behind(frame, origin.materialised)
            uids |= fed
            sources = sources or others
        loops = tuple(uid.removeprefix(_LOOP) for uid in self._loops if uid in uids)
        return tuple(uid for uid in self._frames if uid in uids), loops, sources

    def column(self, uid: str, frame: DataFrame, name: str) -> str | None:
        """Find the column of an operator's output that a frame has under some name.

        None if the frame computes it, or it is one of another operator.
        """
        output = self._known_frames()[uid]
        mine, numbers = _numbers(frame), _numbers(output)
        if len(mine) != len(frame.columns) or len(numbers) != len(output.columns):
            return None
        column = mine[frame.columns.index(name)]
        number = original(plan_text(frame), self._numbers, column, numbers)
        return None if number is None else output.columns[numbers.index(number)]

    def _known_frames(self) -> dict[str, DataFrame]:
        """The frames whose rows are known not to come from a source."""
        return {**self._frames, **self._loops}

    def _behind(
        self, frame: DataFrame, materialised: Sequence[frozenset[str]]
    ) -> tuple[set[str], bool]:
        """The operators whose output was materialised, and whether there was anything else."""
        known = self._known_frames()
        owners = {column: uid for uid in known for column in self._columns_of(uid)}
        fed = {owners[column] for columns in materialised for column in columns if column in owners}
        unknown = [columns for columns in materialised if not columns <= owners.keys()]
        if not unknown and all(materialised):
            return fed, False
        # In a self-join the columns of one side have new numbers, and its RDD is the same.
        rdds: dict[int, set[str]] = {rdd.id(): {uid} for uid, rdd in self._held.items()}
        read = _materialised_rdds(frame)
        for columns, rdd in read.items():
            if columns and columns <= owners.keys():
                rdds.setdefault(rdd, set()).update(owners[column] for column in columns)
        others = False
        for columns in materialised:
            if not columns or not columns <= owners.keys():
                behind = rdds.get(read.get(columns, -1))
                fed |= behind or set()
                others = others or behind is None
        return fed, others

    def _columns_of(self, uid: str) -> frozenset[str]:
        if uid not in self._columns:
            self._columns[uid] = columns_of(
                analysed_plan(self._known_frames()[uid]).output().mkString(" ")
            )
        return self._columns[uid]

    def release(self) -> None:
        """Free the materialised outputs, and the frames over them that the pipeline has cached.

        Spark keeps a cached frame until it is unpersisted, but nothing can use it again: the next
        epoch has other frames.
        """
        for rdd in self._held.values():
            rdd.unpersist(False)
        self._held.clear()
        for frame in self._known_frames().values():
            cache = frame.sparkSession._jsparkSession.sharedState().cacheManager()
            if cache.isEmpty():
                break
            cache.uncacheQuery(frame._jdf, True)
        self._frames.clear()
        self._maps.clear()
        self._loops.clear()


def _numbers(frame: DataFrame) -> list[str]:
    """The numbers of a frame's columns."""
    return numbers_in(analysed_plan(frame).output().mkString(" "))


def _materialised_rdds(frame: DataFrame) -> dict[frozenset[str], int]:
    """The RDDs of the materialised frames that a frame reads, by the numbers of their columns."""
    return {
        columns_of(leaf.toString()): leaf.rdd().id()
        for leaf in items(analysed_plan(frame).collectLeaves())
        if leaf.nodeName() == "LogicalRDD"
    }
