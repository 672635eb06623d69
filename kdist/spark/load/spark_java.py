"""The Java process that Spark runs in, a child of this one: whether it has ended, and how.

PySpark starts it once, and then assumes that it is alive. Here a load detects that it has ended,
for example that the kernel has killed it, and makes PySpark start another for the next session.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kdist.runtime.files import Files
from kdist.runtime.programs import find_java

if TYPE_CHECKING:
    from pyspark import SparkContext

WHERE_MEMORY_IS_SHORT = "the kernel does this when memory is short"

_ENDS_WITHIN_S = 10.0  # its connections close before the process has ended
# With these set, Spark may have a spark-env.sh, which says where Java is.
_SPARK_INSTALLED = ("SPARK_HOME", "SPARK_CONF_DIR")


def require_java(files: Files, environment: Mapping[str, str]) -> None:
    """`UserError` if there is no Java for Spark, as far as can be told."""
    if environment.keys().isdisjoint(_SPARK_INSTALLED):
        find_java(files, environment, "Spark")


def ended_java(*, waits: bool = False) -> str | None:
    """How Spark's Java ended, in words; None if it is running, or was never started.

    `waits` gives a process that no longer answers the time to end.
    """
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    return _end_of(gateway.proc if gateway is not None else None, waits=waits)


def _end_of(process: subprocess.Popen[bytes] | None, *, waits: bool) -> str | None:
    if process is None:  # started by somebody else, or not at all
        return None
    try:
        return words_of(process.wait(_ENDS_WITHIN_S if waits else 0))
    except subprocess.TimeoutExpired:
        return None


def words_of(status: int) -> str:
    """Java's exit status in words (pure)."""
    if status == -signal.SIGKILL:
        return f"Spark's Java was killed: {WHERE_MEMORY_IS_SHORT}"
    if status < 0:
        return f"Spark's Java was ended by signal {-status}"
    return f"Spark's Java ended with status {status}"


def let_java_end_quietly(context: SparkContext) -> None:
    """Keep PySpark's accumulator server from printing a traceback when Java ends."""
    server, gateway = context._accumulatorServer, context._gateway
    java, told = gateway.proc if gateway is not None else None, server.handle_error

    def tell(request: Any, address: Any) -> None:
        if not _end_of(java, waits=True):
            told(request, address)

    server.handle_error = tell  # type: ignore[assignment, method-assign]


def forget_java() -> None:
    """Make PySpark forget the Java that has ended, so that its next session starts another."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is not None:
        context._jsc = None  # else `stop` would call it
        context.stop()
    SparkContext._gateway = SparkContext._jvm = None
