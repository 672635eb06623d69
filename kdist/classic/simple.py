"""SimpleConsumer: a blocking consumer of one broker, without positions and without a group.

    with SimpleConsumer("localhost", 9092) as consumer:
        for message, offset in consumer.fetch(FetchRequest("clicks", 0, offset=0)):
            print(offset, message.payload())

The application finds the partition's leader, and keeps track of the next offset. If it stores that
offset together with its results, each message takes effect exactly once. The consumer connects when
first used, and reconnects once if the connection was lost. Only one thread may use it at a time.
Source: the founding paper, section 3.1, and 0.8's `SimpleConsumer.scala`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self, TypeVar, Unpack

from kdist.client.background import BackgroundLoop
from kdist.client.cluster import api_error, raise_for
from kdist.client.consumer.opening import Opening, open_fetched
from kdist.client.security import SecurityKeywords, client_security
from kdist.client.settings import check_text, read_settings
from kdist.config.client_security import SecuritySettings
from kdist.errors import ApiError, Error, UserError, WrongType
from kdist.model import TopicPartition
from kdist.network.client import Client, ClientSettings
from kdist.network.network import CLIENT_PATIENCE, NEXT_ADDRESS_S, AsyncioNetwork, Patience
from kdist.network.tls import ClientTls, TlsTransport
from kdist.protocol import fetch, list_offsets
from kdist.protocol.fetch import FetchPartition, FetchTopic
from kdist.protocol.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kdist.records.record import HeaderPairs, Record
from kdist.wire.primitives import Buffer

__all__ = [
    "EARLIEST_TIME",
    "LATEST_TIME",
    "FetchRequest",
    "FetchedSet",
    "Message",
    "MessageAndOffset",
    "OutOfRange",
    "SimpleConsumer",
]


class Message(NamedTuple):
    """A message. `timestamp` is ms since the epoch, -1 for none; `key` and `value` may be None."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: HeaderPairs = ()

    def payload(self) -> bytes | None:
        """The first design's name for `value`."""
        return self.value


class MessageAndOffset(NamedTuple):
    """A message and its offset."""

    message: Message
    offset: int

    @property
    def next_offset(self) -> int:
        """The offset at which to fetch the message after this one."""
        return self.offset + 1


class FetchedSet:
    """The messages of one fetch, in order: an iterable of `MessageAndOffset`.

    `error` is the broker's error, if there was one; iteration raises it. `high_watermark` is the
    offset behind the last message that consumers may read.
    """

    def __init__(
        self,
        partition: TopicPartition,
        offset: int,
        buffer: Buffer = b"",
        high_watermark: int = -1,
        error: ApiError | None = None,
    ) -> None:
        self.partition = partition
        self.offset = offset
        self.high_watermark = high_watermark
        self.error = error
        self._buffer = buffer

    @property
    def size_bytes(self) -> int:
        """How many bytes the broker sent."""
        return len(self._buffer)

    @property
    def next_offset(self) -> int:
        """The offset at which to fetch what follows this set; raises `error`."""
        self.raise_error()
        found = self.offset
        for ready in open_fetched(self._buffer, self._opening(check_crcs=False)):
            found = max(found, ready.next_offset)
        return found

    def raise_error(self) -> None:
        """Raise `error`, if there is one."""
        if self.error is not None:
            raise self.error

    def __iter__(self) -> Iterator[MessageAndOffset]:
        """Yields the messages; raises `CorruptRecords` where the broker sent corrupt data."""
        self.raise_error()
        for ready in open_fetched(self._buffer, self._opening()):
            if ready.error is not None:
                raise ready.error
            if ready.batch is not None:
                yield from map(_with_offset, ready.batch.raw_records())

    def _opening(self, *, check_crcs: bool = True) -> Opening:
        return Opening(self.partition, self.offset, check_crcs=check_crcs)


def _with_offset(record: Record) -> MessageAndOffset:
    message = Message(record.key, record.value, record.timestamp, record.headers)
    return MessageAndOffset(message, record.offset)


P = TypeVar("P", bound=asyncio.BaseProtocol)
T = TypeVar("T")

LATEST_TIME = LATEST_TIMESTAMP
EARLIEST_TIME = EARLIEST_TIMESTAMP
SOCKET_TIMEOUT_MS = 30_000
BUFFER_BYTES = 64 << 10


