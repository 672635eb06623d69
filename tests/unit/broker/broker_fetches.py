"""A broker that is fetched from, and one fetch on its way, for the tests of Fetch."""

from __future__ import annotations

import random
from typing import Any

from kdist.broker.fetch import FetchHandler
from kdist.broker.fetch_sessions import FetchSessions
from kdist.config.network import NetworkSettings
from kdist.model import TopicPartition
from kdist.protocol.envelope import encode_response
from kdist.protocol.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from kdist.records.message_set import iter_records
from kdist.storage.reading import Slice
from tests.unit.replication.replication_world import (
    Client,
    World,
    append,
    values_in,
)


class Broker(World):
    """A world with a fetch handler."""

    def __init__(self, *, fetch_max_bytes: int = 55 << 20, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.sessions = FetchSessions(10, self.clock, random.Random(0), self.metrics)
        limits = NetworkSettings(fetch_max_bytes=max(1024, fetch_max_bytes))
        self.handler = FetchHandler(self.replicas, self.sessions, limits)

    def fetch(self, offsets: dict[TopicPartition, int], version: int = 12, **fields: Any) -> Fetch:
        """Ask for partitions from these offsets on."""
        return Fetch(self, offsets, version, **fields)

    @property
    def pins(self) -> int:
        """How many slices somebody holds."""
        logs = self.directory.logs.values()
        return sum(segment._pins for log in logs for segment in log.segments)


class Fetch:
    """One request on its way: `answers` is what `reply` was given."""

    def __init__(
        self,
        broker: Broker,
        offsets: dict[TopicPartition, int],
        version: int,
        *,
        part_bytes: int = 1 << 20,
        partition: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        self.client = Client()
        self.version = version
        self.answers: list[FetchResponse | None] = []
        topics = [
            FetchTopic(
                topic=key.topic,
                partitions=[
                    FetchPartition(
                        partition=key.partition,
                        fetch_offset=offset,
                        partition_max_bytes=part_bytes,
                        **(partition or {}),
                    )
                ],
            )
            for key, offset in offsets.items()
        ]
        defaults: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1}
        request = FetchRequest(topics=topics, **{**defaults, **fields})
        broker.handler.handle(request, version, self.answers.append, self.client)

    @property
    def response(self) -> FetchResponse:
        (answer,) = self.answers
        assert answer is not None
        return answer

    @property
    def results(self) -> list[FetchPartitionResult]:
        return [result for topic in self.response.responses for result in topic.partitions]

    def send(self) -> list[bytes]:
        """What the network does: encode at the version, send the slices, let go of them."""
        assert encode_response(self.version, 1, self.response)
        sent = []
        for result in self.results:
            records = result.records
            if isinstance(records, Slice):
                sent.append(records.read())
                records.release()
            else:
                assert isinstance(records, bytes)
                sent.append(records)
        return sent

    def values(self) -> list[list[bytes | None]]:
        """The values of each partition's records, of whatever format."""
        sent = self.send()
        if self.version <= 3:
            return [[record.value for record in iter_records(data, 1 << 20)] for data in sent]
        return [[value for _, value in values_in(data)] for data in sent]

    @property
    def errors(self) -> list[int]:
        return [result.error_code for result in self.results]


def large(broker: Broker, *keys: TopicPartition, batches: int = 2, size: int = 1000) -> None:
    for key in keys:
        for _ in range(batches):
            append(broker, broker.lead(key), bytes(size))
