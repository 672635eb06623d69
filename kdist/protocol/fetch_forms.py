"""Templates for the requests and responses of repeated fetches, with a few fields to fill (pure).

A consumer of one partition sends the same request again and again, except for the correlation id
and the fetch offset, and gets the same response, except for sizes, three offsets and the records.
The positions of these fields in a version are not declared here but found by the codec: they are
the bytes that change when it encodes another value.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import NamedTuple

from kdist.protocol.fetch import (
    API,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopicResult,
)
from kdist.protocol.frame import (
    SIZE_BYTES,
    RequestHeader,
    SplicedBuffer,
    encode_request,
    encode_response,
)
from kdist.wire.primitives import put_unsigned

OFFSET = struct.Struct(">q")
_START = struct.Struct(">ii")  # of a response frame: its size, and the correlation id
_SIZE = struct.Struct(">i")


def from_offset(request: FetchRequest, offset: int) -> FetchRequest:
    """A copy of a request of one partition, with another fetch offset."""
    (topic,) = request.topics
    (asked,) = topic.partitions
    asked = replace(asked, fetch_offset=offset)
    return replace(request, topics=[replace(topic, partitions=[asked])])


def find_offset(frame: memoryview, header: RequestHeader, request: FetchRequest) -> int | None:
    """The position in `frame` of its single partition's fetch offset.

    None if this codec would have encoded the request differently.
    """
    zeros, ones = (encode_request(header, from_offset(request, each)) for each in (0, -1))
    start, end = (place - SIZE_BYTES for place in difference(zeros, ones))
    written = memoryview(zeros)[SIZE_BYTES:]
    is_same = frame[:start] == written[:start] and frame[end:] == written[end:]
    return start if is_same else None


class AnswerForm(NamedTuple):
    """The responses to one kind of request. `offsets`: high watermark, then as many of last stable
    offset and log start offset as the version has."""

    head: bytes
    offsets: struct.Struct
    offsets_at: int
    tail: bytes
    is_flexible: bool

    @classmethod
    def of(cls, version: int, request: FetchRequest) -> AnswerForm:
        """The form for a request of one partition, from version 4 on; in the request's session."""
        zeros, ones = (_answer(version, request, each) for each in (0, -1))
        start, end = difference(zeros, ones)
        assert zeros.splices is not None
        ((records_at, _),) = zeros.splices
        is_flexible = API.is_flexible(version)
        return cls(
            bytes(zeros[: records_at - (1 if is_flexible else _SIZE.size)]),
            struct.Struct(f">{(end - start) // OFFSET.size}q"),
            start,
            bytes(zeros[records_at:]),
            is_flexible,
        )

    def fill(self, correlation_id: int, offsets: tuple[int, int, int], size: int) -> bytearray:
        """The bytes before `size` bytes of records; `tail` follows the records."""
        head = bytearray(self.head)
        if self.is_flexible:
            put_unsigned(head, size + 1)
        else:
            head += _SIZE.pack(size)
        whole = len(head) + size + len(self.tail)
        _START.pack_into(head, 0, whole - SIZE_BYTES, correlation_id)
        packed = self.offsets
        packed.pack_into(head, self.offsets_at, *offsets[: packed.size // OFFSET.size])
        return head


class _NoRecords:
    """Marks where records go."""

    def __len__(self) -> int:
        return 0


def _answer(version: int, request: FetchRequest, offset: int) -> SplicedBuffer:
    (topic,) = request.topics
    (asked,) = topic.partitions
    result = FetchPartitionResult(
        partition_index=asked.partition,
        error_code=0,
        high_watermark=offset,
        last_stable_offset=offset,
        log_start_offset=offset,
        aborted_transactions=[] if request.isolation_level == 1 else None,
        records=_NoRecords(),
    )
    topics = [FetchTopicResult(topic=topic.topic, topic_id=topic.topic_id, partitions=[result])]
    response = FetchResponse(session_id=request.session_id, responses=topics)
    return encode_response(version, 0, response)


def difference(one: bytearray, other: bytearray) -> tuple[int, int]:
    """The range in which two frames of the same length differ."""
    places = [
        place for place, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]
    ]
    return places[0], places[-1] + 1
