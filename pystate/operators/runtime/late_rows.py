"""Rows whose time is over when they come: which they are, and what becomes of them.

A row is late if its event time is below the epoch's late bound. It is counted in any case. Whether
the operator handles it like others, drops it, or writes it to a side output, the user says with
``late=``: by one of two words, or by a tag. Of rows in windows, one of which may still be open when
the row is late, those are taken out for which all of them are over (`LateRows.without_past`).

Thread safety: a `LateRows` belongs to its task; `LateInputs` are immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pystate.base.arguments import choice, shown, text
from pystate.errors import InvalidArgumentError

#: What happens to late rows, if it is not the tag of a side output.
PROCESS_LATE, DROP_LATE = "process", "drop"

#: ``"drop"``, a tag for the rows of both inputs, or a word or tag for each input.
LateLike: TypeAlias = "str | Mapping[str, str]"

SideName: TypeAlias = Literal["left", "right"]
#: The inputs of an operator of two, in the order in which rows that were held back are handled.
SIDES: tuple[SideName, SideName] = ("left", "right")

#: Takes late rows that are not for the operator.
Writer: TypeAlias = Callable[[pa.RecordBatch], None]


class LateRows:
    """Tells the late rows of an input in one task, and takes them out if they are not handled.

    `bound` is None if no row is late. `note` takes the largest event time of some rows, and how
    many of them are late. `word` is what happens to these; `write` takes those that the operator
    does not handle, which otherwise are dropped.
    """

    def __init__(
        self,
        bound: int | None,
        note: Callable[[int | None, int], None],
        word: str = PROCESS_LATE,
        write: Writer | None = None,
    ) -> None:
        self._bound_ms = bound
        self._bound = None if bound is None else pa.scalar(bound, pa.int64())
        #: How many rows were taken out because their windows are over.
        self.past_rows = 0
        self._note = note
        self._handled = word == PROCESS_LATE
        self._write = write

    def among(self, times: pa.Array[Any]) -> pa.BooleanArray | None:
        """Note event times; return which rows the operator must not see, None if there are none."""
        late = self._below(times)
        count = 0 if late is None else late.true_count
        self._note(pc.max(times).as_py(), count)
        return None if self._handled or not count else late

    def count(self, times: pa.Array[Any]) -> int:
        """How many rows are late."""
        late = self._below(times)
        return 0 if late is None else late.true_count

    def _below(self, times: pa.Array[Any]) -> pa.BooleanArray | None:
        if self._bound is None:
            return None
        late: pa.BooleanArray = pc.call_function("less", [times, self._bound]).fill_null(False)
        return late

    def write(self, rows: pa.RecordBatch) -> None:
        """Write rows that the operator must not see, if they are not dropped."""
        if self._write is not None:
            self._write(rows)

    def without(
        self, rows: pa.RecordBatch, times: pa.Array[Any]
    ) -> tuple[pa.RecordBatch, pa.Array[Any]]:
        """The rows that the operator handles, and their times."""
        late = self.among(times)
        if late is None:
            return rows, times
        self.write(rows.filter(late))
        on_time = pc.call_function("invert", [late])
        return rows.filter(on_time), times.filter(on_time)

    def without_past(
        self,
        rows: pa.RecordBatch,
        last_ends: npt.NDArray[np.int64],
        lateness_ms: int = 0,
        count: Callable[[pa.RecordBatch], int] = len,
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_] | None]:
        """The rows whose last windows, which have these ends, are open; and which rows these are.

        None if they are all of them. A window is kept for `lateness_ms` after it is over. `count`
        is how many rows of the input some rows stand for.
        """
        if self._bound_ms is None or not len(last_ends):
            return rows, None
        # Without a sum, which might overflow.
        over = self._bound_ms - lateness_ms
        if int(last_ends.min()) > over:
            return rows, None
        kept: npt.NDArray[np.bool_] = last_ends > over
        past = rows.filter(pa.array(~kept))
        self.past_rows += count(past)
        self.write(past)
        return rows.filter(pa.array(kept)), kept

    def take_out(self, rows: pa.RecordBatch) -> None:
        """Count rows as late that the operator has found to be, and write them."""
        self._note(None, len(rows))
        self.write(rows)


def late_tag(late: str) -> str | None:
    """The side output that takes late rows, if one does."""
    return None if late in (PROCESS_LATE, DROP_LATE) else late


def checked_late(late: object, sides: Iterable[str], owner: str) -> str:
    """Return a valid `late`; no side output can have the name ``"process"`` or ``"drop"``."""
    checked = text(late, f"{owner}: late", ", but 'process', 'drop' or the tag of a side output")
    for word in (PROCESS_LATE, DROP_LATE):
        if word in sides:
            raise InvalidArgumentError(
                f"{owner}: side_outputs: {word!r} is a choice of late=, and cannot be a tag"
            )
    return checked


def late_tag_of_windows(late: object, sides: Iterable[str], owner: str) -> str | None:
    """Check `late` of windows: the side output that takes rows that are too late, if one does.

    `sides` are the tags of a function's own side outputs.
    """
    checked = checked_late(late, sides, owner)
    if checked == PROCESS_LATE:
        raise InvalidArgumentError(
            f"{owner}: window: late is 'drop' or the tag of a side output: of rows that are too "
            "late there is no window; how long one is kept, allowed_lateness= says"
        )
    if checked in sides:
        raise InvalidArgumentError(
            f"{owner}: {checked!r} is the tag of rows that are too late, which have the "
            "columns of the input: give the function's side output another one"
        )
    return late_tag(checked)


@dataclass(frozen=True)
class LateInputs:
    """What happens to late rows of two inputs; pickled for the workers."""

    words: Mapping[SideName, str]
    """By input, ``"process"``, ``"drop"`` or a tag."""
    schemas: Mapping[str, pa.Schema]
    """The columns of each tag."""

    @classmethod
    def of(
        cls,
        late: Any,
        inputs: Mapping[SideName, pa.Schema],
        owner: str,
        *,
        processes: bool = False,
        sides: Sequence[str] = (),
    ) -> LateInputs:
        """Check a user's choice, which is `LateLike`; an input that is left out has the default.

        `processes` says whether late rows may also be handled like others, which then is the
        default; `sides` are the tags of other side outputs.
        """
        default = PROCESS_LATE if processes else DROP_LATE
        if isinstance(late, Mapping):
            for name in late:
                choice(name, f"{owner}: late", SIDES)
            given = {side: late.get(side, default) for side in SIDES}
        else:
            given = dict.fromkeys(SIDES, late)
        words = {side: checked_late(word, sides, owner) for side, word in given.items()}
        schemas: dict[str, pa.Schema] = {}
        for side, word in words.items():
            if word == PROCESS_LATE and not processes:
                raise InvalidArgumentError(
                    f"{owner}: late={shown(late)}: late rows of a join have met nothing and are "
                    "'drop'ped, or go to the side output of a tag"
                )
            if word in (PROCESS_LATE, DROP_LATE):
                continue
            if word in sides:
                raise InvalidArgumentError(
                    f"{owner}: late={shown(late)}: {word!r} is also among side_outputs; late rows "
                    "have the columns of their input: give them a tag of their own"
                )
            schema = inputs[side]
            schemas[word] = _united(schemas[word], schema, owner) if word in schemas else schema
        return cls(words, schemas)

    def writer(
        self, side: SideName, to: Callable[[str, pa.RecordBatch], None] | None
    ) -> Writer | None:
        """What writes late rows of an input with the columns of their tag; None: they are dropped.

        `to` takes a tag and rows. Columns that the input has not are null.
        """
        tag = self.words[side]
        schema = self.schemas.get(tag)
        if schema is None or to is None:
            return None

        def write(rows: pa.RecordBatch) -> None:
            arrays: list[Any] = []
            for field in schema:
                if field.name not in rows.schema.names:
                    arrays.append(pa.nulls(rows.num_rows, field.type))
                    continue
                array = rows.column(field.name)
                arrays.append(array if array.type == field.type else array.cast(field.type))
            to(tag, pa.RecordBatch.from_arrays(arrays, schema=schema))

        return write


def _united(left: pa.Schema, right: pa.Schema, owner: str) -> pa.Schema:
    """The columns of both; those of the left input come first."""
    known = {field.name.lower(): field for field in left}
    more = []
    for field in cast("list[pa.Field[Any]]", list(right)):
        same = known.get(field.name.lower())
        if same is None:
            more.append(field)
        elif same.name != field.name or same.type != field.type:
            raise InvalidArgumentError(
                f"{owner}: late: both inputs have a column {field.name!r}, {same.name} "
                f"{same.type} and {field.name} {field.type}: give each input a tag of its own, "
                "late={'left': 'late_left', 'right': 'late_right'}"
            )
    return pa.schema([*left, *more])
