"""An operator's state as a DataFrame: the data source ``pystate``.

Protocol: pyspark's Python Data Source API, with a partition per part of a scan that is read in
Arrow batches. Filters on keys, key groups and epochs only leave partitions out, and key groups
within them: Spark evaluates every filter once more.

Thread safety: the objects are immutable once Spark has them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pystate.base.arguments import choice, nearest
from pystate.checkpoint.locations import open_storage
from pystate.checkpoint.manifest_log import retained_epochs
from pystate.errors import InvalidArgumentError, PystateError
from pystate.processor.epochs import epoch_of
from pystate.processor.scan import StateScan
from pystate.processor.selection import Selection, WantedKeys
from pystate.spark.base.environment import use_this_python
from pystate.state.defaults import DEFAULT, default_of
from pystate.types.arrays import hash_keys, key_groups
from pystate.types.keys import parse_key

SOURCE = "pystate"
_OPTIONS = (
    "path",
    "uid",
    "state",
    "epoch",
    "explode",
    "timers",
    "accumulators",
    "defaults",
    "expired",
    "metadata",
)
_ALL = "all"
#: The columns of the option ``metadata``.
_EPOCH, _KEY_GROUP = "epoch", "key_group"
_METADATA = (pa.field(_EPOCH, pa.int64()), pa.field(_KEY_GROUP, pa.int32()))
#: Without it Spark calls no `pushFilters`, and refuses readers that have one.
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
#: More combinations of values for the columns of a key are not looked up one by one.
_MOST_KEYS = 10_000

_COMPARISONS: dict[type[Filter], Callable[[int, Any], bool]] = {
    EqualTo: lambda ours, value: ours == value,
    EqualNullSafe: lambda ours, value: ours == value,
    In: lambda ours, values: ours in values,
    GreaterThan: lambda ours, value: ours > value,
    GreaterThanOrEqual: lambda ours, value: ours >= value,
    LessThan: lambda ours, value: ours < value,
    LessThanOrEqual: lambda ours, value: ours <= value,
}


class StateSource(DataSource):
    """The state of an operator in a checkpoint or savepoint; by default a row per key.

    The executors read the files, a part of the key groups at a time. Columns are those of
    `pystate.read_state`. The argument of ``load`` (or the option ``path``) is the checkpoint. Other
    options are ``uid``, ``state``, ``epoch``, ``explode``, ``timers``, ``accumulators``,
    ``defaults`` and ``expired``, as there. ``metadata`` adds the columns ``epoch`` and
    ``key_group``; with it, the epoch ``all`` stands for all that are retained.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        for name in options:
            if name.lower() not in _OPTIONS:
                raise InvalidArgumentError(
                    f"state as a data source has no option {name!r}; it has "
                    f"{', '.join(_OPTIONS)}{nearest(name, _OPTIONS)}"
                )
        path = options.get("path")
        if not path:
            raise InvalidArgumentError(
                "which checkpoint? session.read.format('pystate').option('uid', UID).load(PATH)"
            )
        selection = Selection(
            options.get("state"),
            explode=_flag(options, "explode"),
            timers=_flag(options, "timers"),
            accumulators=_flag(options, "accumulators"),
            defaults=_flag(options, "defaults", default=True),
            expired=_flag(options, "expired"),
        )
        storage = open_storage(path)
        self._metadata = _flag(options, "metadata")
        epoch = options.get("epoch")
        whole = str(epoch).lower() == _ALL
        if whole and not self._metadata:
            raise InvalidArgumentError(
                "option 'epoch' is 'all': add .option('metadata', True), for a column that says "
                "which epoch a row is of"
            )
        number = None if whole or epoch is None else _number(epoch)
        newest = StateScan.of(storage, options.get("uid"), epoch=number, selection=selection)
        self._scans = [newest]
        for older in retained_epochs(storage) if whole else ():
            # States that came later are absent in it, and have their default.
            scan = newest.at(epoch_of(storage, older)) if older < newest.epoch else None
            if scan is not None:
                self._scans.append(scan)

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return SOURCE

    def schema(self) -> StructType:
        """Return the columns."""
        schema = self._scans[0].schema
        if self._metadata:
            for field in _METADATA:
                if field.name in schema.names:
                    raise InvalidArgumentError(
                        f"operator {self._scans[0].operator.uid!r} has a column {field.name!r} of "
                        "its own: read it without the option 'metadata'"
                    )
                schema = schema.append(field)
        # Spark does not take the metadata of fields from Arrow.
        columns = from_arrow_schema(schema)
        for field, column in zip(schema, columns.fields, strict=True):
            column.metadata = {DEFAULT: text} if (text := default_of(field)) is not None else {}
        return columns

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the epochs that were found."""
        return _Reader(self._scans, self._metadata)


def _flag(options: MutableMapping[str, str], name: str, *, default: bool = False) -> bool:
    given = str(options.get(name, default)).lower()
    return choice(given, f"option {name!r}", ("true", "false")) == "true"


def _number(epoch: str) -> int:
    try:
        return int(epoch)
    except ValueError:
        raise InvalidArgumentError(
            f"option 'epoch' is a retained epoch's number, or 'all', not {epoch!r:.80}"
        ) from None


def register_state_source(session: SparkSession) -> None:
    """Register the data source ``pystate`` with a session; a `Job` does it for its own session.

    Parameters
    ----------
    session : SparkSession
        A classic session, not one of Spark Connect.

    Examples
    --------
    >>> register_state_source(session)  # doctest: +SKIP
    >>> session.read.format("pystate").option("uid", "visits").load("checkpoint")  # doctest: +SKIP
    """
    use_this_python(session.sparkContext)
    session.conf.set(_PUSHDOWN, "true")
    java: Any = session._jsparkSession
    if java.sessionState().dataSourceManager().dataSourceExists(SOURCE):
        return
    # Spark checks the active session for a source of that name, whatever session it is given (4.3).
    jvm: Any = session.sparkContext._jvm
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    active = sessions.getActiveSession()
    sessions.setActiveSession(java)
    try:
        session.dataSource.register(StateSource)
    finally:
        if active.isDefined():
            sessions.setActiveSession(active.get())


class _PartPartition(InputPartition):
    def __init__(self, scan: StateScan) -> None:
        super().__init__(scan.epoch)
        self.scan = scan


class _Reader(DataSourceReader):
    def __init__(self, scans: list[StateScan], metadata: bool) -> None:
        self._scans = scans
        self._nothing = replace(scans[0], key_groups=frozenset())
        self._metadata = metadata

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Leave out what the filters exclude; Spark evaluates all of them again."""
        newest = self._scans[0]
        values: dict[str, list[Any]] = {}
        groups = set(range(newest.max_parallelism))
        for each in filters:
            compare = _COMPARISONS.get(type(each))
            path: tuple[str, ...] = getattr(each, "attribute", ())
            value: Any = getattr(each, "value", None)
            if compare is None or len(path) != 1:
                continue
            column = path[0]
            if self._metadata and column == _EPOCH:
                self._scans = [scan for scan in self._scans if compare(scan.epoch, value)]
            elif self._metadata and column == _KEY_GROUP:
                groups = {group for group in groups if compare(group, value)}
            elif isinstance(each, (EqualTo, EqualNullSafe, In)):
                values[column] = list(value) if isinstance(each, In) else [value]
        key = parse_key(list(newest.operator.key_schema))
        wanted = _wanted_keys([values.get(name) for name, _ in key], key, newest.max_parallelism)
        if wanted is not None:
            groups &= wanted.key_groups
        if len(groups) < newest.max_parallelism:
            chosen = frozenset(groups)
            self._scans = [replace(s, keys=wanted, key_groups=chosen) for s in self._scans]
        return filters

    def partitions(self) -> list[_PartPartition]:
        parts = [_PartPartition(part) for scan in self._scans for part in scan.split()]
        # Without any partition Spark makes one of its own.
        return parts or [_PartPartition(self._nothing)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _PartPartition)
        scan = partition.scan
        for rows in scan.batches():
            yield self._with_metadata(scan, rows) if self._metadata else rows

    def _with_metadata(self, scan: StateScan, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = rows.columns[: len(scan.operator.key_schema)]
        groups = key_groups(hash_keys(columns), scan.max_parallelism)
        fields = [*rows.schema, *_METADATA]
        arrays = [*rows.columns, pa.repeat(scan.epoch, rows.num_rows), pa.array(groups)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _wanted_keys(
    values: list[list[Any] | None], key: Any, max_parallelism: int
) -> WantedKeys | None:
    """The keys that filters leave, if they say so of each column of the key."""
    combinations = 1
    lists = []
    for column in values:
        if column is None:
            return None
        lists.append(column)
        combinations *= len(column)
    if combinations > _MOST_KEYS:
        return None
    rows = list(itertools.product(*lists))
    try:
        return WantedKeys(
            key, [list(column) for column in zip(*rows, strict=True)], max_parallelism
        )
    except PystateError:  # values that Spark compares otherwise than as keys
        return None
