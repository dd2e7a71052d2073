"""How Spark plans in tests: quickly, as they have few rows and many plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What the session of the tests has: no code is generated, and no stage is planned anew.
CHEAP = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
#: Where operators are many.
ONE_TASK = {"spark.sql.shuffle.partitions": "1"}


@contextmanager
def configured(spark: SparkSession, settings: Mapping[str, str | None]) -> Iterator[None]:
    """Spark with other settings, or without some, for as long as it takes."""
    before = {name: spark.conf.get(name, None) for name in settings}
    change(spark, settings)
    try:
        yield
    finally:
        change(spark, before)


def change(spark: SparkSession, settings: Mapping[str, str | None]) -> None:
    """Set settings; None is Spark's own."""
    for name, value in settings.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)
