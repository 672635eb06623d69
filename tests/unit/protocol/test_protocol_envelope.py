"""Whole requests and responses, and the version table they are looked up in."""

import io
import random

import pytest
from kafka.protocol.consumer import FetchRequest as PeerFetchRequest
from kafka.protocol.metadata import ApiVersionsResponse as PeerApiVersionsResponse
from kafka.protocol.producer import ProduceResponse as PeerProduceResponse
from protocol_samples import ALL_CASES, Case, sample

from kdist.errors import Error, ProtocolError
from kdist.protocol.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kdist.protocol.envelope import (
    UnsupportedVersionError,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from kdist.protocol.headers import RequestHeader
from kdist.protocol.heartbeat import HeartbeatRequest
from kdist.protocol.produce import ProducePartitionResult, ProduceResponse, ProduceTopicResult
from kdist.protocol.schema import flexible_since
from kdist.protocol.versions import TABLE, advertised_versions, api_for

ADVERTISED = {  # docs: the protocol table
    0: 11, 1: 17, 2: 9, 3: 12, 8: 8, 9: 8, 10: 4, 11: 9, 12: 4, 13: 5, 14: 5, 15: 5, 16: 5, 18: 4,
    19: 7, 20: 6, 21: 2, 22: 4, 23: 4, 32: 4, 33: 2, 34: 2, 35: 4, 37: 3, 42: 2, 43: 2, 44: 1,
    45: 0, 46: 0, 47: 0, 48: 1, 49: 1, 60: 1,
}  # fmt: skip
every_api = pytest.mark.parametrize("api", TABLE, ids=[api.name for api in TABLE])


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


@pytest.mark.parametrize("key", [-1, 17, 999])
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
