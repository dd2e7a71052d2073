"""Failures inside Spark: pystate's own errors extracted, and which failures may be retried.

Spark wraps an exception of a Python worker, with its trace, into the message of another exception.

Thread safety: functions without state.
"""

from __future__ import annotations

import os
import re
import sys
import traceback

from pystate import errors
from pystate.base.notes import PRINTED, add_note
from pystate.errors import FunctionError, MissingPackageError, PystateError
from pystate.spark.base import errors as spark_errors

#: An error's class and message; the note that follows says in which call it happened.
_PYTHON_ERROR = re.compile(
    r"^pystate\.(?:spark\.base\.)?errors\.(\w+): (.*)$(?:\n(in \S+ of operator .*)$)?", re.MULTILINE
)
#: What pystate itself imports in a worker; other missing modules are those of users' functions.
_NO_MODULE = re.compile(
    r"ModuleNotFoundError: No module named "
    r"'(pystate|pystate\._core\.\w+|numpy|pyarrow|lz4|pandas)'"
)
#: Where a worker's trace begins, a frame of it, and what it ends with.
_TRACE = "Traceback (most recent call last):\n"
_FRAME = re.compile(
    r'^ +File "(?P<file>[^"\n]*)", line (?P<line>\d+), in (?P<name>.*)$', re.MULTILINE
)
_END = re.compile(
    r"^(?P<kind>[A-Za-z_][\w.]*)(?:: (?P<message>.*?))?(?P<notes>(?:\nin \S+ of .*)*)"
    r"(?:\n SQLSTATE: \w+)?\s*\Z",
    re.MULTILINE | re.DOTALL,
)
#: Files whose frames are not the user's.
_OURS = re.compile(
    r"^pystate/_core/|^<frozen |/(?:site|dist)-packages/|/pyspark\.zip/|/lib/python3|^"
    + re.escape(os.path.dirname(errors.__file__) + os.sep)
)
#: What py4j's text of a worker's exception has before the trace.
_OF_JAVA = "org.apache.spark.api.python.PythonException: "
_BARRIER_FAILURE = "Could not recover from a failed barrier ResultStage"
_CANCEL_SIGNS = (
    "SPARK_JOB_CANCELLED",
    "InterruptedException",
    "was cancelled",
    "SparkContext was shut",
)

#: How Spark describes the jobs that it cancels because their query ends.
_QUERY_STOPPED = re.compile(
    r"Query \[[^]]*\] was stopped|java\.lang\.InterruptedException|ClosedByInterruptException"
)


class QueryStopped(Exception):  # noqa: N818 (no error)
    """The error that an epoch raises when its query is stopped.

    Spark recognises an interrupted batch function by the text of its error, which must name py4j
    and Java's exception; with any other text the query fails. Spark looks for the two with a
    regular expression that recurses for every character in between. With the long text of a Java
    error between them, the query's thread would die of a stack overflow.
    """

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling a batch function: "
            "java.lang.InterruptedException: the query was stopped"
        )


def original_error(error: BaseException) -> BaseException:
    """The pystate error that a worker raised, if `error` is Spark's report of one."""
    if isinstance(error, PystateError):
        return error
    text = str(error)
    missing = _NO_MODULE.search(text)
    if missing is not None:
        return _with_cause(
            MissingPackageError(
                f"the Python of the executors has no {missing[1]}: install pystate-spark for the "
                "Python that they run, on every host, or ship an environment by --archives, and "
                "name its Python by spark.pyspark.python. --py-files cannot bring the extension "
                "in pystate's wheel. docs/deployment.md says more"
            ),
            error,
        )
    raised = None
    for match in _PYTHON_ERROR.finditer(text):
        raised = match
    if raised is None:
        return error
    kind = getattr(errors, raised[1], None) or getattr(spark_errors, raised[1], None)
    if not (isinstance(kind, type) and issubclass(kind, PystateError)):
        return error
    message, note = raised[2].strip(), (raised[3] or "").strip()
    original = _with_cause(kind("\n".join(filter(None, [message, "" if PRINTED else note]))), error)
    if note:
        add_note(original, note)
    return original


