"""Random programs of states and timers: Spark and pystate agree on every row, state and timer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from .programs import Program, check, random_program


def test_random_programs(spark: SparkSession, tmp_path: Path) -> None:
    programs = {f"p{seed}": random_program(random.Random(seed)) for seed in range(50)}
    check(spark, programs, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(10))
def test_many_random_programs(spark: SparkSession, tmp_path: Path, turn: int) -> None:
    seeds = range(1000 + turn * 250, 1250 + turn * 250)
    programs = {f"p{seed}": random_program(random.Random(seed), 4) for seed in seeds}
    check(spark, programs, tmp_path)


def test_a_program_is_made_smaller() -> None:
    whole = Program(((("value",), ("list",)), (("map",),)), ((("emit", 1),),))
    assert whole.size == 4
    assert whole.without(1, 3) == Program(((("value",),), ()), ((("emit", 1),),))
