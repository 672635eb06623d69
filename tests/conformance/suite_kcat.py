"""Our own checks with kcat, a command line client: metadata, produce, consume, offset queries."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

import checks
import patience
from checks import expect, new_name
from cluster import Cluster
from outcome import Outcome, SuiteMissingError

SUITE = "kcat"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIMEOUT_S = 30


def prepare() -> None:
    """Raise `SuiteMissingError` if kcat is not installed."""
    if shutil.which("kcat") is None:
        raise SuiteMissingError("the checks with kcat need it: install kcat")


def run(cluster: Cluster, names: Sequence[str] = ()) -> Iterator[Outcome]:
    """The named checks, or all."""
    yield from checks.run(SUITE, list(CHECKS.items()), cluster.address, names)


def kcat(address: str, *arguments: str, lines: Sequence[str] = ()) -> str:
    """Run kcat with `lines` as its input; its output, `WrongAnswerError` if it fails."""
    command = ["kcat", "-b", address, "-X", "topic.metadata.refresh.interval.ms=500", *arguments]
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        timeout=patience.scaled(TIMEOUT_S),
    )
    if done.returncode != 0:
        raise checks.WrongAnswerError(f"{' '.join(command)}: {done.stderr.strip()[-400:]}")
    return done.stdout


def produce(address: str, topic: str, lines: Sequence[str], *arguments: str) -> None:
    """Produce the lines to partition 0."""
    kcat(address, "-P", "-t", topic, "-p", "0", *arguments, lines=lines)


def consume(address: str, topic: str, start: str, *arguments: str) -> list[dict[str, Any]]:
    """Consume partition 0 from `start` to its end, as kcat's JSON objects."""
    arguments = ("-C", "-t", topic, "-p", "0", "-o", start, "-e", "-J", "-q", *arguments)
    return [json.loads(line) for line in kcat(address, *arguments).splitlines()]


def payloads(messages: Sequence[dict[str, Any]]) -> list[str | None]:
    """The messages' values."""
    return [message["payload"] for message in messages]


def lists_brokers_and_partitions(address: str) -> None:
    """All brokers by id and address, one as controller; a topic's partitions with their leaders."""
    topic = new_name("listed")
    produce(address, topic, ["x"])
    listed = json.loads(kcat(address, "-L", "-J", "-t", topic))
    addresses = sorted(broker["name"] for broker in listed["brokers"])
    expect(addresses, sorted(address.split(",")), "the brokers")
    ids = {broker["id"] for broker in listed["brokers"]}
    expect(listed["controllerid"] in ids, True, "the controller is one of the brokers")
    ((name, partitions),) = ((found["topic"], found["partitions"]) for found in listed["topics"])
    expect((name, len(partitions)), (topic, 4), "the topic and its number of partitions")
    leaders = {partition["leader"] for partition in partitions}
    expect(leaders, ids, "every broker leads one of 4 partitions")


def carries_each_codec(address: str) -> None:
    """A batch of each codec in one partition, read back in order."""
    topic = new_name("codecs")
    wanted = []
    for codec in CODECS:
        lines = [f"{codec} {number} {'kdist ' * 40}" for number in range(100)]
        produce(address, topic, lines, "-z", codec)
        wanted += lines
    found = consume(address, topic, "beginning")
    expect(payloads(found), wanted, "values")
    expect([m["offset"] for m in found], list(range(len(wanted))), "offsets")


def carries_keys_and_headers(address: str) -> None:
    """Keys, and headers with repeated names and with empty and null values."""
    topic = new_name("headers")
    headers = ("-H", "a=1", "-H", "a=2", "-H", "empty=", "-H", "null")
    produce(address, topic, ["k1=v1", "k2=v2"], "-K", "=", *headers)
    found = consume(address, topic, "beginning")
    expect([(m["key"], m["payload"]) for m in found], [("k1", "v1"), ("k2", "v2")], "records")
    wanted = ["a", "1", "a", "2", "empty", "", "null", None]
    expect([m["headers"] for m in found], [wanted, wanted], "headers")


