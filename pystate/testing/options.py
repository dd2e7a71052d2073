"""The options of a harness that runs a function over one keyed input.

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as at

from pystate.base.arguments import flag, integer, nearest, text
from pystate.errors import InvalidArgumentError
from pystate.operators.functions.base import StatefulFunction
from pystate.operators.functions.binding import declarations, require_state
from pystate.operators.runtime.event_time import event_times
from pystate.operators.runtime.function_spec import BroadcastInput, FunctionSpec
from pystate.operators.runtime.invalid_rows import InvalidRule, harness_rule
from pystate.operators.runtime.late_rows import PROCESS_LATE, checked_late, late_tag
from pystate.operators.runtime.output import (
    Output,
    RowsAsYielded,
    SchemaLike,
    parse_columns,
    parse_sides,
)
from pystate.tables.options import checked_parallelism
from pystate.tables.registry import refuse_pickled
from pystate.testing.range_tables import checked_home
from pystate.types.durations import Duration, delay_milliseconds
from pystate.types.keys import KeyColumns, parse_key
from pystate.types.state_type import StateType, parse_type

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class OperatorOptions:
    """The operator's options; a restored harness keeps them."""

    key: Any
    output: Output
    sides: Mapping[str, Output]
    event_time: str | None
    late: str
    allowed_delay_ms: int | None
    max_parallelism: int
    batch_rows: int
    uid: str
    allow_pickle: bool = True
    invalid: InvalidRule = InvalidRule()  # noqa: RUF009
    """What becomes of rows that cannot be processed."""
    table_home: str = "heap"

    @classmethod
    def of(
        cls,
        key: Any,
        *,
        schema: SchemaLike | None,
        event_time: str | None,
        allowed_delay: Duration | None,
        side_outputs: Sequence[str] | Mapping[str, SchemaLike],
        late: str,
        max_parallelism: int,
        batch_rows: int,
        uid: str,
        allow_pickle: bool,
        max_ahead: Duration | None,
        invalid: str | None,
        on_invalid: str,
        table_home: str = "heap",
        **more: Any,
    ) -> Self:
        """Check what a harness was given; `more` are options of a subclass."""
        owner = f"operator {uid!r}"
        if event_time is not None:
            text(event_time, f"{owner}: event_time, the name of a column,")
        delay = None
        if allowed_delay is not None:
            delay = delay_milliseconds(allowed_delay, "allowed_delay")
        sides = parse_sides(side_outputs, owner)
        return cls(
            key=key,
            output=RowsAsYielded(owner=owner) if schema is None else parse_columns(schema, owner),
            sides=sides,
            event_time=event_time,
            allowed_delay_ms=delay,
            late=checked_late(late, sides, owner),
            max_parallelism=checked_parallelism(max_parallelism),
            batch_rows=integer(batch_rows, f"{owner}: batch_rows", least=1),
            uid=uid,
            allow_pickle=flag(allow_pickle, f"{owner}: allow_pickle"),
            invalid=harness_rule(owner, event_time, max_ahead, invalid, on_invalid),
            table_home=checked_home(table_home, owner),
            **more,
        )

    @property
    def known_key(self) -> KeyColumns | None:
        """The key columns with their types; None if the first rows determine these."""
        names = self.key if isinstance(self.key, (list, tuple)) else ()
        if names and all(isinstance(name, str) for name in names):
            return None
        return parse_key(self.key)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The key columns."""
        known = self.known_key
        return tuple(self.key) if known is None else tuple(name for name, _ in known)

    @property
    def tags(self) -> list[str]:
        """The tags of all side outputs that may get rows."""
        more = late_tag(self.late), self.invalid.tag
        return list(dict.fromkeys([*self.sides, *(tag for tag in more if tag is not None)]))

    @property
    def broadcast(self) -> BroadcastInput | None:
        """The broadcast input, if there is one."""
        return None

    def check(
        self, function: StatefulFunction, columns: pa.Schema | None, parallelism: int
    ) -> None:
        """Refuse options that contradict each other, as far as the input's columns are known."""
        self.spec(function, self.key_names, None)
        owner = f"operator {self.uid!r}"
        if not self.allow_pickle:
            refuse_pickled(declarations(function), owner)
        if self.event_time is None:
            for name, given in (
                ("allowed_delay", self.allowed_delay_ms is not None),
                ("late", self.late != PROCESS_LATE),
            ):
                if given:
                    raise InvalidArgumentError(
                        f"{owner}: {name} is about how late rows are by their event time: also "
                        "name the column of the event time, event_time='column'"
                    )
        if columns is not None:
            self._check_columns(function, columns, owner)
        self.require_state(function, owner)
        integer(parallelism, f"{owner}: parallelism")
        if not 1 <= parallelism <= self.max_parallelism:
            raise InvalidArgumentError(
                f"parallelism is 1 to max_parallelism ({self.max_parallelism}), not {parallelism}"
            )

    def require_state(self, function: StatefulFunction, owner: str) -> None:
        """Refuse a function that keeps nothing."""
        require_state(function, owner)

    def _check_columns(self, function: StatefulFunction, columns: pa.Schema, owner: str) -> None:
        self.spec(function, self.key_names, columns)
        for name in self.key_names:
            if name not in columns.names:
                raise InvalidArgumentError(
                    f"{owner}: key column {name!r} is not among {', '.join(columns.names)}"
                    f"{nearest(name, columns.names)}"
                )
        if self.event_time is not None:
            what = f"{owner}: event-time column {self.event_time!r}"
            event_times(pa.array([], columns.field(self.event_time).type), what)

    def spec(
        self, function: StatefulFunction, key: tuple[str, ...], columns: pa.Schema | None
    ) -> FunctionSpec:
        """The spec that a task gets; without columns there are no rows."""
        known = columns is not None
        return FunctionSpec(
            function,
            key=key,
            columns=tuple(columns.names) if columns is not None else (),
            output=self.output,
            event_time=self.event_time if known else None,
            side_outputs=self.sides,
            late=self.late if known else PROCESS_LATE,
            key_types=self.key_types(columns),
            broadcast=self.broadcast,
        )

    def key_types(self, columns: pa.Schema | None) -> tuple[StateType, ...]:
        """The types of the key's columns, if one of them is a struct."""
        if columns is None or self.known_key is not None:
            return ()
        types = [columns.field(name).type for name in self.key_names if name in columns.names]
        if not any(map(at.is_struct, types)):
            return ()
        return tuple(parse_type(type_, "the key") for type_ in types)
