"""Functions of a keyed input and a broadcast one, whose rows every instance of an operator sees.

Thread safety: as `pystate.operators.functions.base`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from pystate.errors import DeclarationError
from pystate.operators.functions.base import KeyedProcessFunction, VectorizedFunction
from pystate.operators.functions.context import RuntimeContext


class KeyedBroadcastProcessFunction(KeyedProcessFunction):
    """A function of a keyed input and of rules that each of its instances sees.

    `KeyedFrame.connect` gives it both. Write `process_broadcast` for the rules, and `process` or
    `process_rows` for the keyed rows.

    Examples
    --------
    >>> import pystate as ps
    >>> class Alerts(ps.KeyedBroadcastProcessFunction):
    ...     limits = ps.BroadcastState("string", "double")
    ...     above = ps.ValueState("long", default=0)
    ...
    ...     def process_broadcast(self, row, ctx: ps.RuntimeContext):
    ...         self.limits.put(row["kind"], row["limit"])
    ...
    ...     def process(self, key, row, ctx: ps.RuntimeContext):
    ...         limit = self.limits.get(row["kind"])
    ...         if limit is not None and row["value"] > limit:
    ...             self.above.update(self.above.value() + 1)
    ...             yield key, self.above.value()
    """

    def process_broadcast(self, row: Any, ctx: RuntimeContext) -> Any:
        """Handle one row of the broadcast input; every instance of the operator is called.

        Only here broadcast states can be written. There is no current key, so that keyed states and
        timers are not available, except within `RuntimeContext.apply_to_keyed_state`. What it
        writes to a broadcast state may depend on the row, `ctx.epoch`, the times of `ctx` and
        broadcast states alone: otherwise the instances' copies would differ.

        Parameters
        ----------
        row : Row
            The row, as `KeyedProcessFunction.process` gets it.
        ctx : RuntimeContext
            The context of the task and the row.

        Returns
        -------
        iterable of tuple, Row or dict, or None
            Rows as `process` yields them: each instance emits its own.
        """
        raise DeclarationError(f"{type(self).__name__} has no process_broadcast(self, row, ctx)")


class VectorizedBroadcastFunction(VectorizedFunction):
    """The same with whole batches of keyed rows, as a `VectorizedFunction` handles them.

    Rows of the broadcast input still come one by one; what `process_broadcast` emits are batches.

    Examples
    --------
    >>> import pyarrow as pa, pystate as ps
    >>> class Alerts(ps.VectorizedBroadcastFunction):
    ...     limits = ps.BroadcastState("string", "double")
    ...     above = ps.ValueState("long", default=0)
    ...
    ...     def process_broadcast(self, row, ctx: ps.RuntimeContext):
    ...         self.limits.put(row["kind"], row["limit"])
    ...
    ...     def process(self, keys, batch, ctx: ps.RuntimeContext):
    ...         limits = dict(self.limits.items())
    ...         above = [
    ...             value > limits.get(kind, float("inf"))
    ...             for kind, value in zip(
    ...                 batch["kind"].to_pylist(), batch["value"].to_pylist(), strict=True
    ...             )
    ...         ]
    ...         self.above.add(keys, pa.array(map(int, above)))
    """

    def process_broadcast(self, row: Any, ctx: RuntimeContext) -> Any:
        """Handle one row of the broadcast input.

        See `KeyedBroadcastProcessFunction.process_broadcast`; it emits batches, as `process` does.
        """
        raise DeclarationError(f"{type(self).__name__} has no process_broadcast(self, row, ctx)")


#: A function of either shape.
BroadcastFunction: TypeAlias = "KeyedBroadcastProcessFunction | VectorizedBroadcastFunction"
