"""Operators of a `KeyedFrame` that pass rows on or rank them, without a function.

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NoReturn

from pyspark.sql import types as st

from pystate.base.arguments import choice, flag, integer, shown, text
from pystate.errors import DeclarationError, InvalidArgumentError, WrongTypeError
from pystate.operators.runtime.deduplicate import DeduplicateSpec
from pystate.operators.runtime.late_rows import PROCESS_LATE, checked_late
from pystate.operators.runtime.top import By, TopSpec, has_order
from pystate.spark.base.resolve import FrameColumns, column_named
from pystate.spark.base.schemas import KeySchema, key_leaves, names_twice, refuse_reserved
from pystate.types.durations import Duration, milliseconds
from pystate.types.state_type import StateType, parse_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pystate.spark.evaluation.evaluation import Evaluation
    from pystate.spark.evaluation.updates import Updates

__all__ = ["RowOperators"]


class RowOperators:
    """The part of `KeyedFrame` for such operators."""

    _owner: str
    _columns: FrameColumns
    _frame: DataFrame
    _names: list[str]
    _keys: KeySchema
    _marked: bool
    _order_by: tuple[Column, ...]
    _event_time: str | None

    _evaluation: Evaluation
    _uid: str | None

    def _updates(self, method: str) -> Updates | None:
        """What is known of the rows if they are updates."""
        raise NotImplementedError

    def _refuse_updates(self, method: str, uid: str, problem: str) -> NoReturn:
        raise NotImplementedError

    def _of_rows(
        self,
        spec: DeduplicateSpec | TopSpec,
        order_by: Sequence[Column],
        declared: st.StructType,
        result: Sequence[str],
    ) -> DataFrame:
        """Run an operator; `declared` are the columns that it emits, `result` those wanted."""
        raise NotImplementedError

    def deduplicate(
        self,
        within: Duration | None = None,
        *,
        keep: Literal["first", "last"] = "first",
        late: Literal["process", "drop"] | str = PROCESS_LATE,
    ) -> DataFrame:
        """Pass on one of the rows that have an equal key, and drop the others.

        Parameters
        ----------
        within : str, timedelta or int, optional
            How long a row is remembered: ``"1 day"``, a timedelta, or milliseconds; for ever by
            default. With an event time a row is a duplicate if a row of its key was passed on whose
            event time is less than this away, before or after. Without one, if it was passed on in
            an epoch whose processing time is less than this ago.
        keep : {"first", "last"}
            ``"first"``: the first row of each key, in the order of ``key_by(order_by=...)``, else
            of the event time. ``"last"``: at the end of each epoch the last of its rows, which
            replaces the one of earlier epochs. With an event time it is left out if its time is
            before that of a row that was passed on earlier.
        late : {"process", "drop"} or str
            What happens to rows whose event time is below the watermark, as in `process`.

        Returns
        -------
        DataFrame
            Rows of the input, with its columns.

        Raises
        ------
        InvalidArgumentError
            An argument is not one of its choices, or `within` is not positive.

        Notes
        -----
        The duration in event time is exact for rows that are not late. What is remembered is
        dropped once the watermark has passed it by `within`, so a row that is late by more than the
        rest of that time cannot be recognised; ``late="drop"`` passes no duplicate on.

        Examples
        --------
        ``job.key_by(df, "id", uid="once", event_time="at").deduplicate(within="1 day")``
        """
        what = f"{self._owner}: deduplicate"
        if within is not None:
            within = milliseconds(within, f"{what}: within", least=1)
        choice(keep, f"{what}: keep", ("first", "last"))
        updates = self._updates("deduplicate")
        if updates is not None and (keep == "first" or within is not None):
            self._refuse_updates(
                "deduplicate", updates.uid, "what was passed on first is replaced later"
            )
        spec = DeduplicateSpec(
            key=tuple(name for name, _ in self._keys),
            within_ms=within,
            keep=keep,
            event_time=self._event_time,
            ordered=bool(self._order_by),
            late=checked_late(late, (), self._owner),
        )
        order = self._order_by
        if not order and self._event_time is not None and keep == "first":
            order = (column_named(self._event_time).asc_nulls_last(),)
        out = self._of_rows(spec, order, self._frame.schema, self._frame.columns)
        if keep == "first":
            return out
        return self._evaluation.emits_updates(str(self._uid), out, self._names)

    def top(
        self,
        k: int,
        by: str | Sequence[str],
        *,
        descending: bool | Sequence[bool] = True,
        rank: str = "rank",
        late: Literal["process", "drop"] | str = PROCESS_LATE,
        by_key: str | Sequence[str] | None = None,
    ) -> DataFrame:
        """Keep the `k` best rows of each key over all epochs, and number them.

        Parameters
        ----------
        k : int
            The most rows of a key.
        by : str or sequence of str
            The columns that order them. Nulls come last, and NaN is larger than any number. Of
            equal rows the one that came first is better; within an epoch that is decided by
            ``key_by(order_by=...)``.
        descending : bool or sequence of bool
            Whether the largest values are the best, for all columns or for each.
        rank : str
            The name of the column with a row's place, from 1.
        late : {"process", "drop"} or str
            What happens to rows whose event time is below the watermark, as in `process`.
        by_key : str or sequence of str, optional
            The columns that, with the key, say which thing a row tells of. A later row of the same
            thing replaces the earlier one, whether it is better or worse. By default each row is a
            thing of its own; but updates that an operator before this one has emitted, such as the
            counts of `aggregate`, replace each other by that operator's key.

        Returns
        -------
        DataFrame
            The columns of the input, then the rank: all best rows of each key where they changed in
            the epoch. A row replaces the earlier one of its key and rank.

        Raises
        ------
        InvalidArgumentError
            `k` is less than 1; a column of `by` does not exist or is a column of the key; the
            input has a column with the name of the rank.
        WrongTypeError
            A column of `by` has a type without an order, or state cannot hold some column.

        Notes
        -----
        Ranks are only ever added: once a key has a row of some rank, there is always one. The state
        is `k` rows per key, for ever. Where rows replace others it is all newest rows of a key,
        since one that is not among the best may become so when a better one becomes worse; each
        epoch that changes a key reads and writes all of them.

        Examples
        --------
        ``job.key_by(offers, "item", uid="best").top(5, by="price", descending=False)``
        """
        what = f"{self._owner}: top"
        columns = self._frame.columns
        integer(k, f"{what}: k", least=1, most=(1 << 31) - 1)
        refuse_reserved([text(rank, f"{what}: rank")], self._owner)
        if rank.lower() in (name.lower() for name in columns):
            raise InvalidArgumentError(
                f"{what}: the input has a column {rank!r}: give the one with the ranks another "
                "name, rank='place'"
            )
        twice = names_twice(columns)
        if twice:
            raise InvalidArgumentError(f"{what}: two columns are called {', '.join(twice)}")
        order = self._order(by, descending, what)
        things = self._things(by_key, what)
        stored = [name for name in columns if name not in self._names]
        spec = TopSpec(
            key=tuple(name for name, _ in self._keys),
            k=k,
            by=order,
            columns=tuple((name, self._stored_type(name, what)) for name in stored),
            rank=rank,
            event_time=self._event_time,
            late=checked_late(late, (), self._owner),
            by_key=things,
        )
        schema = self._frame.schema
        for name, _ in order:
            type_ = dict(spec.columns)[name]
            if not has_order(type_):
                raise WrongTypeError(
                    f"{what}: by={name!r} is {schema[name].dataType.simpleString()}, which has no "
                    "order here: numbers, strings, binaries, booleans, dates and timestamps have"
                )
        declared = st.StructType(
            [
                st.StructField(name, type_)
                for name, type_ in key_leaves(schema, self._names, marked=self._marked)
            ]
            + [st.StructField(name, schema[name].dataType) for name in stored]
            + [st.StructField(rank, st.IntegerType(), False)]
        )
        out = self._of_rows(spec, self._order_by, declared, [*columns, rank])
        return self._evaluation.emits_updates(str(self._uid), out, [*self._names, rank])

    def _things(self, by_key: str | Sequence[str] | None, what: str) -> tuple[str, ...] | None:
        """The columns that, with the key, say which row replaces which; None if none does."""
        if by_key is None:
            updates = self._updates("top")
            if updates is None:
                return None
            if updates.frame is not self._frame:
                self._refuse_updates(
                    "top", updates.uid, "the columns that they are of were dropped"
                )
            return tuple(name for name in updates.identity if name not in self._names)
        given = [by_key] if isinstance(by_key, str) else by_key
        if not isinstance(given, (list, tuple)) or not given:
            raise InvalidArgumentError(
                f"{what}: by_key is the name of a column, or a list of names, not {shown(by_key)}"
            )
        found: list[str] = []
        for each in given:
            name, *below = self._columns.find(each, "top: by_key").parts
            data_type = self._frame.schema[name].dataType
            if below or not has_order(self._stored_type(name, what)):
                raise InvalidArgumentError(
                    f"{what}: by_key={each!r} is {'a field of a struct' if below else ''}"
                    f"{'' if below else data_type.simpleString()}: numbers, strings, binaries, "
                    "booleans, dates and timestamps can say which row replaces which; make such a "
                    "column of it first"
                )
            if name not in self._names and name not in found:
                found.append(name)
        return tuple(found)

    def _order(
        self, by: str | Sequence[str], descending: bool | Sequence[bool], what: str
    ) -> tuple[By, ...]:
        given = [by] if isinstance(by, str) else by
        if not isinstance(given, (list, tuple)) or not given:
            raise InvalidArgumentError(
                f"{what}: by is the name of a column, or a list of names, not {shown(by)}"
            )
        if isinstance(descending, (list, tuple)):
            downs = [flag(each, f"{what}: descending") for each in descending]
        else:
            downs = [flag(descending, f"{what}: descending")] * len(given)
        if len(downs) != len(given):
            raise InvalidArgumentError(
                f"{what}: descending has {len(downs)} values for {len(given)} columns of by"
            )
        order: list[By] = []
        for each, down in zip(given, downs, strict=True):
            path = self._columns.find(each, "top: by").parts
            if len(path) > 1:
                raise InvalidArgumentError(
                    f"{what}: by={each!r} is a field of a struct: make it a column first, "
                    f"df.withColumn({path[-1]!r}, df[{each!r}])"
                )
            name = path[0]
            if name in self._names:
                raise InvalidArgumentError(
                    f"{what}: by={each!r} is a column of the key, which all of its rows share"
                )
            if name in (column for column, _ in order):
                raise InvalidArgumentError(f"{what}: by names {name!r} twice")
            order.append(By(name, down))
        return tuple(order)

    def _stored_type(self, name: str, what: str) -> StateType:
        data_type = self._frame.schema[name].dataType
        try:
            return parse_type(data_type, f"column {name!r}")
        except DeclarationError as error:
            raise WrongTypeError(
                f"{what}: column {name!r} is {data_type.simpleString()}, which state cannot hold: "
                f"cast it, or leave it out with df.drop({name!r}) ({error})"
            ) from None
