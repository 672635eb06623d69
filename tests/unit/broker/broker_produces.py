"""The parts of a broker that serve produces, with or without the fast path, and its peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from kdist.broker.fast_path import Registered, Scope
from kdist.broker.fast_path.produce import ProduceFastPath
from kdist.broker.handlers.produce import ProduceHandler
from kdist.broker.metadata_cache import MetadataCache
from kdist.broker.redirection import LeaderHints
from kdist.metrics.broker import RequestMetrics
from kdist.model import TopicPartition
from kdist.network.connection import Connection
from kdist.protocol.frame import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from kdist.protocol.produce import (
    API,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from kdist.records.batch import HEADER, read_header, seal
from kdist.records.compression import Codec
from kdist.security.subjects import ANYBODY
from tests.unit.replication.replication_world import CLICKS, Client, World, batch

Answer = list[bytes]
LONG = b"a" * 100_000  # with its max timestamp unset, a thread has to unpack it


class Peer(Client):
    """A connection: what it was answered, in the order of its requests."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Answer] = []

    def reserve(self) -> Slot:
        self.answers.append([])
        return Slot(self.answers[-1])

    def answer_at_once(self, data: bytes) -> None:
        self.answers.append([data])


class Slot:
    """The place of one answer."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def send(self, chunks: Sequence[bytes]) -> None:
        assert not self._answer, "a request has one answer"
        self._answer += map(bytes, chunks)


class GeneralCall:
    """A request on the general path."""

    def __init__(
        self,
        header: RequestHeader,
        listener: str,
        peer: Any,
        crash: Callable[[BaseException], None],
    ) -> None:
        self._header = header
        self.version = header.api_version
        self.listener = listener
        self.connection = peer
        self.crash = crash
        self.response: ProduceResponse | None = None
        self._slot = peer.reserve()

    def answer(self, response: ProduceResponse | None) -> None:
        self.response = response
        if response is not None:
            correlation_id = self._header.correlation_id
            self._slot.send([encode_response(self.version, correlation_id, response)])


class Broker:
    """The parts of a broker that serve produces: the general path and, if wanted, the fast path."""

    def __init__(self, world: World | None = None, *, has_fast_path: bool = True) -> None:
        self.world = world or World()
        self.world.lead()
        self.cache = MetadataCache()
        self.handler = ProduceHandler(
            self.world.replicas, LeaderHints(self.world.replicas, self.cache), self.world.clock
        )
        self.metrics = RequestMetrics()
        fail = self.world.failures.append
        self.usual = ProduceFastPath(self.handler, self.world.clock, self.metrics, fail)
        self.has_fast_path = has_fast_path
        self.registered: Registered | None = None
        self.scope: Scope = (ANYBODY, "PLAINTEXT")
        self.taken = 0

    def send(self, frame: memoryview, peer: Peer) -> bool:
        """Handle a request as `Dispatch` does; whether it was taken."""
        if self.registered is not None and self.take(frame, peer):
            self.taken += 1
            return True
        self.usual.flush()
        header, request = decode_request(frame)
        _, listener = self.scope
        call = GeneralCall(header, listener, peer, self.world.failures.append)
        self.handler.handle(request, call)
        if self.has_fast_path:
            self.registered = self.usual.register(frame, header, request, call.response, self.scope)
        return False

    def take(self, frame: memoryview, peer: Peer) -> bool:
        assert self.registered is not None
        return self.usual.try_handle(frame, self.registered, cast(Connection, peer))

    def produce(self, peer: Peer, *values: bytes, **fields: Any) -> bool:
        return self.send(frame_of(batch(values, **fields)), peer)

    def contents(self) -> bytes:
        file = self.world.replicas.partitions[CLICKS].log.active.file
        return file.read(0, file.size())


def frame_of(
    records: bytes | bytearray | None,
    *more: ProduceTopic,
    version: int = 9,
    acks: int = 1,
    correlation_id: int = 1,
    key: TopicPartition = CLICKS,
    client_id: str = "tests",
    transactional_id: str | None = None,
) -> memoryview:
    """A Produce frame as it is received."""
    part = ProducePartition(index=key.partition, records=records)
    topic = ProduceTopic(name=key.topic, partition_data=[part])
    request = ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=1000, topic_data=[topic, *more]
    )
    frame = encode_request(RequestHeader(0, version, correlation_id, client_id), request)
    return memoryview(bytearray(frame))[4:]


def errors_of(peer: Peer, version: int = 9) -> list[int]:
    """The error of each answer."""
    found = []
    for answer in peer.answers:
        _, response = decode_response(API, version, b"".join(answer)[4:])
        found.append(response.responses[0].partition_responses[0].error_code)
    return found


def fields_of(producer_id: int, sequence: int) -> dict[str, int]:
    epoch = 0 if producer_id >= 0 else -1
    return {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}


def long_batch(*values: bytes, codec: Codec = Codec.ZSTD, **fields: Any) -> bytearray:
    """A batch of `LONG` and these values."""
    data = batch([LONG, *values], codec=codec, **fields)
    HEADER.pack_into(data, 0, *read_header(data)._replace(max_timestamp=-1))
    seal(data, 0, len(data))
    return data
