"""The result of a run over a batch: its epoch and its rows.

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pystate.base.markup import panel
from pystate.checkpoint.manifest import Manifest
from pystate.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark.sinks.sink import Sink


@dataclass(frozen=True, repr=False)
class EpochResult:
    """The outcome of `Job.run_epoch`.

    Attributes
    ----------
    epoch : int
        The checkpoint's number of the epoch.
    run_key : str or None
        The run key that was given.
    rows : DataFrame, mapping from name to DataFrame, or None
        The published rows; None if the sink cannot be read. If the pipeline returned several
        frames, those of each output by its name.
    already_done : bool
        The run key was known, so that nothing was computed.
    manifest : Manifest or None
        The epoch's manifest; None if it is no longer retained.
    sink : Sink or mapping from name to Sink
        Where the rows went, or those of each output.
    """

    epoch: int
    run_key: str | None
    rows: DataFrame | Mapping[str, DataFrame | None] | None
    already_done: bool
    manifest: Manifest | None
    sink: Sink | Mapping[str, Sink] | None = None

    @property
    def dataframe(self) -> DataFrame:
        """The published rows, read again from the output; cheap to make, evaluated when used.

        Raises
        ------
        InvalidArgumentError
            The sink's rows are not read from here.
        """
        if isinstance(self.rows, Mapping):
            first = next(iter(self.rows))
            raise InvalidArgumentError(
                f"epoch {self.epoch} has the outputs {', '.join(map(repr, self.rows))}: take the "
                f"one that you want, result.dataframes[{first!r}]"
            )
        return self._readable(self.rows, self.sink)

    @property
    def dataframes(self) -> Mapping[str, DataFrame]:
        """The published rows of each output of a pipeline that returned a dict, by name.

        Raises
        ------
        InvalidArgumentError
            The pipeline returned one DataFrame, or a sink's rows are not read from here.
        """
        if not isinstance(self.rows, Mapping):
            raise InvalidArgumentError(
                f"epoch {self.epoch} has one output without a name: take result.dataframe"
            )
        sinks = self.sink if isinstance(self.sink, Mapping) else {}
        return {name: self._readable(rows, sinks.get(name)) for name, rows in self.rows.items()}

    def _readable(self, rows: DataFrame | None, sink: object) -> DataFrame:
        if rows is None:
            raise InvalidArgumentError(
                f"the rows of epoch {self.epoch} went to {sink!r}, and cannot be read from "
                "here: the sink has no read, it has compacted them with others', or the epoch is "
                "one of the job whose savepoint this job began with"
            )
        return rows

    def _repr_html_(self) -> str:
        manifest = self.manifest
        facts = {
            "epoch": self.epoch,
            "run key": self.run_key,
            "computed": "before" if self.already_done else "now",
            "columns": _columns(self.rows),
            "state files": None if manifest is None else len(manifest.paths),
        }
        operators = () if manifest is None else manifest.operators
        rows = [(operator.uid, operator.parallelism) for operator in operators]
        return panel("EpochResult", facts, ("operator", "ranges") if rows else (), rows)

    def __repr__(self) -> str:
        shown = [f"epoch={self.epoch}", f"already_done={self.already_done}"]
        if self.run_key is not None:
            shown.insert(1, f"run_key={self.run_key!r}")
        if self.manifest is not None:
            shown.append(f"operators={[operator.uid for operator in self.manifest.operators]}")
            shown.append(f"state_files={len(self.manifest.paths)}")
        return f"EpochResult({', '.join(shown)})"


def _columns(rows: DataFrame | Mapping[str, DataFrame | None] | None) -> str | None:
    """The columns of the rows, for a notebook."""
    if isinstance(rows, Mapping):
        each = ((name, _columns(frame)) for name, frame in rows.items())
        return ", ".join(f"{name}: {columns}" for name, columns in each)
    return None if rows is None else rows.schema.simpleString()
