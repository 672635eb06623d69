"""Large requests: how many bytes they may have, and their decoding in steps."""

from __future__ import annotations

import dataclasses
import random
import struct
import uuid
from collections.abc import Generator
from typing import Any

import pytest

from kdist.errors import ProtocolError
from kdist.protocol import codec_source, compiler, metadata, offset_fetch, produce
from kdist.protocol.api import Api
from kdist.protocol.compiler import codec_for, stepped_decoder_for
from kdist.protocol.frame import (
    RequestHeader,
    UnsupportedVersionError,
    decode_request,
    decode_request_in_steps,
    encode_request,
)
from kdist.protocol.metadata import MetadataRequest, MetadataTopic
from kdist.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from kdist.protocol.schema import Shape, wire_fields
from kdist.protocol.versions import TABLE, request_bytes_max
from tests.unit.protocol.protocol_samples import Case, sample

PARTITIONS = 200_000
NAME = "a" * 60
HEADER_BYTES_MAX = 1000
BROKERS = ("live_brokers", "live_leaders")
# Their requests name no partition, topic, group or setting, or only few of these.
FEW = {
    *("ControlledShutdown", "Heartbeat", "LeaveGroup", "ListGroups", "ApiVersions"),
    *("InitProducerId", "DescribeClientQuotas", "AlterClientQuotas", "DescribeCluster"),
    *("AllocateProducerIds", "SaslHandshake", "SaslAuthenticate"),
    *("DescribeAcls", "CreateAcls", "DeleteAcls"),
    *("DescribeUserScramCredentials", "AlterUserScramCredentials"),
}


def name_of(api: Api) -> str:
    return api.name


