"""The settings of a load job, `kdist load`: one file per job. They are never in a broker's file.

`LoadSettings` are the job's. `TopicLoadSettings` say how a topic is loaded: given by a setting's
own name for all topics of the job, or as `topic.<topic>.<setting>` for one. Names that begin with
`spark.` are passed to Spark unchanged.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

from kdist.config.addresses import unreachable
from kdist.config.declare import Setting, Settings, Synonym, setting, settings
from kdist.config.faults import Given, raise_if_any, sentence_at
from kdist.config.foreign import unknown_name
from kdist.config.kinds import int32, int64
from kdist.config.layers import Layer, Source, names_in, resolve
from kdist.config.texts import parse_properties
from kdist.model import topic_name_fault

Step = Literal[
    "planned", "staging", "staged", "counted", "files-synced", "manifest-written",
    "directories-synced", "superseded", "renamed", "committed", "swept",
]  # fmt: skip
"""The steps of a load's commit, in order; docs/formats/load-output.md says what each has done."""

_JOB_NAME = re.compile(r"[A-Za-z0-9._-]+")
_SPARK = "spark."
_OF_TOPIC = "topic."


@settings
class LoadSettings(Settings):
    """A job: what to load, from where, into which directory, on which Spark."""

    bootstrap_servers: str = setting(
        subject="Load", doc="Brokers of the cluster to load from, as `host1:9092,host2:9092`."
    )
    topics: tuple[str, ...] = setting(doc="The topics to load, one after the other.")
    output: str = setting(
        doc="The directory for the loaded files; all Spark hosts must have it at this path."
    )
    security_file: str | None = setting(
        default=None,
        doc="A .properties file with the clients' security settings, such as `security.protocol`,"
        " if the brokers' port is not in clear; all Spark hosts must have it at this path.",
    )
    name: str = setting(
        default="load", doc="The job's name in metrics, manifests and Spark's user interface."
    )
    spark_master: str = setting(
        default="local[*]",
        doc="Where Spark runs: this machine, with a number of threads, or a cluster's address.",
    )
    event_time_zone: str = setting(
        default="UTC", doc="The time zone of the dates, and of times that name no zone."
    )
    isolation_level: Literal["read_uncommitted", "read_committed"] = setting(
        default="read_committed",
        doc="Whether records of open and aborted transactions are loaded too.",
    )
    task_records: int64 = setting(
        default=2_000_000,
        minimum=1,
        doc="A partition with more new records than this is read by several tasks.",
    )
    metrics_file: str | None = setting(
        default=None,
        doc="A `.prom` file for the node exporter's textfile collector; unset, none is written.",
    )
    expected_every_s: int32 = setting(
        default=86_400,
        minimum=1,
        unit="s",
        doc="How often the job should succeed, for the alert when it has not.",
    )
    drill_kill_after: Step | None = setting(
        default=None,
        doc="For drills: the load kills itself with SIGKILL after this step of its commit.",
    )


@settings
class TopicLoadSettings(Settings):
    """How one topic's records become rows."""

    format: Literal["json", "bytes"] = setting(
        default="json",
        subject="Load, by topic",
        doc="`json`: values that are JSON objects become columns; any other value stays bytes.",
    )
    schema: str | None = setting(
        default=None,
        doc="The columns, in Spark's DDL: `year INT, carrier STRING`. Unset, they are inferred by"
        " the first load and then stay.",
    )
    keep_value: Literal["undecoded", "always"] = setting(
        default="undecoded",
        doc="Which records keep their bytes in `record_value`: those that the columns do not"
        " represent completely, or all.",
    )
    event_time_field: str | None = setting(
        default=None,
        doc="The field with the event time, `meta.at` for a nested one; unset, or where a record"
        " has none, the record's timestamp is used.",
    )
    event_time_format: str = setting(
        default="auto",
        doc="`auto` (ISO 8601, or a number of ms), `ms` or `s` since 1970, or a Spark pattern such"
        " as `dd/MM/yyyy HH:mm`.",
    )
    event_time_before_max_days: int32 | None = setting(
        default=None,
        minimum=0,
        maximum=100_000_000,  # in microseconds, as they are compared, 64 bits hold not much more
        unit="days",
        doc="A record whose event time is more days before its timestamp has its timestamp instead,"
        " and is counted in a warning; unset, any event time is taken.",
    )
    event_time_after_max_days: int32 | None = setting(
        default=None,
        minimum=0,
        maximum=100_000_000,  # in microseconds, as they are compared, 64 bits hold not much more
        unit="days",
        doc="The same for an event time after the timestamp.",
    )


class LoadJob(NamedTuple):
    """A job's file: the job's settings, those of each topic, and the settings for Spark."""

    job: LoadSettings
    topics: dict[str, TopicLoadSettings]
    spark: dict[str, str]


_JOB_NAMES = frozenset(names_in(LoadSettings.TABLE, of_broker=True))
_TOPIC_NAMES = frozenset(names_in(TopicLoadSettings.TABLE, of_broker=True))


