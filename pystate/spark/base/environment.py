"""What jobs on Spark need beside pystate: packages, Java, a classic session; and how they lack it.

The packages are the extra ``spark`` of the distribution. They are no hard dependency, since a
cluster has its own pyspark. Everything is checked when it is needed, before anything is computed.

Thread safety: the functions keep no state of their own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from pystate.base.arguments import shown
from pystate.base.installation import extra
from pystate.errors import InvalidArgumentError, MissingPackageError, MissingRequirementError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame


#: The requirements of the extra ``spark``, by package.
REQUIREMENTS = {"pyspark": "pyspark>=4.1", "pandas": "pandas>=2.2,<3"}

_OLDEST_PYSPARK = (4, 1)
_OLDEST_JAVA = 17


def require_classic(frame: Any, argument: str = "df") -> DataFrame:
    """Return `frame` if it is a DataFrame of a classic session."""
    module = type(frame).__module__
    if module.startswith("pyspark.sql.connect"):
        raise InvalidArgumentError(
            f"{argument} belongs to a Spark Connect session, which pystate cannot use (no "
            "SparkContext, no foreachBatch in this process): build the session with "
            "SparkSession.builder.master(...) instead of .remote(...)"
        )
    from pyspark.sql import DataFrame

    if not isinstance(frame, DataFrame):
        hint = ""
        if hasattr(frame, "columns") or hasattr(frame, "schema"):
            hint = f"; make one of it with spark.createDataFrame({argument})"
        elif type(frame).__module__.startswith("pystate.spark.operators"):
            calls = [name for name in ("process", "aggregate") if hasattr(frame, name)]
            hint = f"; call its {' or '.join(calls)}(...), which gives one" if calls else ""
        elif callable(getattr(frame, "toDF", None)):
            hint = f"; make one of it with {argument}.toDF(schema)"
        raise InvalidArgumentError(f"{argument} is a DataFrame of Spark, not {shown(frame)}{hint}")
    return frame


def local_uri(path: str, *, to_read: bool = False) -> str:
    r"""Return a local folder's name for Spark, whatever Spark's default file system is.

    The paths of Hadoop look like URIs, but nothing in them is percent-encoded. A reader takes its
    path as a pattern.

    Examples
    --------
    >>> print(local_uri("/data/50% [1]"), local_uri("/data/50% [1]", to_read=True))
    file:///data/50% [1] file:///data/50% \[1\]
    """
    if to_read:
        path = re.sub(r"[][{}*?\\]", r"\\\g<0>", path)
    return f"file://{path}"


def use_this_python(context: SparkContext) -> None:
    """Make the workers of a local master run this interpreter, unless the user chose another.

    If ``PYSPARK_PYTHON`` is unset, Spark takes ``python3`` from PATH, which inside a virtual
    environment often lacks pyarrow. The variable has no effect once the session exists, so the
    attribute is set.
    """
    if not str(context.master or "").startswith("local"):
        return
    chosen = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
    if not chosen:
        context.pythonExec = sys.executable


def require_java() -> None:
    """Raise `MissingRequirementError` if Spark would not find a Java that it can run on."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    advice = (
        f"install Java {_OLDEST_JAVA} or later (Debian, Ubuntu: apt install "
        f"openjdk-{_OLDEST_JAVA}-jre-headless; macOS: brew install openjdk@{_OLDEST_JAVA})"
    )
    if java is None or not os.path.exists(java):
        where = f"JAVA_HOME is {home} but holds no bin/java" if home else "no java on PATH"
        raise MissingRequirementError(f"Spark needs Java and found none ({where}): {advice}")
    try:
        run = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingRequirementError(f"{java} does not run ({error}): {advice}") from None
    version = java_major_version(run.stderr + run.stdout)
    if run.returncode or version is None:
        raise MissingRequirementError(f"{java} -version does not tell a version: {advice}")
    if version < _OLDEST_JAVA:
        raise MissingRequirementError(f"{java} is Java {version}, too old for Spark: {advice}")


def java_major_version(text: str) -> int | None:
    """Find the major version in what ``java -version`` prints.

    Examples
    --------
    >>> java_major_version('openjdk version "17.0.15" 2025-04-15')
    17
    >>> java_major_version('java version "1.8.0_401"')
    8
    """
    version = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if version is None:
        return None
    major = int(version[1])
    return int(version[2]) if major == 1 and version[2] else major


def require_pyspark() -> None:
    """Raise `MissingPackageError` unless a recent enough pyspark is installed."""
    try:
        import pyspark
    except ImportError as error:
        raise _missing("pystate.spark", "pyspark", f"there is none ({error})") from error
    version = str(pyspark.__version__)
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < _OLDEST_PYSPARK:
        raise _missing("pystate.spark", "pyspark", f"found is {version}")


def require_pandas(what: str) -> None:
    """Raise `MissingPackageError` unless pyspark accepts the installed pandas.

    Spark runs functions over Arrow data in the same way as those over pandas frames, and so
    requires pandas for both.
    """
    from pyspark.sql.pandas.utils import require_minimum_pandas_version

    try:
        require_minimum_pandas_version()
    except ImportError as error:
        version = getattr(sys.modules.get("pandas"), "__version__", None)
        raise _missing(
            f"{what}: Spark's mapInArrow, which runs operators over DataFrames,",
            "pandas",
            f"there is none ({error.__cause__})" if version is None else f"found is {version}",
        ) from error


def _missing(what: str, package: str, instead: str) -> MissingPackageError:
    wanted = REQUIREMENTS if package == "pyspark" else {package: REQUIREMENTS[package]}
    install = " ".join(repr(requirement) for requirement in wanted.values())
    return MissingPackageError(
        f"{what} needs {REQUIREMENTS[package]}, and {instead}: pip install {install} into the "
        f"environment of {sys.executable}, with a cluster pyspark of the version that the cluster "
        f"runs; or {extra('spark')}"
    )
