"""Our own checks with Apache Kafka's Java client, by way of Kafka's command line tools."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Sequence

import checks
import java_tools
from checks import expect, new_name
from cluster import Cluster
from java_tools import (
    API_VERSIONS,
    CONFIGS,
    CONSOLE_CONSUMER,
    CONSOLE_PRODUCER,
    CONSUMER_PERFORMANCE,
    DELETE_RECORDS,
    GROUPS,
    LOG_DIRS,
    OFFSETS,
    PRODUCER_PERFORMANCE,
    TOPICS,
    fill,
    json_file,
    refused,
    running,
    settled,
    tool,
)
from outcome import Outcome

SUITE = "java"


def run(cluster: Cluster, names: Sequence[str] = ()) -> Iterator[Outcome]:
    """The named checks, or all."""
    yield from checks.run(SUITE, list(CHECKS.items()), cluster.address, names)


def creates_lists_describes_and_deletes_topics(address: str) -> None:
    """A topic's whole life cycle."""
    topic = new_name("java-topic")
    tool(TOPICS, address, "--create", "--topic", topic, "--partitions", "3")
    expect(topic in tool(TOPICS, address, "--list"), True, "the topic is listed")
    described = tool(TOPICS, address, "--describe", "--topic", topic)
    expect(sum("Partition: " in line for line in described), 3, "partitions described")
    tool(TOPICS, address, "--alter", "--topic", topic, "--partitions", "5")
    expect(len(tool(OFFSETS, address, "--topic", topic)), 5, "partitions after adding two")
    tool(TOPICS, address, "--delete", "--topic", topic)
    expect(topic in tool(TOPICS, address, "--list"), False, "the topic is still listed")


def creates_adds_partitions_and_deletes_topics(address: str) -> None:
    """As above, but without the commands that query the topic's settings."""
    topic = new_name("java-topic")
    tool(TOPICS, address, "--create", "--topic", topic, "--partitions", "3")
    expect(topic in tool(TOPICS, address, "--list"), True, "the topic is listed")
    tool(TOPICS, address, "--alter", "--topic", topic, "--partitions", "5")
    expect(len(tool(OFFSETS, address, "--topic", topic)), 5, "partitions after adding two")
    tool(TOPICS, address, "--delete", "--topic", topic)
    expect(topic in tool(TOPICS, address, "--list"), False, "the topic is still listed")


def produces_and_consumes_on_the_console(address: str) -> None:
    """With idempotence, the producer's default; then the offsets that the broker reports."""
    topic = new_name("java-console")
    lines = [f"line {number}" for number in range(50)]
    tool(CONSOLE_PRODUCER, address, "--topic", topic, lines=lines)
    options = ("--topic", topic, "--from-beginning", "--max-messages", "50")
    found = tool(CONSOLE_CONSUMER, address, *options, "--timeout-ms", "20000")
    expect(sorted(line for line in found if line.startswith("line ")), sorted(lines), "lines")
    counted = sum(int(line.rsplit(":", 1)[1]) for line in tool(OFFSETS, address, "--topic", topic))
    expect(counted, 50, "the sum of the end offsets")


def produces_with_each_codec(address: str) -> None:
    """All codecs in one topic, read back."""
    topic = new_name("java-codecs")
    lines = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        sent = [f"line {codec} {number}" for number in range(20)]
        tool(CONSOLE_PRODUCER, address, "--topic", topic, "--compression-codec", codec, lines=sent)
        lines += sent
    options = ("--topic", topic, "--from-beginning", "--max-messages", str(len(lines)))
    found = tool(CONSOLE_CONSUMER, address, *options, "--timeout-ms", "20000")
    expect(sorted(line for line in found if line.startswith("line ")), sorted(lines), "lines")


def lists_and_describes_groups(address: str) -> None:
    """A group that has read everything has no lag, and is empty."""
    topic, group = new_name("java-grouped"), new_name("java-group")
    tool(CONSOLE_PRODUCER, address, "--topic", topic, lines=[f"line {n}" for n in range(20)])
    options = ("--topic", topic, "--group", group, "--from-beginning", "--max-messages", "20")
    tool(CONSOLE_CONSUMER, address, *options, "--timeout-ms", "20000")
    expect(group in tool(GROUPS, address, "--list"), True, "the group is listed")
    rows = [line.split() for line in tool(GROUPS, address, "--describe", "--group", group)]
    rows = [row for row in rows if row[:2] == [group, topic]]
    expect({row[5] for row in rows}, {"0"}, "the lags")
    expect(sum(int(row[3]) for row in rows), 20, "the sum of the committed offsets")


