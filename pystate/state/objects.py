"""Objects in states: pickled and unpickled, with errors that name the state.

Pure functions, safe from any thread.
"""

from __future__ import annotations

import pickle
from typing import Any

from pystate.errors import PystateError, SchemaError, WrongTypeError

__all__ = ["pickled", "unpickled"]


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
    except Exception as error:
        raise SchemaError(
            f"state {name!r}: a stored object cannot be unpickled: {error}; is its class "
            "still importable under the same name?"
        ) from error
