"""Columns as Spark finds them: by a name in any case, a path into structs, with backticks.

Thread safety: a `FrameColumns` belongs to the thread that builds the pipeline.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as st

from pystate.base.arguments import nearest
from pystate.errors import InvalidArgumentError
from pystate.types.ddl import path_parts, quoted
from pystate.types.keys import marked_struct, null_mark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def column_named(*parts: str) -> Column:
    """The column of exactly that name, even with dots and backticks; or a field inside of it."""
    return F.col(column_text(*parts))


def column_text(*parts: str) -> str:
    """The same in SQL."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def key_column(frame: DataFrame, name: str) -> Column:
    """A key's column, which may be a field of a struct, or say whether one is null."""
    return F.expr(key_text(frame.columns, name))


def key_text(columns: Sequence[str], name: str) -> str:
    """The same in SQL, of a frame with these columns."""
    if name in columns:
        return column_text(name)
    struct = marked_struct(name)
    if struct is None:
        return column_text(*path_parts(name))
    return f"if({column_text(*path_parts(struct))} IS NULL, true, cast(null as boolean))"


def whole_key(field: st.StructField, *, marked: bool) -> Column:
    """A key's column, rebuilt from the columns of its fields, and from marks of null structs."""
    if not (isinstance(field.dataType, st.StructType) and field.dataType.fields):
        return column_named(field.name)
    return _struct(quoted(field.name), field, field.dataType, marked=marked).alias(field.name)


def _struct(path: str, whole: st.StructField, struct: st.StructType, *, marked: bool) -> Column:
    parts = []
    for field in struct.fields:
        below = f"{path}.{quoted(field.name)}"
        part = column_named(below)
        if isinstance(field.dataType, st.StructType) and field.dataType.fields:
            part = _struct(below, field, field.dataType, marked=marked)
        parts.append(part.alias(field.name))
    rebuilt = F.struct(*parts)
    if not marked or not whole.nullable:
        return rebuilt
    return F.when(column_named(null_mark(path)).isNull(), rebuilt)


class ColumnPath(NamedTuple):
    """A column, or a field inside of one, by the names that the schema has."""

    parts: tuple[str, ...]
    data_type: st.DataType

    @property
    def column(self) -> Column:
        """The column as a Spark expression."""
        return column_named(*self.parts)


def find(
    schema: st.StructType, name: Any, owner: str, *, case_sensitive: bool = False
) -> ColumnPath:
    """Find a column by name, as `DataFrame.select` does.

    The name may contain dots, or be the path to a field inside a struct, such as ``"user.id"``,
    whose parts with dots are in backticks.
    """
    if not isinstance(name, str):
        # It may be a Column, whose == does not return a bool.
        raise InvalidArgumentError(
            f"{owner}: {name!r:.80} is not the name of a column: name columns one by one, and "
            "add an expression to the DataFrame with withColumn first"
        )
    matching = _FieldSearch(case_sensitive)
    paths = {path.parts: path for path in matching.walk(schema, [name])}
    paths.update((path.parts, path) for path in matching.walk(schema, path_parts(name)))
    if len(paths) == 1:
        return next(iter(paths.values()))
    listed = ", ".join(schema.names)
    if paths:
        shown = ", ".join(".".join(f"`{part}`" for part in parts) for parts in paths)
        raise InvalidArgumentError(
            f"{owner}: {name!r} is the name of {len(paths)} columns: {shown}; columns: {listed}"
        )
    raise InvalidArgumentError(
        f"{owner}: {name!r} is not a column; columns: {listed}{nearest(name, schema.names)}"
    )


class _FieldSearch:
    def __init__(self, case_sensitive: bool) -> None:
        self._fold = str if case_sensitive else str.lower

    def walk(self, struct: st.DataType, parts: list[str]) -> list[ColumnPath]:
        """All fields that a path may mean."""
        if not isinstance(struct, st.StructType):
            return []
        first, *rest = parts
        fields = [f for f in struct.fields if self._fold(f.name) == self._fold(first)]
        if not rest:
            return [ColumnPath((field.name,), field.dataType) for field in fields]
        return [
            ColumnPath((field.name, *path.parts), path.data_type)
            for field in fields
            for path in self.walk(field.dataType, rest)
        ]


class FrameColumns:
    """The columns of a frame that an operator uses; fields of structs become columns."""

    def __init__(self, frame: DataFrame, owner: str) -> None:
        self.given = self.frame = frame
        self._owner = owner
        conf = frame.sparkSession.conf.get("spark.sql.caseSensitive", "false")
        self._case_sensitive = str(conf).lower() == "true"
        self._added: dict[tuple[str, ...], str] = {}

    def copy(self) -> FrameColumns:
        """A copy, to which other columns may be added."""
        other = copy.copy(self)
        other._added = dict(self._added)
        return other

    def with_fields(self, frame: DataFrame) -> DataFrame:
        """Another frame that has the columns of the input, with those that were added."""
        for parts, name in self._added.items():
            frame = frame.withColumn(name, column_named(*parts))
        return frame

    def find(self, name: Any, what: str = "") -> ColumnPath:
        """A column, or a field inside of one."""
        owner = f"{self._owner}: {what}" if what else self._owner
        return find(self.frame.schema, name, owner, case_sensitive=self._case_sensitive)

    def take(self, name: Any, what: str = "") -> str:
        """The name of a column; a field inside of one is added to the frame under its own name."""
        path = self.find(name, what)
        if len(path.parts) == 1:
            return path.parts[0]
        if path.parts not in self._added:
            last = path.parts[-1]
            if any(last.lower() == each.lower() for each in self.frame.columns):
                raise InvalidArgumentError(
                    f"{self._owner}: {name!r} would become a column {last!r}, and there is one: "
                    f"give the field a name of its own first, df.withColumn('...', df[{name!r}])"
                )
            self.frame = self.frame.withColumn(last, path.column)
            self._added[path.parts] = last
        return self._added[path.parts]