def deletes_records_and_says_what_logs_take(address: str) -> None:
    """Deletes up to an offset and up to the end; then log directories list their replicas."""
    topic = new_name("java-trimmed")
    tool(TOPICS, address, "--create", "--topic", topic, "--partitions", "1")
    tool(CONSOLE_PRODUCER, address, "--topic", topic, lines=[f"line {n}" for n in range(20)])
    for offset, start in ((15, 15), (-1, 20)):
        wanted = {"topic": topic, "partition": 0, "offset": offset}
        with json_file({"version": 1, "partitions": [wanted]}) as file:
            said = "\n".join(tool(DELETE_RECORDS, address, "--offset-json-file", file))
        expect(f"low_watermark: {start}" in said, True, f"the new start in {said!r}")
    found = tool(OFFSETS, address, "--topic", topic, "--time", "earliest")
    expect(found, [f"{topic}:0:20"], "the earliest offset")
    said = tool(LOG_DIRS, address, "--describe", "--topic-list", topic)
    (brokers,) = (json.loads(line)["brokers"] for line in said if line.startswith("{"))
    replicas = [each for broker in brokers for each in broker["logDirs"][0]["partitions"]]
    wanted_replicas = [f"{topic}-0"] * Cluster(address).replicas
    expect([each["partition"] for each in replicas], wanted_replicas, "the replicas described")


def deletes_groups_and_their_offsets(address: str) -> None:
    """Offsets of one topic, then the whole group."""
    topic, group = new_name("java-left"), new_name("java-leaving")
    tool(CONSOLE_PRODUCER, address, "--topic", topic, lines=["one", "two"])
    options = ("--topic", topic, "--group", group, "--from-beginning", "--max-messages", "2")
    tool(CONSOLE_CONSUMER, address, *options, "--timeout-ms", "20000")
    tool(GROUPS, address, "--delete-offsets", "--group", group, "--topic", topic)
    rows = [line.split() for line in tool(GROUPS, address, "--describe", "--group", group)]
    expect([row for row in rows if row[:2] == [group, topic]], [], "the offsets left")
    tool(CONSOLE_CONSUMER, address, *options, "--timeout-ms", "20000")
    said = "\n".join(tool(GROUPS, address, "--delete", "--group", group))
    expect("was successful" in said, True, f"a success in {said!r}")
    expect(group in tool(GROUPS, address, "--list"), False, "the group is still listed")


def created(address: str) -> str:
    """A topic of three partitions; its name."""
    topic = new_name("java-topic")
    tool(TOPICS, address, "--create", "--topic", topic, "--partitions", "3")
    return topic


def changes_settings_of_topics_and_brokers(address: str) -> None:
    """Of a topic, of a broker, of all brokers: set, shown with their source, and taken back."""
    topic = created(address)
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    of_broker = ("--entity-type", "brokers", "--entity-name", "0")
    of_all = ("--entity-type", "brokers", "--entity-default")

    def shown(entity: Sequence[str], *options: str) -> dict[str, str]:
        lines = tool(CONFIGS, address, *entity, "--describe", *options)
        rows = [line.split(" sensitive=", 1) for line in lines if " sensitive=" in line]
        return {given.strip().partition("=")[0]: given.strip() + rest for given, rest in rows}

    given = "retention.ms=1234567,min.insync.replicas=3"
    tool(CONFIGS, address, *of_topic, "--alter", "--add-config", given)
    expect(sorted(shown(of_topic)), ["min.insync.replicas", "retention.ms"], "a topic's own")
    tool(CONFIGS, address, *of_topic, "--alter", "--delete-config", "min.insync.replicas")
    row = shown(of_topic, "--all")["min.insync.replicas"]
    expect("{STATIC_BROKER_CONFIG:min.insync.replicas=" in row, True, f"the broker's: {row}")
    for wrong in ("retention.ms=soon", "min.insync.replicas=0", "no.such.setting=1"):
        said = refused(CONFIGS, address, *of_topic, "--alter", "--add-config", wrong)
        expect("InvalidConfigurationException" in said, True, f"{wrong} is refused: {said[-300:]}")

    tool(CONFIGS, address, *of_all, "--alter", "--add-config", "log.segment.bytes=7000000")
    expect(list(shown(of_all)), ["log.segment.bytes"], "the settings of all brokers")
    row = shown(of_topic, "--all")["segment.bytes"]
    expect("DYNAMIC_DEFAULT_BROKER_CONFIG:log.segment.bytes=7000000" in row, True, row)
    tool(CONFIGS, address, *of_broker, "--alter", "--add-config", "log.segment.bytes=8000000")
    row = shown(of_broker)["log.segment.bytes"]
    expect("DYNAMIC_BROKER_CONFIG:log.segment.bytes=8000000" in row, True, row)
    read_only = ("--alter", "--add-config", "log.dirs=/elsewhere")
    said = refused(CONFIGS, address, *of_broker, *read_only)
    expect("InvalidRequestException" in said, True, f"read-only: {said[-300:]}")
    for entity in (of_broker, of_all):
        tool(CONFIGS, address, *entity, "--alter", "--delete-config", "log.segment.bytes")
        expect("log.segment.bytes" in shown(entity), False, "it is taken back")


