"""What one fetch and its answer share with the next like them: forms with a few blanks (pure).

A consumer of one partition sends the same request again and again, but for the correlation id and
the fetch offset, and gets the same answer but for the sizes, three offsets and the records. Where
those stand in a version is not written down here: the codec says it, by what changes in its bytes
when they change in the message.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import NamedTuple

from kdist.protocol.envelope import encode_request, encode_response
from kdist.protocol.fetch import (
    API,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopicResult,
)
from kdist.protocol.framing import SIZE_BYTES
from kdist.protocol.headers import RequestHeader
from kdist.protocol.splice import SplicedBuffer
from kdist.wire.varint import put_unsigned

OFFSET = struct.Struct(">q")
_START = struct.Struct(">ii")  # of an answer: its size, and the correlation id
_SIZE = struct.Struct(">i")


def from_offset(request: FetchRequest, offset: int) -> FetchRequest:
    """The same request of one partition, from another offset on."""
    (topic,) = request.topics
    (asked,) = topic.partitions
    asked = replace(asked, fetch_offset=offset)
    return replace(request, topics=[replace(topic, partitions=[asked])])


def find_offset(frame: memoryview, header: RequestHeader, request: FetchRequest) -> int | None:
    """Where in `frame` the fetch offset of its one partition stands.

    None if the frame is not what this side would have written.
    """
    zeros, ones = (encode_request(header, from_offset(request, each)) for each in (0, -1))
    start, end = (place - SIZE_BYTES for place in difference(zeros, ones))
    written = memoryview(zeros)[SIZE_BYTES:]
    is_same = frame[:start] == written[:start] and frame[end:] == written[end:]
    return start if is_same else None


class AnswerForm(NamedTuple):
    """The answers to one kind of request. `offsets`: high watermark, and as many of the last stable
    and the log start offset as the version has."""

    head: bytes
    offsets: struct.Struct
    offsets_at: int
    tail: bytes
    is_flexible: bool

    @classmethod
    def of(cls, version: int, request: FetchRequest) -> AnswerForm:
        """For a request of one partition, from version 4 on; its session answers."""
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
        """What goes before `size` bytes of records; `tail` follows them."""
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
    topics = [FetchTopicResult(topic=topic.topic, partitions=[result])]
    response = FetchResponse(session_id=request.session_id, responses=topics)
    return encode_response(version, 0, response)


def difference(one: bytearray, other: bytearray) -> tuple[int, int]:
    """From where to where two frames of the same length differ."""
    places = [
        place for place, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]
    ]
    return places[0], places[-1] + 1