def load_job(text: str, source: str) -> LoadJob:
    """The job in the text of a .properties file; `source` names the file in messages.

    Raises `ConfigError` with all faults.
    """
    properties = parse_properties(text, source)
    given = properties.given
    layers = (Layer(Source.STATIC_BROKER_CONFIG, given),)
    outcome = resolve(LoadSettings.TABLE, layers, source)
    faults = [*properties.faults, *_unknown(given), *outcome.faults.values()]
    job = LoadSettings(**outcome.or_else(_FAULTLESS))
    topics = {}
    for topic in job.topics:
        found = resolve(_topic_rows(topic), layers, source)
        faults += found.faults.values()
        if not found.faults:
            topics[topic] = TopicLoadSettings(**found.values)
            faults += _faults_of_topic(topics[topic], source)
    if "topics" not in outcome.faults:
        faults += _strangers(job.topics, given)
    raise_if_any((*faults, *_faults(job, source)))
    spark = {
        name: each.text
        for name, each in given.items()
        if name.startswith(_SPARK) and name not in _JOB_NAMES
    }
    return LoadJob(job, topics, spark)


_FAULTLESS = {
    "bootstrap_servers": "a:1",
    "topics": ("t",),
    "output": "/",
    "name": "j",
    "event_time_zone": "UTC",
}
"""What stands for a value that has a fault or is missing, so that the others can be checked."""


def _unknown(given: Mapping[str, Given]) -> Iterator[str]:
    names = _JOB_NAMES | _TOPIC_NAMES
    for name, value in given.items():
        if name in names or name.startswith(_SPARK):
            continue
        if not name.startswith(_OF_TOPIC):
            yield unknown_name(name, value, names)
        elif _setting_of_topic(name) is None:
            yield value.sentence(f"{name} does not end in a topic's setting")


def _setting_of_topic(name: str) -> str | None:
    """The setting in `topic.<topic>.<setting>`: the longest that matches."""
    found = [each for each in _TOPIC_NAMES if name.endswith(f".{each}")]
    return max(found, key=len, default=None)


def _topic_of(name: str) -> str:
    setting_ = _setting_of_topic(name)
    assert setting_ is not None, "names that end in none were refused"
    return name[len(_OF_TOPIC) : -len(setting_) - 1]


def _topic_rows(topic: str) -> Iterator[Setting]:
    """The rows of one topic's settings: its own names come before those for all topics."""
    for row in TopicLoadSettings.TABLE:
        own = tuple(Synonym(f"{_OF_TOPIC}{topic}.{each.name}", each.factor) for each in row.names)
        yield dataclasses.replace(row, broker_names=(*own, *row.names))


def _strangers(topics: tuple[str, ...], given: Mapping[str, Given]) -> Iterator[str]:
    for name, value in given.items():
        is_of_topic = name.startswith(_OF_TOPIC) and _setting_of_topic(name) is not None
        if is_of_topic and _topic_of(name) not in topics:
            yield value.sentence(f"{name} is about a topic that is not in topics")


def _faults_of_topic(settings_: TopicLoadSettings, source: str) -> Iterator[str]:
    form = settings_.event_time_format
    if form not in ("auto", "ms", "s") and not _has_year(form):
        claim = f"event.time.format is {form!r}, which has no year: the field must have the date"
        yield sentence_at(source, claim)


def _has_year(pattern: str) -> bool:
    """Whether a Spark pattern always has a year: outside of quotes and optional sections."""
    before, pattern = "", re.sub(r"'[^']*'", "", pattern)
    while before != pattern:
        before, pattern = pattern, re.sub(r"\[[^\[\]]*\]", "", pattern)
    return not {"y", "u"}.isdisjoint(pattern)


def _faults(job: LoadSettings, source: str) -> Iterator[str]:
    for text in unreachable(job.bootstrap_servers):
        yield sentence_at(source, f"bootstrap.servers has {text!r}, but must have host:port")
    if not job.topics:
        yield sentence_at(source, "topics is empty")
    for topic in job.topics:
        fault = topic_name_fault(topic)
        if fault:
            yield sentence_at(source, f"topics has {topic!r}, which {fault}")
    if len(set(job.topics)) < len(job.topics):
        yield sentence_at(source, "topics names a topic twice")
    if not job.output.startswith("/"):
        yield sentence_at(source, f"output is {job.output!r}, but must be an absolute path")
    if job.security_file is not None and not job.security_file.startswith("/"):
        claim = f"security.file is {job.security_file!r}, but must be an absolute path"
        yield sentence_at(source, claim)
    if not _JOB_NAME.fullmatch(job.name):
        claim = f"name is {job.name!r}, but must be letters, digits, '.', '_' and '-'"
        yield sentence_at(source, claim)
    if not _is_zone(job.event_time_zone):
        claim = f"event.time.zone is {job.event_time_zone!r}, which is not a time zone"
        yield sentence_at(source, claim)


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True