def says_offsets_of_every_kind(address: str) -> None:
    """The first, the last, the one of the newest timestamp, and the one at a time."""
    topic = created(address)
    for index, count in ((0, 5), (1, 6), (2, 7)):
        start_ms = fill(address, topic, index, count)
    for time, wanted in (
        ("earliest", [0, 0, 0]),
        ("latest", [5, 6, 7]),
        ("max-timestamp", [4, 5, 6]),
        ("1", [0, 0, 0]),
    ):
        found = tool(OFFSETS, address, "--topic", topic, "--time", time)
        rows = [f"{topic}:{index}:{offset}" for index, offset in enumerate(wanted)]
        expect(found, rows, f"the offsets at {time}")
    found = tool(OFFSETS, address, "--topic-partitions", f"{topic}:2", "--time", f"{start_ms + 3}")
    expect(found, [f"{topic}:2:3"], "the offset at a record's timestamp")
    found = tool(OFFSETS, address, "--topic-partitions", f"{topic}:1-2")
    expect(found, [f"{topic}:1:6"], "the offsets of a range of partitions")


def resets_offsets_in_every_form(address: str) -> None:
    """To the start, the end, an offset, a time, a file's offsets; by a shift and a duration."""
    topic, group = created(address), new_name("java-group")
    for index, count in ((0, 10), (1, 20), (2, 30)):
        fill(address, topic, index, count)
    options = ("--topic", topic, "--group", group, "--from-beginning", "--max-messages", "60")
    tool(CONSOLE_CONSUMER, address, *options, "--timeout-ms", "20000")

    def offsets(*given: str) -> list[int]:
        """Of the topic's partitions in what the tool answers, in their order.

        It prints its columns, but not always an end of the line after the last one.
        """
        said = "\n".join(tool(GROUPS, address, "--group", group, *given))
        rows = re.findall(rf"{group}\s+{topic}\s+(\d+)\s+(\d+)", said)
        return [offset for _, offset in sorted((int(index), int(offset)) for index, offset in rows)]

    def reset(*how: str, on: str = topic) -> list[int]:
        return offsets("--reset-offsets", "--topic", on, *how)

    def committed() -> list[int]:
        return offsets("--describe", "--offsets")

    ends = [10, 20, 30]
    expect(committed(), ends, "what was read")
    expect(reset("--to-earliest", "--dry-run"), [0, 0, 0], "a dry run")
    expect(committed(), ends, "after a dry run")
    for how, wanted in (
        (("--to-earliest",), [0, 0, 0]),
        (("--shift-by", "5"), [5, 5, 5]),
        (("--to-current",), [5, 5, 5]),
        (("--to-offset", "15"), [10, 15, 15]),
        (("--shift-by", "-12"), [0, 3, 3]),
        (("--to-datetime", "2020-01-01T00:00:00.000"), [0, 0, 0]),
        (("--to-datetime", "2090-01-01T00:00:00.000"), ends),
        (("--by-duration", "PT1H"), [0, 0, 0]),
        (("--to-latest",), ends),
    ):
        expect(reset(*how, "--execute"), wanted, f"the offsets of {how}")
        expect(committed(), wanted, f"the offsets committed by {how}")
    expect(reset("--to-earliest", "--execute", on=f"{topic}:1,2"), [0, 0], "two partitions")
    expect(committed(), [10, 0, 0], "two partitions reset")
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write(f"{topic},0,3\n{topic},2,7\n")
        file.flush()
        offsets("--reset-offsets", "--from-file", file.name, "--execute")
    expect(committed(), [3, 0, 7], "the offsets of a file")


