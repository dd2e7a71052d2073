"""One SELECT statement, taken apart before it runs: what it reads, and that it does nothing else.

DuckDB's own parser gives the statement as a tree, so that nothing hides in comments, quotes or
spelling. What is not known to be harmless is refused: whoever may write statements is not to reach
more than the tables, whatever functions a version of DuckDB has.

Thread safety: functions without state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pystate.base.arguments import integer
from pystate.base.markup import bytes_shown
from pystate.errors import MemoryLimitError, QueryError, QueryTimeoutError
from pystate.types.durations import Duration, milliseconds

#: Kinds of queries; all others change something, also within a SELECT.
_QUERIES = frozenset(("SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"))
#: Functions in FROM that make rows of their arguments, and read nothing.
_TABLE_FUNCTIONS = frozenset(
    ("unnest", "range", "generate_series", "repeat", "repeat_row", "json_each", "json_tree")
)
#: Functions that change something, tell of the process, run another statement, or only wait.
_REFUSED = frozenset(
    (
        *("current_setting", "set_config", "getenv", "getvariable", "write_log"),
        *("nextval", "currval", "sleep_ms", "pg_sleep", "query", "query_table"),
        *("json_execute_serialized_sql", "from_substrait", "from_substrait_json"),
        *("which_secret", "read_text", "read_blob", "glob", "parse_duckdb_log_message"),
    )
)
#: An engine plans a statement without looking at the time, longer than it has many parts.
_MOST_QUERIES = 200
_ONLY_SELECT = "only one SELECT statement is run"
_SHOWN = ("tables", "__show_tables_expanded")


#: What a statement may take, if nothing is said.
MEMORY_BYTES, TIMEOUT, THREADS = 1 << 30, "5 minutes", 2
_LEAST_MEMORY = 16 << 20


@dataclass(frozen=True)
class Limits:
    """What a statement may take."""

    timeout_ms: int
    memory_bytes: int
    threads: int

    @classmethod
    def of(
        cls,
        timeout: Duration = TIMEOUT,
        memory_bytes: int = MEMORY_BYTES,
        threads: int = THREADS,
    ) -> Limits:
        """Check what a user has given."""
        return cls(
            milliseconds(timeout, "sql: timeout", least=1, most=1 << 40),
            integer(memory_bytes, "sql: memory_bytes", least=_LEAST_MEMORY),
            integer(threads, "sql: threads", least=1, most=1024),
        )


def timeout_error(limits: Limits) -> QueryTimeoutError:
    """The error to raise for a statement that took too long."""
    return QueryTimeoutError(
        f"sql: the statement took longer than {limits.timeout_ms / 1000:g} s (timeout): ask for "
        "less, by a key for instance, or give it more time"
    )


def memory_error(limits: Limits) -> MemoryLimitError:
    """The error to raise for a statement that needs too much memory."""
    return MemoryLimitError(
        f"sql: the statement needs more memory than {bytes_shown(limits.memory_bytes)} "
        "(memory_bytes): ask for less, or give it more"
    )


@dataclass(frozen=True)
class Statement:
    """A statement that may run."""

    text: str
    tables: frozenset[str]
    """What it names as tables, but for its own WITH."""
    all_tables: bool
    """Whether it lists the tables that there are."""


def parse_statement(connection: Any, query: str) -> Statement:
    """Take a statement apart; `QueryError` if it is none, or none that may run.

    `connection` is DuckDB's, which only parses.
    """
    tree = _tree(connection, query)
    named: set[str] = set()
    own: set[str] = set()
    all_tables = False
    tuples, queries = [], 0
    for node in _nodes(tree):
        kind, named_function = str(node.get("type", "")), str(node.get("function_name", ""))
        queries += kind.endswith("_NODE") or kind in ("BASE_TABLE", "JOIN")
        if queries > _MOST_QUERIES:
            raise QueryError(
                f"sql: the statement has more than {_MOST_QUERIES} queries and tables in it: use "
                "fewer, or several statements"
            )
        if kind.endswith("_NODE") and kind not in _QUERIES:
            raise QueryError(f"sql: {_ONLY_SELECT}, and nothing in it that changes anything")
        if "cte_map" in node:
            own.update(str(entry["key"]).lower() for entry in node["cte_map"]["map"])
        if kind == "TABLE_FUNCTION":
            _check_table_function(node)
        elif kind == "BASE_TABLE":
            named.add(_table_name(node))
        elif kind == "SHOW_REF" and not node.get("query"):
            shown = str(node["table_name"]).strip('"')
            if shown in _SHOWN:
                all_tables = True
            else:
                named.add(shown)
        if kind == "RECURSIVE_CTE_NODE":
            own.add(str(node.get("cte_name", "")).lower())
        if named_function.lower() in _REFUSED:
            raise QueryError(f"sql: the function {named_function}() is not for statements here")
        if kind in ("COMPARE_IN", "COMPARE_EQUAL"):
            tuples.append(node)
    _refuse_reserved(connection, own)
    if sum(map(_spell_out, tuples)):
        spelt = connection.execute("SELECT json_deserialize_sql(?)", [json.dumps(tree)])
        [(query,)] = spelt.fetchall()
    tables = frozenset(name for name in named if name.lower() not in own)
    return Statement(query, tables, all_tables)


def _tree(connection: Any, query: str) -> dict[str, Any]:
    [(text,)] = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    try:
        tree: dict[str, Any] = json.loads(text)
    except RecursionError:
        raise QueryError(
            "sql: the statement is nested too deeply: write it with fewer brackets in each other"
        ) from None
    if tree["error"]:
        said = one_line(str(tree.get("error_message", "")))
        if str(tree.get("error_type", "")).lower() == "not implemented":
            raise QueryError(f"sql: {_ONLY_SELECT}")
        at = f" (character {int(tree['position']) + 1})" if "position" in tree else ""
        raise QueryError(f"sql: {said}{at}")
    if len(tree["statements"]) != 1:
        raise QueryError(f"sql: {_ONLY_SELECT}, and there are {len(tree['statements'])}")
    return tree


def one_line(said: str) -> str:
    """What the engine says, without the picture of the statement that it draws."""
    text, at, picture = said.partition("\n\nLINE ")
    # No setting can be changed.
    text = re.sub(r' Use "SET [^"]*"[^.]*\.', "", " ".join(text.split()))
    place = re.match(r"(\d+): (?!\.\.\.)[^\n]*\n( *)\^", picture) if at else None
    if place is None:
        return text
    column = len(place[2]) - len(f"LINE {place[1]}: ") + 1
    return f"{text} (line {place[1]}, column {column})"


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All objects of a tree, from the top."""
    todo = [tree]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            yield value
            todo += value.values()
        elif isinstance(value, list):
            todo += value


