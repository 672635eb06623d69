"""Clients of all kinds read a compacted topic: what is left, once, in order, to the end.

What must be left is computed from what was sent, and where the cleaner stopped.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import confluent_kafka as ck
import pytest
from compacted_topics import (
    HASTY_CLEANER,
    TIMEOUT_S,
    Line,
    address_of,
    await_clean,
    create,
    left_of,
    segments_of,
    send,
)
from peer.go_program import ensure_program
from peer.kafka_peer import java_command

from kdist.classic.connector import create as create_connector
from kdist.classic.simple import FetchRequest, SimpleConsumer
from kdist.client.consumer.consumer import Consumer
from kdist.model import TopicPartition
from tests.integration.standalone_process import Standalone, standalone

TOPIC = "table"
PLACE = TopicPartition(TOPIC, 0)
RECORDS = 3_000


class Table(NamedTuple):
    """The topic: what is left of it, and the time of offset 0."""

    run: Standalone
    left: list[Line]
    start_ms: int

    @property
    def address(self) -> str:
        return address_of(self.run)

    def left_from(self, offset: int) -> list[Line]:
        return [line for line in self.left if line[0] >= offset]

    def hole(self) -> int:
        """An offset in the middle of the largest hole."""
        size, start = max((b - a, a) for (a, _), (b, _) in pairwise(self.left))
        assert size > 50, "whole batches are gone"
        return start + size // 2


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    with standalone(tmp_path_factory.mktemp("compacted"), *HASTY_CLEANER) as run:
        create(run, TOPIC)
        start_ms = int(time.time() * 1000) - 3_600_000
        for first in range(0, RECORDS, 1_000):  # an empty batch of each producer stays
            send(run, TOPIC, range(first, first + 1_000), start_ms)
        left = left_of(RECORDS, await_clean(run, TOPIC))
        assert len(left) < RECORDS / 4
        assert segments_of(run, TOPIC) > 3, "there are holes between segments"
        yield Table(run, left, start_ms)


# The readers: each from an offset to the end; they return what they read, and their position then


def by_librdkafka(table: Table, start: int) -> tuple[list[Line], int]:
    settings = {"group.id": "r", "enable.partition.eof": True, "auto.offset.reset": "error"}
    consumer = ck.Consumer({"bootstrap.servers": table.address} | settings)
    consumer.assign([ck.TopicPartition(TOPIC, 0, start)])
    found: list[Line] = []
    while (message := consumer.poll(TIMEOUT_S)) is not None and message.error() is None:
        found.append((message.offset() or 0, (message.key() or b"").decode()))
    assert message is not None
    assert message.error().code() == ck.KafkaError._PARTITION_EOF
    end = message.offset()
    consumer.close()
    assert end is not None
    return found, end


def by_go(library: str) -> Callable[[Table, int], tuple[list[Line], int]]:
    def read(table: Table, start: int) -> tuple[list[Line], int]:
        return read_by_go(table, library, "offset", start)

    return read


def read_by_go(table: Table, library: str, kind: str, start: int) -> tuple[list[Line], int]:
    source = Path(__file__).parent / "peer" / "gocompacted"
    program = ensure_program(source, "the readers of franz-go and kafka-go")
    words = [str(program), table.address, TOPIC, library, kind, str(start)]
    *lines, end = output_of(words).splitlines()
    return [(offset, key) for offset, key in map(json.loads, lines)], int(end)


def by_java(table: Table, start: int) -> tuple[list[Line], int]:
    wanted = table.left_from(start)
    tool = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    shown = [f"print.{each}=true" for each in ("offset", "key")] + ["print.value=false"]
    words = ["--topic", TOPIC, "--partition", "0", "--offset", str(start)]
    words += ["--bootstrap-server", table.address, "--timeout-ms", "20000"]
    words += ["--max-messages", str(len(wanted))]  # it has no other way to end at the end
    words += [word for each in shown for word in ("--property", each)]
    lines = [line.split("\t") for line in output_of(java_command(tool, *words)).splitlines()]
    found = [(int(offset.removeprefix("Offset:")), key) for offset, key in lines]
    return found, found[-1][0] + 1


def by_our_consumer(table: Table, start: int) -> tuple[list[Line], int]:
    with Consumer(table.address, auto_offset_reset="none") as consumer:
        consumer.assign([PLACE])
        consumer.seek(PLACE, start)
        found: list[Line] = []
        while consumer.position(PLACE) < RECORDS:
            found += [(each.offset, each.key.decode()) for each in consumer.poll(TIMEOUT_S)]
        return found, consumer.position(PLACE)


def by_simple_consumer(table: Table, start: int) -> tuple[list[Line], int]:
    found: list[Line] = []
    with SimpleConsumer("127.0.0.1", table.run.port) as simple:
        offset = start
        while True:
            got = simple.fetch(FetchRequest(TOPIC, 0, offset, fetch_size=2_000))
            found += [(each.offset, each.message.key.decode()) for each in got]
            if got.next_offset == offset:
                return found, offset
            offset = got.next_offset


def by_command(table: Table, start: int) -> tuple[list[Line], int]:
    said = table.run.run(
        "consume", TOPIC, "--partition", 0, "--offset", start, "--until-end", "--json"
    )
    rows = [json.loads(line) for line in said.splitlines()]
    return [(row["offset"], row["key"]) for row in rows], rows[-1]["offset"] + 1


READERS: dict[str, Callable[[Table, int], tuple[list[Line], int]]] = {
    "librdkafka": by_librdkafka,
    "franz-go": by_go("franz-go"),
    "kafka-go": by_go("kafka-go"),
    "java": by_java,
    "consumer": by_our_consumer,
    "simple consumer": by_simple_consumer,
    "command": by_command,
}


def output_of(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=2 * TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.peer
@pytest.mark.parametrize("reader", READERS)
def test_every_record_that_is_left_is_read_once_up_to_the_end(table: Table, reader: str) -> None:
    assert READERS[reader](table, 0) == (table.left, RECORDS)


@pytest.mark.peer
@pytest.mark.parametrize("reader", READERS)
def test_reading_from_within_a_hole_goes_on_behind_it(table: Table, reader: str) -> None:
    hole = table.hole()
    assert READERS[reader](table, hole) == (table.left_from(hole), RECORDS)


@pytest.mark.peer
@pytest.mark.parametrize("library", ["franz-go", "kafka-go"])
def test_clients_in_go_start_at_the_first_record_after_a_time_in_a_hole(
    table: Table, library: str
) -> None:
    hole = table.hole()
    found = read_by_go(table, library, "time", table.start_ms + hole)
    assert found == (table.left_from(hole), RECORDS)


def test_a_time_in_a_hole_is_that_of_the_next_record(table: Table) -> None:
    """For each offset of a record, and of holes: librdkafka's answer, and our consumer's."""
    consumer = ck.Consumer({"bootstrap.servers": table.address, "group.id": "t"})
    with Consumer(table.address) as ours:
        for offset in range(0, RECORDS, 7):
            at_ms = table.start_ms + offset
            wanted = table.left_from(offset)[0][0]
            asked = [ck.TopicPartition(TOPIC, 0, at_ms)]
            assert consumer.offsets_for_times(asked, TIMEOUT_S)[0].offset == wanted
            (found,) = ours.offsets_for_times({PLACE: at_ms}).values()
            assert found is not None
            assert (found.offset, found.timestamp) == (wanted, at_ms + wanted - offset)
    consumer.close()


def test_a_connector_reads_all_and_commits_the_end(table: Table) -> None:
    given = {
        "zookeeper.connect": table.run.addresses["zookeeper"],
        "group.id": "classic",
        "auto.offset.reset": "smallest",
        "consumer.timeout.ms": str(TIMEOUT_S * 1000),
    }
    found: list[Line] = []
    with create_connector(given) as connector:
        (stream,) = connector.create_message_streams({TOPIC: 1})[TOPIC]
        for each in stream:
            found.append((each.offset, each.key.decode()))
            if each.offset == RECORDS - 1:
                break
    assert found == table.left