def keeps_null_and_empty_apart(address: str) -> None:
    """A null value or key is not an empty one."""
    topic = new_name("null")
    produce(address, topic, ["k=", "=v"], "-K", "=")
    produce(address, topic, ["k=", "=v"], "-K", "=", "-Z")
    found = [(m["key"], m["payload"]) for m in consume(address, topic, "beginning")]
    expect(found, [("k", ""), ("", "v"), ("k", None), (None, "v")], "keys and values")


def consumes_from_an_offset(address: str) -> None:
    """From the start, from the middle, the last few, from the end."""
    topic = new_name("offsets")
    lines = [str(number) for number in range(20)]
    produce(address, topic, lines)
    expect(payloads(consume(address, topic, "beginning")), lines, "from the beginning")
    expect(payloads(consume(address, topic, "7")), lines[7:], "from offset 7")
    expect(payloads(consume(address, topic, "-3")), lines[-3:], "the last three")
    expect(payloads(consume(address, topic, "end")), [], "from the end")
    expect(payloads(consume(address, topic, "5", "-c", "2")), lines[5:7], "two from offset 5")


def consumes_by_time(address: str) -> None:
    """`s@ts` begins at the first record at or after a time, `e@ts` stops before it."""
    topic = new_name("times")
    produce(address, topic, ["before 1", "before 2"])
    between_ms = _between()
    produce(address, topic, ["after 1", "after 2"])
    after = payloads(consume(address, topic, f"s@{between_ms}"))
    expect(after, ["after 1", "after 2"], "from a time on")
    before = payloads(consume(address, topic, "s@1", "-o", f"e@{between_ms}"))
    expect(before, ["before 1", "before 2"], "up to a time")


def answers_queries(address: str) -> None:
    """`-Q`: the offset at a time, the first, the next."""
    topic = new_name("queries")
    produce(address, topic, ["one", "two", "three"])
    between_ms = _between()
    produce(address, topic, ["four"])
    wanted = {str(between_ms): 3, "-2": 0, "-1": 4}
    for time_ms, offset in wanted.items():
        said = kcat(address, "-Q", "-t", f"{topic}:0:{time_ms}").strip()
        expect(said, f"{topic} [0] offset {offset}", f"the offset at {time_ms}")


def consumes_as_a_group(address: str) -> None:
    """Reads all partitions once; a second run of the group resumes where the first stopped."""
    topic, group = new_name("grouped"), new_name("group")
    first = [f"first {number}" for number in range(40)]
    kcat(address, "-P", "-t", topic, lines=first)
    options = ("-G", group, "-e", "-q", "-X", "auto.offset.reset=earliest", topic)
    expect(sorted(kcat(address, *options).splitlines()), sorted(first), "the first run")
    second = [f"second {number}" for number in range(40)]
    kcat(address, "-P", "-t", topic, lines=second)
    expect(sorted(kcat(address, *options).splitlines()), sorted(second), "the second run")


def sends_with_every_acks(address: str) -> None:
    """0, 1 and all, with idempotence too."""
    topic = new_name("acks")
    for acks in ("0", "1", "all"):
        produce(address, topic, [f"acks {acks}"], "-X", f"acks={acks}")
    produce(address, topic, ["idempotent"], "-X", "enable.idempotence=true")
    wanted = ["acks 0", "acks 1", "acks all", "idempotent"]
    expect(payloads(consume(address, topic, "beginning")), wanted, "values")


def refuses_an_invalid_topic(address: str) -> None:
    """A name that no topic may have is refused, not created."""
    try:
        produce(address, "not/a/topic", ["x"], "-X", "message.timeout.ms=5000")
    except checks.WrongAnswerError as refusal:
        expect("Invalid topic" in str(refusal), True, f"kcat's reason: {refusal}")
    else:
        raise checks.WrongAnswerError("a topic named not/a/topic was accepted")


def _between() -> int:
    """A time in ms after all records produced so far and before all later ones."""
    time.sleep(0.02)
    between_ms = int(time.time() * 1000)
    time.sleep(0.02)
    return between_ms


CHECKS = {
    check.__name__: check
    for check in (
        lists_brokers_and_partitions,
        carries_each_codec,
        carries_keys_and_headers,
        keeps_null_and_empty_apart,
        consumes_from_an_offset,
        consumes_by_time,
        answers_queries,
        consumes_as_a_group,
        sends_with_every_acks,
        refuses_an_invalid_topic,
    )
}
