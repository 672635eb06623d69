"""Spark for a load: a session with the job's settings, its Java, its errors as sentences.

PySpark starts Java once, as a child of this process, and then assumes that it is alive. A load
detects that it has ended, for example that the kernel has killed it, and makes PySpark start
another for the next session.
"""

from __future__ import annotations

import logging
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from os.path import dirname
from threading import current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING, Any

from kdist.errors import KdistError, UserError
from kdist.runtime.files import Files
from kdist.runtime.programs import find_java
from kdist.spark import register
from kdist.spark.workers import is_alone

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

WHERE_MEMORY_IS_SHORT = "the kernel does this when memory is short"

_ENDS_WITHIN_S = 10.0  # its connections close before the process has ended
# With these set, Spark may have a spark-env.sh, which says where Java is.
_SPARK_INSTALLED = ("SPARK_HOME", "SPARK_CONF_DIR")

_OURS = re.compile(r"(?:^|: )kdist\.[a-z_.]+\.[A-Za-z]+: (.+)$", re.MULTILINE)
_CAUSE = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_CALLED = re.compile(r"^: (.+)$", re.MULTILINE)  # Py4J's line below the name of the call
_PYTHON = re.compile(r"^([A-Za-z_.]*(?:Error|Exception): .+)$", re.MULTILINE)
_GATEWAY = "JAVA_GATEWAY_EXITED"
_NO_KDIST = re.compile(r"No module named 'kdist[.a-z_]*'")
_FULL = re.compile(r"No space left on device|Disk quota exceeded")
# The latter if Java was reading from the worker at that moment.
_WORKER_GONE = re.compile(r"Python worker exited unexpectedly|Unexpected end of input trying")

_LOG4J = f"{dirname(__file__)}/log4j2.properties"
_JAVA = "spark.driver.extraJavaOptions"
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.log.level": "OFF",
    "spark.sql.adaptive.enabled": "true",
    # For readers other than Spark, and for statistics in the footers.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Two JSON fields may differ only in case.
    "spark.sql.caseSensitive": "true",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Without a `.crc` file for each: Parquet has checksums of its own, and a load its manifest.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}
# With a local master Spark needs no other address, nor a host name that resolves.
_LOOPBACK = "127.0.0.1"
_LOCAL = {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}


class SparkFailed(KdistError):
    """Spark could not do what a load asked of it."""


@contextmanager
def spark_session(
    name: str,
    master: str,
    zone: str,
    extra: Mapping[str, str],
    environment: MutableMapping[str, str],
) -> Iterator[SparkSession]:
    """A new session, stopped in the end. The settings `given` override ours.

    `UserError` if PySpark is missing, or Spark does not start. An interrupt during the start takes
    effect once Spark has started.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise UserError(
            "loads run on PySpark, which is missing: pip install '.[spark]' in kdist's source tree"
        ) from None
    # This Python has kdist installed; `python3` on the path may not.
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_alone(master):
        environment.setdefault("SPARK_LOCAL_IP", _LOOPBACK)  # else Java looks up the host's name
    builder = SparkSession.builder.appName(name).master(master)
    for key, text in settings_of(master, zone, extra).items():
        builder = builder.config(key, text)
    with _quiet_py4j():
        with put_off_interrupts() as interrupts:
            spark = _started(builder)
        try:
            if interrupts:
                raise KeyboardInterrupt
            let_java_end_quietly(spark.sparkContext)
            with told_in_a_sentence("Spark did not start"):
                register(spark)
            yield spark
        finally:
            _stop(spark)


def _started(builder: SparkSession.Builder) -> SparkSession:
    try:
        with told_in_a_sentence("Spark did not start"):
            return builder.getOrCreate()
    except SparkFailed as error:
        if ended_java():
            forget_java()
        raise UserError(str(error)) from None


def _stop(spark: SparkSession) -> None:
    if ended_java():
        forget_java()
    else:
        spark.stop()


@contextmanager
def put_off_interrupts() -> Iterator[list[int]]:
    """Collect the first SIGINT in the list, instead of raising; a second one acts as before.

    If PySpark is interrupted while it waits for its Java process, that process is never ended.
    """
    heard: list[int] = []
    if current_thread() is not main_thread():  # Python handles signals in the main thread only
        yield heard
        return
    before = signal.getsignal(signal.SIGINT)

    def put_off(number: int, _: FrameType | None) -> None:
        heard.append(number)
        logger.warning("interrupted: stopping as soon as Spark has started")
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, put_off)
    try:
        yield heard
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _quiet_py4j() -> Iterator[None]:
    root = logging.getLogger()
    root.addFilter(is_no_call_to_java)
    try:
        yield
    finally:
        root.removeFilter(is_no_call_to_java)


def is_no_call_to_java(record: logging.LogRecord) -> bool:
    """A filter against Py4J's log of failed calls: it raises these errors, too."""
    return record.module != "java_gateway"


def settings_of(master: str, zone: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings; those in `given` override ours."""
    local = _LOCAL if is_alone(master) else {}
    progress = {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    java = f"-Dlog4j2.configurationFile=file:{_LOG4J} {extra.get(_JAVA, '')}".strip()
    return {
        **_SETTINGS,
        **local,
        **progress,
        "spark.sql.session.timeZone": zone,
        **extra,
        _JAVA: java,
    }


@contextmanager
def told_in_a_sentence(doing: str) -> Iterator[None]:
    """Turn Spark's exceptions into `SparkFailed`, with kdist's sentence if kdist is the cause."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        has_answered = isinstance(error, (PySparkException, Py4JJavaError))
        said = ended_java(waits=not has_answered) or sentence_of(str(error))
        raise SparkFailed(f"{doing}: {said}") from error


def sentence_of(text: str) -> str:
    """The sentence in Spark's error text that a person can act on."""
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1])
    if _GATEWAY in text:
        return "its Java ended at once; the reason may be in its output above"
    if _WORKER_GONE.search(text):
        return f"a Python worker of Spark's ended before its time: {WHERE_MEMORY_IS_SHORT}"
    if _NO_KDIST.search(text):
        return "the Python that Spark's workers run has no kdist: PYSPARK_PYTHON says which it is"
    if _FULL.search(text):
        return "no space is left in the job's output, or in spark.local.dir"
    causes = _CAUSE.findall(text) or _PYTHON.findall(text) or _CALLED.findall(text)
    lines = text.strip().splitlines() or ["Spark gave no reason"]
    return str(causes[-1]) if causes else lines[0]


# Its Java


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
