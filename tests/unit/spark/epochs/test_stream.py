"""The start of a stream, as far as it needs no Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pystate.epochs.interval import CheckpointOptions
from pystate.errors import FencedError
from pystate.spark.epochs import stream as streaming
from pystate.spark.epochs.queries import QueryOutcome
from pystate.spark.epochs.stream import StreamRun
from tests.work import Work


def test_a_driver_that_is_followed_before_its_mark_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that follows has found no mark, and may run its stream already."""
    job = Work(tmp_path / "job").some(1)
    changed: list[str] = []
    for name in ("drop_other_sources", "rewind"):
        monkeypatch.setattr(streaming, name, lambda *_, name=name: changed.append(name))
    monkeypatch.setattr(streaming, "spark_folder", lambda *_: "spark")
    monkeypatch.setattr(StreamRun, "_start_query", lambda *_: changed.append("started"))
    with job.coordinator() as slow, job.coordinator() as quick:

        def follow(*_: Any) -> None:
            quick.take_over()

        monkeypatch.setattr(streaming, "await_streams", follow)
        epochs: Any = SimpleNamespace(
            storage=job.storage,
            options=SimpleNamespace(checkpoints=CheckpointOptions()),
            run=lambda: None,
            prepare=lambda session: slow,
        )
        stream: Any = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=None))
        given: Any = None
        run = StreamRun(epochs, stream, given, given, None, None, QueryOutcome("job"))
        with pytest.raises(FencedError):
            run.start(None, None, drain=False, observe=None)
    assert not changed
    assert not [each for each in (Path(job.root) / "owners").iterdir() if each.suffix == ".stream"]
