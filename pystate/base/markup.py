"""HTML for notebooks: a heading, facts and tables, in which every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from pystate.redaction import redacted

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def panel(
    heading: str,
    facts: Mapping[str, object],
    columns: Sequence[str] = (),
    rows: Iterable[Sequence[object]] = (),
) -> str:
    """A heading, a list of named facts, and a table if it has columns.

    Cells that are None are left empty, and facts that are None are left out. Facts show no secrets.
    """
    parts = [f"<b>{escape(heading)}</b>"]
    shown = [
        f"<tr><th>{escape(name)}</th><td>{_fact(fact)}</td></tr>"
        for name, fact in facts.items()
        if fact is not None
    ]
    if shown:
        parts.append(f"<table>{''.join(shown)}</table>")
    if columns:
        head = "".join(f"<th>{escape(name)}</th>" for name in columns)
        body = "".join(
            f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in rows
        )
        parts.append(f"<table><tr>{head}</tr>{body}</table>")
    return f"<div>{''.join(parts)}</div>"


def _fact(value: object) -> str:
    return _cell(value if isinstance(value, int) else redacted(str(value)))


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return escape(str(value))


def bytes_shown(size: int) -> str:
    """A size in the unit that suits it, such as 5.0 MiB."""
    number, unit = float(size), _UNITS[0]
    for unit in _UNITS:
        if number < 1024 or unit == _UNITS[-1]:
            break
        number /= 1024
    return f"{size} bytes" if unit == _UNITS[0] else f"{number:.1f} {unit}"