def describes_groups_and_deletes_empty_ones(address: str) -> None:
    """Members, state, coordinator and lag; offsets and groups in use are not deleted."""
    topic, group = created(address), new_name("java-group")
    fill(address, topic, 0, 10)

    def ask(*given: str) -> str:
        return java_tools.said(GROUPS, address, *given)

    def state() -> str:
        return ask("--describe", "--group", group, "--state")

    options = ("--bootstrap-server", address, "--topic", topic, "--group", group)
    with running(CONSOLE_CONSUMER, *options, "--from-beginning") as consumer:
        settled(lambda: len(consumer.lines) == 10, "the consumer has read")
        lines = ask("--list", "--state", "stable").splitlines()
        expect([group, "Stable"] in [line.split() for line in lines], True, "the list by state")
        said = state()
        expect("range" in said and "Stable" in said, True, f"the group's state: {said}")
        said = ask("--describe", "--group", group, "--members", "--verbose")
        expect("(0,1,2)" in said, True, f"the member's partitions: {said}")
        said = ask("--delete", "--group", group)
        expect("GroupNotEmptyException" in said, True, f"a group in use: {said}")
        said = ask("--delete-offsets", "--group", group, "--topic", topic)
        expect("subscribed to" in said, True, f"the offsets of a group in use: {said}")
    settled(lambda: "Empty" in state(), "the group is empty")
    said = ask("--delete-offsets", "--group", group, "--topic", f"{topic}:1")
    expect("Successful" in said, True, f"one partition's offset is deleted: {said}")
    said = ask("--delete", "--group", group)
    expect("was successful" in said, True, f"the group is deleted: {said}")


def names_its_api_versions(address: str) -> None:
    """Those of every broker, with nothing that the tool does not understand."""
    said = "\n".join(tool(API_VERSIONS, address))
    expect("Produce(0): 0 to " in said, True, f"a range of Produce from version 0: {said[:200]}")
    expect("ERROR" in said, False, "an error among the answers")


def measures_producing_and_consuming(address: str) -> None:
    """The performance tools run to their end, and every record arrives."""
    topic = new_name("java-speed")
    given = ("--topic", topic, "--num-records", "20000", "--record-size", "200")
    properties = ("--producer-props", f"bootstrap.servers={address}", "acks=all")
    said = java_tools.run(PRODUCER_PERFORMANCE, *given, "--throughput", "-1", *properties)
    expect(said[-1].startswith("20000 records sent"), True, f"the summary {said[-1]!r}")
    options = ("--topic", topic, "--messages", "20000", "--timeout", "20000", "--hide-header")
    said = tool(CONSUMER_PERFORMANCE, address, *options)
    expect(int(said[-1].split(", ")[4]) >= 20000, True, f"the count in {said[-1]!r}")


CHECKS = {
    check.__name__: check
    for check in (
        names_its_api_versions,
        creates_adds_partitions_and_deletes_topics,
        creates_lists_describes_and_deletes_topics,
        produces_and_consumes_on_the_console,
        produces_with_each_codec,
        lists_and_describes_groups,
        changes_settings_of_topics_and_brokers,
        says_offsets_of_every_kind,
        resets_offsets_in_every_form,
        describes_groups_and_deletes_empty_ones,
        deletes_records_and_says_what_logs_take,
        deletes_groups_and_their_offsets,
        measures_producing_and_consuming,
    )
}
# Each command starts a JVM, which is slow: only what other clients do not test, and each tool once.
SMALL = (
    names_its_api_versions.__name__,
    produces_and_consumes_on_the_console.__name__,
    lists_and_describes_groups.__name__,
    measures_producing_and_consuming.__name__,
)
