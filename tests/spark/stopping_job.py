"""A program whose session stops while its process goes on, and starts again: for
`test_shared_memory.py`.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import pystate as ps
from pystate.spark import Job


def main(checkpoint: str, home: str) -> None:
    for _ in range(2):
        compute(checkpoint, home)


def compute(checkpoint: str, home: str) -> None:
    """Run an epoch; then wait, stop the session, and wait again."""
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    job = Job("stopping", checkpoint, parallelism=1, table_home=home)
    df = session.range(1000).selectExpr("id AS k")
    job.run_epoch(df, lambda df: job.key_by(df, "k", uid="counts").aggregate(n=ps.count()))
    for done in ("computed", "stopped"):
        print(done, flush=True)
        input()
        session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
