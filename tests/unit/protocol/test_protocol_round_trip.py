"""Every message at every version: what is encoded is decoded again, whole, cut and damaged."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_samples import ALL_CASES, encoded, every_version_of, sample

from kdist.errors import ProtocolError
from kdist.protocol.compiler import codec_for
from tests.examples import examples

every_case = every_version_of(ALL_CASES)


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
