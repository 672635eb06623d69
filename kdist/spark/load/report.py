"""A job's metrics after each run, for the textfile collector of Prometheus's node exporter.

The time of the last success is kept in this file alone, so a failed run copies it from there.
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
    """One topic of a run: its new load's number, records and undecoded records."""

    topic: str
    load: int
    rows: int
    undecoded: int


class RunReport(NamedTuple):
    """A finished run."""

    started_ms: int
    ended_ms: int
    is_failed: bool
    topics: tuple[TopicReport, ...]


def require_directory(files: Files, job: LoadSettings) -> None:
    """`UserError` if the directory of the job's metrics file does not exist.

    Called before a run: otherwise the run would fail after its loads are committed.
    """
    if job.metrics_file is not None:
        directory = dirname(job.metrics_file) or "."
        if not files.is_directory(directory):
            raise UserError(f"{job.metrics_file} cannot be written: {directory} does not exist")


def write_report(files: Files, job: LoadSettings, run: RunReport) -> None:
    """Write the job's metrics file, if it has one."""
    if job.metrics_file is not None:
        succeeded_s = _last_success_s(files, job.metrics_file) if run.is_failed else None
        content = _exported(job, run, succeeded_s)
        files.replace(job.metrics_file, content, durable=False)


def register_job(files: Files, job: LoadSettings, now_ms: int) -> None:
    """Write a first metrics file, if there is none, as if the job had succeeded now.

    Otherwise there would be no alert for a job that never runs.
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
    """When the job last succeeded, by its metrics file; None if there is none or it is corrupt."""
    try:
        for family in text_string_to_metric_families(files.read(path).decode()):
            for sample in family.samples:
                if sample.name == _SUCCESS:
                    return float(sample.value)
    except FileNotFoundError:
        return None
    except ValueError:  # corrupt, as after a power failure
        logger.warning("%s is corrupt: it is unknown when the job last succeeded", path)
    return None
