"""What declarations say, on small messages: layout, versions, nulls, tags, refusals."""

from __future__ import annotations

import dataclasses
import textwrap
import uuid as uuids

import pytest

from kdist.errors import ApiError, Error, ProtocolError
from kdist.protocol import compiler
from kdist.protocol.alter_configs import ReplacingSetting
from kdist.protocol.alter_user_scram_credentials import ScramUpsertion
from kdist.protocol.compiler import codec_for
from kdist.protocol.incremental_alter_configs import SettingChange
from kdist.protocol.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kdist.protocol.schema import (
    at,
    bytes_,
    float64,
    int8,
    int16,
    int32,
    int64,
    message,
    nullable_bytes,
    nullable_string,
    record_set,
    string,
    struct,
    uint16,
    uint32,
    uuid,
)
from tests.refusals import refused


@struct
class Pair:
    left: int8
    right: int8 = at(since=1, default=9)


@message(flexible=1)
class Everything:
    yes: bool
    a: int8
    b: int16
    c: uint16
    d: int32
    e: uint32
    f: int64
    g: float64
    h: uuid
    i: string
    j: nullable_string
    k: bytes_
    m: nullable_bytes
    n: record_set
    o: list[int32]
    p: list[string] | None
    q: list[Pair]
    r: Pair | None
    s: Pair
    t: list[uuid]


EVERYTHING = Everything(
    yes=True,
    a=-1,
    b=-2,
    c=65535,
    d=-4,
    e=2**32 - 1,
    f=-6,
    g=0.5,
    h=uuids.UUID(int=7),
    i="\u00e9",
    j=None,
    k=b"k",
    m=None,
    n=b"nn",
    o=[1, -1],
    p=["x"],
    q=[Pair(left=1)],
    r=Pair(left=2),
    s=Pair(left=3),
    t=[uuids.UUID(int=8)],
)
FIXED = "01 ff fffe ffff fffffffc ffffffff fffffffffffffffa 3fe0000000000000" + "00" * 15 + "07"


@message(flexible=2)
class Evolving:
    old: int32 = at(until=0, default=0)
    kept: string
    newer: int32 = at(since=1, default=-1)
    optional: int32 = at(since=1, default=-1, ignorable=True)
    maybe: nullable_string = at(nullable_since=1)
    several: list[int32] = at(since=1, default=[])
    tagged: int32 = at(since=2, tag=0, default=-1)
    tagged_text: nullable_string = at(since=2, tag=1, default=None, ignorable=True)
    tagged_pair: Pair | None = at(since=2, tag=3, default=None, ignorable=True)
    tagged_list: list[Pair] = at(since=2, tag=4, default=[], ignorable=True)


def encode(message_, version):
    out = bytearray()
    codec_for(type(message_), version).encode(message_, out)
    return bytes(out)


def decode(cls, version, data):
    message_, position = codec_for(cls, version).decode(memoryview(data), 0)
    assert position == len(data)
    return message_


def test_plain_layout_has_int16_and_int32_lengths_with_minus_one_for_null():
    assert encode(EVERYTHING, 0) == bytes.fromhex(
        FIXED
        + "0002 c3a9   ffff   00000001 6b   ffffffff   00000002 6e6e"
        + "00000002 00000001 ffffffff   00000001 0001 78   00000001 01   01 02   03   00000001"
        + "00" * 15
        + "08"
    )


def test_flexible_layout_has_varint_lengths_plus_one_and_a_tagged_section_for_each_struct():
    assert encode(EVERYTHING, 1) == bytes.fromhex(
        FIXED
        + "03 c3a9   00   02 6b   00   03 6e6e"
        + "03 00000001 ffffffff   02 02 78   02 01 09 00   01 02 09 00   03 09 00   02"
        + "00" * 15
        + "08"
        + "00"
    )


@pytest.mark.parametrize("version", [0, 1])
def test_every_wire_type_comes_back(version):
    assert decode(Everything, version, encode(EVERYTHING, version)) == EVERYTHING


