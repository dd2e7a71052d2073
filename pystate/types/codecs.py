"""What turns the Python values of a type into the core's and back.

Pure functions, safe from any thread.
"""

from __future__ import annotations

from pystate._core import core
from pystate.types.nested import NestedCodec
from pystate.types.state_type import StateType

__all__ = ["codec_of"]


def codec_of(type: StateType, name: str, label: str = "") -> core.Codec:
    """Return the codec of a type.

    Parameters
    ----------
    type : StateType
        The values'.
    name : str
        The state's, or the column's.
    label : str
        What errors begin with, where it is not the state.
    """
    if type.is_nested:
        return NestedCodec(type, name)
    return core.Codec(name, type.code, type.precision, type.scale, type.ddl, label)
