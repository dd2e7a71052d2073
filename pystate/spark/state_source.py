"""An operator's state as a DataFrame: the data source ``pystate``.

Protocol: pyspark's Python Data Source API, with a partition per range of key groups that is read in
Arrow batches.

Thread safety: the objects are immutable once Spark has them.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pystate.arguments import nearest
from pystate.checkpoint.storage import open_storage
from pystate.errors import InvalidArgumentError
from pystate.inspection import StateScan
from pystate.spark.environment import use_this_python

__all__ = ["StateSource", "register_state_source"]

SOURCE = "pystate"
_OPTIONS = ("path", "uid")


class StateSource(DataSource):
    """The state of an operator as of a checkpoint's newest epoch; a row per key.

    The executors read the checkpoint's files, range by range; columns are those of
    `pystate.read_state`. The argument of ``load`` (or the option ``path``) is the checkpoint. The
    option ``uid`` is the operator, and may be left out if there is only one.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        for name in options:
            if name.lower() not in _OPTIONS:
                raise InvalidArgumentError(
                    f"state as a data source has no option {name!r}{nearest(name, _OPTIONS)}; it "
                    f"has {' and '.join(_OPTIONS)}"
                )
        path = options.get("path")
        if not path:
            raise InvalidArgumentError(
                "which checkpoint? session.read.format('pystate').option('uid', UID).load(PATH)"
            )
        self._scan = StateScan.newest(open_storage(path), options.get("uid"))

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return SOURCE

    def schema(self) -> StructType:
        """Return the columns."""
        return from_arrow_schema(self._scan.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the epoch that was found."""
        return _Reader(self._scan)


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


class _RangePartition(InputPartition):
    def __init__(self, scan: StateScan) -> None:
        super().__init__(scan)
        self.scan = scan


class _Reader(DataSourceReader):
    def __init__(self, scan: StateScan) -> None:
        self._scan = scan

    def partitions(self) -> list[_RangePartition]:
        return [_RangePartition(part) for part in self._scan.split()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _RangePartition)
        return partition.scan.batches()
