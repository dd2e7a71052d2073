"""Codecs, which turn the Python values of a type into the core's and back.

Pure functions, safe from any thread.
"""

from __future__ import annotations

from pystate._core import core
from pystate.types.nested import NestedCodec
from pystate.types.state_type import StateType


def codec_of(type: StateType, name: str, label: str = "") -> core.Codec:
    """Return the codec of a type.

    Parameters
    ----------
    type : StateType
        The type of the values.
    name : str
        The name of the state or the column.
    label : str
        What error messages begin with, if not with the state's name.
    """
    if type.is_nested:
        return NestedCodec(type, name)
    return core.Codec(name, type.code, type.precision, type.scale, type.ddl, label)
