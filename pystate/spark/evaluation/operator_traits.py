"""What a job's evaluations find out about its operators, for those that follow.

Thread safety: belongs to the thread that runs the epochs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pystate.spark.evaluation.combine_policy import CombinePolicy


@dataclass(frozen=True)
class Learned:
    """What is known of operators, by uid. It is lost with the driver, and found out again."""

    materialised: set[str] = field(default_factory=set)
    """Those whose output was read more than once, or not to its end."""
    announced: set[str] = field(default_factory=set)
    """Those whose rows could not be counted, so that marker rows announce their ranges."""
    kept: set[str] = field(default_factory=set)
    """Those whose tasks say how old what they keep is: a watermark waits for it."""
    combining: CombinePolicy = field(default_factory=CombinePolicy)
    """Those whose rows are combined before the shuffle."""
    begun: set[str] = field(default_factory=set)
    """Those of which it was said that they begin with nothing any more."""
    plain_keys: set[str] = field(default_factory=set)
    """Those of which it was said that their keys do not tell null structs from structs of nulls."""
