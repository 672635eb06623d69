"""Frames and their headers, found whole, late, byte by byte; whole requests; false lengths."""

import contextlib
import io
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest as PeerFetchRequest
from kafka.protocol.metadata import ApiVersionsResponse as PeerApiVersionsResponse
from kafka.protocol.producer import ProduceResponse as PeerProduceResponse
from protocol_samples import ALL_CASES, Case, every_version_of, sample

from kdist.errors import Error, ProtocolError
from kdist.protocol.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kdist.protocol.compiler import codec_for
from kdist.protocol.fetch import API, FetchPartitionResult, FetchResponse, FetchTopicResult
from kdist.protocol.frame import (
    RequestHeader,
    UnsupportedVersionError,
    bytes_wanted,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    get_client_id,
    get_fixed_fields,
    get_response_header,
    put_request_header,
    put_response_header,
)
from kdist.protocol.heartbeat import HeartbeatRequest
from kdist.protocol.produce import ProducePartitionResult, ProduceResponse, ProduceTopicResult
from kdist.protocol.schema import flexible_since
from kdist.protocol.versions import TABLE, advertised_versions, api_for

HEADER = RequestHeader(api_key=18, api_version=3, correlation_id=7, client_id="me")
BYTES = {0: "0012 0003 00000007", 1: "0012 0003 00000007 0002 6d65"}
BYTES[2] = BYTES[1] + "00"


def framed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


ADVERTISED = {  # docs: the protocol table
    0: 11, 1: 17, 2: 9, 3: 12, 8: 8, 9: 8, 10: 4, 11: 9, 12: 4, 13: 5, 14: 5, 15: 5, 16: 5, 17: 1,
    18: 4, 19: 7, 20: 6, 21: 2, 22: 4, 23: 4, 29: 3, 30: 3, 31: 3, 32: 4, 33: 2, 34: 2, 35: 4,
    36: 2, 37: 3, 42: 2, 43: 2, 44: 1, 45: 0, 46: 0, 47: 0, 48: 1, 49: 1, 50: 0, 51: 0, 60: 1,
}  # fmt: skip
every_api = pytest.mark.parametrize("api", TABLE, ids=[api.name for api in TABLE])

HUGE = [
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x08",
]
FEW_BYTES = 60_000  # a traceback, a message of the size of the frame and its objects


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=5))
def test_frames_that_arrive_byte_by_byte_are_found_in_order(contents):
    buffer = b"".join(framed(content) for content in contents)
    found, start = [], 0
    for end in range(len(buffer) + 1):
        if start + (wanted := bytes_wanted(buffer, start, end, 100)) <= end:
            found.append(buffer[start + 4 : start + wanted])
            start += wanted
    assert found == contents
    assert start == len(buffer)


def test_the_bytes_wanted_are_the_size_until_it_is_known_then_the_frame():
    buffer = b"__" + framed(b"abcdef")
    assert bytes_wanted(buffer, 2, 5, 100) == 4
    assert bytes_wanted(buffer, 2, 6, 100) == 10
    assert bytes_wanted(framed(b""), 0, 4, 100) == 4


def test_the_buffer_behind_the_received_bytes_is_not_read():
    buffer = framed(b"abc") + b"stale bytes of an earlier tick"
    assert [bytes_wanted(buffer, 0, end, 100) for end in range(8)] == [4, 4, 4, 4, 7, 7, 7, 7]


@pytest.mark.parametrize("size", [-1, -(2**31), 101, 2**31 - 1])
def test_a_size_outside_the_limit_is_refused_before_its_content_arrives(size):
    buffer = size.to_bytes(4, "big", signed=True)
    assert bytes_wanted(buffer, 0, 3, 100) == 4
    with pytest.raises(ProtocolError, match=str(size)):
        bytes_wanted(buffer, 0, 4, 100)


