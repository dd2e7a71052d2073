"""What a machine must have, said in one line each."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import (
    CorruptFileError,
    InvalidArgumentError,
    MissingPackageError,
    MissingRequirementError,
)
from pystate.spark import Job
from pystate.spark.base.environment import (
    java_major_version,
    require_classic,
    require_java,
    use_this_python,
)
from pystate.spark.base.failures import is_retryable, original_error
from pystate.spark.base.offsets import read_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def fake_java(folder: Path, script: str) -> None:
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo 'openjdk version \"17.0.15\"' >&2", None),
        ("echo 'openjdk version \"21\" 2023-09-19' >&2", None),
        ("echo 'java version \"1.8.0_401\"' >&2", "Java 8, too old"),
        ("echo 'openjdk version \"11.0.2\"' >&2", "Java 11, too old"),
        ("exit 1", "does not tell a version"),
    ],
)
def test_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, error: str | None
) -> None:
    fake_java(tmp_path, script)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if error is None:
        require_java()
        return
    with pytest.raises(MissingRequirementError, match=f"{error}.*install Java 17") as raised:
        require_java()
    assert "\n" not in str(raised.value)


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingRequirementError, match=r"no java on PATH.*install Java 17"):
        require_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingRequirementError, match=r"JAVA_HOME is .* but holds no bin/java"):
        require_java()
    assert java_major_version("nonsense") is None


def test_spark_connect_is_refused_in_one_line() -> None:
    frame = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})()
    with pytest.raises(InvalidArgumentError, match=r"Spark Connect.*\.master\(") as raised:
        require_classic(frame, "stream")
    assert "\n" not in str(raised.value)
    with pytest.raises(InvalidArgumentError, match=r"df is a DataFrame of Spark, not 3"):
        require_classic(3)


class Context:
    """The part of a SparkContext that matters here."""

    def __init__(self, master: str, **conf: str) -> None:
        self.master = master
        self.pythonExec = "python3"
        self._conf = conf

    def getConf(self) -> Any:  # noqa: N802 (Spark's name)
        return types.SimpleNamespace(get=lambda name: self._conf.get(name.replace(".", "_")))


def test_workers_run_this_python_unless_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    for context, chosen in (
        (Context("local[2,4]"), sys.executable),
        (Context("local-cluster[2,1,1024]"), sys.executable),
        (Context("spark://host:7077"), "python3"),
        (Context("local[2]", spark_pyspark_python="/opt/python"), "python3"),
    ):
        use_this_python(context)  # type: ignore[arg-type]
        assert context.pythonExec == chosen
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    context = Context("local[2]")
    use_this_python(context)  # type: ignore[arg-type]
    assert context.pythonExec == "python3"


def test_an_error_from_a_worker_is_found_again() -> None:
    text = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        '  File "x", line 1\npystate.errors.CorruptFileError: state/a: corrupt at byte 3\n'
    )
    spark = RuntimeError(text)
    found = original_error(spark)
    assert type(found) is CorruptFileError and str(found) == "state/a: corrupt at byte 3"
    assert found.__cause__ is spark
    for other in (RuntimeError("pystate.errors.Nonsense: x"), RuntimeError("x")):
        assert original_error(other) is other
    for module in ("pystate", "pystate._core.core", "pyarrow"):
        lacking = original_error(
            RuntimeError(f"{text}ModuleNotFoundError: No module named '{module}'")
        )
        assert type(lacking) is MissingPackageError and not is_retryable(lacking)
        assert f"executors has no {module}:" in str(lacking)
    for module in ("pystates", "pyarrow.nonsense", "their_own"):
        assert type(original_error(RuntimeError(f"No module named '{module}'"))) is RuntimeError
    assert not is_retryable(InvalidArgumentError("x"))
    assert not is_retryable(ValueError("the user's own"))


OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1700000000123,"conf":{}}\n{"logOffset":0}'


def test_offsets(tmp_path: Path) -> None:
    folder = tmp_path / "spark" / "offsets"
    folder.mkdir(parents=True)
    (folder / "0").write_text(OFFSETS)
    (folder / "1").write_text(OFFSETS.replace('"conf":{}', '"conf":{"a":"b"}'))
    (folder / "2").write_text(OFFSETS.replace('logOffset":0', 'logOffset":1'))
    found = [read_offsets(LocalStorage(tmp_path), batch) for batch in range(3)]
    assert found[0].processing_time_ms == 1_700_000_000_123
    assert found[0].offsets_hash == found[1].offsets_hash != found[2].offsets_hash


@pytest.mark.parametrize(
    "content", ["", "v1", "v1\n{}\n{}", "v1\nnothing\n{}", OFFSETS.replace("v1", "w1")]
)
def test_offsets_that_are_none(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "spark" / "offsets"
    folder.mkdir(parents=True)
    (folder / "0").write_text(content)
    with pytest.raises(CorruptFileError, match="spark/offsets/0"):
        read_offsets(LocalStorage(tmp_path), 0)


@pytest.mark.parametrize("option", ["parallelism", "max_parallelism"])
def test_no_ranges_at_all_is_not_the_default(tmp_path: Path, option: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f" {option} is 0"):
        Job("test", tmp_path, **{option: 0})


def test_without_pandas_nothing_is_computed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job("test", tmp_path / "checkpoint", parallelism=2)
    asked = []

    def pipeline(df: DataFrame) -> DataFrame:
        asked.append(df)
        return job.key_by(df, "id", uid="counts").aggregate(n=ps.count())

    stream, frame = spark.readStream.format("rate").load(), spark.range(3)
    for missing, found in ((None, "there is none"), (Old, "found is 1.5.3")):
        monkeypatch.setitem(sys.modules, "pandas", missing)  # type: ignore[arg-type]
        for run in (
            lambda: job.run_epoch(spark.range(3), pipeline),
            lambda: job.start(stream, pipeline),
            lambda: job.run_epoch(spark.sparkContext.range(3), lambda _: pipeline(frame)),
        ):
            with pytest.raises(MissingPackageError, match="mapInArrow") as raised:
                run()
            said = str(raised.value)
            assert "'pandas>=2.2,<3'" in said and found in said and sys.executable in said
            assert "\n" not in said
    # Elements need no pandas, but what is made a DataFrame of them.
    assert len(asked) == 2 and job.latest_epoch() is None and not spark.streams.active
    job.close()


class Old(types.ModuleType):
    """A pandas of long ago."""

    __version__ = "1.5.3"