@pytest.mark.parametrize("version", [0, 1])
def test_null_structs_and_arrays_come_back_as_none(version):
    without = dataclasses.replace(EVERYTHING, p=None, r=None)
    decoded = decode(Everything, version, encode(without, version))
    assert (decoded.p, decoded.r) == (None, None)
    assert decoded == without


def test_record_sets_are_views_into_the_buffer_they_came_in():
    frame = bytearray(encode(EVERYTHING, 1))
    records = decode(Everything, 1, frame).n
    assert type(records) is memoryview
    assert records.obj is frame


def test_a_field_that_the_version_lacks_is_decoded_as_its_default():
    message_ = decode(Evolving, 0, bytes.fromhex("00000005 0001 6b 0001 6d"))
    assert message_ == Evolving(old=5, kept="k", maybe="m")
    assert message_.newer == -1


def test_default_lists_are_not_shared():
    first, second = (decode(Evolving, 0, bytes.fromhex("00000005 0000 0000")) for _ in range(2))
    first.several.append(1)
    assert second.several == []
    assert Evolving(kept="", maybe="").several == []


@pytest.mark.parametrize(
    ("version", "field", "value"),
    [(0, "newer", 1), (0, "several", [1]), (1, "old", 1), (0, "maybe", None), (1, "tagged", 1)],
)
def test_a_value_that_the_version_cannot_carry_is_refused(version, field, value):
    message_ = Evolving(kept="", maybe="")
    setattr(message_, field, value)
    with pytest.raises(ApiError, match=rf"Evolving version {version} .*{field}") as caught:
        encode(message_, version)
    assert caught.value.error is Error.UNSUPPORTED_VERSION


def test_an_ignorable_value_is_left_out_of_a_version_that_lacks_it():
    assert encode(Evolving(kept="k", maybe="m", optional=5), 0) == encode(
        Evolving(kept="k", maybe="m"), 0
    )


def test_unknown_tags_are_refused_before_flexible_versions():
    message_ = Evolving(kept="", maybe="")
    message_.unknown_tags = {9: b""}
    with refused(Error.UNSUPPORTED_VERSION):
        encode(message_, 1)


def test_tagged_fields_are_sent_only_if_they_differ_from_their_defaults():
    bare = Evolving(kept="k", maybe="m")
    assert encode(bare, 2) == bytes.fromhex("02 6b  ffffffff ffffffff  02 6d  01  00")
    frame = encode(Evolving(kept="k", maybe="m", tagged=5, tagged_text="t"), 2)
    assert frame == encode(bare, 2)[:-1] + bytes.fromhex("02  00 04 00000005  01 02 02 74")


def test_known_and_unknown_tags_come_back_in_ascending_order():
    message_ = Evolving(
        kept="k",
        maybe="m",
        tagged=5,
        tagged_pair=Pair(left=1, right=2),
        tagged_list=[Pair(left=3, right=4)],
    )
    message_.unknown_tags = {200: b"later", 2: b"between"}
    frame = encode(message_, 2)
    assert decode(Evolving, 2, frame) == message_
    tags = frame[len(encode(Evolving(kept="k", maybe="m"), 2)) - 1 :]
    assert (
        tags
        == bytes.fromhex("05  00 04 00000005  02 07")
        + b"between"
        + bytes.fromhex("03 03 010200  04 04 02030400  c801 05")
        + b"later"
    )


def test_a_known_tag_whose_size_is_wrong_is_refused():
    bare = encode(Evolving(kept="k", maybe="m"), 2)[:-1]
    for tags in ("01 00 03 000000", "01 00 05 0000000000", "01 01 03 02 74 00"):
        with pytest.raises(ProtocolError):
            decode(Evolving, 2, bare + bytes.fromhex(tags))