class FetchRequest(NamedTuple):
    """What to fetch: about `fetch_size` bytes from `offset` on, but at least one whole batch."""

    topic: str
    partition: int
    offset: int
    fetch_size: int = 1 << 20

    @property
    def key(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


class OutOfRange(ApiError):
    """OFFSET_OUT_OF_RANGE: the partition holds offsets from `start` up to, not including, `end`.

    Fetching at `end` itself is no error: it returns no messages yet.
    """

    def __init__(self, partition: TopicPartition, offset: int, start: int, end: int) -> None:
        super().__init__(
            Error.OFFSET_OUT_OF_RANGE,
            f"{partition} has no offset {offset}: its offsets go from {start} up to {end}",
        )
        self.partition = partition
        self.offset = offset
        self.start = start
        self.end = end


class SimpleConsumer:
    """Fetches from the broker at `host` and `port`. `close` it, or use it in a `with` block.

    `buffer_bytes` is the size of the socket's receive buffer, `security` as for other clients. Its
    methods raise `ApiError`: NETWORK_EXCEPTION if the broker cannot be reached, REQUEST_TIMED_OUT
    after `socket_timeout_ms`, or the error that the broker returns.
    """

    def __init__(
        self,
        host: str,
        port: int,
        socket_timeout_ms: int = SOCKET_TIMEOUT_MS,
        buffer_bytes: int = BUFFER_BYTES,
        client_id: str = "kdist-simple",
        **security: Unpack[SecurityKeywords],
    ) -> None:
        if not isinstance(client_id, str):
            raise WrongType(f"client_id is {client_id!r}, and must be text")
        check_text("client_id", client_id)
        found, _ = read_settings(SecuritySettings, security, "a simple consumer")
        self.host = host
        self.port = port
        self._settings = ClientSettings(
            client_id,
            request_timeout_ms=socket_timeout_ms,
            connect_timeout_ms=socket_timeout_ms,
            security=client_security(found),
        )
        self._background = BackgroundLoop("kdist-simple-consumer")
        self._network = _Network(self._background.loop, buffer_bytes)
        self._background.warn_if_left(self)
        self._client: Client | None = None
        self._is_closed = False

    # Messages

    def fetch(self, request: FetchRequest, max_wait_ms: int = 0, min_bytes: int = 0) -> FetchedSet:
        """The messages from an offset on; an empty set at the partition's end.

        The broker waits up to `max_wait_ms` for `min_bytes` to return. Raises `OutOfRange`, or
        another `ApiError`, such as NOT_LEADER_OR_FOLLOWER or UNKNOWN_TOPIC_OR_PARTITION.
        """
        (found,) = self.multifetch([request], max_wait_ms, min_bytes)
        found.raise_error()
        return found

    def multifetch(
        self, requests: Iterable[FetchRequest], max_wait_ms: int = 0, min_bytes: int = 0
    ) -> list[FetchedSet]:
        """A set for each request, in order; a set whose request failed raises when it is read."""
        wanted = list(requests)
        if not wanted:
            return []
        return self._run(self._retried(lambda: self._fetch(wanted, max_wait_ms, min_bytes)))

    async def _fetch(
        self, wanted: Sequence[FetchRequest], max_wait_ms: int, min_bytes: int
    ) -> list[FetchedSet]:
        """Fetch, in several rounds if need be: a fetch request may name a partition only once."""
        rounds: list[dict[TopicPartition, int]] = []
        for index, each in enumerate(wanted):
            free = next((one for one in rounds if each.key not in one), None)
            if free is None:
                free = {}
                rounds.append(free)
            free[each.key] = index
        found: dict[int, FetchedSet] = {}
        for one in rounds:
            several = [wanted[index] for index in one.values()]
            for fetched in await self._fetch_once(several, max_wait_ms, min_bytes):
                found[one[fetched.partition]] = fetched
        return [found[index] for index in range(len(wanted))]

    async def _fetch_once(
        self, wanted: Sequence[FetchRequest], max_wait_ms: int, min_bytes: int
    ) -> list[FetchedSet]:
        request = fetch.FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            topics=[
                FetchTopic(
                    topic=each.topic,
                    partitions=[
                        FetchPartition(
                            partition=each.partition,
                            fetch_offset=each.offset,
                            partition_max_bytes=each.fetch_size,
                        )
                    ],
                )
                for each in wanted
            ],
        )
        client = await self._connected()
        timeout_ms = self._settings.request_timeout_ms + max_wait_ms
        version = client.version_of(fetch.API, fetch.NEWEST_BY_NAME)
        answer = await client.send(request, version, timeout_ms)
        raise_for(answer.error_code)
        asked = {each.key: each.offset for each in wanted}
        found = []
        for topic in answer.responses:
            for each in topic.partitions:
                key = TopicPartition(topic.topic, each.partition_index)
                error = await self._refusal(key, asked[key], each.error_code)
                found.append(
                    FetchedSet(key, asked[key], each.records or b"", each.high_watermark, error)
                )
        return found

    async def _refusal(self, key: TopicPartition, offset: int, code: int) -> ApiError | None:
        if code != Error.OFFSET_OUT_OF_RANGE:
            return api_error(Error.of(code), str(key)) if code else None
        start = (await self._offsets(key, EARLIEST_TIME, 1))[0]
        end = (await self._offsets(key, LATEST_TIME, 1))[0]
        return OutOfRange(key, offset, start, end)

    # Offsets

    def get_offsets_before(
        self, topic: str, partition: int, time_ms: int, max_offsets: int = 1
    ) -> list[int]:
        """Base offsets of the segments last written before a time (ms), newest first.

        At most `max_offsets` are returned. With `LATEST_TIME` the end offset comes first;
        `EARLIEST_TIME` returns the first offset. Reading from the first of them on misses no
        message from that time on.
        """
        key = TopicPartition(topic, partition)
        return self._run(self._retried(lambda: self._offsets(key, time_ms, max_offsets)))

    async def _offsets(self, key: TopicPartition, time_ms: int, count: int) -> list[int]:
        """Segments need version 0 of ListOffsets; Kafka 4, without it, has only the two ends."""
        client = await self._connected()
        is_end = time_ms in (EARLIEST_TIME, LATEST_TIME) and count == 1
        version = client.version_of(list_offsets.API) if is_end else list_offsets.API.oldest
        asked = ListOffsetsPartition(partition_index=key.partition, timestamp=time_ms)
        if version == list_offsets.API.oldest:
            asked.max_num_offsets = count
        topics = [ListOffsetsTopic(name=key.topic, partitions=[asked])]
        answer = await client.send(ListOffsetsRequest(topics=topics), version)
        ((found,),) = [topic.partitions for topic in answer.topics]
        raise_for(found.error_code, str(key))
        if version == list_offsets.API.oldest:
            return list(found.old_style_offsets)
        return [found.offset]

    # The connection

    async def _connected(self) -> Client:
        if self._client is None or self._client.is_closed:
            address = (self.host, self.port)
            self._client = await Client.connect_negotiated(self._network, *address, self._settings)
        return self._client

    async def _retried(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work` again, once, if the connection was lost since it was last used."""
        was_connected = self._client is not None
        try:
            return await work()
        except ApiError as error:
            if error.error is not Error.NETWORK_EXCEPTION or not was_connected:
                raise
        return await work()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._is_closed:
            work.close()
            raise UserError("the consumer is closed")
        return self._background.run(work)

    def close(self) -> None:
        """Close the connection."""
        if self._is_closed or self._background.is_elsewhere:
            return
        self._is_closed = True

        async def close() -> None:
            if self._client is not None:
                self._client.close()

        self._background.run(close())
        self._background.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Network(AsyncioNetwork):
    """The machine's network, with a given size for sockets' receive buffers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, buffer_bytes: int) -> None:
        super().__init__(loop)
        self._buffer_bytes = buffer_bytes

    async def connect(
        self,
        make: Callable[[], P],
        host: str,
        port: int,
        patience: Patience = CLIENT_PATIENCE,  # noqa: ARG002 - as long as the kernel waits
        tls: ClientTls | None = None,
    ) -> P:
        protocol = make()
        encrypting = tls and TlsTransport(protocol, tls, self.tick, self.loop, host)
        transport, _ = await self.loop.create_connection(
            lambda: encrypting or protocol, host, port, happy_eyeballs_delay=NEXT_ADDRESS_S
        )
        connected = transport.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._buffer_bytes)
        if encrypting:
            await encrypting.ready()
        return protocol
