"""Notes of exceptions, on Pythons that print them and on those that do not; and their causes."""

from __future__ import annotations

import traceback

import pytest

from pystate.base.notes import add_note, hide_in_causes, notes_of, with_notes
from pystate.errors import WrongTypeError

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
    monkeypatch.setattr("pystate.base.notes.PRINTED", printed)
    if printed and not hasattr(error, "add_note"):
        printed = False
        monkeypatch.setattr("pystate.base.notes.PRINTED", printed)
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
    monkeypatch.setattr("pystate.base.notes.PRINTED", False)
    error = KeyError("a")
    assert with_notes(error) is error and notes_of(error) == []


SECRET = "postgresql://me:wJal/K7MDENG@host/db"


class FinalError(Exception):
    """An exception from which no class can be derived."""

    def __init_subclass__(cls) -> None:
        raise TypeError("final")


def caught_from(*errors: BaseException) -> BaseException:
    """The last of some exceptions, each raised while the one before is handled."""
    led = errors[0]
    for error in errors[1:]:
        try:
            try:
                raise led
            except BaseException:
                raise error  # noqa: B904
        except BaseException as raised:
            led = raised
    return led


@pytest.mark.parametrize(
    "led",
    [
        ConnectionError(SECRET),
        OSError(5, "no", SECRET),
        KeyError(SECRET),
        UnicodeDecodeError("utf-8", SECRET.encode(), 0, 1, SECRET),
        FinalError(SECRET),
    ],
    ids=lambda led: type(led).__name__,
)
def test_what_led_to_an_exception_shows_no_secret(led: Exception) -> None:
    add_note(led, f"of {SECRET}")
    plain = ValueError("plain")
    error = caught_from(led, plain, WrongTypeError("last"))
    hide_in_causes(error)
    printed = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    assert "K7MDENG" not in printed and "***@host" in printed and "plain" in printed
    assert error.__context__ is plain
    assert plain.__context__ is not None and plain.__context__ is not led
    assert type(plain.__context__).__name__ == type(led).__name__
    assert isinstance(plain.__context__, type(led)) or isinstance(led, FinalError)
    assert plain.__context__.__traceback__ is led.__traceback__
    assert "***@host" in notes_of(plain.__context__)[0]


def test_a_cause_without_secrets_stays() -> None:
    cause = KeyError("a")
    error = WrongTypeError("b")
    error.__cause__, cause.__context__ = cause, error
    hide_in_causes(error)
    assert error.__cause__ is cause and str(cause) == "'a'"
    # What is not printed is not looked at.
    hidden = WrongTypeError("c")
    hidden.__context__ = before = OSError(SECRET)
    hidden.__suppress_context__ = True
    hide_in_causes(hidden)
    assert hidden.__context__ is before
