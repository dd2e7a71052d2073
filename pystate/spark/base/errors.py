"""What a processor written for Spark may catch.

Thread safety: classes.
"""

from __future__ import annotations

from pyspark.errors import PySparkRuntimeError

from pystate.errors import InvalidArgumentError


class StatefulProcessorError(InvalidArgumentError, PySparkRuntimeError):
    """A processor written for Spark asks for something that its handle or state refuses.

    It is a `PySparkRuntimeError`, as in Spark, and an error of pystate.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.args = (message,)

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), (str(self),)