def as_function_error(error: BaseException) -> BaseException:
    """The error of a user's function, if `error` is Spark's report of one from a worker."""
    text = _of_worker(error)
    if text is None:
        return error
    trace = text.rpartition(_TRACE)[2]
    frames = list(_FRAME.finditer(trace))
    below = trace[frames[-1].end() :] if frames else ""
    end = re.search(r"^(?=[A-Za-z_])", below, re.MULTILINE)
    report = None if end is None else _END.match(below[end.start() :])
    if report is None or report["kind"].startswith("pystate."):
        return error  # no function of the user has raised it
    users = [frame for frame in frames if not _OURS.search(frame["file"])] or frames[-1:]
    message = report["message"] or ""
    text = report["kind"] + (f": {message}" if message else "") + report["notes"]
    comma = ", " if report["notes"] else "\n"
    original = FunctionError(f"{text}{comma}line {users[-1]['line']} of {users[-1]['file']}")
    return _with_cause(original, _exception(report["kind"], message))


def _of_worker(error: BaseException) -> str | None:
    """What Spark reports of a Python worker, from whose traces Java's are taken away."""
    from pyspark.errors import PythonException

    if isinstance(error, PythonException):
        return str(error)
    # An action on an RDD raises what py4j knows.
    _, sign, after = str(error).partition(_OF_JAVA)
    return after.partition("\n\tat ")[0].rstrip() if sign and _is_py4j(error) else None


def _is_py4j(error: BaseException) -> bool:
    try:
        from py4j.protocol import Py4JError
    except ImportError:  # pragma: no cover - comes with a classic session
        return False
    return isinstance(error, Py4JError)


def _exception(kind: str, message: str) -> BaseException:
    """An exception of a class of that name, which is not imported for this."""
    module, _, name = kind.rpartition(".")
    for place in (module,) if module else ("builtins", "__main__"):
        kind_there = getattr(sys.modules.get(place), name, None)
        if isinstance(kind_there, type) and issubclass(kind_there, Exception):
            try:
                return kind_there(message) if message else kind_there()
            except Exception:
                break  # it takes other arguments
    return RuntimeError(f"{kind}: {message}" if message else kind)


def called_by_user(error: Exception, what: str) -> FunctionError:
    """The error of a function that the driver called: a pipeline, or a method of a sink."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not _OURS.search(frame.filename)]
    where = f", line {users[-1].lineno} of {users[-1].filename}" if users else ""
    text = str(error)
    summary = f"{type(error).__qualname__}: {text}" if text else type(error).__qualname__
    original = FunctionError(f"{summary}\nin {what}{where}")
    original.__cause__ = error
    return original


def _with_cause(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def is_stop(error: BaseException) -> bool:
    """Whether an error is that of cancelled work, for example when its query ends."""
    text = str(error)
    return any(sign in text for sign in _CANCEL_SIGNS)


def stopped_its_query(error: BaseException) -> bool:
    """Whether an error says that the query's work was interrupted because the query is stopped."""
    return _QUERY_STOPPED.search(str(error)) is not None


def is_retryable(error: Exception) -> bool:
    """Whether an evaluation that failed with this error may succeed when it is run again.

    It may after a lost executor, a killed worker or a full disk; never after a mistake in the plan,
    an exception of the user's function, or the stop of a query. Spark itself repeats a task whose
    function failed, but not those of a job's last stage if that is a barrier stage.
    """
    from pyspark.errors import AnalysisException, PySparkException, PythonException

    if isinstance(error, FunctionError):
        # Raised while Spark's report of it was handled.
        return _BARRIER_FAILURE in str(error.__context__)
    if isinstance(error, PystateError) or is_stop(error):
        return False
    if isinstance(error, (AnalysisException, PythonException)):
        return False
    return isinstance(error, PySparkException) or _is_py4j(error)
