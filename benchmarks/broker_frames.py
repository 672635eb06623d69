"""The requests that the broker's benchmark sends, and what their answers must say.

Requests use the newest versions that the broker supports. Batches have no producer id: the same
bytes are sent repeatedly, and the broker would take them for duplicates. The C program parses only
the size, API key and correlation id.
"""

from __future__ import annotations

import random
import socket
import struct
import time

from kdist.protocol import fetch, produce
from kdist.protocol.api_versions import API as API_VERSIONS
from kdist.protocol.api_versions import ApiVersionsRequest
from kdist.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kdist.protocol.frame import RequestHeader, decode_response, encode_request
from kdist.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from kdist.protocol.versions import api_for
from kdist.records.build import build_batch

RECORD_BYTES = 100
BULK_RECORD_BYTES = 1000
# Today: five minutes after its start the broker deletes what is older than its retention, a week.
TIMESTAMP_MS = time.time_ns() // 1_000_000
_CORRELATION_ID = 7
_SIZE = struct.Struct(">i")


def _header(key: int, version: int) -> RequestHeader:
    return RequestHeader(key, version, _CORRELATION_ID, "benchmark")


def one_record() -> bytes:
    """A batch of one record of 100 bytes."""
    return bytes(build_batch([bytes(RECORD_BYTES)], timestamp_ms=TIMESTAMP_MS))


def bulk(size: int) -> tuple[bytes, int]:
    """A batch of at most `size` bytes of 1,000-byte records, and how many they are."""
    rng = random.Random(size)
    count = size // (BULK_RECORD_BYTES + 12)  # 12: a record's overhead and its share of the header
    values = [rng.randbytes(BULK_RECORD_BYTES) for _ in range(count)]
    return bytes(build_batch(values, timestamp_ms=TIMESTAMP_MS)), count


def produce_frame(topic: str, batch: bytes, acks: int = 1) -> bytes:
    """A Produce of one batch to partition 0."""
    data = ProducePartition(index=0, records=batch)
    request = ProduceRequest(
        acks=acks, timeout_ms=30_000, topic_data=[ProduceTopic(name=topic, partition_data=[data])]
    )
    return bytes(encode_request(_header(0, produce.API.newest), request))


def fetch_frame(topic: str, offset: int, bytes_max: int) -> bytes:
    """A Fetch of `bytes_max` from `offset` of partition 0, as from a consumer without a session."""
    asked = FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=offset, partition_max_bytes=bytes_max
    )
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=bytes_max,
        topics=[FetchTopic(topic=topic, partitions=[asked])],
    )
    return bytes(encode_request(_header(1, fetch.NEWEST_BY_NAME), request))


def api_versions_frame() -> bytes:
    """An ApiVersions request, which every client sends first."""
    return bytes(encode_request(_header(18, API_VERSIONS.newest), ApiVersionsRequest()))


def exchange(connection: socket.socket, frame: bytes) -> bytes:
    """Send one request; the answer, with its size field."""
    connection.sendall(frame)
    return receive(connection)


def receive(connection: socket.socket) -> bytes:
    """The next answer, with its size field."""
    answer = bytearray()
    wanted = _SIZE.size
    while len(answer) < wanted:
        received = connection.recv(wanted - len(answer))
        if not received:
            raise RuntimeError("the broker closed the connection")
        answer += received
        if len(answer) == wanted == _SIZE.size:
            wanted += _SIZE.unpack(answer)[0]
    return bytes(answer)


def check_answer(frame: bytes, answer: bytes, fetched_bytes: int = 0) -> None:
    """Raise unless `answer` to `frame` has no error and as many bytes of records as it should."""
    key, version = struct.unpack_from(">hh", frame, _SIZE.size)
    _, response = decode_response(api_for(key), version, answer[_SIZE.size :])
    if key == produce.API.key:
        result = response.responses[0].partition_responses[0]
    else:
        result = response.responses[0].partitions[0]
    got = len(result.records or b"") if key == fetch.API.key else fetched_bytes
    if result.error_code or got != fetched_bytes:
        raise RuntimeError(f"error {result.error_code}, {got} bytes of records: {result}")
