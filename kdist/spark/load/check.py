"""Looks whether a job can run here and now: what Spark needs, where it writes, its topics.

Loads nothing, and leaves nothing. What Spark makes of its own settings is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from os.path import dirname
from typing import NamedTuple

from kdist.config.load_job import LoadSettings
from kdist.errors import KdistError, UserError
from kdist.runtime.files import Files
from kdist.spark.load.layout import Run, probe_name
from kdist.spark.load.ledger import Ledger
from kdist.spark.load.plan import ask, hanging, look_at_topic, plan_load
from kdist.spark.load.report import require_directory
from kdist.spark.load.spark_session import require_java


class Finding(NamedTuple):
    """A sentence on what was looked at."""

    said: str
    is_wrong: bool = False


def look_at_job(
    job: LoadSettings, files: Files, environment: Mapping[str, str], run: Run
) -> Iterator[Finding]:
    """What is found, one after the other; without brokers, nothing of the topics."""
    ledgers = [Ledger(files, job.output, topic) for topic in job.topics]
    yield _attempt(partial(_look_for_spark, files, environment))
    yield _attempt(partial(_look_at_directory, files, job.output, run))
    for ledger in ledgers:
        if files.is_directory(ledger.directory):
            yield _attempt(partial(_look_at_directory, files, ledger.directory, run))
    if job.metrics_file is not None:
        yield _attempt(partial(_look_at_metrics, files, job, run))
    brokers = _attempt(partial(_look_for_brokers, job))
    yield brokers
    if not brokers.is_wrong:
        for ledger in ledgers:
            yield _attempt(partial(_look_at_topic, job, ledger, run))


def _attempt(look: Callable[[], str]) -> Finding:
    try:
        return Finding(look())
    except (KdistError, OSError) as error:
        return Finding(str(error), is_wrong=True)


def _look_for_spark(files: Files, environment: Mapping[str, str]) -> str:
    for package in ("pyspark", "pyarrow"):
        if find_spec(package) is None:
            raise UserError(f"{package} is missing: pip install '.[spark]' in kdist's source tree")
    require_java(files, environment)
    return "PySpark, pyarrow and Java are there"


def _look_at_directory(files: Files, directory: str, run: Run) -> str:
    if files.is_directory(directory):
        _write_to(files, directory, run)
        return f"{directory} can be written to"
    parent = dirname(directory.rstrip("/")) or "/"
    if not files.is_directory(parent):
        raise UserError(f"{directory} cannot be made: {parent} does not exist")
    _write_to(files, parent, run)
    return f"{directory} can be made"


def _look_at_metrics(files: Files, job: LoadSettings, run: Run) -> str:
    require_directory(files, job)
    path = str(job.metrics_file)
    _write_to(files, dirname(path) or ".", run)
    return f"{path} can be written"


def _write_to(files: Files, directory: str, run: Run) -> None:
    """Make a directory in another, and remove it: only that tells for every filesystem."""
    path = f"{directory.rstrip('/')}/{probe_name(run)}"
    try:
        files.make_directory(path)
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"{directory} cannot be written to: {why}") from None
    files.remove_tree(path)


def _look_for_brokers(job: LoadSettings) -> str:
    known = ask(job, lambda cluster: cluster.metadata(()))
    return f"brokers answer: {', '.join(f'{each.host}:{each.port}' for each in known.brokers)}"


def _look_at_topic(job: LoadSettings, ledger: Ledger, run: Run) -> str:
    before = ledger.last()
    found = look_at_topic(job, ledger.topic, before.epochs if before is not None else {})
    plan = plan_load(found, before)
    if (hangs := hanging(plan, run.started_ms)) is not None:
        raise hangs
    count = sum(each.size for each in plan.ranges)
    return f"{found.name} has {count:,} offsets for load {plan.number}"
