"""SQL over a checkpoint's state: DuckDB runs a SELECT statement over the tables of one epoch.

Each statement has an engine of its own, in memory, which knows no other tables: no files, no
network, no extensions, no settings, no variables of the program. What a statement names is read
when the engine asks for it (`pystate.query.sql.tables`), and before that it is taken apart
(`pystate.query.sql.statement`).

Thread safety: any thread; statements run beside each other.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from pystate.base.arguments import flag, nearest, shown
from pystate.base.installation import extra
from pystate.errors import (
    CheckpointError,
    InvalidArgumentError,
    MissingPackageError,
    PystateError,
    QueryError,
)
from pystate.processor.epochs import MissingFileError
from pystate.query.connection import View
from pystate.query.sql.process import SeparateQuery
from pystate.query.sql.statement import (
    Limits,
    memory_error,
    one_line,
    parse_statement,
    timeout_error,
)
from pystate.query.sql.tables import (
    StateTable,
    TableName,
    Watch,
    named_in_any_case,
    table_names,
    told_apart,
)

_BATCH_ROWS = 1 << 16
#: An interrupt that comes before the engine has begun is lost, so it is said again.
_AGAIN_SECONDS = 0.05
_TABLES = pa.schema([pa.field(name, pa.string()) for name in ("table", "column", "type", "holds")])

Epochs = Callable[[], pa.Table]
Parameters = Sequence[Any] | Mapping[str, Any] | None


class RunningQuery:
    """A statement in an engine of its own; `batches` runs it."""

    def __init__(
        self, view: View, epochs: Epochs, query: str, parameters: Parameters, limits: Limits
    ) -> None:
        self._limits, self._watch = limits, Watch()
        self._done = threading.Event()
        self._reader: Any = None
        self._engine = new_engine(limits)
        try:
            with self._errors():
                self._begin(view, epochs, query, parameters)
        except BaseException:
            self.close()
            raise

    def _begin(self, view: View, epochs: Epochs, query: str, parameters: Parameters) -> None:
        engine = self._engine
        threading.Thread(target=self._end_in_time, name="sql timeout", daemon=True).start()
        statement = parse_statement(engine, query)
        tables, named = table_names(view), dict[str, TableName]()
        for name in tables if statement.all_tables else sorted(statement.tables):
            table = named_in_any_case(name, tables)
            if table is None:
                raise _unknown_table(name, tables)
            if named.setdefault(table.name.lower(), table) is not table:
                raise QueryError(
                    f"sql: tables {named[table.name.lower()].name!r} and {table.name!r} differ "
                    "only in their case, which SQL does not see: read them by two statements"
                )
            engine.register(table.name, StateTable(view, table, epochs, self._watch))
        engine.execute("SET lock_configuration = true")
        given = dict(parameters) if isinstance(parameters, Mapping) else list(parameters or ())
        relation = engine.sql(statement.text, params=given or None)
        if relation is None:
            raise QueryError("sql: the statement gives no rows")
        read = getattr(relation, "to_arrow_reader", None) or relation.fetch_record_batch
        self._reader = read(_BATCH_ROWS)
        columns: pa.Schema = self._reader.schema
        self.schema = pa.schema(map(pa.Field.with_name, columns, told_apart(columns.names)))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, as they are computed; once."""
        try:
            with self._errors():
                while True:
                    try:
                        rows = self._reader.read_next_batch()
                    except StopIteration:
                        return
                    yield pa.RecordBatch.from_arrays(rows.columns, schema=self.schema)
        finally:
            self.close()

    def close(self) -> None:
        """End the statement, wherever it is; does nothing the second time."""
        if self._done.is_set():
            return
        self._watch.stopped = self._watch.stopped or "closed"
        self._done.set()
        self._engine.interrupt()
        if self._reader is not None:
            self._reader.close()
        self._engine.close()

    def _end_in_time(self) -> None:
        if self._done.wait(self._limits.timeout_ms / 1000):
            return
        self._watch.stopped = "timeout"
        with suppress(Exception):  # of an engine that is closed meanwhile
            while True:
                self._engine.interrupt()
                if self._done.wait(_AGAIN_SECONDS):
                    return

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Say what the engine says in one line, and what a table could not read as it is."""
        try:
            yield
        except (PystateError, GeneratorExit, KeyboardInterrupt):
            raise
        except Exception as error:
            raise self._said(error) from error

    def _said(self, error: Exception) -> BaseException:
        limits, kind = self._limits, type(error).__name__
        if self._watch.stopped == "timeout":
            return timeout_error(limits)
        if isinstance(self._watch.error, (PystateError, KeyboardInterrupt)):
            return self._watch.error
        if kind == "RuntimeError" and str(error) == "Query interrupted":
            return KeyboardInterrupt()  # so the engine says that there was a signal
        line = one_line(str(error))
        if kind == "OutOfMemoryException" or line.startswith("Out of Memory Error"):
            return memory_error(limits)
        if self._watch.error is not None:
            return self._watch.error
        return QueryError(f"sql: {line}")


def read_sql(
    view: View,
    epochs: Epochs,
    query: str,
    parameters: Parameters,
    limits: Limits,
    isolated: bool,
) -> pa.Table:
    """All rows of a statement."""
    running = _begun(view, epochs, query, parameters, limits, isolated)
    found, taken = [], 0
    for rows in running.batches():
        found.append(rows)
        taken += rows.nbytes
        if taken > limits.memory_bytes:
            running.close()
            raise memory_error(limits)
    return pa.Table.from_batches(found, running.schema)


def scan_sql(
    view: View,
    epochs: Epochs,
    query: str,
    parameters: Parameters,
    limits: Limits,
    isolated: bool,
    cut_short: Callable[[View], CheckpointError],
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The rows of a statement as they are computed; the first of them have been.

    `cut_short` gives the error if files are gone when some rows have been read.
    """
    running = _begun(view, epochs, query, parameters, limits, isolated)
    batches = running.batches()
    first = next(batches, None)

    def rows() -> Iterator[pa.RecordBatch]:
        if first is None:
            return
        try:
            yield first
            yield from batches
        except MissingFileError as error:
            raise cut_short(view) from error
        finally:
            running.close()

    return running.schema, rows()


