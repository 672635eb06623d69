"""Foreign clients that note what they do and see: librdkafka's in threads, franz-go's as a process.

Their patience with a silent broker is a few seconds, so that what is measured is the brokers'.
"""

from __future__ import annotations

import logging
import subprocess
import threading
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from peer.go_program import ensure_program
from peer.kafka_queries import watermarks

from tests.chaos.history import (
    OK,
    REFUSED,
    UNKNOWN,
    Answered,
    Began,
    Committed,
    Fetched,
    Finished,
    Journal,
    Read,
    Reset,
    Sent,
    identity,
    now_s,
    value_of,
)

TOPIC = "chaos"
PARTITIONS = 6
GROUP = "group"
LOGGER = "chaos.clients"
PAUSE_S = 0.1  # between two records of a producer to a partition
REFUSAL_PAUSE_S = 2.0
BATCH_BYTES = 10_000
MESSAGE_BYTES_MAX = 20_000  # of the topic
ENDED_S = 180.0
NO_OFFSET = -1
COMMIT_PAUSE_S = 0.5
CALL_S = 10.0

QUIET = {
    "log_level": 0,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "socket.timeout.ms": 4_000,
    "socket.connection.setup.timeout.ms": 2_000,
    "topic.metadata.refresh.interval.ms": 1_000,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 500,
}
_REFUSALS = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD}
_OUT_OF_RANGE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}


class _Thread:
    """Work in a thread until `stop`; what it raised is in `failed`."""

    def __init__(self, journal: Journal, brokers: str, name: str) -> None:
        self.journal = journal
        self.brokers = brokers
        self.name = name
        self.failed: list[str] = []
        self.is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.failed.append(f"{self.name}: {error!r}")
            raise

    def work(self) -> None:
        raise NotImplementedError

    def begin_to_stop(self) -> None:
        """Tell it to stop, and wait for nothing."""
        self.is_stopping.set()

    def stop(self) -> None:
        """Stop it, and wait until it has."""
        self.is_stopping.set()
        self._thread.join(ENDED_S)
        if self._thread.is_alive():
            self.failed.append(f"{self.name} did not stop in {ENDED_S:.0f} s")


class Producing(_Thread):
    """An idempotent producer of numbers to each partition.

    After a fatal error a new one goes on under another name: it has another producer id.
    """

    def work(self) -> None:
        life, number = 0, 0
        while not self.is_stopping.is_set():
            name = f"{self.name}.{life}"
            producer = Producer(
                {
                    **QUIET,
                    "bootstrap.servers": self.brokers,
                    "acks": "all",
                    "enable.idempotence": True,
                    "request.timeout.ms": 3_000,
                    "message.timeout.ms": 600_000,
                    "linger.ms": 5,
                    "batch.size": BATCH_BYTES,
                    "error_cb": self._told,
                    "log_level": 7,
                    "debug": "eos",  # why it began a new epoch, or gave up
                },
                logger=logging.getLogger(LOGGER),
            )
            self._is_fatal = False
            while not (self._is_fatal or self.is_stopping.is_set()):
                for partition in range(PARTITIONS):
                    self.journal.note(Sent(now_s(), name, partition, number))
                    send(self.journal, producer, name, partition, number)
                number += 1
                due_s = now_s() + PAUSE_S
                while (left_s := due_s - now_s()) > 0:
                    producer.poll(left_s)  # tells of what was answered as soon as it is
            if left := producer.flush(ENDED_S):
                self.failed.append(f"{name}: {left} records had no answer")
            life += 1

    def _told(self, error: KafkaError) -> None:
        if error.fatal():
            self.failed.append(f"{self.name}: {error}")
            self._is_fatal = True


class Refused(_Thread):
    """A producer of records that are too large: they are refused, and nobody ever reads one."""

    def work(self) -> None:
        producer = Producer({**QUIET, "bootstrap.servers": self.brokers, "acks": "all"})
        number = 0
        while not self.is_stopping.wait(REFUSAL_PAUSE_S):
            partition = number % PARTITIONS
            self.journal.note(Sent(now_s(), self.name, partition, number))
            send(self.journal, producer, self.name, partition, number, 2 * MESSAGE_BYTES_MAX)
            producer.poll(0)
            number += 1
        producer.flush(ENDED_S)


def send(
    journal: Journal, producer: Producer, name: str, partition: int, number: int, *size: int
) -> None:
    """Send a record, and note what is answered."""

    def note(error: KafkaError | None, message: Message) -> None:
        outcome, offset = OK, message.offset()
        if error is not None:
            outcome, offset = REFUSED if error.code() in _REFUSALS else UNKNOWN, None
        text = str(error or "")
        journal.note(
            Answered(
                now_s(),
                name,
                partition,
                number,
                outcome,
                NO_OFFSET if offset is None else offset,
                text,
            )
        )

    value = value_of(name, partition, number, *size)
    producer.produce(TOPIC, value, partition=partition, on_delivery=note)


def consumer(brokers: str, group: str = "none") -> Consumer:
    """A consumer that is told when its position is outside the log, and commits by itself."""
    return Consumer(
        {
            **QUIET,
            "bootstrap.servers": brokers,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 500,
            "fetch.wait.max.ms": 300,
        }
    )


class Reading(_Thread):
    """Reads all partitions from their start."""

    def work(self) -> None:
        reader = consumer(self.brokers)
        for partition in range(PARTITIONS):
            self.journal.note(Began(now_s(), self.name, partition, 0))
        reader.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        while not self.is_stopping.is_set():
            for message in reader.consume(500, 0.2):
                note_read(self.journal, self.name, message)
        reader.close()


