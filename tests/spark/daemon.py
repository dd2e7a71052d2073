"""Spark's daemon of Python workers, which imports what they need once, before it forks them.

A worker of its own takes a second of processor time to import it, and tests start many.
"""

import sys

# Spark puts its own zip first, whose modules would be compiled anew in each daemon.
sys.path[:] = [path for path in sys.path if not path.endswith("pyspark.zip")]

import pandas
import pyarrow.compute
import pyarrow.parquet
import pyspark.sql.pandas.types
import pyspark.worker
from pyspark.daemon import manager

import pystate.spark.job
import pystate.spark.tasks.worker

if __name__ == "__main__":
    manager()
