"""What a processor's `init` gets: on the driver, where its states are noted, and in a task.

Thread safety: an object belongs to the driver's thread, or to its task.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias, get_args

from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from pystate.base.arguments import shown
from pystate.spark.base.errors import StatefulProcessorError
from pystate.spark.ported.states import Kind, StateRequest, checked_request
from pystate.spark.ported.timers import KeyTimers

#: Spark's time modes.
TimeMode: TypeAlias = Literal["None", "ProcessingTime", "EventTime"]


#: What Spark says of a call that fails, by the kind of the state.
_WORDS: Mapping[Kind, Mapping[str, str]] = {
    "value": {
        "exists": "Error checking value state exists",
        "get": "Error getting value state",
        "update": "Error updating value state",
        "clear": "Error clearing value state",
    },
    "list": {
        "exists": "Error checking value state exists",
        "appendValue": "Error updating value state",
        "appendList": "Error updating value state",
        "put": "Error updating value state",
        "clear": "Error clearing value state",
    },
    "map": {
        "exists": "Error checking map state exists",
        "getValue": "Error getting value",
        "containsKey": "Error checking if map state contains key",
        "updateValue": "Error updating map state value",
        "removeKey": "Error removing key from map state",
        "clear": "Error clearing map state",
    },
}


def time_mode_of(given: Any, owner: str) -> TimeMode:
    """Spark's time mode, in any case."""
    for mode in get_args(TimeMode):
        if isinstance(given, str) and given.lower() == mode.lower():
            known: TimeMode = mode
            return known
    raise StatefulProcessorError(
        f"{owner}: the time mode is 'None', 'ProcessingTime' or 'EventTime', not {shown(given)}"
    )


def checked_output_mode(given: Any, owner: str) -> None:
    """Refuse an output mode other than append and update."""
    mode = given.lower() if isinstance(given, str) else None
    if mode == "complete":
        raise StatefulProcessorError(
            f"{owner}: the output mode 'Complete' would need all rows of all epochs again: pass "
            "'Append' or 'Update', and keep what a sink should have in states"
        )
    if mode not in ("append", "update"):
        raise StatefulProcessorError(
            f"{owner}: the output mode is 'Append' or 'Update', not {shown(given)}"
        )


class QueryInfo:
    """Which query and batch a task belongs to."""

    def __init__(self, uid: str, epoch: int) -> None:
        self._id = uuid.uuid5(uuid.NAMESPACE_OID, uid)
        self._epoch = epoch

    def getQueryId(self) -> uuid.UUID:
        """An id of the operator, which restarts do not change."""
        return self._id

    def getRunId(self) -> uuid.UUID:
        """The same: pystate has no id of a run."""
        return self._id

    def getBatchId(self) -> int:
        """The epoch."""
        return self._epoch


class RequestedStates(NamedTuple):
    """What a processor's `init` has asked its handle for."""

    states: Mapping[str, StateRequest]
    """The states, without those that it has deleted."""
    all: tuple[StateRequest, ...]
    """All of them, in order."""
    deleted: frozenset[str]
    """The names that it has deleted."""


