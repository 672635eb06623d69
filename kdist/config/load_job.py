"""The settings of a load, `kdist load`: one job's file. No broker's file has any of them.

`LoadSettings` are the job's; `TopicLoadSettings` are how a topic is loaded, said for all topics of
the job by a setting's own name, or for one by `topic.<topic>.<setting>`. A name that begins with
`spark.` goes to Spark as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

from kdist.config.addresses import unreachable
from kdist.config.declare import Settings, setting, settings
from kdist.config.faults import Given, raise_if_any, sentence_at
from kdist.config.foreign import unknown_name
from kdist.config.kinds import int32, int64
from kdist.config.layers import Layer, Source, names_in, resolve
from kdist.config.properties import parse_properties
from kdist.model import topic_name_fault

LOAD, TOPIC = "Load", "Load, by topic"
Step = Literal[
    "planned", "staging", "staged", "counted", "files-synced", "manifest-written",
    "directories-synced", "superseded", "renamed", "committed", "swept",
]  # fmt: skip
"""The steps of a load's commit, in order; docs/formats/load-output.md has what each has done."""

_JOB_NAME = re.compile(r"[A-Za-z0-9._-]+")
_SPARK = "spark."
_OF_TOPIC = "topic."


@settings
class LoadSettings(Settings):
    """A job: what to load, from where, into which directory, on which Spark."""

    bootstrap_servers: str = setting(
        "bootstrap.servers",
        subject=LOAD,
        doc="Brokers of the cluster to load from, as `host1:9092,host2:9092`.",
    )
    topics: tuple[str, ...] = setting(
        "topics", subject=LOAD, doc="The topics to load, one after the other."
    )
    output: str = setting(
        "output",
        subject=LOAD,
        doc="The directory that the files go to, which all of Spark's hosts have at this path.",
    )
    name: str = setting(
        "name",
        default="load",
        subject=LOAD,
        doc="What the job is called in metrics, manifests and Spark's user interface.",
    )
    spark_master: str = setting(
        "spark.master",
        default="local[*]",
        subject=LOAD,
        doc="Where Spark runs: this machine with so many threads, or a cluster's address.",
    )
    event_time_zone: str = setting(
        "event.time.zone",
        default="UTC",
        subject=LOAD,
        doc="The zone whose days the dates are, and of times that name none.",
    )
    isolation_level: Literal["read_uncommitted", "read_committed"] = setting(
        "isolation.level",
        default="read_committed",
        subject=LOAD,
        doc="Whether records of open and aborted transactions are loaded too.",
    )
    task_records: int64 = setting(
        "task.records",
        default=2_000_000,
        minimum=1,
        subject=LOAD,
        doc="A partition with more new records than this is read by several tasks.",
    )
    metrics_file: str | None = setting(
        "metrics.file",
        default=None,
        subject=LOAD,
        doc="A `.prom` file for the node exporter's textfile collector; unset, none is written.",
    )
    expected_every_s: int32 = setting(
        "expected.every.s",
        default=86_400,
        minimum=1,
        unit="s",
        subject=LOAD,
        doc="How often the job is to succeed, for the alert that says that it has not.",
    )
    drill_kill_after: Step | None = setting(
        "drill.kill.after",
        default=None,
        subject=LOAD,
        doc="For drills: the load kills itself, as SIGKILL does, after this step of its commit.",
    )


@settings
class TopicLoadSettings(Settings):
    """How one topic's records become rows."""

    format: Literal["json", "bytes"] = setting(
        "format",
        default="json",
        subject=TOPIC,
        doc="json: values that are JSON objects become columns; any other value stays bytes.",
    )
    schema: str | None = setting(
        "schema",
        default=None,
        subject=TOPIC,
        doc="The columns, in Spark's DDL: `year INT, carrier STRING`. Unset, they are inferred by"
        " the first load and then stay.",
    )
    keep_value: Literal["undecoded", "always"] = setting(
        "keep.value",
        default="undecoded",
        subject=TOPIC,
        doc="Which records keep their bytes in `record_value`: those that are not in the columns"
        " as a whole, or all.",
    )
    event_time_field: str | None = setting(
        "event.time.field",
        default=None,
        subject=TOPIC,
        doc="The field that says when it happened, `meta.at` for one inside another; unset, and"
        " where it says nothing, the record's timestamp.",
    )
    event_time_format: str = setting(
        "event.time.format",
        default="auto",
        subject=TOPIC,
        doc="`auto` (ISO 8601, and of numbers ms), `ms` or `s` since 1970, or a pattern of Spark's"
        " as `dd/MM/yyyy HH:mm`.",
    )


