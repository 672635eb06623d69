"""A broker that is fetched from, one fetch on its way, and one that takes the fast path."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from kdist.broker.crashes import Crashes
from kdist.broker.fast_path import Registered, Scope
from kdist.broker.fast_path.fetch import FetchFastPath
from kdist.broker.fetch_sessions import FetchSessions
from kdist.broker.handlers.fetch import FetchHandler
from kdist.broker.metadata_cache import MetadataCache
from kdist.broker.redirection import LeaderHints, NearestReplica
from kdist.errors import DiskFailed
from kdist.metrics.broker import RequestMetrics
from kdist.metrics.declare import Family
from kdist.model import TopicPartition
from kdist.protocol.fetch import (
    VERSION_OF_TOPIC_IDS,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from kdist.protocol.frame import RequestHeader, encode_request, encode_response
from kdist.security.subjects import ANYBODY, Subject
from kdist.storage.reading import Slice
from tests.unit.replication.replication_world import (
    BROKER,
    CLICKS,
    VIEWS,
    Client,
    World,
    append,
    topic_id_of,
    values_in,
)
from tests.written_records import iter_records

CORRELATION_ID = 77
LISTENER = "PLAINTEXT"
SCOPE: Scope = (ANYBODY, LISTENER)


class Broker(World):
    """A world with a fetch handler."""

    def __init__(
        self, *, fetch_max_bytes: int = 55 << 20, is_rack_aware: bool = False, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self.cache = MetadataCache()
        self.names = {topic_id_of(key.topic): key.topic for key in (CLICKS, VIEWS)}
        self.sessions = FetchSessions(
            10, self.clock, random.Random(0), self.metrics, self.names.get
        )
        hints = LeaderHints(self.replicas, self.cache)
        nearest = NearestReplica(self.cache, BROKER) if is_rack_aware else None
        bytes_max = max(1024, fetch_max_bytes)
        self.handler = FetchHandler(self.replicas, self.sessions, hints, bytes_max, nearest)
        self.crashes = Crashes(Family(RequestMetrics, "api"), self.failures.append)

    def fetch(self, offsets: dict[TopicPartition, int], version: int = 12, **fields: Any) -> Fetch:
        """Ask for partitions from these offsets on."""
        return Fetch(self, offsets, version, **fields)

    @property
    def pins(self) -> int:
        """How many slices are not released yet."""
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
        self.broker = broker
        self.connection = Client()
        self.listener = LISTENER
        self.version = version
        self.answers: list[FetchResponse | None] = []
        topics = [
            topic(
                version,
                key.topic,
                FetchPartition(
                    partition=key.partition,
                    fetch_offset=offset,
                    partition_max_bytes=part_bytes,
                    **(partition or {}),
                ),
            )
            for key, offset in offsets.items()
        ]
        defaults: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1}
        request = FetchRequest(topics=topics, **{**defaults, **fields})
        self.answer = self.answers.append
        broker.handler.handle(request, self)

    def crash(self, error: BaseException) -> None:
        assert isinstance(error, DiskFailed), error
        self.broker.failures.append(error)

    @property
    def response(self) -> FetchResponse:
        (answer,) = self.answers
        assert answer is not None
        return answer

    @property
    def results(self) -> list[FetchPartitionResult]:
        return [result for topic in self.response.responses for result in topic.partitions]

    def send(self) -> list[bytes]:
        """Do what the network does: encode at the version, send the slices, release them."""
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


def topic(version: int, name: str, *partitions: FetchPartition) -> FetchTopic:
    """As a request of the version names it: by its id, if it can."""
    if version < VERSION_OF_TOPIC_IDS:
        return FetchTopic(topic=name, partitions=list(partitions))
    return FetchTopic(topic_id=topic_id_of(name), partitions=list(partitions))


def large(broker: Broker, *keys: TopicPartition, batches: int = 2, size: int = 1000) -> None:
    for key in keys:
        for _ in range(batches):
            append(broker, broker.lead(key), bytes(size))


class Connection:
    """As the fast path needs it; `answers` is what was sent."""

    def __init__(self, subject: Subject = ANYBODY) -> None:
        self.subject = subject
        self.answers: list[bytes] = []

    def reserve(self) -> Connection:
        return self

    def send(self, chunks: Sequence[Any]) -> None:
        self.answers.append(b"".join(map(sent, chunks)))

    answer = send


class GeneralCall:
    """A request on the general path."""

    def __init__(
        self, version: int, connection: Any = None, correlation_id: int = CORRELATION_ID
    ) -> None:
        self.version = version
        self.listener = LISTENER
        self.correlation_id = correlation_id
        self.connection: Any = connection or Connection()
        self.response: FetchResponse | None = None

    def answer(self, response: FetchResponse) -> None:
        self.response = response
        frame = encode_response(self.version, self.correlation_id, response)
        self.connection.send(frame.chunks())

    def crash(self, error: BaseException) -> None:
        raise error


def sent(chunk: Any) -> bytes:
    if not isinstance(chunk, Slice):
        return bytes(chunk)
    data = chunk.read()
    chunk.release()
    return data


class Asked:
    """One kind of request, by the general path and by the fast one."""

    def __init__(self, broker: Broker, version: int = 12, **fields: Any) -> None:
        self.broker = broker
        self.version = version
        self.fields = fields
        self.metrics = RequestMetrics()
        self.flushed = 0
        self.path = FetchFastPath(broker.handler, self.metrics, self.flush, broker.crashes)

    def flush(self) -> None:
        self.flushed += 1

    def request(self, offset: int) -> FetchRequest:
        given = {"max_wait_ms": 500, "min_bytes": 1, **self.fields}
        own = {"fetch_offset": offset, "partition_max_bytes": 1 << 20, "partition": 0}
        part = {name: given.pop(name) for name in list(given) if hasattr(FetchPartition, name)}
        partition = FetchPartition(**{**own, **part})
        topics = [topic(self.version, CLICKS.topic, partition)]
        return FetchRequest(**{"topics": topics, **given})

    def frame(self, offset: int, correlation_id: int = CORRELATION_ID) -> memoryview:
        header = RequestHeader(1, self.version, correlation_id, "a client")
        return memoryview(encode_request(header, self.request(offset)))[4:]

    def register(self, offset: int = 0, scope: Scope = SCOPE) -> Registered | None:
        header = RequestHeader(1, self.version, 1, "a client")
        return self.path.register(self.frame(offset, 1), header, self.request(offset), None, scope)

    def take(self, offset: int) -> list[bytes] | None:
        """The answers, later ones too; None if the request was not taken."""
        registered = self.register()
        assert registered is not None
        connection: Any = Connection()
        is_taken = self.path.try_handle(self.frame(offset), registered, connection)
        return connection.answers if is_taken else None

    def general_path(self, offset: int) -> list[bytes]:
        call = GeneralCall(self.version)
        self.broker.handler.handle(self.request(offset), call)
        return call.connection.answers
