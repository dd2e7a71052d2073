"""The result of a run over a batch: its epoch and its rows.

Thread safety: immutable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pystate.checkpoint.manifest import Manifest
from pystate.errors import InvalidArgumentError
from pystate.markup import panel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark.sinks.sink import Sink

__all__ = ["EpochResult"]


@dataclass(frozen=True, repr=False)
class EpochResult:
    """The outcome of `Job.run_epoch`.

    Attributes
    ----------
    epoch : int
        The checkpoint's number of the epoch.
    run_key : str or None
        The run key that was given.
    rows : DataFrame or None
        The published rows; None if the sink cannot be read.
    already_done : bool
        The run key was known, so that nothing was computed.
    manifest : Manifest or None
        The epoch's manifest; None if it is no longer retained.
    sink : Sink
        Where the rows went.
    """

    epoch: int
    run_key: str | None
    rows: DataFrame | None
    already_done: bool
    manifest: Manifest | None
    sink: Sink | None = None

    @property
    def dataframe(self) -> DataFrame:
        """The published rows, read again from the output; cheap to make, evaluated when used.

        Raises
        ------
        InvalidArgumentError
            The sink's rows are not read from here.
        """
        if self.rows is None:
            raise InvalidArgumentError(
                f"the rows of epoch {self.epoch} went to {self.sink!r}, and cannot be read from "
                "here: the sink has no read, it has compacted them with others', or the epoch is "
                "one of the job whose savepoint this job began with"
            )
        return self.rows

    def _repr_html_(self) -> str:
        manifest = self.manifest
        facts = {
            "epoch": self.epoch,
            "run key": self.run_key,
            "computed": "before" if self.already_done else "now",
            "columns": None if self.rows is None else self.rows.schema.simpleString(),
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
