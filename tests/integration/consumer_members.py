"""What tests of consumers have in common: topics, records, members that poll in threads."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kdist.client.consumer.consumer import Consumer

WAIT_S = 40
HASTY = {
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 200,
    "metadata_max_age_ms": 1_000,
    "auto_offset_reset": "earliest",
}


def create(broker: str, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(20)


def produce(
    broker: str, topic: str, count: int, partition: int = -1, start: int = 0
) -> list[bytes]:
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 5})
    values = [b"%d" % number for number in range(start, start + count)]
    for value in values:
        producer.produce(topic, value, key=value, partition=partition)
    assert producer.flush(20) == 0
    return values


def until(condition: Callable[[], object], what: str = "it never came true") -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s, what


class Member:
    """A consumer in a thread, which polls until it is told to stop."""

    def __init__(self, broker: str, topic: str, found: Counter[bytes], **settings: object) -> None:
        self.consumer = Consumer(broker, group_id=topic, **(HASTY | settings))
        self.consumer.subscribe([topic])
        self.found = found
        self.is_stopping = False
        self.is_leaving = True
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def _work(self) -> None:
        try:
            while not self.is_stopping:
                for record in self.consumer.poll(0.1):
                    self.found[record.value] += 1
        except BaseException as error:
            self.error = error
            raise
        finally:
            if self.is_leaving:
                self.consumer.close()

    @property
    def share(self) -> int:
        return len(self.consumer.assignment())

    def stop(self) -> None:
        self.is_stopping = True
        self.thread.join(WAIT_S)
        assert self.error is None, self.error
