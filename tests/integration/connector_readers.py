"""Connectors whose streams are read in threads, for tests against a real ZooKeeper."""

from __future__ import annotations

import threading
from typing import Any

from kdist.classic import connector
from kdist.classic.connector import ConsumerConnector, Message, Stream
from kdist.model import TopicPartition
from tests.integration.consumer_members import WAIT_S

HASTY = {
    "zookeeper.session.timeout.ms": 6_000,
    "zookeeper.connection.timeout.ms": 30_000,
    "auto.offset.reset": "smallest",
    "auto.commit.interval.ms": 300,
    "consumer.timeout.ms": 100,
}


class Reader:
    """A member of a group with one thread for each of its streams."""

    def __init__(
        self, zookeeper: str, group: str, topic: str, streams: int = 1, **settings: Any
    ) -> None:
        dotted = {name.replace("_", "."): value for name, value in settings.items()}
        given = {"zookeeper.connect": zookeeper, "group.id": group}
        self.connector: ConsumerConnector = connector.create(HASTY | given | dotted)
        self.messages: list[Message] = []
        self.errors: list[BaseException] = []
        found = self.connector.create_message_streams({topic: streams})[topic]
        self.threads = [threading.Thread(target=self._read, args=(each,)) for each in found]
        for thread in self.threads:
            thread.start()

    def _read(self, stream: Stream) -> None:
        while True:
            try:
                for message in stream:
                    self.messages.append(message)
            except connector.ConsumerTimeout:
                continue  # no message for now
            except BaseException as error:
                self.errors.append(error)
                raise
            return

    @property
    def values(self) -> list[bytes]:
        return [message.payload() for message in list(self.messages)]

    @property
    def owned(self) -> list[TopicPartition]:
        joined = self.connector._joined
        assert joined is not None, "it has joined when it was made"
        owned = dict(joined.rebalancer.owned)
        return sorted(key for key, ownership in owned.items() if ownership.may_give)

    def leave(self) -> None:
        """Shut down while the threads wait for more: each ends."""
        self.connector.shutdown()
        for thread in self.threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        assert self.errors == []

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