class Handle(StatefulProcessorHandle):
    """Spark's handle: states by name, and timers."""

    def __init__(self, owner: str, time_mode: TimeMode) -> None:
        self._owner = owner
        self._time_mode = time_mode
        self._states: dict[str, StateRequest] = {}
        self._requests: list[StateRequest] = []
        self._deleted: set[str] = set()
        #: Whether `init` runs.
        self.in_init = True

    @property
    def requested(self) -> RequestedStates:
        """What `init` has asked for."""
        return RequestedStates(dict(self._states), tuple(self._requests), frozenset(self._deleted))

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        """See Spark's handle."""
        return self._request("value", stateName, schema, None, ttlDurationMs)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        """See Spark's handle."""
        return self._request("list", stateName, schema, None, ttlDurationMs)

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> Any:
        """See Spark's handle."""
        return self._request("map", stateName, valueSchema, userKeySchema, ttlDurationMs)

    def deleteIfExists(self, stateName: str) -> None:
        """Drop a state of this name that an earlier version of the processor has left."""
        self._require_init("deleteIfExists")
        self._states.pop(stateName, None)
        self._deleted.add(stateName)

    def getQueryInfo(self) -> QueryInfo:
        """Which query and batch this is."""
        return QueryInfo(self._owner, 0)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """See Spark's handle."""
        self._refuse_timer("registerTimer")

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """See Spark's handle."""
        self._refuse_timer("deleteTimer")

    def listTimers(self) -> Iterator[int]:
        """See Spark's handle."""
        self._refuse_timer("listTimers")

    def _request(self, kind: Kind, name: Any, schema: Any, key_schema: Any, ttl_ms: Any) -> Any:
        self._require_init(f"get{kind.capitalize()}State")
        try:
            request = checked_request(kind, name, schema, key_schema, ttl_ms)
        except StatefulProcessorError as error:
            raise StatefulProcessorError(f"{self._owner}: {error}") from error
        if request.ttl_ms and self._time_mode != "ProcessingTime":
            raise StatefulProcessorError(
                f"{self._owner}: state {name!r} has a time to live, which is by processing time: "
                f"the time mode must be 'ProcessingTime', and it is {self._time_mode!r}"
            )
        if name in self._states:
            raise StatefulProcessorError(
                f"{self._owner}: the state {name!r} already exists: a name is asked for once"
            )
        self._states[name] = request
        self._requests.append(request)
        return self._state(request)

    def _state(self, request: StateRequest) -> Any:
        raise NotImplementedError

    def _require_init(self, method: str) -> None:
        if not self.in_init:
            raise StatefulProcessorError(
                f"{self._owner}: {method} can only be called in init: keep what it returns in an "
                "attribute"
            )

    def _refuse_timer(self, method: str) -> NoReturn:
        if self._time_mode == "None":
            raise StatefulProcessorError(
                f"{self._owner}: {method} needs a time: the time mode is 'None'; pass "
                "'ProcessingTime' or 'EventTime'"
            )
        raise StatefulProcessorError(
            f"{self._owner}: {method} cannot be called in init or close, where there is no key: "
            "call it in handleInputRows, handleExpiredTimer or handleInitialState"
        )


class RecordingHandle(Handle):
    """The handle on the driver: it notes the states."""

    def _state(self, request: StateRequest) -> Any:
        return _NoKey(self._owner, request)


class _NoKey:
    """A state on the driver, which cannot be used."""

    why = (
        "cannot be called in init, where there is no key: call it in handleInputRows, "
        "handleExpiredTimer or handleInitialState"
    )

    def __init__(self, owner: str, request: StateRequest) -> None:
        self._text = f"{owner}: {request.what}"
        self._words = _WORDS[request.kind]

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        words = self._words.get(name)
        prefix = "" if words is None else f"{words}: "
        raise StatefulProcessorError(f"{prefix}{self._text}: {name} {self.why}")


class _DeletedState(_NoKey):
    """A state that init has deleted again."""

    why = "cannot be called: init has deleted the state, deleteIfExists"


class TaskHandle(Handle):
    """The handle in a task."""

    def __init__(
        self,
        owner: str,
        time_mode: TimeMode,
        known: RequestedStates,
        state: Callable[[StateRequest], Any],
        timers: KeyTimers | None,
        epoch: int,
    ) -> None:
        super().__init__(owner, time_mode)
        self._known = known
        self._make = state
        self._timers = timers
        self._epoch = epoch

    def _state(self, request: StateRequest) -> Any:
        if self._known.states.get(request.name) == request:
            return self._make(request)
        if request in self._known.all:
            return _DeletedState(self._owner, request)
        names = list(self._known.states)
        raise StatefulProcessorError(
            f"{self._owner}: {request.what}: init asks for another state in a task than on the "
            f"driver, where it asked for {', '.join(map(repr, names)) or 'none'}: it must always "
            "ask for the same"
        )

    def getQueryInfo(self) -> QueryInfo:
        """Which query and batch this is."""
        return QueryInfo(self._owner, self._epoch)

    def begin(self) -> None:
        """`init` is over: states are no longer made, and timers may be registered."""
        self.in_init = False
        if self._timers is not None:
            # Without a call in between: these are called for every row.
            self.registerTimer = self._timers.register  # type: ignore[method-assign, assignment]
            self.deleteTimer = self._timers.delete  # type: ignore[method-assign, assignment]
            self.listTimers = self._timers.times_in_order  # type: ignore[method-assign]

    def end(self) -> None:
        """`close` comes next: there is no key any more."""
        for name in ("registerTimer", "deleteTimer", "listTimers"):
            self.__dict__.pop(name, None)
