"""Where the late rows of two inputs go: they are dropped, or written to side outputs.

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import pyarrow as pa

from pystate.base.arguments import choice, shown
from pystate.errors import InvalidArgumentError
from pystate.operators.joins.inputs import SideName
from pystate.operators.runtime.function_spec import DROP_LATE, PROCESS_LATE, checked_late

__all__ = ["LateInputs", "LateLike"]

#: ``"drop"``, a tag for the rows of both inputs, or a word or tag for each input.
LateLike: TypeAlias = "str | Mapping[str, str]"

_SIDES: tuple[SideName, SideName] = ("left", "right")


@dataclass(frozen=True)
class LateInputs:
    """What happens to late rows of two inputs; pickled for the workers.

    Attributes
    ----------
    words : mapping of str to str
        By input, ``"process"``, ``"drop"`` or a tag.
    schemas : mapping of str to pyarrow.Schema
        The columns of each tag.
    """

    words: Mapping[SideName, str]
    schemas: Mapping[str, pa.Schema]

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
        """Check a user's choice.

        Parameters
        ----------
        late : str or mapping of str to str
            One word or tag for both inputs, or one for each; an input that is left out has the
            default.
        inputs : mapping of str to pyarrow.Schema
            The columns of each input.
        owner : str
            What errors name.
        processes : bool
            Whether late rows may also be handled like others, which then is the default.
        sides : sequence of str
            The tags of other side outputs.

        Raises
        ------
        InvalidArgumentError
            It is neither; a tag is one of another side output; or both inputs have a column of the
            same name, but of different types, and one tag.
        """
        default = PROCESS_LATE if processes else DROP_LATE
        if isinstance(late, Mapping):
            for name in late:
                choice(name, f"{owner}: late", _SIDES)
            found = {side: late.get(side, default) for side in _SIDES}
        else:
            found = dict.fromkeys(_SIDES, late)
        words = {side: checked_late(word, sides, owner) for side, word in found.items()}
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

    def takes(self, side: SideName) -> bool:
        """Whether late rows of an input are written."""
        return self.words[side] in self.schemas

    def piece(self, side: SideName, rows: pa.RecordBatch) -> tuple[str, pa.RecordBatch]:
        """The tag for late rows of an input, and the rows with its columns; others are null."""
        tag = self.words[side]
        schema = self.schemas[tag]
        arrays: list[Any] = []
        for field in schema:
            if field.name not in rows.schema.names:
                arrays.append(pa.nulls(rows.num_rows, field.type))
                continue
            array = rows.column(field.name)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return tag, pa.RecordBatch.from_arrays(arrays, schema=schema)


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
