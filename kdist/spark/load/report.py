"""What a job tells Prometheus after each run, through the node exporter's textfile collector.

The file remembers the last success, which a run that fails has to repeat.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from os.path import dirname
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from kdist.config.load_job import LoadSettings
from kdist.errors import UserError
from kdist.metrics.declare import Family
from kdist.metrics.exposition import Exposition
from kdist.metrics.load import LoadMetrics, TopicLoadMetrics
from kdist.runtime.files import Files

logger = logging.getLogger(__name__)

_SUCCESS = "kdist_load_last_success_timestamp_seconds"


class TopicReport(NamedTuple):
    """One topic of a run: its newest load, and what this run brought."""

    topic: str
    load: int
    rows: int
    undecoded: int


class RunReport(NamedTuple):
    """A run that has ended."""

    started_ms: int
    ended_ms: int
    is_failed: bool
    topics: tuple[TopicReport, ...]


def require_directory(files: Files, job: LoadSettings) -> None:
    """`UserError` if the directory of the job's metrics file is not there.

    For before a run: after it the loads are committed, and the run would fail all the same.
    """
    if job.metrics_file is not None:
        directory = dirname(job.metrics_file) or "."
        if not files.is_directory(directory):
            raise UserError(f"{job.metrics_file} cannot be written, as {directory} is not there")


def write_report(files: Files, job: LoadSettings, run: RunReport) -> None:
    """Put the job's metrics file in place; nothing if it has none."""
    if job.metrics_file is not None:
        succeeded_s = _last_success_s(files, job.metrics_file) if run.is_failed else None
        content = _exported(job, run, succeeded_s)
        files.replace(job.metrics_file, content, durable=False)


def register_job(files: Files, job: LoadSettings, now_ms: int) -> None:
    """Put a first metrics file in place, if there is none, as if the job had succeeded now.

    Else nobody would be told of a job that never gets to its first run.
    """
    if job.metrics_file is not None and not files.exists(job.metrics_file):
        write_report(files, job, RunReport(now_ms, now_ms, is_failed=False, topics=()))


def _exported(job: LoadSettings, run: RunReport, succeeded_s: float | None) -> bytes:
    jobs = Family(LoadMetrics, "job_name")
    shown = jobs[job.name,]
    shown.is_failed = int(run.is_failed)
    shown.ended_s = run.ended_ms / 1000
    shown.succeeded_s = (succeeded_s or 0.0) if run.is_failed else run.ended_ms / 1000
    shown.duration_s = (run.ended_ms - run.started_ms) / 1000
    shown.expected_every_s = job.expected_every_s
    exposition = Exposition()
    exposition.add_family(jobs)
    exposition.add_family(_by_topic(job.name, run.topics))
    return exposition.render()


def _by_topic(name: str, topics: Iterable[TopicReport]) -> Family[TopicLoadMetrics]:
    found = Family(TopicLoadMetrics, "job_name", "topic")
    for each in topics:
        shown = found[name, each.topic]
        shown.load, shown.rows, shown.undecoded = each.load, each.rows, each.undecoded
    return found


def _last_success_s(files: Files, path: str) -> float | None:
    """When the job last succeeded, as its file says; None if it has none that says so."""
    try:
        for family in text_string_to_metric_families(files.read(path).decode()):
            for sample in family.samples:
                if sample.name == _SUCCESS:
                    return float(sample.value)
    except FileNotFoundError:
        return None
    except ValueError:  # not as it was written, which a power loss may leave
        logger.warning("%s cannot be read: when the job last succeeded is not known", path)
    return None