def _check_table_function(node: dict[str, Any]) -> None:
    function = node.get("function") or {}
    name = str(function.get("function_name", ""))
    if name.lower() not in _TABLE_FUNCTIONS:
        raise QueryError(
            f"sql: nothing is read but the checkpoint's tables: {name}() is not there for FROM"
        )


def _table_name(node: dict[str, Any]) -> str:
    name, schema = str(node["table_name"]), str(node.get("schema_name") or "")
    if node.get("catalog_name") or schema not in ("", "main"):
        whole = ".".join(filter(None, (node.get("catalog_name"), schema, name)))
        raise QueryError(
            f"sql: there is no schema {schema!r}: if the uid is {whole!r}, write it in double "
            f'quotes: "{whole}"'
        )
    return name


def _refuse_reserved(connection: Any, own: set[str]) -> None:
    """Refuse a WITH of the name of a system view, which could stand for that view elsewhere."""
    if own:
        rows = connection.execute("SELECT lower(view_name) FROM duckdb_views()").fetchall()
        for name in sorted(own.intersection(name for (name,) in rows)):
            raise QueryError(f"sql: WITH {name}: the engine has that name itself: choose another")


def _spell_out(node: dict[str, Any]) -> bool:
    """Say of `(a, b) IN ((1, 'x'), ...)` also what it says of each column, which filters need.

    It is as true as before: a row of values is never null, and where it is among the others, its
    columns are equal to those of one.
    """
    rows = node.get("children") or [node.get("left"), node.get("right")]
    parts = [_row(row) for row in rows]
    if len(parts) < 2 or any(part is None or len(part) < 2 for part in parts):
        return False
    first, *others = [part for part in parts if part is not None]
    if any(each["class"] != "COLUMN_REF" for each in first):
        return False
    if any(len(other) != len(first) or not _are_known(other) for other in others):
        return False
    ways = [
        _conjunction(
            "AND",
            [
                {"class": "COMPARISON", "type": "COMPARE_EQUAL", "alias": "", "left": a, "right": b}
                for a, b in zip(first, other, strict=True)
            ],
        )
        for other in others
    ]
    before = dict(node)
    node.clear()
    node.update(_conjunction("AND", [before, _conjunction("OR", ways)]))
    return True


def _are_known(values: list[dict[str, Any]]) -> bool:
    """Whether values are constants that are not null: in a row null is equal to null."""
    return all(value["class"] == "CONSTANT" and not _is_null(value) for value in values)


def _is_null(constant: dict[str, Any]) -> bool:
    literal, value = constant.get("literal"), constant.get("value")
    if isinstance(literal, dict):
        return str(literal.get("kind")) in ("NULL", "None")
    return not isinstance(value, dict) or bool(value.get("is_null", True))


def _row(node: Any) -> list[dict[str, Any]] | None:
    """The values of `(a, b)`, else None."""
    if not isinstance(node, dict) or node.get("function_name") != "row":
        return None
    if "arguments" in node:
        return [argument["expression"] for argument in node["arguments"]]
    return list(node.get("children", ()))


def _conjunction(word: str, children: list[dict[str, Any]]) -> dict[str, Any]:
    if len(children) == 1:
        return children[0]
    kind = f"CONJUNCTION_{word}"
    return {"class": "CONJUNCTION", "type": kind, "alias": "", "children": children}
