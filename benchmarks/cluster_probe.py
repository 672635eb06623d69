"""When partitions whose leader has died are served again: produces to them until all are accepted.

The requests are the protocol's own, on one connection to each broker that is left: a client would
add its own pauses before it asks again.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterable

import broker_frames as frames

from kdist.protocol import produce
from kdist.protocol.frame import RequestHeader, decode_response, encode_request
from kdist.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic

_PAUSE_S = 0.02
_TIMEOUT_MS = 500
_GIVEN_UP_S = 120.0


def first_produces(addresses: Iterable[str], topic: str, partitions: Iterable[int]) -> float:
    """Produce with acks=all until each partition has accepted it; when the last one has."""
    batch, left = frames.one_record(), set(partitions)
    end_s = time.perf_counter() + _GIVEN_UP_S
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(_connect(address)) for address in addresses]
        while True:
            frame = _produce_frame(topic, sorted(left), batch)
            for each in connections:
                each.sendall(frame)
            for each in connections:
                left -= _accepted(frames.receive(each))
            if not left:
                return time.perf_counter()
            assert time.perf_counter() < end_s, f"{len(left)} partitions are not served"
            time.sleep(_PAUSE_S)


def _connect(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), _GIVEN_UP_S)


def _produce_frame(topic: str, partitions: Iterable[int], batch: bytes) -> bytes:
    data = [ProducePartition(index=number, records=batch) for number in partitions]
    request = ProduceRequest(
        acks=-1, timeout_ms=_TIMEOUT_MS, topic_data=[ProduceTopic(name=topic, partition_data=data)]
    )
    header = RequestHeader(produce.API.key, produce.API.newest, 0, "benchmark")
    return bytes(encode_request(header, request))


def _accepted(answer: bytes) -> set[int]:
    _, response = decode_response(produce.API, produce.API.newest, answer[4:])
    results = response.responses[0].partition_responses
    return {each.index for each in results if not each.error_code}
