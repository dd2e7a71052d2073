"""Raw operator state: byte streams in a format of the user's own. The declaration and its handles.

Thread safety: a declaration is immutable; a handle belongs to its table, and a table to one thread
at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pystate.base.arguments import choice, integer, shown
from pystate.errors import CheckpointError, InvalidArgumentError, WrongTypeError
from pystate.state.declaration import State
from pystate.state.key_batch import KeyBatch
from pystate.state.list import ListHandle, ListState
from pystate.state.map import MapHandle, MapState
from pystate.state.method_hints import Named
from pystate.state.operator_list import divided, put_items
from pystate.state.operator_state import Instance, KeylessState, OldRows, Own

Scope = Literal["operator", "key_group"]


class RawState(KeylessState["RawHandle | RawKeyGroupHandle"]):
    """Declares byte streams of an instance, in a format of your own.

    Parameters
    ----------
    scope : {"operator", "key_group"}
        ``"operator"``: a list of streams, which are divided evenly when the number of instances
        changes. ``"key_group"``: a stream per key group, which goes to the instance that gets the
        key group.

    See Also
    --------
    pystate.RawHandle, pystate.RawKeyGroupHandle : what it becomes while a function runs.

    Notes
    -----
    A stream is stored as a whole: a small change of a large stream costs the whole stream, in
    memory and in the snapshot. If `pystate.rescale` has split key groups, each part of a key group
    gets the stream of the whole.

    Examples
    --------
    >>> import pystate as ps
    >>> ps.RawState("key_group")
    RawState('key_group')
    """

    __slots__ = ("_scope",)

    _scope: Scope

    def __init__(self, scope: Scope = "operator", *, previously: str | Sequence[str] = ()) -> None:
        self._declare("binary", None, previously)
        found = choice(scope, "RawState: scope", ("operator", "key_group"))
        object.__setattr__(self, "_scope", found)

    @property
    def scope(self) -> Scope:
        """What a stream belongs to."""
        return self._scope

    def stored(self) -> State[Any]:
        """A list of streams, or a map from key group to stream.

        A stream says of how many key groups its own was one, because they may be split.
        """
        if self._scope == "operator":
            return ListState("binary")
        return MapState("int", "struct<key_groups:int,stream:binary>")

    def opened(self, handle: Any, own: Own) -> RawHandle | RawKeyGroupHandle:
        """Make the state's handle."""
        if self._scope == "operator":
            return RawHandle(handle, own)
        return RawKeyGroupHandle(handle, own)

    def share(
        self, handle: Any, old: OldRows, instance: Instance, start: int
    ) -> tuple[list[Any], int]:
        """Read an instance's streams."""
        if self._scope == "operator":
            return divided(handle, old, instance, start)
        found = []
        first, last = instance.key_groups
        groups = instance.max_parallelism
        for row in range(len(old)):
            old.select(row)
            for group, kept in handle.items():
                before = kept["key_groups"]
                if groups % before:
                    raise CheckpointError(
                        f"state {handle.name!r}: a stream is of key group {group} of {before}, of "
                        f"which {groups} are no multiple"
                    )
                found += [
                    (each, {"key_groups": groups, "stream": kept["stream"]})
                    for each in range(group, groups, before)
                    if first <= each <= last
                ]
        return found, start

    def put(self, handle: Any, own: KeyBatch, share: Any) -> None:
        """Write an instance's streams."""
        if self._scope == "key_group":
            handle.put_all(share)
            return
        for streams in share:
            put_items(handle, own, streams)

    def _arguments(self) -> tuple[Any, ...]:
        return (self._scope,)


class RawHandle(Named):
    """The byte streams of one instance. ``RawState("operator")`` declares it.

    Attributes
    ----------
    name : str
        The state's name.
    """

    def __init__(self, handle: ListHandle, own: Own) -> None:
        self._handle = handle
        self._own = own
        self.name = handle.name
        self.table = handle.table

    def streams(self) -> list[bytes]:
        """All streams, in order; after a change of the number of instances none, or several."""
        return self._handle.get()

    def add(self, stream: bytes | bytearray | memoryview, /) -> None:
        """Append a stream.

        Raises
        ------
        WrongTypeError
            It is not bytes.
        """
        self._handle.add(_bytes(stream, self.name))

    def update(self, streams: Iterable[bytes | bytearray | memoryview] | None, /) -> None:
        """Replace all streams; None or no streams remove them.

        Raises
        ------
        WrongTypeError
            One of them is not bytes; nothing was written.
        """
        if isinstance(streams, (str, bytes, bytearray, memoryview)):
            raise WrongTypeError(
                f"state {self.name!r}: update takes a list of streams, not {shown(streams)}: "
                "write update([stream])"
            )
        self._handle.update([_bytes(stream, self.name) for stream in streams or ()])

    def clear(self) -> None:
        """Remove all streams."""
        self._handle.clear()

    def __len__(self) -> int:
        return len(self._handle)

    def __repr__(self) -> str:
        return f"<RawHandle {self.name!r}>"


class RawKeyGroupHandle(Named):
    """A byte stream per key group of one instance. ``RawState("key_group")`` declares it.

    Attributes
    ----------
    name : str
        The state's name.
    """

    def __init__(self, handle: MapHandle, own: Own) -> None:
        self._handle = handle
        self._own = own
        self.name = handle.name
        self.table = handle.table

    def key_groups(self) -> list[int]:
        """The key groups that have a stream, in order."""
        return sorted(self._handle.keys())

    def read(self, key_group: int, /) -> bytes | None:
        """The stream of a key group; None if it has none.

        Raises
        ------
        InvalidArgumentError
            The key group belongs to another instance.
        """
        found = self._handle.get(self._checked(key_group))
        return None if found is None else found["stream"]

    def write(self, key_group: int, stream: bytes | bytearray | memoryview, /) -> None:
        """Replace the stream of a key group.

        Raises
        ------
        InvalidArgumentError
            The key group belongs to another instance.
        WrongTypeError
            The stream is not bytes.
        """
        group = self._checked(key_group)
        groups = self._own.instance.max_parallelism
        content = {"key_groups": groups, "stream": _bytes(stream, self.name)}
        self._handle.put(group, content)

    def remove(self, key_group: int, /) -> None:
        """Remove the stream of a key group, if it has one."""
        self._handle.remove(self._checked(key_group))

    def clear(self) -> None:
        """Remove all streams."""
        self._handle.clear()

    def __len__(self) -> int:
        return len(self._handle)

    def _checked(self, key_group: int) -> int:
        first, last = self._own.instance.key_groups
        group = integer(key_group, f"state {self.name!r}: the key group")
        if not first <= group <= last:
            raise InvalidArgumentError(
                f"state {self.name!r}: key group {group} belongs to another instance; this one has "
                f"{first} to {last}, ctx.key_group_range"
            )
        return group

    def __repr__(self) -> str:
        return f"<RawKeyGroupHandle {self.name!r}>"


def _bytes(stream: Any, name: str) -> bytes:
    if not isinstance(stream, (bytes, bytearray, memoryview)):
        raise WrongTypeError(f"state {name!r}: a stream is bytes, not {shown(stream)}")
    return bytes(stream)