@pytest.mark.parametrize(
    ("begin", "protocol"),
    [
        (b"\x15\x03\x03\x00", "TLS"),
        (b"\x16\x03\x01\x02", "TLS"),
        (b"HTTP", "HTTP"),
        (b"GET ", "HTTP"),
    ],
)
def test_another_protocol_in_the_place_of_a_size_is_named(begin, protocol):
    with pytest.raises(ProtocolError, match=f"looks like {protocol}"):
        bytes_wanted(b"_" + begin, 1, 5, 100)


def test_the_largest_frame_is_within_the_limit():
    assert bytes_wanted(framed(bytes(100)), 0, 104, 100) == 104


def test_a_request_has_its_own_api_s_limit_as_soon_as_its_key_is_there():
    buffer = framed(b"\x00\x12" + bytes(8))
    assert bytes_wanted(buffer, 0, 14, 100, {0x12: 10}.__getitem__) == 14
    assert bytes_wanted(buffer, 0, 5, 100, {0x12: 9}.__getitem__) == 14
    with pytest.raises(ProtocolError):
        bytes_wanted(buffer, 0, 6, 100, {0x12: 9}.__getitem__)


# Headers


def get_request_header(frame, version):
    client_id, position = get_client_id(frame, version)
    return RequestHeader(*get_fixed_fields(frame), client_id), position


@pytest.mark.parametrize("version", [0, 1, 2])
def test_request_headers_have_the_published_layout(version):
    out = bytearray()
    put_request_header(out, HEADER, version)
    assert out.hex() == bytes.fromhex(BYTES[version]).hex()
    expected = HEADER if version else HEADER._replace(client_id=None)
    assert get_request_header(out + b"body", version) == (expected, len(out))


@pytest.mark.parametrize("version", [0, 1])
def test_response_headers_have_the_published_layout(version):
    out = bytearray()
    put_response_header(out, 7, version)
    assert out.hex() == "00000007" + "00" * version
    assert get_response_header(out + b"body", version) == (7, len(out))


def test_a_client_id_may_be_null_and_is_plain_in_version_2():
    out = bytearray()
    put_request_header(out, HEADER._replace(client_id=None), 2)
    assert out.endswith(b"\xff\xff\x00")
    assert get_request_header(out, 2)[0].client_id is None


@pytest.mark.parametrize("version", [1, 2])
def test_a_client_id_that_is_not_utf_8_is_read_all_the_same(version):
    latin = "Müller".encode("latin-1")
    frame = bytes.fromhex(BYTES[0] + "0006") + latin + b"\0" * (version - 1)
    assert get_client_id(frame + b"body", version) == ("M\ufffdller", len(frame))


def test_header_tags_are_skipped():
    tagged = bytes.fromhex(BYTES[1] + "02 00 01 61 05 00") + b"body"
    assert get_request_header(tagged, 2) == (HEADER, len(tagged) - 4)
    assert get_response_header(bytes.fromhex("00000007 01 00 01 61"), 1) == (7, 8)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_request_header_cut_at_any_length_is_refused(version):
    whole = bytes.fromhex(BYTES[version])
    for size in range(len(whole)):
        with pytest.raises(ProtocolError):
            get_request_header(memoryview(whole)[:size], version)


@pytest.mark.parametrize("version", [0, 1])
def test_a_response_header_cut_at_any_length_is_refused(version):
    for size in range(4 + version):
        with pytest.raises(ProtocolError):
            get_response_header(bytes(size), version)


@pytest.mark.parametrize("client_id", ["fffe", "7fff 61"])
def test_a_bad_client_id_is_refused(client_id):
    with pytest.raises(ProtocolError):
        get_request_header(bytes.fromhex(BYTES[0] + client_id), 1)


def test_flexible_requests_have_header_2_and_their_responses_header_1():
    produce = api_for(0)
    assert [produce.request_header_version(v) for v in (0, 8, 9)] == [1, 1, 2]
    assert [produce.response_header_version(v) for v in (0, 8, 9)] == [0, 0, 1]


def test_api_versions_responses_never_have_a_flexible_header():
    assert [api_for(18).request_header_version(v) for v in range(5)] == [1, 1, 1, 2, 2]
    assert {api_for(18).response_header_version(v) for v in range(5)} == {0}


