"""Every message at every version, encoded and decoded; our bytes against other libraries'."""

import importlib
import io
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription as PeerSubscription
from kio.serial import entity_reader, entity_writer
from protocol_samples import ALL_CASES, Case, encoded, every_version_of, sample

from kdist.errors import ProtocolError
from kdist.protocol.api_versions import ApiVersionsResponse
from kdist.protocol.compiler import codec_for, get_version, put_versioned
from kdist.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
    read_assignment,
    read_subscription,
)
from kdist.protocol.group_records import (
    VALUE_VERSION,
    GroupMember,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    read_group_value,
    read_key,
    read_offset_value,
)
from tests.examples import examples

every_case = every_version_of(ALL_CASES)

SAMPLES = 15
KAFKA_PYTHON = [
    importlib.import_module(f"kafka.protocol.{name}")
    for name in ("admin", "consumer", "metadata", "producer", "sasl")
]


def kafka_python_class(case: Case):
    """kafka-python's class of the same name, or None."""
    classes = (getattr(module, case.cls.__name__, None) for module in KAFKA_PYTHON)
    return next((cls for cls in classes if cls is not None), None)


def kio_class(case: Case):
    """kio's class of the same name and version, or None."""
    noun, kind = re.fullmatch(r"(\w+?)(Request|Response|)", case.cls.__name__).groups()
    package = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", noun).lower()
    path = f"kio.schema.{package}.v{case.version}.{kind.lower() or 'data'}"
    try:
        return getattr(importlib.import_module(path), case.cls.__name__)
    except ModuleNotFoundError:
        return None


IN_KAFKA_PYTHON = [case for case in ALL_CASES if kafka_python_class(case)]
IN_KIO = [case for case in ALL_CASES if kio_class(case)]


def samples(case: Case):
    rng = random.Random(str(case))
    for _ in range(SAMPLES):
        yield sample(case, rng, is_tame=True)


SUBSCRIPTION = ConsumerProtocolSubscription(
    topics=["t"],
    user_data=b"u",
    owned_partitions=[TopicPartitions(topic="t", partitions=[0, 2])],
    generation_id=5,
    rack_id="r",
)


@every_case
@examples(5, deadline=None, report_multiple_bugs=False)
@given(rng=st.randoms())
def test_a_message_survives_the_round_trip(case, rng):
    message = sample(case, rng)
    frame = encoded(case, message)
    decoded, position = codec_for(*case).decode(memoryview(frame), 0)
    assert decoded == message
    assert position == len(frame)
    assert encoded(case, decoded) == frame


@every_case
def test_a_message_cut_at_any_length_is_refused(case):
    frame = encoded(case, sample(case, random.Random(str(case))))
    decode = codec_for(*case).decode
    for size in range(len(frame)):
        with pytest.raises(ProtocolError):
            decode(memoryview(frame)[:size], 0)


@every_case
def test_flipped_bytes_give_a_message_or_a_protocol_error(case):
    rng = random.Random(str(case))
    for _ in range(60):
        damaged = bytearray(encoded(case, sample(case, rng)))
        for _ in range(rng.randint(1, 3) if damaged else 0):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        outcome = outcome_of(case, damaged)
        assert outcome is case.cls or case.cls.__name__ in outcome


def outcome_of(case, damaged):
    """The type of what was decoded, or what the ProtocolError says; other exceptions come out."""
    try:
        return type(codec_for(*case).decode(memoryview(damaged), 0)[0])
    except ProtocolError as error:
        return str(error)


@every_case
def test_a_message_may_begin_anywhere_in_its_buffer(case):
    message = sample(case, random.Random(str(case)))
    frame = encoded(case, message)
    decoded, position = codec_for(*case).decode(memoryview(b"before" + frame + b"behind"), 6)
    assert decoded == message
    assert position == 6 + len(frame)


@every_version_of([case for case in ALL_CASES if case.is_flexible])
def test_tags_of_a_newer_peer_are_kept_and_sent_on(case):
    message = sample(case, random.Random(str(case)), is_tame=True)
    frame = encoded(case, message)
    message.unknown_tags = {0xFFFF: b"", 0x51: b"new"}
    tagged = encoded(case, message)
    assert tagged.endswith(b"\x51\x03new" + b"\xff\xff\x03\x00")  # ascending, and last
    assert len(tagged) == len(frame) + 9
    decoded, _ = codec_for(*case).decode(memoryview(tagged), 0)
    assert decoded.unknown_tags == {0x51: b"new", 0xFFFF: b""}
    assert decoded == message


def test_as_many_messages_are_compared_as_the_peers_have():
    assert len(IN_KAFKA_PYTHON) == 416  # all but keys 4 to 7 and the records of __consumer_offsets
    assert len(IN_KIO) == 378


