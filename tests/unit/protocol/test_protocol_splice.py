"""Fetch responses whose records stay in files: the pieces in order make the same frame."""

import pytest

from kdist.protocol.envelope import decode_response, encode_response
from kdist.protocol.fetch import API, FetchPartitionResult, FetchResponse, FetchTopicResult


class FileSlice:
    """Stands in for a range of a segment: a length, and the bytes that sendfile would send."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def __len__(self) -> int:
        return len(self.content)


def response(*record_sets) -> FetchResponse:
    partitions = [
        FetchPartitionResult(partition_index=n, error_code=0, high_watermark=9, records=records)
        for n, records in enumerate(record_sets)
    ]
    return FetchResponse(responses=[FetchTopicResult(topic="t", partitions=partitions)])


def joined(chunks) -> bytes:
    return b"".join(chunk.content if isinstance(chunk, FileSlice) else chunk for chunk in chunks)


@pytest.mark.parametrize("version", range(13))
def test_the_chunks_in_order_are_the_frame_with_the_records_in_it(version):
    contents = [b"first" * 100, b"", b"third", None, b"fifth" * 1000]
    sliced = [None if content is None else FileSlice(content) for content in contents]
    spliced = encode_response(version, 7, response(*sliced))
    whole = encode_response(version, 7, response(*contents))
    assert joined(spliced.chunks()) == whole
    assert spliced.size() == len(whole)
    assert [chunk for chunk in spliced.chunks() if isinstance(chunk, FileSlice)] == [
        slice_ for slice_ in sliced if slice_ is not None
    ]


def test_the_records_are_not_in_the_buffer():
    spliced = encode_response(12, 7, response(FileSlice(bytes(1 << 20))))
    assert len(spliced) < 100
    assert spliced.size() == len(spliced) + (1 << 20)
    assert int.from_bytes(spliced[:4], "big") == spliced.size() - 4


def test_one_partition_makes_three_chunks():
    before, records, behind = encode_response(12, 7, response(FileSlice(b"abc"))).chunks()
    assert (type(before), type(records), type(behind)) == (memoryview, FileSlice, memoryview)


def test_buffers_and_splices_may_be_mixed():
    mixed = encode_response(12, 7, response(b"in memory", FileSlice(b"in a file")))
    partitions = decode_response(API, 12, joined(mixed.chunks())[4:])[1].responses[0].partitions
    assert [bytes(partition.records) for partition in partitions] == [b"in memory", b"in a file"]


def test_a_frame_without_splices_is_one_chunk():
    out = encode_response(4, 7, response(b"abc", memoryview(b"def"), bytearray(b"ghi"), None))
    assert out.splices is None
    assert [bytes(chunk) for chunk in out.chunks()] == [bytes(out)]
