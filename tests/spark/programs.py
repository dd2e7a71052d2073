"""Programs as users write them, on the Spark of these tests: one of their own takes long."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pystate.spark.state_source import StateSource

from .plans import change

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def programs(spark: SparkSession) -> Iterator[None]:
    """They may change settings, stop the session, which goes on, and warn."""
    before = dict(spark.conf.getAll)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("default")
        patch.setattr(type(spark), "stop", lambda session: None)
        yield
    names = {name for name, _ in before.items() ^ dict(spark.conf.getAll).items()}
    change(spark, {name: before.get(name) for name in names})


@contextmanager
def working_in(spark: SparkSession, folder: Path, *, workers: bool = False) -> Iterator[None]:
    """Let what has no absolute path be in a folder, for Python and Java; or for workers, too."""
    context = spark.sparkContext
    jvm = context._jvm
    files = jvm.org.apache.hadoop.fs.FileSystem.getLocal(context._jsc.hadoopConfiguration())

    def work_in(place: str) -> None:
        jvm.java.lang.System.setProperty("user.dir", place)
        files.setWorkingDirectory(jvm.org.apache.hadoop.fs.Path(place))

    before = jvm.java.lang.System.getProperty("user.dir")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        if workers:
            # Each Python that Spark starts from now on imports it.
            (folder / "site").mkdir()
            (folder / "site/sitecustomize.py").write_text(
                f"import os\n\nos.chdir({str(folder)!r})\n"
            )
            paths = [str(folder / "site"), context.environment["PYTHONPATH"]]
            patch.setitem(context.environment, "PYTHONPATH", os.pathsep.join(paths))
            # It has the environment of the time when it is registered.
            spark.dataSource.register(StateSource)
        work_in(os.fspath(folder))
        try:
            yield
        finally:
            work_in(before)
    if workers:
        spark.dataSource.register(StateSource)