@every_version_of(IN_KAFKA_PYTHON)
def test_kafka_python_reads_and_writes_the_same_bytes(case):
    peer = kafka_python_class(case)
    # Its consumer protocol classes read and write the version in front of the message.
    prefix = case.version.to_bytes(2, "big") if "ConsumerProtocol" in str(case) else b""
    for message in samples(case):
        if case.cls is ApiVersionsResponse:
            message.error_code = 0  # with an error it reads every version as 0, as KIP-511 has it
        ours = encoded(case, message)
        read = peer.decode(prefix + ours, version=case.version)
        read._header = None  # decode() leaves it out, encode() asks for it
        theirs = bytes(read.encode(version=case.version))
        assert theirs == prefix + ours
        assert codec_for(*case).decode(theirs, len(prefix)) == (message, len(theirs))


@every_version_of(IN_KIO)
def test_kio_reads_and_writes_the_same_bytes(case):
    peer = kio_class(case)
    read, write = entity_reader(peer), entity_writer(peer)
    for message in samples(case):
        ours = encoded(case, message)
        entity, size = read(ours, 0)
        assert size == len(ours)
        out = io.BytesIO()
        write(out, entity)
        theirs = out.getvalue()
        assert theirs == ours
        assert codec_for(*case).decode(theirs, 0) == (message, len(theirs))


def test_kafka_python_reads_our_subscription():
    peer = PeerSubscription.decode(put_versioned(SUBSCRIPTION, 3))
    assert (peer.topics, peer.user_data, peer.generation_id, peer.rack_id) == (["t"], b"u", 5, "r")


def test_older_subscriptions_lack_the_newer_fields():
    older = read_subscription(put_versioned(SUBSCRIPTION, 1))
    assert older.owned_partitions == SUBSCRIPTION.owned_partitions
    assert (older.generation_id, older.rack_id) == (-1, None)


def test_a_newer_version_is_read_as_the_newest_known():
    newer = b"\x00\x09" + put_versioned(SUBSCRIPTION, 3)[2:] + b"fields of the future"
    assert read_subscription(newer) == SUBSCRIPTION


def test_assignments_come_back():
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[TopicPartitions(topic="t", partitions=[1])]
    )
    raw = put_versioned(assignment, 0)
    assert raw == bytes.fromhex("0000 00000001 0001 74 00000001 00000001 ffffffff")
    assert read_assignment(raw) == assignment


def test_keys_are_distinguished_by_their_version():
    position = OffsetCommitKey(group="g", topic="t", partition=3)
    raw = put_versioned(position, 1)
    assert raw == bytes.fromhex("0001 0001 67 0001 74 00000003")
    assert read_key(raw) == read_key(b"\x00\x00" + raw[2:]) == position
    assert read_key(bytes.fromhex("0002 0001 67")) == GroupMetadataKey(group="g")


def test_keys_of_an_unknown_version_are_skipped():
    assert read_key(bytes.fromhex("0003 0001 67")) is None


@pytest.mark.parametrize(
    ("version", "layout"),
    [
        (0, "0000 0000000000000007 0001 6d 0000000000000009"),
        (1, "0001 0000000000000007 0001 6d 0000000000000009 ffffffffffffffff"),
        (2, "0002 0000000000000007 0001 6d 0000000000000009"),
        (3, "0003 0000000000000007 ffffffff 0001 6d 0000000000000009"),
        (4, "0004 0000000000000007 ffffffff 02 6d 0000000000000009 00"),
    ],
)
def test_offset_values_of_every_version_have_the_published_layout(version, layout):
    value = OffsetCommitValue(offset=7, metadata="m", commit_timestamp=9)
    assert put_versioned(value, version) == bytes.fromhex(layout)
    assert read_offset_value(bytes.fromhex(layout)) == value


def test_group_values_have_the_published_layout():
    member = GroupMember(
        member_id="m",
        client_id="c",
        client_host="/h",
        rebalance_timeout=1,
        session_timeout=2,
        subscription=b"s",
        assignment=b"a",
    )
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=3,
        protocol="range",
        leader=None,
        current_state_timestamp=4,
        members=[member],
    )
    raw = put_versioned(value, VALUE_VERSION)
    assert raw == bytes.fromhex(
        "0003 0008 636f6e73756d6572 00000003 0005 72616e6765 ffff 0000000000000004 00000001"
        "0001 6d ffff 0001 63 0002 2f68 00000001 00000002 00000001 73 00000001 61"
    )
    assert read_group_value(raw) == value


@pytest.mark.parametrize("read", [read_offset_value, read_group_value])
def test_values_of_an_unknown_version_are_refused(read):
    with pytest.raises(ProtocolError, match="version 5; 4 is the newest"):
        read(b"\x00\x05" + bytes(100))


@pytest.mark.parametrize("raw", [b"", b"\x00", b"\xff\xff", b"\x80\x00 and more"])
def test_a_cut_or_negative_version_is_refused(raw):
    with pytest.raises(ProtocolError):
        get_version(raw)