def note_read(journal: Journal, name: str, message: Message) -> int:
    """Note what a consumer was given; how many records it is."""
    partition, error = message.partition(), message.error()
    if error is None:
        value = identity(message.value())
        journal.note(Read(now_s(), name, partition, message.offset(), value))
        return 1
    if error.code() in _OUT_OF_RANGE:
        journal.note(Reset(now_s(), name, partition, str(error)))
    return 0


def read_all(journal: Journal, brokers: str, name: str) -> str:
    """Read each partition from its start to its end; what went wrong, or nothing."""
    reader = consumer(brokers)
    try:
        end_s = now_s() + ENDED_S
        ends = {
            partition: watermarks(reader, TopicPartition(TOPIC, partition), ENDED_S)[1]
            for partition in range(PARTITIONS)
        }
        for partition in ends:
            journal.note(Began(now_s(), name, partition, 0))
        reader.assign([TopicPartition(TOPIC, partition, 0) for partition in ends])
        positions = dict.fromkeys(ends, 0)
        while any(positions[each] < ends[each] for each in ends):
            if now_s() > end_s:
                return f"the last read came to {positions}, not to {ends}"
            for message in reader.consume(1000, 0.5):
                if note_read(journal, name, message):
                    positions[message.partition()] = message.offset() + 1
        journal.note(Finished(now_s(), name))
        return ""
    finally:
        reader.close()


class Member(_Thread):
    """A member of the group, which commits what it was given every half second."""

    def work(self) -> None:
        self._consumer = consumer(self.brokers, GROUP)
        self._lives = 0
        self._reader = ""
        self._positions: dict[int, int] = {}
        self._consumer.subscribe(
            [TOPIC], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        committed_s = now_s()
        while not self.is_stopping.is_set():
            for message in self._consumer.consume(200, 0.1):
                if note_read(self.journal, self._reader, message):
                    self._positions[message.partition()] = message.offset() + 1
            if now_s() > committed_s + COMMIT_PAUSE_S:
                self._commit()
                committed_s = now_s()
        self._consumer.close()

    def _assigned(self, _: Consumer, given: list[TopicPartition]) -> None:
        self._lives += 1
        self._reader = f"{GROUP}/{self.name}.{self._lives}"
        starts = fetch_committed(self.journal, self._consumer, [each.partition for each in given])
        for partition, offset in starts.items():
            self.journal.note(Began(now_s(), self._reader, partition, offset))
        self._positions = {}
        self._consumer.assign([TopicPartition(TOPIC, p, offset) for p, offset in starts.items()])

    def _revoked(self, _: Consumer, __: list[TopicPartition]) -> None:
        self._commit()
        self._positions = {}

    def _lost(self, _: Consumer, __: list[TopicPartition]) -> None:
        self._positions = {}

    def _commit(self) -> None:
        if not self._positions:
            return
        offsets = [TopicPartition(TOPIC, p, offset) for p, offset in self._positions.items()]
        try:
            answered = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            return  # it may have been committed or not
        for each in answered or ():
            if each.error is None:
                self.journal.note(Committed(now_s(), GROUP, each.partition, each.offset))


def fetch_committed(journal: Journal, asking: Consumer, partitions: list[int]) -> dict[int, int]:
    """Where the group is in each partition: 0 if nothing is committed. Asks until it is told."""
    while True:
        asked_s = now_s()
        try:
            told = asking.committed([TopicPartition(TOPIC, p) for p in partitions], CALL_S)
        except KafkaException:
            continue
        if all(each.error is None for each in told):
            break
    for each in told:
        journal.note(Fetched(now_s(), asked_s, GROUP, each.partition, each.offset))
    return {each.partition: max(0, each.offset) for each in told}


class Watching(_Thread):
    """Asks for the group's committed offsets every second."""

    def work(self) -> None:
        asking = consumer(self.brokers, GROUP)
        while not self.is_stopping.wait(1):
            fetch_committed(self.journal, asking, list(range(PARTITIONS)))
        asking.close()


class Membership:
    """Two members of the group; now and then one leaves after another has joined."""

    def __init__(self, journal: Journal, brokers: str) -> None:
        self._journal = journal
        self._brokers = brokers
        self._count = 0
        self.members: list[Member] = []
        self._leaving: list[Member] = []
        for _ in range(2):
            self.join()

    def join(self) -> None:
        """One more."""
        self.members.append(Member(self._journal, self._brokers, f"member{self._count}"))
        self._count += 1

    def change(self) -> None:
        """One joins and the oldest leaves."""
        self.join()
        oldest = self.members.pop(0)
        oldest.begin_to_stop()
        self._leaving.append(oldest)

    def stop(self) -> list[str]:
        """All leave; what went wrong in any of them."""
        for each in (*self.members, *self._leaving):
            each.begin_to_stop()
        for each in (*self.members, *self._leaving):
            each.stop()
        return [text for each in (*self.members, *self._leaving) for text in each.failed]


class Franz:
    """franz-go's producer and reader; they write a history of their own."""

    def __init__(self, path: Path, brokers: str) -> None:
        program = ensure_program(Path(__file__).parent / "franz", "the client of franz-go")
        pause_ms = str(int(PAUSE_S * 1000))
        with path.open("wb") as output, path.with_suffix(".errors").open("wb") as errors:
            self._process = subprocess.Popen(
                [program, brokers, TOPIC, str(PARTITIONS), "franz", pause_ms],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
            )

    def begin_to_stop(self) -> None:
        """Tell it to stop, and wait for nothing."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def stop(self) -> list[str]:
        """Wait until it has ended after `begin_to_stop`; what went wrong."""
        try:
            status = self._process.wait(ENDED_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return ["franz-go's client had records without an answer"]
        return [f"franz-go's client ended with {status}"] if status else []
