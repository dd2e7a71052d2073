"""The two inputs of a join, the columns of its result, and a batch of rows made ready for it.

Thread safety: all objects are immutable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from pystate.base.arguments import duplicates, nearest
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.operators.runtime.event_time import event_times
from pystate.operators.runtime.grouping import take_rows
from pystate.types.arrays import as_array
from pystate.types.key_codes import Ints, longs
from pystate.types.keys import KeyColumns
from pystate.types.state_type import StateType, parse_type

SideName: TypeAlias = Literal["left", "right"]


@dataclass(frozen=True)
class JoinInput:
    """One input of a join; pickled for the workers."""

    side: SideName
    key: KeyColumns
    """Its key columns, under its own names."""
    columns: KeyColumns
    """Its other columns, in order."""
    event_time: str
    """The column with the rows' times, one of both."""
    owner: str
    """What errors name: ``"operator 'a', input left"``."""

    @classmethod
    def of(
        cls,
        side: SideName,
        key: Sequence[str],
        columns: Iterable[tuple[str, Any]],
        event_time: str | None,
        owner: str,
    ) -> JoinInput:
        """Make an input of columns by name, with types as `parse_type` takes them."""
        owner = f"{owner}, input {side!r}"
        types = {name: parse_type(type_, f"{owner}: column {name!r}") for name, type_ in columns}
        if event_time is None:
            raise InvalidArgumentError(
                f"{owner}: the join is by event time: name its column, "
                "key_by(..., event_time='column')"
            )
        for name in (*key, event_time):
            if name not in types:
                raise InvalidArgumentError(
                    f"{owner}: column {name!r} is not among {', '.join(types)}"
                    f"{nearest(name, types)}"
                )
        for name in key:
            if types[name].name == "struct":
                raise WrongTypeError(
                    f"{owner}: key column {name!r} is a struct: join by its fields"
                )
        event_times(pa.array([], types[event_time].arrow), f"{owner}: column {event_time!r}")
        return cls(
            side,
            tuple((name, types[name]) for name in key),
            tuple((name, type_) for name, type_ in types.items() if name not in key),
            event_time,
            owner,
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that are not the key's."""
        return tuple(name for name, _ in self.columns)

    def times(self, batch: pa.RecordBatch) -> pa.Array[Any]:
        """The event times of a batch."""
        what = f"{self.owner}: event-time column {self.event_time!r}"
        return event_times(batch.column(self.event_time), what)

    def ready(self, batch: pa.RecordBatch, times: pa.Array[Any]) -> Rows:
        """Make a batch with its event times ready for the join."""

        def column(name: str, type_: StateType) -> pa.Array[Any]:
            return as_array(batch.column(name), type_, f"{self.owner}: column {name!r}")

        keys = [column(*pair) for pair in self.key]
        values = [column(*pair) for pair in self.columns]
        unusable = None
        for array in (*keys, times):
            if array.null_count:
                nulls = array.is_null().to_numpy(zero_copy_only=False)
                unusable = nulls if unusable is None else unusable | nulls
        known: Ints = times.fill_null(0).to_numpy(zero_copy_only=False)
        return Rows(keys, values, times, known, unusable)


@dataclass(frozen=True)
class Rows:
    """Rows of an input: columns in the types of states."""

    keys: list[pa.Array[Any]]
    values: list[pa.Array[Any]]
    times: pa.Array[Any]
    known: Ints
    """Event times in milliseconds; 0 where there is none."""
    unusable: np.ndarray[Any, Any] | None
    """Which rows have no time, or a null in the key, so that nothing can match them; None if no row
    has.
    """

    def __len__(self) -> int:
        return len(self.times)

    def take(self, rows: Any) -> Rows:
        """Some of the rows, all of which have a key and a time."""
        return Rows(
            take_rows(self.keys, rows),
            take_rows(self.values, rows),
            self.times.take(longs(rows)),
            self.known[rows],
            None,
        )

    def slice(self, begin: int, count: int) -> Rows:
        """Some consecutive rows."""
        part = slice(begin, begin + count)
        return Rows(
            [array.slice(begin, count) for array in self.keys],
            [array.slice(begin, count) for array in self.values],
            self.times.slice(begin, count),
            self.known[part],
            None if self.unusable is None else self.unusable[part],
        )


def other_side(side: SideName) -> SideName:
    """The other input."""
    return "right" if side == "left" else "left"


def check_keys(left: JoinInput, right: JoinInput, owner: str) -> None:
    """Refuse inputs whose keys are of different types."""
    types = [[type_.ddl for _, type_ in each.key] for each in (left, right)]
    if types[0] != types[1]:
        shown = [
            ", ".join(f"{name} {type_.ddl}" for name, type_ in each.key) for each in (left, right)
        ]
        raise WrongTypeError(
            f"{owner}: the left input has the key {shown[0]}, the right one {shown[1]}: rows meet "
            "by keys of the same types; cast one of them"
        )


def result_names(left: JoinInput, right: JoinInput, suffixes: Any, owner: str) -> tuple[str, ...]:
    """The columns of the result: the key under its left names, then left's others, then right's."""
    key = [name for name, _ in left.key]
    names = [*left.names], [*right.names]
    folded = [{name.lower() for name in each} for each in names]
    if suffixes is not None:
        if not (
            isinstance(suffixes, (tuple, list))
            and len(suffixes) == 2
            and all(isinstance(each, str) for each in suffixes)
        ):
            raise InvalidArgumentError(
                f"{owner}: suffixes are two strings, one for each input, such as "
                f"('', '_right'), not {suffixes!r:.80}"
            )
        both = folded[0] & folded[1]
        names = tuple(  # type: ignore[assignment]
            [name + suffix if name.lower() in both else name for name in each]
            for each, suffix in zip(names, suffixes, strict=True)
        )
    every = [*key, *names[0], *names[1]]
    lower = [name.lower() for name in every]
    twice = sorted(duplicates(lower))
    if twice:
        raise InvalidArgumentError(
            f"{owner}: two columns of the result would be called {', '.join(twice)}: rename one "
            "of them, or give suffixes=('', '_right') for columns that both inputs have"
        )
    return tuple(every)