def test_only_controlled_shutdown_0_has_no_client_id():
    nameless = [
        (api.name, version)
        for api in TABLE
        for version in range(api.newest + 1)
        if api.request_header_version(version) == 0
    ]
    assert nameless == [("ControlledShutdown", 0)]


# Splices


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


@every_api
def test_requests_come_back_with_their_header(api):
    for version in range(api.oldest, api.newest + 1):
        request = sample(Case(api.request, version), random.Random(version))
        header = RequestHeader(api.key, version, -5, None)
        frame = encode_request(header, request)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        assert decode_request(memoryview(frame)[4:]) == (header, request)


@every_api
def test_responses_come_back_with_their_correlation_id(api):
    for version in range(api.oldest, api.newest + 1):
        response = sample(Case(api.response, version), random.Random(version))
        frame = encode_response(version, 2**31 - 1, response)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        assert decode_response(api, version, frame[4:]) == (2**31 - 1, response)


@every_api
def test_a_request_cut_at_any_length_is_refused(api):
    for version in range(api.oldest, api.newest + 1):
        request = sample(Case(api.request, version), random.Random(version))
        frame = encode_request(RequestHeader(api.key, version, 1, "me"), request)[4:]
        for size in range(len(frame)):
            with pytest.raises(ProtocolError):
                decode_request(memoryview(frame)[:size])


def test_bytes_behind_a_body_are_ignored():
    frame = encode_request(
        RequestHeader(12, 0, 1), HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    )
    assert decode_request(bytes(frame[4:]) + b"more")[1].group_id == "g"


def test_kafka_python_reads_our_frames_with_their_headers():
    response = ProduceResponse(
        responses=[
            ProduceTopicResult(
                name="t",
                partition_responses=[ProducePartitionResult(index=3, error_code=0, base_offset=42)],
            )
        ]
    )
    for version in (8, 9):
        frame = bytes(encode_response(version, 17, response))
        read = PeerProduceResponse.decode(frame, version=version, header=True, framed=True)
        assert read.header.correlation_id == 17
        assert read.responses[0].partition_responses[0].base_offset == 42


def test_we_read_kafka_pythons_frames_with_their_headers():
    for version in (11, 12):
        peer = PeerFetchRequest(version=version, max_wait_ms=5, topics=[])
        peer.with_header(correlation_id=17, client_id="peer")
        header, request = decode_request(memoryview(peer.encode(header=True, framed=True))[4:])
        assert header == RequestHeader(1, version, 17, "peer")
        assert request.max_wait_ms == 5


def test_an_api_versions_request_of_an_unknown_version_can_be_answered():
    ahead = bytes.fromhex("0012 0063 00000007 0002 6d65 00") + b"a body nobody knows"
    with pytest.raises(UnsupportedVersionError, match="version 99 is not one of 0 to 4") as caught:
        decode_request(ahead)
    assert caught.value.header == RequestHeader(18, 99, 7, "me")
    answer = ApiVersionsResponse(
        error_code=Error.UNSUPPORTED_VERSION,
        api_keys=[api for api in advertised_versions(to_brokers=False) if api.api_key == 18],
    )
    frame = encode_response(0, caught.value.header.correlation_id, answer)
    read = PeerApiVersionsResponse.decode(io.BytesIO(frame), version=4, header=True, framed=True)
    assert read.error_code == 35
    assert [(api.api_key, api.min_version, api.max_version) for api in read.api_keys] == [
        (18, 0, 4)
    ]


@pytest.mark.parametrize("version", [-1, 18, 32767])
def test_an_unknown_version_of_another_api_is_refused_with_its_header(version):
    frame = b"\x00\x01" + version.to_bytes(2, "big", signed=True) + b"\x00\x00\x00\x09\xff\xff"
    with pytest.raises(UnsupportedVersionError) as caught:
        decode_request(frame)
    assert caught.value.header == RequestHeader(1, version, 9, None)


