"""Our own checks with Apache Kafka's Java client, by way of Kafka's command line tools."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence

import checks
import patience
from checks import WrongAnswerError, expect, new_name
from cluster import Cluster
from outcome import Outcome, SuiteMissingError
from peer.kafka_peer import PeerMissingError, ensure_jars, java_command

SUITE = "java"
TIMEOUT_S = 90
TOPICS = "org.apache.kafka.tools.TopicCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONSOLE_PRODUCER = "kafka.tools.ConsoleProducer"
CONFIGS = "kafka.admin.ConfigCommand"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
API_VERSIONS = "kafka.admin.BrokerApiVersionsCommand"


def prepare() -> None:
    """Raise `SuiteMissingError` if Kafka's jars are missing."""
    try:
        ensure_jars()
    except PeerMissingError as missing:
        raise SuiteMissingError(str(missing)) from None


def run(cluster: Cluster, names: Sequence[str] = ()) -> Iterator[Outcome]:
    """The named checks, or all."""
    yield from checks.run(SUITE, list(CHECKS.items()), cluster.address, names)


def tool(main_class: str, address: str, *arguments: str, lines: Sequence[str] = ()) -> list[str]:
    """Run a tool with `lines` as its input; its output lines, `WrongAnswerError` if it fails."""
    command = java_command(main_class, "--bootstrap-server", address, *arguments)
    return _run(command, lines)


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


def changes_a_topics_settings(address: str) -> None:
    """Set, shown, taken back."""
    topic = new_name("java-settings")
    tool(TOPICS, address, "--create", "--topic", topic)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    tool(CONFIGS, address, *entity, "--alter", "--add-config", "retention.ms=1234567")
    shown = "\n".join(tool(CONFIGS, address, *entity, "--describe"))
    expect("retention.ms=1234567" in shown, True, "the setting is shown")


def deletes_records_and_says_what_logs_take(address: str) -> None:
    """Deletes up to an offset and up to the end; then log directories list their replicas."""
    topic = new_name("java-trimmed")
    tool(TOPICS, address, "--create", "--topic", topic, "--partitions", "1")
    tool(CONSOLE_PRODUCER, address, "--topic", topic, lines=[f"line {n}" for n in range(20)])
    for offset, start in ((15, 15), (-1, 20)):
        wanted = {"topic": topic, "partition": 0, "offset": offset}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"version": 1, "partitions": [wanted]}, file)
            file.flush()
            said = "\n".join(tool(DELETE_RECORDS, address, "--offset-json-file", file.name))
        expect(f"low_watermark: {start}" in said, True, f"the new start in {said!r}")
    found = tool(OFFSETS, address, "--topic", topic, "--time", "earliest")
    expect(found, [f"{topic}:0:20"], "the earliest offset")
    said = tool(LOG_DIRS, address, "--describe", "--topic-list", topic)
    (brokers,) = (json.loads(line)["brokers"] for line in said if line.startswith("{"))
    replicas = [each for broker in brokers for each in broker["logDirs"][0]["partitions"]]
    expect([each["partition"] for each in replicas], [f"{topic}-0"], "the replicas described")


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


def names_its_api_versions(address: str) -> None:
    """Those of every broker, with nothing that the tool does not understand."""
    said = "\n".join(tool(API_VERSIONS, address))
    expect("Produce(0): 0 to " in said, True, f"a range of Produce from version 0: {said[:200]}")
    expect("ERROR" in said, False, "an error among the answers")


def measures_producing_and_consuming(address: str) -> None:
    """The performance tools run to their end, and every record arrives."""
    topic = new_name("java-speed")
    given = ("--topic", topic, "--num-records", "20000", "--record-size", "200")
    properties = ("--producer-props", f"bootstrap.servers={address}")
    main_class = "org.apache.kafka.tools.ProducerPerformance"
    said = _run(java_command(main_class, *given, "--throughput", "-1", *properties), ())
    expect(said[-1].startswith("20000 records sent"), True, f"the summary {said[-1]!r}")
    options = ("--topic", topic, "--messages", "20000", "--timeout", "20000", "--hide-header")
    said = tool("org.apache.kafka.tools.ConsumerPerformance", address, *options)
    expect(int(said[-1].split(", ")[4]) >= 20000, True, f"the count in {said[-1]!r}")


def _run(command: Sequence[str], lines: Sequence[str]) -> list[str]:
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        timeout=patience.scaled(TIMEOUT_S),
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()
        raise WrongAnswerError(f"{' '.join(command[-6:])} failed: {said[-400:]}")
    return done.stdout.splitlines()


CHECKS = {
    check.__name__: check
    for check in (
        names_its_api_versions,
        creates_adds_partitions_and_deletes_topics,
        creates_lists_describes_and_deletes_topics,
        produces_and_consumes_on_the_console,
        produces_with_each_codec,
        lists_and_describes_groups,
        changes_a_topics_settings,
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
