"""Spark's daemon of Python workers, which imports what they need once, before it forks them.

A worker of its own takes a second of processor time to import it, and tests start many.
"""

import pandas  # noqa: F401
import pyarrow.compute
import pyarrow.parquet  # noqa: F401
import pyspark.sql.pandas.types
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import pystate.spark.job
import pystate.spark.tasks.worker  # noqa: F401

if __name__ == "__main__":
    manager()
