"""Puts the values of rows with names into the order of declared columns.

Thread safety: functions without state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

from pystate.base.arguments import repeated, shortened
from pystate.errors import WrongTypeError

#: Rows of exactly these types have no names.
BY_PLACE = frozenset([tuple, list])


def names_of(row: object) -> tuple[Any, ...] | None:
    """The names of a row's values; None if they only have positions.

    Parameters
    ----------
    row : object
        A mapping, a named tuple, and a `Row` of Spark or of pystate have names.
    """
    if isinstance(row, Mapping):
        return tuple(row)
    if isinstance(row, tuple):
        # Spark stores the names on the row; a row without names is a tuple to Spark, too.
        names = getattr(type(row), "_fields", None) or getattr(row, "__fields__", None)
        return None if names is None else tuple(names)
    return None


def in_order(rows: Iterable[Any], names: tuple[str, ...], owner: str) -> Iterator[Any]:
    """Rows with a value for each of `names`: reordered by name if they have names, else unchanged.

    Parameters
    ----------
    rows : iterable
        Rows; those other than mappings and tuples with names are not changed.
    names : tuple of str
        The columns.
    owner : str
        What the errors name.

    Raises
    ------
    WrongTypeError
        A row has names, but not exactly those of the columns.
    """
    for row in rows:
        given = None if type(row) in BY_PLACE else names_of(row)
        if given is None:
            yield row
            continue
        places = _places(given, names)
        if places is None:
            _refuse(row, given, names, owner)
        values = tuple(row.values()) if isinstance(row, Mapping) else row
        yield values if places == _AS_IT_IS else tuple([values[i] for i in places])


_AS_IT_IS = (-1,)


@lru_cache(maxsize=256)
def _places(given: tuple[Any, ...], names: tuple[str, ...]) -> tuple[int, ...] | None:
    """The position of each name's value; None if the names are not the same."""
    if given == names:
        return _AS_IT_IS
    if len(given) != len(names) or set(given) != set(names):
        return None
    places = {name: place for place, name in enumerate(given)}
    return tuple(places[name] for name in names)


def _refuse(row: Any, given: Sequence[Any], names: Sequence[str], owner: str) -> NoReturn:
    twice, mine, theirs = repeated(given), set(given), set(names)
    unknown = [name for name in given if name not in theirs]
    missing = [name for name in names if name not in mine]
    wrong = [
        f"{what} {', '.join(map(repr, found))}"
        for what, found in (("has no", missing), ("has an unknown", unknown), ("has twice", twice))
        if found
    ]
    raise WrongTypeError(
        f"{owner} yielded {shown(row)}, which {' and '.join(wrong)}: a row with names has exactly "
        f"those of the schema, {', '.join(names)}; a tuple goes by position"
    )


def shown(value: object) -> str:
    """A value in one line of a message."""
    return shortened(repr(value).replace("\n", " "))
