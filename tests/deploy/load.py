"""Clients at work during a drill; the checker of tests/chaos judges what they were told."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.chaos.availability import Occurrence, Outage, acknowledged, outages
from tests.chaos.checker import judge, shown_errors, unheard
from tests.chaos.history import (
    OK,
    UNKNOWN,
    Answered,
    Began,
    Event,
    Finished,
    Read,
    Reset,
    Sent,
    identity,
    now_s,
    value_of,
)
from tests.deploy.client import DEFAULT, leaders, make_topic
from tests.deploy.deployed import Cluster
from tests.deploy.drilling import await_that, note

_PAUSE_S = 0.005
_ENOUGH = 40  # records of a partition after which a load counts as running
_GIVES_UP_MS = 180_000
_END_S = 200.0
_READ_S = 30.0
# A silent broker is left after a few seconds, so that what is measured is the brokers' patience.
_QUIET: dict[str, Any] = {
    "log_level": 0,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "socket.timeout.ms": 4_000,
    "socket.connection.setup.timeout.ms": 2_000,
    "topic.metadata.refresh.interval.ms": 1_000,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 500,
}
_PRODUCER, _READER, _LAST_READER = "producer", "reader", "last-reader"


class Load:
    """Numbered records to all partitions of a new topic in turn, with acks=all and idempotence,
    and a reader that follows. Use it as a context manager; then have it judged.
    """

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, replicas: int = DEFAULT
    ) -> None:
        self.bootstrap = bootstrap
        self.topic = f"{topic}-{uuid.uuid4().hex[:8]}"  # so that a drill can be repeated
        self.partitions = partitions
        self._replicas = replicas
        self._events: list[Event] = []
        self._faults: list[Occurrence] = []
        self._acknowledged = dict.fromkeys(range(partitions), 0)
        self._ended_s = 0.0
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"{work.__name__} of {topic}")
            for work in (self._write, self._follow)
        ]
        self._producer = Producer(
            {
                **_QUIET,
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "request.timeout.ms": 3_000,
                "linger.ms": 5,
                "delivery.timeout.ms": _GIVES_UP_MS,
            }
        )

    def __enter__(self) -> Load:
        make_topic(self.bootstrap, self.topic, self.partitions, self._replicas)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended_s = now_s()
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._producer.flush(_END_S)

    # At work

    def _write(self) -> None:
        count = 0
        while not self._stop.wait(_PAUSE_S):
            number, partition = divmod(count, self.partitions)
            self._events.append(Sent(now_s(), _PRODUCER, partition, number))
            self._producer.produce(
                self.topic,
                value_of(_PRODUCER, partition, number),
                partition=partition,
                on_delivery=self._settle,
            )
            self._producer.poll(0)
            count += 1

    def _settle(self, error: KafkaError | None, message: Message) -> None:
        _, partition, number = identity(message.value()).split(" ")
        outcome, offset = (OK, message.offset()) if error is None else (UNKNOWN, None)
        place = -1 if offset is None else offset
        told = (outcome, place, str(error or ""))
        self._events.append(Answered(now_s(), _PRODUCER, int(partition), int(number), *told))
        self._acknowledged[int(partition)] += error is None

    def _follow(self) -> None:
        reader = self._reader(_READER)
        while not self._stop.is_set():
            for message in reader.consume(500, 0.2):
                self._note(_READER, message)
        reader.close()

    def acknowledged(self) -> int:
        """How many records have been acknowledged in the partition that has the fewest."""
        return min(self._acknowledged.values())

    def breaks(self, what: str, brokers: Collection[int]) -> None:
        """Note that something is about to happen to these brokers."""
        led = {p for p, each in leaders(self.bootstrap, self.topic).items() if each in brokers}
        self._faults.append(Occurrence(what, now_s(), frozenset(led)))

    # Judged

    def assert_kept(self) -> None:
        """Assert that the producer was shown no error, and that every promise was kept: nothing is
        lost, twice, torn or out of order, and the reader was given each record once.
        """
        self._read_all()
        events = sorted(self._events, key=lambda event: event.at_s)
        found = [*judge(events), *shown_errors(events, meant=""), *unheard(events)]
        assert found == [], f"{self.topic}: {len(found)} anomalies, such as {found[:5]}"
        assert self.acknowledged() > 0

    def assert_available(self, within_s: float) -> None:
        """Assert that after each fault no partition was without acknowledgements for longer."""
        found = outages(acknowledged(self._events), self._faults, self._ended_s)
        for fault in self._faults:
            of_it = [each for each in found if each.kind == fault.kind]
            note(pauses(fault.kind, of_it, within_s))
        late = [each for each in found if each.seconds > within_s]
        assert late == [], f"{self.topic}: {late}"

    def _read_all(self) -> None:
        """Read each partition from its start to its end."""
        reader, unread = self._reader(_LAST_READER, ends=True), set(range(self.partitions))
        try:
            while unread:
                message = reader.poll(_READ_S)
                assert message is not None, f"{self.topic}: {unread} gave nothing for {_READ_S} s"
                if self._note(_LAST_READER, message):
                    unread.discard(message.partition() or 0)
        finally:
            reader.close()
        self._events.append(Finished(now_s(), _LAST_READER))

    def _reader(self, name: str, ends: bool = False) -> Consumer:
        """A consumer at the start of each partition, which tells of their `ends` too."""
        reader = Consumer(
            {
                **_QUIET,
                "bootstrap.servers": self.bootstrap,
                "group.id": "drill",
                "enable.auto.commit": False,
                "enable.partition.eof": ends,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 300,
            }
        )
        partitions = range(self.partitions)
        self._events += [Began(now_s(), name, partition, 0) for partition in partitions]
        reader.assign([TopicPartition(self.topic, partition, 0) for partition in partitions])
        return reader

    def _note(self, name: str, message: Message) -> bool:
        """Note what a reader was given; whether it is the end of a partition."""
        partition, error = message.partition() or 0, message.error()
        if error is None:
            value = identity(message.value())
            self._events.append(Read(now_s(), name, partition, message.offset() or 0, value))
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._events.append(Reset(now_s(), name, partition, str(error)))
        return error is not None and error.code() == KafkaError._PARTITION_EOF


def pauses(kind: str, found: Collection[Outage], within_s: float) -> str:
    """The longest pause in partitions that the broken brokers led, and in the others (pure)."""
    longest = [
        max((each.seconds for each in found if each.was_led is led), default=0.0)
        for led in (True, False)
    ]
    return f"{kind}: {longest[0]:.1f} s where it led, {longest[1]:.1f} s elsewhere, of {within_s:g}"


def load_on(cluster: Cluster, topic: str, replicas: int = DEFAULT) -> Load:
    """A load with partitions enough that every broker leads one."""
    return Load(cluster.bootstrap, topic, len(cluster.brokers), replicas)


def under_way(load: Load) -> None:
    """Return once each partition has taken some more records."""
    goal = load.acknowledged() + _ENOUGH
    await_that(lambda: load.acknowledged() >= goal, f"{_ENOUGH} more records in each partition")