@pytest.mark.parametrize(
    ("version", "frame"),
    [
        (0, "00000000 ffff 0000"),  # null string
        (0, "00000000 fffe 0000"),  # length -2
        (0, "00000000 0000 ffff"),  # null before nullable_since
        (0, "00000000 7fff 0000"),  # beyond the end
        (1, "0000 00000000 00000000 0000 ffffffff"),  # null array
        (1, "0000 00000000 00000000 0000 80000000"),  # count -2**31
        (1, "0000 00000000 00000000 0000 7fffffff"),
        (2, "00 00000000 00000000 01 01 00"),  # null compact string
        (2, "01 00000000 00000000 01 00 00"),  # null compact array
        (2, "01 00000000 00000000 01 ffffffff0f 00"),
        (2, "01 00000000 00000000 01 01 ffffffff0f"),  # 2**32 - 1 tags
        (2, "01 00000000 00000000 01 01 01 09 ffffffff0f"),  # a tag of 4 GB
        (2, "ffffffffff01 00000000 00000000 01 01 00"),  # a varint of 6 bytes
    ],
)
def test_wrong_lengths_are_refused(version, frame):
    with pytest.raises(ProtocolError, match="Evolving version"):
        decode(Evolving, version, bytes.fromhex(frame))


def test_a_string_that_is_not_utf_8_is_read_with_replacement_characters():
    kept = "Gl\u00fcck".encode("latin-1")
    frames = {
        0: b"\0\0\0\0\0\5" + kept + b"\0\0",
        2: b"\6" + kept + b"\0" * 9 + b"\1\0",
    }
    for version, frame in frames.items():
        assert decode(Evolving, version, frame).kept == "Gl\ufffdck"


@pytest.mark.parametrize("size", [10_922, 10_923, 32_767])
def test_a_string_that_was_read_is_never_too_long_to_be_written_again(size):
    frame = b"\0\0\0\0" + size.to_bytes(2) + b"\xff" * size + b"\0\0"
    if 3 * size > 32_767:
        with pytest.raises(ProtocolError, match="Evolving version 0"):
            decode(Evolving, 0, frame)
    else:
        assert len(encode(decode(Evolving, 0, frame), 0)) == len(frame) + 2 * size


def test_a_field_that_some_version_lacks_must_have_a_default():
    with pytest.raises(TypeError, match="needs a default"):
        at(since=1)


def test_an_annotation_that_is_no_wire_type_is_refused():
    @message()
    class Wrong:
        field: complex

    with pytest.raises(TypeError, match="complex"):
        codec_for(Wrong, 0)


def test_items_without_bytes_cannot_be_declared():
    with pytest.raises(AssertionError, match="items without bytes"):
        codec_for(Hollow, 0)


@struct
class Nothing:
    later: int8 = at(since=1, default=0)


@message()
class Hollow:
    items: list[Nothing]


@pytest.mark.parametrize(
    "told",
    [
        SaslAuthenticateRequest(auth_bytes=b"hunter2"),
        SaslAuthenticateResponse(error_code=0, auth_bytes=b"hunter2"),
        ScramUpsertion(
            name="alice", mechanism=1, iterations=4096, salt=b"hunter2", salted_password=b"hunter2"
        ),
        SettingChange(name="ssl.key.password", config_operation=0, value="hunter2"),
        ReplacingSetting(name="ssl.key.password", value="hunter2"),
    ],
)
def test_the_text_form_of_a_message_has_no_secret(told: object) -> None:
    assert "hunter2" not in repr(told)
    assert "(secret)" in repr(told)


def test_a_codec_is_compiled_once():
    assert codec_for(Evolving, 1) is codec_for(Evolving, 1)


@struct
class Partition:
    id: int32
    offset: int64
    epoch: int32 = at(since=3, default=-1)


@message(flexible=3)
class Request:
    acks: int16
    partitions: list[Partition]


def test_the_example_in_the_compilers_docstring_is_what_it_writes():
    example = compiler.__doc__.split("the decoder of version 3 is\n\n")[1]
    shown = textwrap.dedent(example.split("            ...\n")[0])
    assert len(shown.splitlines()) > 15
    assert shown in codec_for(Request, 3).source