def _begun(
    view: View,
    epochs: Epochs,
    query: str,
    parameters: Parameters,
    limits: Limits,
    isolated: bool,
) -> RunningQuery | SeparateQuery:
    query, parameters = _text(query), _checked(parameters)
    if flag(isolated, "sql: isolated"):
        return SeparateQuery(view, query, parameters, limits)
    return RunningQuery(view, epochs, query, parameters, limits)


def list_tables(view: View, epochs: Epochs) -> pa.Table:
    """All tables with their columns: a row per column."""
    engine, rows = new_engine(Limits.of()), []
    try:
        for table in table_names(view).values():
            try:
                described = StateTable(view, table, epochs, Watch())
            except MissingFileError:
                raise
            except InvalidArgumentError:
                continue  # whose columns cannot be told apart
            engine.register(table.name, described)
            quoted_name = '"' + table.name.replace('"', '""') + '"'
            for name, type_ in engine.execute(
                f"SELECT column_name, column_type FROM (DESCRIBE {quoted_name})"
            ).fetchall():
                rows.append(
                    {"table": table.name, "column": name, "type": type_, "holds": table.holds}
                )
            engine.unregister(table.name)
    finally:
        engine.close()
    return pa.Table.from_pylist(rows, _TABLES)


def new_engine(limits: Limits) -> Any:
    """An engine that reaches nothing but what is registered with it."""
    try:
        import duckdb
    except ImportError as error:
        raise MissingPackageError(f"SQL needs duckdb ({error}): {extra('sql')}") from error
    engine = duckdb.connect(
        ":memory:",
        config={
            "enable_external_access": "false",
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "allow_community_extensions": "false",
            "allow_persistent_secrets": "false",
            "secret_directory": "",
            "temp_directory": "",
            "max_temp_directory_size": "0B",
            "python_enable_replacements": "false",
            "python_scan_all_frames": "false",
            "memory_limit": f"{limits.memory_bytes}B",
            "threads": str(limits.threads),
        },
    )
    engine.execute("SET TimeZone = 'UTC'")
    return engine


def _unknown_table(name: str, tables: Mapping[str, TableName]) -> QueryError:
    known = ", ".join(
        known if re.fullmatch("[a-z_][a-z0-9_]*", known) else f'"{known}"' for known in tables
    )
    return QueryError(
        f"sql: there is no table {name!r:.80}; there are {known}{nearest(name, tables)}"
    )


def _text(query: Any) -> str:
    if not isinstance(query, str) or not query.strip():
        raise InvalidArgumentError(
            f"sql: the statement is a string, such as 'select * from epochs', not {shown(query)}"
        )
    return query


def _checked(parameters: Any) -> Parameters:
    if parameters is not None and not isinstance(parameters, (list, tuple, Mapping)):
        raise InvalidArgumentError(
            "sql: parameters is a list of values, one for each ? of the statement, or a dict, for "
            f"$name, not {shown(parameters)}"
        )
    return parameters
