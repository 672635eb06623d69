"""The options of the format `kdist`: those of Spark's Kafka connector for batch reads (pure).

Names are case-insensitive, as in Spark. Values that the connector refuses are refused, and so are
unknown names. A `kafka.` option is a setting of kdist's consumer, in Kafka's spelling; some that
only tune Java's consumer are accepted without effect, as are the connector's own for streams:
`without_effect` names those that are given. Secrets are in `securityFile`, which the connector does
not have: Spark shows options. Partitions, offsets and times are JSON:

    {"clicks": {"0": 23, "1": -2}}        offsets; -2 is earliest, -1 latest
    {"clicks": {"0": 1672531200000}}      times, ms since the epoch
    {"clicks": [0, 1], "views": [0]}      partitions alone

Source: `KafkaSourceProvider` of Spark 4, and its "Structured Streaming + Kafka Integration Guide".
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from kdist.client.cluster import parse_addresses
from kdist.client.consumer.settings import ConsumerSettings, read_settings
from kdist.config.client_security import SecuritySettings
from kdist.config.texts import NameTwice, parse_json
from kdist.config.times import check_time, parse_time
from kdist.errors import UserError
from kdist.model import TopicPartition, read_digits, topic_name_fault

BOOTSTRAP = "kafka.bootstrap.servers"
SUBSCRIPTIONS = ("assign", "subscribe", "subscribePattern")
NAMES = (
    BOOTSTRAP,
    *SUBSCRIPTIONS,
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "startingOffsetsByTimestampStrategy",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "includeHeaders",
    "minPartitions",
    "maxRecordsPerPartition",
    "securityFile",
)
_IGNORED = (
    # They concern a consumer pool, groups and an offset fetcher, which kdist has not.
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    # They are for streams, and Spark's connector ignores them in batch reads, too.
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)
_KNOWN = {name.lower(): name for name in (*NAMES, *_IGNORED)}

Strategy = Literal["error", "latest"]

_CONSUMER = {row.name.replace("_", "."): row for row in ConsumerSettings.TABLE}
_SECURITY = {row.name for row in SecuritySettings.TABLE if not row.is_secret}
_OWN = {
    "client.id", "client.rack", "isolation.level", "check.crcs",
    "fetch.min.bytes", "fetch.max.wait.ms", "fetch.max.bytes", "max.partition.fetch.bytes",
    "request.timeout.ms", "default.api.timeout.ms", "retry.backoff.ms",
    "retry.backoff.max.ms", "metadata.max.age.ms", *_SECURITY,
}  # fmt: skip
_WITHOUT_EFFECT = {
    "group.id", "max.poll.records", "max.poll.interval.ms", "session.timeout.ms",
    "heartbeat.interval.ms", "connections.max.idle.ms", "receive.buffer.bytes",
    "send.buffer.bytes", "reconnect.backoff.ms", "reconnect.backoff.max.ms",
    "partition.assignment.strategy", "allow.auto.create.topics",
}  # fmt: skip
_FIXED = {
    "auto.offset.reset": "say where to begin with startingOffsets",
    "enable.auto.commit": "this source commits nothing",
    "key.deserializer": "keys are bytes",
    "value.deserializer": "values are bytes",
    "interceptor.classes": "records are read as they are",
    **{
        row.name: "Spark shows options: put it into a file, and give that as securityFile"
        for row in SecuritySettings.TABLE
        if row.is_secret
    },
}


class Selection(NamedTuple):
    """What to read: some partitions, some topics, or all topics that a pattern matches."""

    partitions: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] = ()
    pattern: str = ""


class ReadOptions(NamedTuple):
    """The parsed options of one read.

    `consumer` are settings of `Consumer`; those in `security_file` come to them where it is read.
    """

    bootstrap: str
    selection: Selection
    start: Place
    end: Place
    start_strategy: Strategy
    fail_on_data_loss: bool
    include_headers: bool
    partitions_min: int | None
    records_max: int | None
    consumer: dict[str, Any]
    security_file: str | None


def read_options(arguments: Mapping[str, str]) -> ReadOptions:
    """Parse and check the options; `UserError` for the first that is wrong."""
    options = {name.lower(): text for name, text in arguments.items()}
    for name in options:
        _require_known(name)
    if not options.get(BOOTSTRAP, "").strip():
        raise UserError(f"the option {BOOTSTRAP} must be given, as host:port")
    parse_addresses(options[BOOTSTRAP])
    strategy = options.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise UserError(
            f"startingOffsetsByTimestampStrategy is {strategy!r}, and must be error or latest"
        )
    return ReadOptions(
        bootstrap=options[BOOTSTRAP],
        selection=_selection(options),
        start=_start(options),
        end=_end(options),
        start_strategy="latest" if strategy == "latest" else "error",
        fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
        include_headers=_flag(options, "includeHeaders", default=False),
        partitions_min=_count(options, "minPartitions"),
        records_max=_count(options, "maxRecordsPerPartition"),
        consumer=_consumer_settings(options),
        security_file=_security_file(options),
    )


def without_effect(arguments: Mapping[str, str]) -> list[str]:
    """The names of those options that are accepted, and change nothing."""
    ignored = {name.lower() for name in _IGNORED} | {f"kafka.{name}" for name in _WITHOUT_EFFECT}
    found = ignored.intersection(name.lower() for name in arguments)
    return sorted(_KNOWN.get(name, name) for name in found)


def wants_headers(arguments: Mapping[str, str]) -> bool:
    """Whether the schema has the column `headers`; Spark asks before any option is checked."""
    return _flag({name.lower(): text for name, text in arguments.items()}, "includeHeaders", False)


def _require_known(name: str) -> None:
    if name in _KNOWN:
        return
    if name.startswith("kafka."):
        _require_usable(name)
        return
    near = difflib.get_close_matches(name, _KNOWN, n=1)
    hint = f": did you mean {_KNOWN[near[0]]}?" if near else ""
    raise UserError(f"the format kdist has no option {name}{hint}")


def _require_usable(name: str) -> None:
    setting = name.removeprefix("kafka.")
    if setting in _OWN | _WITHOUT_EFFECT:
        return
    if setting in _FIXED:
        raise UserError(f"the option {name} cannot be given: {_FIXED[setting]}")
    near = difflib.get_close_matches(setting, _OWN | {"bootstrap.servers"}, n=1)
    hint = f": did you mean kafka.{near[0]}?" if near else ""
    raise UserError(f"the format kdist has no option {name}{hint}")


# What to read


def _selection(options: Mapping[str, str]) -> Selection:
    given = [name for name in SUBSCRIPTIONS if name.lower() in options]
    if len(given) != 1:
        claim = (
            f"{' and '.join(given)} are given together" if given else "nothing says what to read"
        )
        raise UserError(f"{claim}: give one of assign, subscribe and subscribePattern")
    text = options[given[0].lower()].strip()
    if given == ["assign"]:
        return Selection(partitions=parse_assign("assign", text))
    if given == ["subscribe"]:
        return Selection(topics=_topics(text))
    try:
        re.compile(text)
    except re.error as error:
        raise UserError(f"subscribePattern is not a regular expression: {error}") from None
    if not text:
        raise UserError("subscribePattern is empty")
    return Selection(pattern=text)


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not topics:
        raise UserError("subscribe names no topic")
    for topic in topics:
        fault = topic_name_fault(topic)
        if fault:
            raise UserError(f"subscribe names the topic {topic!r}, which {fault}")
    return topics


# From where, and up to where


def _start(options: Mapping[str, str]) -> Place:
    place = _place(options, "starting") or Everywhere(EARLIEST)
    _refuse(place, LATEST, "startingOffsets", "latest: a batch would be empty")
    return place


def _end(options: Mapping[str, str]) -> Place:
    place = _place(options, "ending") or Everywhere(LATEST)
    _refuse(place, EARLIEST, "endingOffsets", "earliest: a batch would be empty")
    return place


def _place(options: Mapping[str, str], which: str) -> Place | None:
    """The first of three options that is given, in the order in which Spark looks for them."""
    if (text := options.get(f"{which}timestamp")) is not None:
        return AtTime(_time(f"{which}Timestamp", text))
    if (text := options.get(f"{which}offsetsbytimestamp")) is not None:
        times = parse_offsets(f"{which}OffsetsByTimestamp", text)
        for each in times.values():
            check_time(each)
        return AtTimes(times)
    if (text := options.get(f"{which}offsets")) is None:
        return None
    if text.strip().lower() in ("earliest", "latest"):
        return Everywhere(EARLIEST if text.strip().lower() == "earliest" else LATEST)
    if not text.lstrip().startswith("{"):
        raise UserError(f"{which}Offsets is {text!r}, and must be earliest, latest or JSON")
    return AtOffsets(parse_offsets(f"{which}Offsets", text))


def _refuse(place: Place, word: int, name: str, sentence: str) -> None:
    if place == Everywhere(word):
        raise UserError(f"{name} cannot be {sentence}")
    if isinstance(place, AtOffsets):
        for partition, offset in place.offsets.items():
            if offset == word:
                raise UserError(f"{name} of {partition} cannot be {sentence}")
            if offset < min(EARLIEST, LATEST):
                raise UserError(f"{name} of {partition} is {offset}: offsets begin at 0")


# Values


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise UserError(f"{name} is {text!r}, and must be true or false")
    return text.strip().lower() == "true"


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    return None if text is None else _number(name, text, minimum=1)


def _time(name: str, text: str) -> int:
    try:
        return parse_time(text.strip())
    except UserError as error:
        raise UserError(f"{name} is wrong: {error}") from None


def _number(name: str, text: str, minimum: int) -> int:
    number = read_digits(text.strip())
    if number is None or number < minimum:
        raise UserError(f"{name} is {text!r}, and must be an integer from {minimum}")
    return number


def _consumer_settings(options: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, text in options.items():
        setting = name.removeprefix("kafka.")
        if name == f"kafka.{setting}" and setting in _OWN:
            row = _CONSUMER[setting]
            try:
                found[row.attribute] = row.read(text)
            except ValueError as allowed:
                raise UserError(f"{name} is {text!r}, and must be {allowed}") from None
    read_settings(found)
    return found


def _security_file(options: Mapping[str, str]) -> str | None:
    path = options.get("securityfile")
    if path is None:
        return None
    if not path.startswith("/"):
        raise UserError(f"securityFile is {path!r}, and must be an absolute path")
    for name in _SECURITY:
        if f"kafka.{name}" in options:
            raise UserError(f"securityFile is given: put {name} into it too")
    return path


EARLIEST = -2
LATEST = -1

ByPartition = dict[TopicPartition, int]


class Everywhere(NamedTuple):
    """The same place in every partition: EARLIEST or LATEST."""

    offset: int


class AtOffsets(NamedTuple):
    """An offset, EARLIEST or LATEST for each partition."""

    offsets: ByPartition


class AtTime(NamedTuple):
    """The first record at or after a time, the same for every partition."""

    timestamp_ms: int


class AtTimes(NamedTuple):
    """The first record at or after a time of each partition's own."""

    timestamps_ms: ByPartition


