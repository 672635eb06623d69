"""The Java that Spark runs in, a child of this process: whether it has ended, and how.

PySpark starts one for a process, and takes it for alive for good. Here a load learns that the
kernel, say, has killed it, and that the next session needs another.
"""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext

WHERE_MEMORY_IS_SHORT = "the kernel kills where memory is short"

_ENDS_WITHIN_S = 10.0  # its connections close before the process is gone


def ended_java(*, waits: bool = False) -> str | None:
    """How Spark's Java ended, in words; None while it runs, and where there is none.

    One that does not answer any more may be given the time to end: `waits`.
    """
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    return _end_of(gateway.proc if gateway is not None else None, waits=waits)


def _end_of(process: subprocess.Popen[bytes] | None, *, waits: bool) -> str | None:
    if process is None:  # not started by PySpark, or not at all
        return None
    try:
        return words_of(process.wait(_ENDS_WITHIN_S if waits else 0))
    except subprocess.TimeoutExpired:
        return None


def words_of(status: int) -> str:
    """What Java's exit status says (pure)."""
    if status == -signal.SIGKILL:
        return f"Spark's Java was killed: {WHERE_MEMORY_IS_SHORT}"
    if status < 0:
        return f"Spark's Java was ended by signal {-status}"
    return f"Spark's Java ended with status {status}"


def let_java_end_quietly(context: SparkContext) -> None:
    """Not with a traceback by PySpark's server of accumulators, which it hangs up on."""
    server, gateway = context._accumulatorServer, context._gateway
    java, told = gateway.proc if gateway is not None else None, server.handle_error

    def tell(request: Any, address: Any) -> None:
        if not _end_of(java, waits=True):
            told(request, address)

    server.handle_error = tell  # type: ignore[assignment, method-assign]


def forget_java() -> None:
    """Let PySpark start another for its next session: it would ask the one that has ended."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is not None:
        context._jsc = None  # or it is asked to stop
        context.stop()
    SparkContext._gateway = SparkContext._jvm = None