def finish(steps: Generator[None, None, Any]) -> tuple[int, Any]:
    """How many steps it took, and what it returned."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


def filled(shape: Shape, version: int, entries: int) -> Any:
    """A usual value: long names, three replicas; `entries` structs in an outer array."""
    if shape.kind == "struct":
        assert shape.struct is not None
        return message(shape.struct, version, 1)
    if shape.kind == "array":
        assert shape.item is not None
        count = entries if shape.item.kind in ("struct", "string") else 3
        return [filled(shape.item, version, 1) for _ in range(count)]
    return {"string": NAME, "bytes": b"", "record_set": b"", "uuid": uuid.UUID(int=1)}.get(
        shape.kind, 0
    )


def message(cls: type[Any], version: int, entries: int) -> Any:
    return cls(
        **{
            field.name: filled(field.shape, version, 1 if field.name in BROKERS else entries)
            for field in wire_fields(cls)
            if field.default is dataclasses.MISSING or (field.is_in(version) and field.tag is None)
        }
    )


@pytest.mark.parametrize("api", [each for each in TABLE if each.name not in FEW], ids=name_of)
def test_a_request_that_names_each_partition_of_the_largest_site_is_within_the_limit(
    api: Api,
) -> None:
    for version in range(api.oldest, api.newest + 1):
        one, two = (
            len(encode_request(RequestHeader(api.key, version, 1, "c"), each))
            for each in (message(api.request, version, 1), message(api.request, version, 2))
        )
        assert HEADER_BYTES_MAX + (two - one) * PARTITIONS <= request_bytes_max(api.key)


@pytest.mark.parametrize("api", [each for each in TABLE if each.name not in FEW], ids=name_of)
def test_as_many_entries_as_it_then_has_are_decoded(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = 1000
    monkeypatch.setattr(codec_source, "ENTRIES_MAX", codec_source.ENTRIES_MAX // scale)
    monkeypatch.setattr(compiler, "_STEPPED", {})
    for version in range(api.oldest, api.newest + 1):
        request = message(api.request, version, PARTITIONS // scale)
        frame = encode_request(RequestHeader(api.key, version, 1, "c"), request)[4:]
        assert finish(decode_request_in_steps(bytes(frame)))[1][1] == request


def test_no_request_but_a_produce_may_be_as_large_as_the_setting_allows() -> None:
    limits = {api.name: request_bytes_max(api.key) for api in TABLE}
    assert limits.pop("Produce") > 1 << 30
    assert max(limits.values()) <= 45_000_000
    assert min(limits.values()) == request_bytes_max(12345) == 1 << 20


@pytest.mark.parametrize("api", TABLE, ids=name_of)
def test_decoding_in_steps_gives_what_decoding_at_once_does(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec_source, "STEP_BYTES", 0)
    monkeypatch.setattr(compiler, "_STEPPED", {})
    rng = random.Random(api.key)
    for version in range(api.oldest, api.newest + 1):
        header = RequestHeader(api.key, version, 7, "client")
        request = sample(Case(api.request, version), rng)
        frame = encode_request(header, request)[4:]
        steps, decoded = finish(decode_request_in_steps(bytes(frame)))
        assert decoded == decode_request(bytes(frame))
        assert steps >= 1
        for end in range(len(frame)):
            with pytest.raises(ProtocolError):
                finish(decode_request_in_steps(bytes(frame[:end])))


def test_a_version_that_is_not_supported_is_refused_by_the_first_step() -> None:
    with pytest.raises(UnsupportedVersionError):
        next(decode_request_in_steps(struct.pack(">hhih", 3, 99, 7, -1)))


def names(count: int) -> bytes:
    """A Metadata request of version 1 with the shortest names."""
    return struct.pack(">i", count) + b"\0\1a" * count


def test_a_step_takes_no_more_than_its_bytes() -> None:
    body = names(20_000)
    steps, (request, _) = finish(stepped_decoder_for(MetadataRequest, 1)(body, 0))
    assert len(request.topics) == 20_000
    assert steps - 1 == len(body) // (codec_source.STEP_BYTES + 3)


def test_more_entries_than_an_honest_request_has_are_refused_before_they_are_made() -> None:
    decode = stepped_decoder_for(MetadataRequest, 1)
    body = names(codec_source.ENTRIES_MAX + 1)
    steps = decode(body, 0)
    next(steps)
    with pytest.raises(ProtocolError):
        next(steps)


def test_entries_of_all_arrays_count_together() -> None:
    decode = stepped_decoder_for(offset_fetch.OffsetFetchRequest, 1)
    topic = struct.pack(">h1si", 1, b"a", 250_000) + bytes(1_000_000)
    one = struct.pack(">h1si", 1, b"g", 1) + topic
    assert finish(decode(one, 0))[0] >= 1
    many = struct.pack(">h1si", 1, b"g", 21) + topic * 21
    with pytest.raises(ProtocolError):
        finish(decode(many, 0))


def test_an_array_of_more_numbers_than_there_are_partitions_is_refused() -> None:
    decode = stepped_decoder_for(offset_fetch.OffsetFetchRequest, 1)
    body = struct.pack(">h1sih1si", 1, b"g", 1, 1, b"a", 250_001) + bytes(1_000_004)
    with pytest.raises(ProtocolError):
        finish(decode(body, 0))


def test_a_produce_of_more_partitions_than_a_broker_has_is_refused() -> None:
    codec = codec_for(ProduceRequest, 3)

    def encoded(topics: int) -> bytes:
        out = bytearray()
        partitions = [ProducePartition(index=0, records=b"")] * 127
        topic = ProduceTopic(name="a", partition_data=partitions)
        codec.encode(ProduceRequest(acks=1, timeout_ms=1, topic_data=[topic] * topics), out)
        return bytes(out)

    request, _ = codec.decode(encoded(256), 0)
    assert len(request.topic_data) == 256
    with pytest.raises(ProtocolError):
        codec.decode(encoded(257), 0)


@pytest.mark.parametrize(("count", "is_taken"), [(256, True), (257, False)])
def test_hundreds_of_tags_in_one_section_are_refused(count: int, is_taken: bool) -> None:
    tags = dict.fromkeys(range(100, 100 + count), b"")
    request = MetadataRequest(topics=[MetadataTopic(name="a")])
    request.unknown_tags = tags
    frame = encode_request(RequestHeader(metadata.API.key, 9, 1, "c"), request)[4:]
    if is_taken:
        assert decode_request(bytes(frame))[1].unknown_tags == tags
    else:
        with pytest.raises(ProtocolError):
            decode_request(bytes(frame))


def test_a_decoder_in_steps_is_made_once() -> None:
    first = stepped_decoder_for(ProduceRequest, produce.API.newest)
    assert stepped_decoder_for(ProduceRequest, produce.API.newest) is first
