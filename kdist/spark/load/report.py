"""A job's metrics after each run, for the textfile collector of Prometheus's node exporter.

The times of the last successes, of the job and of each topic, are kept in this file alone: a run
copies from there those that it does not set.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from os.path import dirname
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from kdist.config.load_job import LoadSettings
from kdist.errors import UserError
from kdist.metrics.declare import Family
from kdist.metrics.exposition import Exposition
from kdist.metrics.load import (
    LoadedTopicMetrics,
    LoadMetrics,
    SuccessfulLoadMetrics,
    TopicLoadMetrics,
)
from kdist.runtime.files import Files

logger = logging.getLogger(__name__)

(_SUCCESS,) = (row.name for row in SuccessfulLoadMetrics.TABLE)
(_TOPIC_SUCCESS,) = (row.name for row in LoadedTopicMetrics.TABLE)


class TopicReport(NamedTuple):
    """One topic of a run: its new load's number, records and undecoded records."""

    topic: str
    load: int
    rows: int
    undecoded: int


class RunReport(NamedTuple):
    """A finished run; `topics` are those with a new load.

    `began_ms` is when it began with each topic that it loaded, or found nothing new in.
    """

    started_ms: int
    ended_ms: int
    is_failed: bool
    topics: tuple[TopicReport, ...] = ()
    began_ms: Mapping[str, int] = {}


class Successes(NamedTuple):
    """When the job and each of its topics last succeeded, in Unix time (s), as far as is known."""

    job_s: float | None = None
    topics_s: Mapping[str, float] = {}


def require_directory(files: Files, job: LoadSettings) -> None:
    """`UserError` if the directory of the job's metrics file does not exist.

    Called before a run: otherwise the run would fail after its loads are committed.
    """
    if job.metrics_file is not None:
        directory = dirname(job.metrics_file) or "."
        if not files.is_directory(directory):
            raise UserError(f"{job.metrics_file} cannot be written: {directory} does not exist")


def write_report(files: Files, job: LoadSettings, run: RunReport) -> None:
    """Write the job's metrics file, if it has one.

    Only a run over all topics of the job counts as its success.
    """
    if job.metrics_file is not None:
        former = _read_successes(files, job.metrics_file)
        is_success = not run.is_failed and run.began_ms.keys() >= set(job.topics)
        known = {topic: former.topics_s[topic] for topic in job.topics if topic in former.topics_s}
        known |= {topic: began_ms / 1000 for topic, began_ms in run.began_ms.items()}
        succeeded = Successes(run.ended_ms / 1000 if is_success else former.job_s, known)
        files.replace(job.metrics_file, _exported(job, run, succeeded))


def register_job(files: Files, job: LoadSettings, now_ms: int) -> None:
    """Write a first metrics file, if there is none, as if the job had succeeded now.

    Otherwise there would be no alert for a job that never runs.
    """
    if job.metrics_file is not None and not files.exists(job.metrics_file):
        run = RunReport(now_ms, now_ms, is_failed=False)
        files.replace(job.metrics_file, _exported(job, run, Successes(now_ms / 1000)))


def _exported(job: LoadSettings, run: RunReport, succeeded: Successes) -> bytes:
    jobs = Family(LoadMetrics, "job_name")
    shown = jobs[job.name,]
    shown.is_failed = int(run.is_failed)
    shown.ended_s = run.ended_ms / 1000
    shown.duration_s = (run.ended_ms - run.started_ms) / 1000
    shown.expected_every_s = job.expected_every_s
    successful = Family(SuccessfulLoadMetrics, "job_name")
    if succeeded.job_s is not None:
        successful[job.name,].succeeded_s = succeeded.job_s
    loaded = Family(LoadedTopicMetrics, "job_name", "topic")
    for topic, succeeded_s in succeeded.topics_s.items():
        loaded[job.name, topic].succeeded_s = succeeded_s
    exposition = Exposition()
    exposition.add_family(jobs)
    exposition.add_family(successful)
    exposition.add_family(_by_topic(job.name, run.topics))
    exposition.add_family(loaded)
    return exposition.render()


def _by_topic(name: str, topics: Iterable[TopicReport]) -> Family[TopicLoadMetrics]:
    found = Family(TopicLoadMetrics, "job_name", "topic")
    for each in topics:
        shown = found[name, each.topic]
        shown.load, shown.rows, shown.undecoded = each.load, each.rows, each.undecoded
    return found


def _read_successes(files: Files, path: str) -> Successes:
    """What the job's metrics file tells; one that is damaged tells what its whole lines do."""
    job_s: float | None = None
    topics_s: dict[str, float] = {}
    for sample in _read_samples(files, path):
        if not sample.value > 0:  # a former release wrote 0 for never
            continue
        if sample.name == _SUCCESS:
            job_s = sample.value
        elif sample.name == _TOPIC_SUCCESS:
            topics_s[sample.labels.get("topic", "")] = sample.value
    return Successes(job_s, topics_s)


def _read_samples(files: Files, path: str) -> list[Sample]:
    """The samples in the whole lines of a file; none if it is not there."""
    try:
        *lines, rest = files.read(path).split(b"\n")
    except FileNotFoundError:
        return []
    found, is_damaged = [], bool(rest) or not lines
    for line in lines:
        try:
            for family in text_string_to_metric_families(line.decode()):
                found += family.samples
        except ValueError:
            is_damaged = True
    if is_damaged:
        logger.warning("%s is damaged: it may not tell when the job last succeeded", path)
    return found