Place = Everywhere | AtOffsets | AtTime | AtTimes


def parse_offsets(name: str, text: str) -> ByPartition:
    """The offsets or times by partition; `UserError`, which names the option `name`."""
    example = '{"topic": {"0": 23}}'
    found: ByPartition = {}
    for topic, numbers in _by_topic(name, text, example).items():
        if not isinstance(numbers, dict):
            raise _not_like(name, example)
        for digits, number in numbers.items():
            partition = read_digits(digits)
            if partition is None or not _is_number(number):
                raise _not_like(name, example)
            found[TopicPartition(topic, partition)] = number
    return found


def parse_assign(name: str, text: str) -> tuple[TopicPartition, ...]:
    """The partitions; `UserError`, which names the option `name`."""
    example = '{"topic": [0, 1]}'
    found: set[TopicPartition] = set()
    for topic, partitions in _by_topic(name, text, example).items():
        is_list = isinstance(partitions, list) and partitions
        if not is_list or not all(_is_number(each) and each >= 0 for each in partitions):
            raise _not_like(name, example)
        found.update(TopicPartition(topic, each) for each in partitions)
    return tuple(sorted(found))


def show_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """The JSON for `parse_offsets`."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(found)


def show_assign(partitions: Iterable[TopicPartition]) -> str:
    """The JSON for `parse_assign`."""
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        found.setdefault(topic, []).append(partition)
    return json.dumps(found)


def _by_topic(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        found = parse_json(text)
    except NameTwice as error:
        raise UserError(f"{name}: {error}") from None
    except ValueError:
        raise _not_like(name, example) from None
    if not isinstance(found, dict) or not found:
        raise _not_like(name, example)
    for topic in found:
        fault = topic_name_fault(topic)
        if fault:
            raise UserError(f"{name} names the topic {topic!r}, which {fault}")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _not_like(name: str, example: str) -> UserError:
    return UserError(f"{name} must be JSON like {example}")
