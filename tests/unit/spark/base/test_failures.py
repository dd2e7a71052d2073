"""What is made of the errors of users' functions, and of what Spark reports of them."""

from __future__ import annotations

import sys
import types

import pytest
from py4j.protocol import Py4JError
from pyspark.errors.exceptions.captured import PythonException

from pystate.base.notes import notes_of
from pystate.errors import FunctionError, InvalidArgumentError, WrongTypeError
from pystate.spark.base.failures import as_function_error, called_by_user, original_error

FRAMES = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/pystate/spark/tasks/worker.py", line 205, in run_task
    task.release()
  File "pystate/_core/calls.pyx", line 322, in pystate._core.calls.Emitted.add_all
  File "/home/ann/job.py", line 9, in process
    yield key, self.rate(row)
  File "/home/ann/pystate/rates.py", line 4, in rate
    return np.divide(1, 0)
  File "/env/lib/python3.11/site-packages/numpy/math.py", line 7, in divide
    raise
"""


class Reported(PythonException):
    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


class RateError(Exception):
    """An exception with other arguments than a message."""

    def __init__(self, rate: int, message: str) -> None:
        super().__init__(message)


@pytest.mark.parametrize(
    ("end", "said", "cause"),
    [
        (
            "ZeroDivisionError: division by zero\nin F.process of operator 'u': key 'ann'",
            "ZeroDivisionError: division by zero\nin F.process of operator 'u': key 'ann'",
            ZeroDivisionError("division by zero"),
        ),
        ("KeyError: 'bob'\n SQLSTATE: 38000\n", "KeyError: 'bob'", KeyError("'bob'")),
        ("StopAsyncIteration", "StopAsyncIteration", StopAsyncIteration()),
        ("rates.RateError: no rate", "rates.RateError: no rate", None),
        ("absent.Error: two\nlines: of it", "absent.Error: two\nlines: of it", None),
        ("KeyboardInterrupt", "KeyboardInterrupt", None),
    ],
)
def test_a_workers_exception_is_the_cause(
    monkeypatch: pytest.MonkeyPatch, end: str, said: str, cause: Exception | None
) -> None:
    module = types.ModuleType("rates")
    module.RateError = RateError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rates", module)
    error = as_function_error(Reported(FRAMES + end))
    assert isinstance(error, FunctionError)
    comma = ", " if "operator" in said else "\n"
    assert str(error) == f"{said}{comma}line 4 of /home/ann/pystate/rates.py"
    expected = RuntimeError(said) if cause is None else cause
    assert repr(error.__cause__) == repr(expected)
    assert "absent" not in sys.modules


@pytest.mark.parametrize("printed", [True, False])
def test_an_error_of_pystates_own_says_in_which_call_it_happened(
    monkeypatch: pytest.MonkeyPatch, printed: bool
) -> None:
    monkeypatch.setattr("pystate.spark.base.failures.PRINTED", printed)
    note = "in F.process of operator 'u': key 'ann'"
    reported = Reported(f"{FRAMES}pystate.errors.WrongTypeError: state 'n' is long\n{note}\n")
    error = original_error(reported)
    assert isinstance(error, WrongTypeError) and error.__cause__ is reported
    assert str(error) == "state 'n' is long" + ("" if printed else f"\n{note}")
    assert notes_of(error) == [note]


def test_the_error_of_an_action_on_an_rdd_is_that_of_the_function() -> None:
    java = "An error occurred.\n: SparkException: org.apache.spark.api.python.PythonException: {}"
    after = "\n\n\tat org.apache.spark.api.python.BasePythonRunner\nCaused by: other: 1\n\tat x"
    note = "in F.process of operator 'u': key 'ann'"
    text = java.format(FRAMES.partition("\n")[2]) + f"KeyError: 1\n{note}{after}"
    error = as_function_error(Py4JError(text))
    assert isinstance(error, FunctionError)
    assert str(error) == f"KeyError: 1\n{note}, line 4 of /home/ann/pystate/rates.py"
    for other in (Py4JError("no trace"), RuntimeError(text)):
        assert as_function_error(other) is other


def test_what_is_no_exception_of_a_function_stays() -> None:
    ours = Reported(f"{FRAMES}pystate.checkpoint.begin_marks.RefusedError: it has ended")
    others = ValueError("a"), InvalidArgumentError("b"), Reported("no trace"), Reported("")
    for error in (*others, ours):
        assert as_function_error(error) is error
    library = FRAMES.replace("/home/ann/", "/env/lib/python3.11/site-packages/")
    assert "\nline 7 of" in str(as_function_error(Reported(f"{library}ValueError: x")))


def test_what_the_driver_called_says_where() -> None:
    try:
        int("no number")
    except ValueError as error:
        made = called_by_user(error, "a batch of job 'j'")
        assert made.__cause__ is error
    text = str(made)
    assert text.startswith("ValueError: invalid literal")
    assert "in a batch of job 'j', line" in text
    assert text.endswith(f"of {__file__}")
    assert str(called_by_user(KeyError(), "x")) == "KeyError\nin x"
