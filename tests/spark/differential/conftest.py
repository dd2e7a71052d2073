"""The processors are pickled whole: the workers cannot import these modules."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def helpers_by_value() -> None:
    from pyspark import cloudpickle

    names = ("cases", "frames", "processors", "programs", "running", "timed")
    package = __name__.rpartition(".")[0]
    for name in names:
        module = sys.modules.get(f"{package}.{name}")
        if module is not None:
            cloudpickle.register_pickle_by_value(module)