class LoadJob(NamedTuple):
    """A job's file, read: its own settings, those of each topic, and what Spark is told."""

    job: LoadSettings
    topics: dict[str, TopicLoadSettings]
    spark: dict[str, str]


_JOB_NAMES = frozenset(names_in(LoadSettings.TABLE, of_broker=True))
_TOPIC_NAMES = frozenset(names_in(TopicLoadSettings.TABLE, of_broker=True))


def load_job(text: str, source: str) -> LoadJob:
    """The job that a .properties file's text says; `source` is what sentences call the file.

    `ConfigError` has every fault there is.
    """
    properties = parse_properties(text, source)
    given = properties.given
    everywhere = Layer(Source.STATIC_BROKER_CONFIG, given)
    outcome = resolve(LoadSettings.TABLE, (everywhere,), source)
    faults = [*properties.faults, *_unknown(given), *outcome.faults.values()]
    topics = {}
    for topic in outcome.values["topics"] if not outcome.faults.get("topics") else ():
        own = Layer(Source.DYNAMIC_TOPIC_CONFIG, _own(topic, given))
        found = resolve(TopicLoadSettings.TABLE, (own, everywhere), source)
        faults += found.faults.values()
        if not found.faults:
            topics[topic] = TopicLoadSettings(**found.values)
    raise_if_any(faults)
    job = LoadSettings(**outcome.values)
    raise_if_any((*_faults(job, source), *_strangers(job.topics, given)))
    spark = {
        name: each.text
        for name, each in given.items()
        if name.startswith(_SPARK) and name not in _JOB_NAMES
    }
    return LoadJob(job, topics, spark)


def _unknown(given: Mapping[str, Given]) -> Iterator[str]:
    names = _JOB_NAMES | _TOPIC_NAMES
    for name, value in given.items():
        if name in names or name.startswith(_SPARK):
            continue
        if not name.startswith(_OF_TOPIC):
            yield unknown_name(name, value, names)
        elif _setting_of_topic(name) is None:
            yield value.sentence(f"{name} ends in no setting of topics")


def _setting_of_topic(name: str) -> str | None:
    """The setting that `topic.<topic>.<setting>` is about: the longest that it can be."""
    found = [each for each in _TOPIC_NAMES if name.endswith(f".{each}")]
    return max(found, key=len, default=None)


def _topic_of(name: str) -> str:
    setting_ = _setting_of_topic(name)
    assert setting_ is not None, "names that end in none were refused"
    return name[len(_OF_TOPIC) : -len(setting_) - 1]


def _own(topic: str, given: Mapping[str, Given]) -> dict[str, Given]:
    start = f"{_OF_TOPIC}{topic}."
    return {
        name.removeprefix(start): value for name, value in given.items() if name.startswith(start)
    }


def _strangers(topics: tuple[str, ...], given: Mapping[str, Given]) -> Iterator[str]:
    for name, value in given.items():
        if name.startswith(_OF_TOPIC) and _topic_of(name) not in topics:
            yield value.sentence(f"{name} is about a topic that is not among topics")


def _faults(job: LoadSettings, source: str) -> Iterator[str]:
    for text in unreachable(job.bootstrap_servers):
        yield sentence_at(source, f"bootstrap.servers has {text!r}, but must have host:port")
    if not job.topics:
        yield sentence_at(source, "topics names none")
    for topic in job.topics:
        fault = topic_name_fault(topic)
        if fault:
            yield sentence_at(source, f"topics has {topic!r}, which {fault}")
    if len(set(job.topics)) < len(job.topics):
        yield sentence_at(source, "topics names one twice")
    if not job.output.startswith("/"):
        yield sentence_at(source, f"output is {job.output!r}, but must be an absolute path")
    if not _JOB_NAME.fullmatch(job.name):
        claim = f"name is {job.name!r}, but must be letters, digits, '.', '_' and '-'"
        yield sentence_at(source, claim)
    if not _is_zone(job.event_time_zone):
        yield sentence_at(source, f"event.time.zone is {job.event_time_zone!r}, which is no zone")


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True
