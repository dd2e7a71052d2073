"""Notes of exceptions, on Pythons that print them and on those that do not."""

from __future__ import annotations

import traceback

import pytest

from pystate.errors import WrongTypeError
from pystate.notes import add_note, notes_of, with_notes

NOTE = "in F.process of operator 'u': key 'ann'"


class OwnError(Exception):
    """An exception with other arguments than a message."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(code, what)

    def __str__(self) -> str:
        return "own"


@pytest.mark.parametrize("printed", [True, False])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
        (KeyError("bob"), "KeyError: 'bob'"),
        (OwnError(1, "x"), f"{__name__}.OwnError: own"),
        (WrongTypeError("state 'n' is int"), "pystate.errors.WrongTypeError: state 'n' is int"),
    ],
)
def test_what_is_printed_of_an_exception_has_its_notes(
    monkeypatch: pytest.MonkeyPatch, printed: bool, error: Exception, said: str
) -> None:
    monkeypatch.setattr("pystate.notes.PRINTED", printed)
    if printed and not hasattr(error, "add_note"):
        printed = False
        monkeypatch.setattr("pystate.notes.PRINTED", printed)
    cause = ValueError("before")
    vars(error).pop("__notes__", None)
    with pytest.raises(Exception, match=r".") as caught:
        try:
            raise error from cause
        except Exception as raised:
            add_note(raised, NOTE)
            add_note(raised, "and again")
            raise with_notes(raised) from raised.__cause__
    left = caught.value
    assert notes_of(error) == [NOTE, "and again"]
    assert (left is error) == printed
    text = "".join(traceback.format_exception(type(left), left, left.__traceback__))
    assert text.endswith(f"{said}\n{NOTE}\nand again\n")
    assert left.__cause__ is cause


def test_an_exception_without_notes_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pystate.notes.PRINTED", False)
    error = KeyError("a")
    assert with_notes(error) is error and notes_of(error) == []
