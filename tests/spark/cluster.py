"""A cluster of two executors on this machine, for programs that kill one of them."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession

__all__ = ["cluster_session"]


def cluster_session(folder: Path, *, cores: int) -> SparkSession:
    """Start Spark with two executors of so many cores each, whose files are below a folder."""
    session = (
        SparkSession.builder.master(f"local-cluster[2,{cores},1024]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.executorEnv.PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        .config("spark.executorEnv.SPARK_LOCAL_HOSTNAME", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session
