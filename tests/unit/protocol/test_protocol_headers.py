"""Header versions and their bytes, and which API version has which."""

import pytest

from kdist.errors import ProtocolError
from kdist.protocol.headers import (
    RequestHeader,
    get_client_id,
    get_fixed_fields,
    get_response_header,
    put_request_header,
    put_response_header,
)
from kdist.protocol.versions import TABLE, api_for

HEADER = RequestHeader(api_key=18, api_version=3, correlation_id=7, client_id="me")
BYTES = {0: "0012 0003 00000007", 1: "0012 0003 00000007 0002 6d65"}
BYTES[2] = BYTES[1] + "00"


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
