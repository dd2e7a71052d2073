"""How many examples tests of properties draw: few by `make test`, all by `make test-slow`."""

from __future__ import annotations

import os

from hypothesis import settings

THOROUGH = bool(os.environ.get("PYSTATE_THOROUGH"))
LEAST = 4


def count(most: int) -> int:
    """A sixth of the examples, or all of them; a test that asks is hypothesis's, or marked."""
    return most if THOROUGH else min(most, max(most // 6, LEAST))


def drawn(most: int) -> settings:
    """The settings of a test that `make test-slow` gives `most` examples."""
    return settings(max_examples=count(most), deadline=None)


def stride(most: int) -> int:
    """Every so many steps are looked at, or each by `make test-slow`; the test is marked."""
    return 1 if THOROUGH else most