@pytest.mark.parametrize("key", [-1, 38, 999])
def test_an_unknown_api_is_refused(key):
    with pytest.raises(ProtocolError, match=f"key {key}"):
        decode_request(key.to_bytes(2, "big", signed=True) + bytes(8))


def test_the_advertised_ranges_are_those_that_were_promised():
    advertised = advertised_versions(to_brokers=False)
    ranges = {api.api_key: (api.min_version, api.max_version) for api in advertised}
    assert ranges == {key: (0, newest) for key, newest in ADVERTISED.items()}


def test_requests_between_brokers_are_advertised_to_brokers_alone():
    to_all = advertised_versions(to_brokers=False)
    to_brokers = [api for api in advertised_versions(to_brokers=True) if api not in to_all]
    newest = {api.api_key: api.max_version for api in to_brokers}
    assert newest == {4: 7, 5: 4, 6: 8, 7: 3, 56: 3, 67: 0}


def test_request_and_response_turn_flexible_together():
    for api in TABLE:
        assert flexible_since(api.request) == flexible_since(api.response), api.name


def test_no_message_is_of_two_apis():
    for api in TABLE:
        assert api.request.api is api.response.api is api, api.name


def test_keys_and_names_are_unique():
    assert len({api.key for api in TABLE}) == len({api.name for api in TABLE}) == len(TABLE)
    assert all(api_for(api.key) is api for api in TABLE)
    assert {case.cls for case in ALL_CASES} >= {api.request for api in TABLE}


def test_the_api_versions_request_is_told_from_its_version():
    frame = encode_request(
        RequestHeader(18, 3, 1, "c"),
        ApiVersionsRequest(client_software_name="kdist", client_software_version="1"),
    )
    assert decode_request(frame[4:])[1].client_software_name == "kdist"


@every_version_of(ALL_CASES)
def test_a_huge_length_anywhere_allocates_nothing(case):
    decode = codec_for(*case).decode
    frames = [bytes(at) + huge + bytes(60 - at) for at in range(0, 60, 4) for huge in HUGE]
    frames += [b"\x01" * at + huge + bytes(60 - at) for at in range(0, 60, 5) for huge in HUGE]
    tracemalloc.start()
    for frame in frames:
        with contextlib.suppress(ProtocolError):  # some promise nothing, at some versions
            decode(memoryview(frame), 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < FEW_BYTES


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("ffff 0001 00000000 7fffffff", id="topics"),
        pytest.param("ffff 0001 00000000 00000001 7fff", id="name"),
        pytest.param("ffff 0001 00000000 00000001 0000 7fffffff", id="partitions"),
        pytest.param("ffff 0001 00000000 00000001 0000 00000001 00000000 7fffffff", id="records"),
    ],
)
def test_a_produce_request_of_2_gb_that_is_not_there_is_refused(body):
    frame = bytes.fromhex("0000 0003 00000001 ffff" + body) + bytes(8)
    with contextlib.suppress(ProtocolError):
        decode_request(frame)  # what is compiled at the first use is not counted
    tracemalloc.start()
    with pytest.raises(ProtocolError, match="remain"):
        decode_request(frame)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < FEW_BYTES


def test_a_count_is_held_against_the_smallest_size_of_its_items():
    # 20 topics of at least 8 bytes each cannot be in 100 bytes; nothing is made for any of them.
    frame = bytes.fromhex("0000 0003 00000001 ffff ffff 0001 00000000 00000014") + bytes(100)
    with pytest.raises(ProtocolError, match="a count of 20 where 100 bytes remain"):
        decode_request(frame)


def test_a_compact_string_longer_than_a_plain_one_can_be_is_refused():
    # What it names would have to be written to records and older answers, which have no room.
    frame = (
        bytes.fromhex("0008 0008 00000001 ffff 00") + b"\xc1\xb8\x02" + b"g" * 40_000 + bytes(20)
    )
    with pytest.raises(ProtocolError, match="a string of 40000 bytes"):
        decode_request(frame)
