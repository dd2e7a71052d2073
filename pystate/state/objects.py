"""Objects in states: pickled and unpickled, with errors that name the state.

Pure functions, safe from any thread.

What is stored
--------------
1. An object of a `Versioned` class is pickled as a call of ``restored(class, version, state)``, at
   any depth of what it is stored in: the version travels in the pickle, beside the state that it
   describes. Files and their format know nothing of it.
2. A pickle that a class left before it was `Versioned` has no version, which is version 0.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, ClassVar

from pystate.errors import DeclarationError, PystateError, SchemaError, WrongTypeError


class Versioned:
    """Base of classes whose objects are kept in states, and whose attributes change over time.

    Raise `state_version` with every such change, and teach `migrate` to take the attributes from
    one version to the next. Stored objects are then migrated when they are read, from whatever
    version they have; nothing is rewritten before its key is written again.

    Attributes
    ----------
    state_version : int
        The version of the attributes that the class works with.

    Notes
    -----
    A class may become `Versioned` later: objects that were stored before have version 0. Only an
    object without any attributes is then not migrated, since nothing was stored of it, and a class
    with a ``__setstate__`` of its own is given those attributes as they are.

    Examples
    --------
    >>> import pystate as ps
    >>> class Visit(ps.Versioned):
    ...     state_version = 1
    ...
    ...     def __init__(self, page: str) -> None:
    ...         self.page, self.seconds = page, 0
    ...
    ...     @classmethod
    ...     def migrate(cls, state, from_version):
    ...         if from_version == 0:  # had no seconds
    ...             state["seconds"] = 0
    ...         return state
    """

    state_version: ClassVar[int] = 0

    @classmethod
    def migrate(cls, state: Any, from_version: int) -> Any:
        """Take an object's attributes from one version to the next.

        Parameters
        ----------
        state : dict
            The attributes, as version `from_version` of the class had them; of a class with
            ``__slots__`` the pair that pickle makes of them, and what ``__getstate__`` gives where
            the class has one.
        from_version : int
            Their version. It is called once for each version that the object is behind.

        Returns
        -------
        dict
            The attributes as version ``from_version + 1`` has them.
        """
        raise NotImplementedError(
            f"{cls.__qualname__} has state_version={cls.state_version} and no migrate from version "
            f"{from_version}"
        )

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        reduced: Any = super().__reduce_ex__(2)
        _, arguments, state, *items = reduced
        version = type(self).state_version
        return restored, (type(self), version, state, *arguments[1:]), None, *items

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if type(cls.state_version) is not int or cls.state_version < 0:
            raise DeclarationError(
                f"{cls.__qualname__}: state_version is a number from 0 on, not "
                f"{cls.state_version!r:.60}"
            )

    def __setstate__(self, state: Any) -> None:
        # Only pickles without a version call it.
        _set_state(self, _migrate(type(self), 0, state))


def restored(cls: type[Versioned], version: int, state: Any, *arguments: Any) -> Versioned:
    """Return an object of the class from the attributes that a version of it had."""
    object_ = cls.__new__(cls, *arguments)
    _set_state(object_, _migrate(cls, version, state))
    return object_


def _migrate(cls: type[Versioned], version: int, state: Any) -> Any:
    if version > cls.state_version:
        raise SchemaError(
            f"an object of {cls.__qualname__} was stored as version {version}, and the class is "
            f"version {cls.state_version}: run the program that stored it, or a later one"
        )
    for at in range(version, cls.state_version):
        state = cls.migrate(state, at)
    return state


def _set_state(object_: Versioned, state: Any) -> None:
    """Set attributes as pickle does."""
    own: Callable[[Any], None] | None = getattr(object_, "__setstate__", None)
    if own is not None and type(object_).__setstate__ is not Versioned.__setstate__:
        own(state)
        return
    values, slots = state if isinstance(state, tuple) else (state, None)
    for name, value in (*(values or {}).items(), *(slots or {}).items()):
        object.__setattr__(object_, name, value)


def pickled(name: str, value: Any, key: str = "") -> bytes:
    """The bytes of an object that state `name` keeps."""
    try:
        return pickle.dumps(value, protocol=5)
    except PystateError:
        raise
    except Exception as error:
        raise WrongTypeError(
            f"state {name!r}{key}: {type(value).__name__} cannot be pickled: {error}; "
            "nothing was written"
        ) from error


def unpickled(name: str, data: bytes) -> Any:
    """The object that was pickled into these bytes."""
    try:
        return pickle.loads(data)
    except SchemaError as error:
        raise SchemaError(f"state {name!r}: {error}") from error
    except Exception as error:
        raise SchemaError(
            f"state {name!r}: a stored object cannot be unpickled: {error}; is its class "
            "still importable under the same name?"
        ) from error
