"""docs/deployment.md on a standalone cluster: what it says to type, and errors that it names."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.environments import NAME, ROOT, Environment, clean_environment

pytestmark = pytest.mark.slow

GUIDE = (ROOT / "docs" / "deployment.md").read_text()
[STANDALONE] = re.findall(r"### Standalone\n.*?```\n(.*?)```", GUIDE, re.DOTALL)

JOB = """
import sys

from pyspark.sql import SparkSession

import pystate as ps
from pystate.errors import MissingPackageError
from pystate.spark import Job

class Counter(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key, row, ctx):
        self.n.update(self.n.value() + 1)
        yield key, self.n.value()

def pipeline(df, job):
    return job.key_by(df, "k", uid="counts").process(Counter(), schema="k long, n long")

spark = SparkSession.builder.getOrCreate()
assert spark.sparkContext.master.startswith("spark://")
with Job("cluster", checkpoint="checkpoint", parallelism=2) as job:
    progress = []
    try:
        for _ in range(2):
            job.run_epoch(spark.range(100).selectExpr("id % 10 AS k"), pipeline,
                          on_epoch=progress.append)
    except MissingPackageError as error:
        print("refused:", error)
        sys.exit(0)
    print("state:", sorted(row["n"] for row in job.read_state("counts").to_pylist()))
    print("evaluations:", [p.evaluations for p in progress])
"""


def pyspark_home() -> Path:
    return Path(str(distribution("pyspark").locate_file("pyspark")))


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster of one worker, whose own Python has nothing."""
    folder = tmp_path_factory.mktemp("cluster")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    options = ["--host", "127.0.0.1", "--webui-port", "0"]
    commands = [
        [f"{deploy}.master.Master", *options, "--port", str(port)],
        [f"{deploy}.worker.Worker", *options, "-c", "2", "-m", "2g", f"spark://{address}"],
    ]
    environment = {
        **clean_environment(),
        "SPARK_HOME": str(pyspark_home()),
        "SPARK_WORKER_DIR": str(folder / "work"),
    }
    with ExitStack() as stack:
        for number, command in enumerate(commands):
            log = stack.enter_context((folder / f"log{number}").open("w"))
            process = stack.enter_context(
                subprocess.Popen(
                    [str(pyspark_home() / "bin" / "spark-class"), *command],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )
            stack.callback(process.terminate)
        yield address


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The driver's environment."""
    return Environment(tmp_path_factory.mktemp("client") / "environment", ["spark"])


def submit(
    command: str, client: Environment, master: str, folder: Path
) -> subprocess.CompletedProcess[str]:
    """Type a command of the guide, by a shell that finds the client's tools."""
    (folder / "job.py").write_text(JOB)
    tools = folder / "tools"
    tools.mkdir()
    (tools / "spark-submit").symlink_to(pyspark_home() / "bin" / "spark-submit")
    variables = clean_environment()
    variables["PATH"] = f"{client.python.parent}:{tools}:{variables['PATH']}"
    variables["SPARK_HOME"] = str(pyspark_home())
    return subprocess.run(
        ["sh", "-euc", command.replace("HOST:7077", master)],
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_packed_environment(client: Environment, master: str, tmp_path: Path) -> None:
    # Neither pandas nor pyspark.
    packed = Environment(tmp_path / "environment")
    with tarfile.open(
        tmp_path / "environment.tar.gz", "w:gz", compresslevel=1, dereference=True
    ) as archive:
        archive.add(packed.folder, ".")
    shutil.rmtree(packed.folder)
    done = submit(STANDALONE, client, master, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == ["state: " + str([20] * 10), "evaluations: [1, 1]"]


def test_executors_without_pystate(client: Environment, master: str, tmp_path: Path) -> None:
    other = Environment(tmp_path / "other", without=[NAME])
    command = STANDALONE.replace("./environment/bin/python", str(other.python))
    command = re.sub(r"--archives \S+", "--name none", command)
    done = submit(command, client, master, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    [said] = done.stdout.splitlines()
    assert said.startswith("refused: the Python of the executors has no pystate: ")
