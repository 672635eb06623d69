"""A member of a group as a process: it writes down what it owns and what it is given.

    python -m tests.integration.churn_member KIND LOG ADDRESS GROUP TOPIC SESSION_TIMEOUT_MS

KIND is connector, consumer or librdkafka; ADDRESS is ZooKeeper's for the first, else a broker's.
LOG gets lines of `up`, `own T P`, `release T P` and `got VALUE`, where T is the machine's monotonic
clock in ns. Each is written before the member does anything else, so a kill takes none of them
away. SIGTERM has it leave.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer as ForeignConsumer

from kdist.classic import connector
from kdist.client.consumer.consumer import Consumer
from kdist.client.consumer.rebalancing import Partitions, RebalanceListener

LOOK_S = 0.2


class Log:
    """The lines, and whether it is time to leave."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - as long as the process
        self.is_leaving = False
        signal.signal(signal.SIGTERM, self._leave)
        self._file.write(b"up\n")

    def _leave(self, *_: object) -> None:
        self.is_leaving = True

    def got(self, value: bytes) -> None:
        self._file.write(b"got %s\n" % value)

    def partitions(self, what: str, partitions: Iterable[int]) -> None:
        now_ns = time.monotonic_ns()
        lines = [f"{what} {now_ns} {number}\n" for number in sorted(partitions)]
        self._file.write("".join(lines).encode())


class ConnectorListener(connector.ConsumerRebalanceListener):
    """Writes down what a connector owns."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def before_releasing_partitions(self, partitions: Mapping[str, set[int]]) -> None:
        for numbers in partitions.values():
            self._log.partitions("release", numbers)

    def before_starting_fetchers(
        self, consumer_id: str, partitions: Mapping[str, Mapping[int, str]]
    ) -> None:
        for numbers in partitions.values():
            self._log.partitions("own", numbers)


def read_as_connector(log: Log, zookeeper: str, group: str, topic: str, session_ms: int) -> None:
    member = connector.create(
        {
            "zookeeper.connect": zookeeper,
            "group.id": group,
            "zookeeper.session.timeout.ms": session_ms,
            "zookeeper.connection.timeout.ms": 30_000,
            "auto.offset.reset": "smallest",
            "auto.commit.interval.ms": 1_000,
            "consumer.timeout.ms": int(LOOK_S * 1000),
        }
    )
    member.set_consumer_rebalance_listener(ConnectorListener(log))
    (stream,) = member.create_message_streams({topic: 1})[topic]
    while not log.is_leaving:
        try:
            for message in stream:
                log.got(message.payload())
                if log.is_leaving:
                    break
        except connector.ConsumerTimeout:
            pass  # nothing for a while: look whether to leave
    member.shutdown()


class ConsumerListener(RebalanceListener):
    """Writes down what a consumer is assigned."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def on_assigned(self, partitions: Partitions) -> None:
        self._log.partitions("own", [each.partition for each in partitions])

    def on_revoked(self, partitions: Partitions) -> None:
        self._log.partitions("release", [each.partition for each in partitions])


def read_as_consumer(log: Log, broker: str, group: str, topic: str, session_ms: int) -> None:
    consumer = Consumer(
        broker,
        group_id=group,
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=500,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=1_000,
        partition_assignment_strategy=["range"],
    )
    consumer.subscribe([topic], ConsumerListener(log))
    while not log.is_leaving:
        for record in consumer.poll(LOOK_S):
            log.got(record.value)
    consumer.close()


def read_as_librdkafka(log: Log, broker: str, group: str, topic: str, session_ms: int) -> None:
    consumer = ForeignConsumer(
        {
            "bootstrap.servers": broker,
            "group.id": group,
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": 500,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 1_000,
            "enable.auto.offset.store": False,
            "partition.assignment.strategy": "range",
        }
    )
    consumer.subscribe([topic], on_assign=_noted(log, "own"), on_revoke=_noted(log, "release"))
    while not log.is_leaving:
        message = consumer.poll(LOOK_S)
        if message is not None and message.error() is None:
            log.got(message.value())
            consumer.store_offsets(message)
    consumer.close()


def _noted(log: Log, what: str) -> Callable[[Any, list[Any]], None]:
    def note(_consumer: Any, partitions: list[Any]) -> None:
        log.partitions(what, [each.partition for each in partitions])

    return note


KINDS = {
    "connector": read_as_connector,
    "consumer": read_as_consumer,
    "librdkafka": read_as_librdkafka,
}


def read_log(text: str) -> Iterator[tuple[str, int, int]]:
    """The lines about partitions: what, when in ns, and of which."""
    for line in text.splitlines():
        what, *numbers = line.split()
        if what in ("own", "release"):
            yield what, int(numbers[0]), int(numbers[1])


def values_in(text: str) -> list[bytes]:
    """The values of `got`."""
    return [line[4:].encode() for line in text.splitlines() if line.startswith("got ")]


if __name__ == "__main__":
    kind, path, address, group, topic, session_ms = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    KINDS[kind](Log(path), address, group, topic, int(session_ms))
