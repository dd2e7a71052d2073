"""Harnesses behave alike with their tables on the heap, and on disk, where each epoch is cold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pystate.tables.options import TableOptions
from pystate.testing import range_tables


@pytest.fixture(scope="module", params=["heap", "disk"])
def table_home(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where tables are of which a test says nothing."""
    home = request.param

    def options(said: str) -> TableOptions:
        return TableOptions(home if said == "heap" else said)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(range_tables, "TableOptions", options)
        yield home
