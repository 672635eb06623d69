"""Compiles a message class at one version into an encoder and a decoder, on first use.

`codec_source.py` generates each as one flat Python function: serving a request walks no schema and
calls no function per field or array item. Adjacent fields of fixed size share one `struct` call,
together with the first byte of a length, count or tagged section after them. For

    @struct                               @message(flexible=3)
    class Partition:                      class Request:
        id: int32                             acks: int16
        offset: int64                         partitions: list[Partition]
        epoch: int32 = at(since=3, default=-1)

the decoder of version 3 is

    def decode(buffer, position):
        try:
            limit = len(buffer)
            m0 = new(Request)
            m0.acks, count0, = unpack_hB(buffer, position); position += 3
            if count0 > 127:
                count0, position = get_unsigned(buffer, position - 1)
            count0 -= 1
            if not 0 <= count0 * 17 <= limit - position:
                refuse_count(count0, limit - position)
            m0.partitions = items0 = []
            for _ in range(count0):
                m1 = new(Partition)
                m1.id, m1.offset, m1.epoch, tags1, = unpack_iqiB(buffer, position); position += 17
                m1.unknown_tags = None
                if tags1:
                    tags1, position = get_tags(buffer, position - 1)
                    m1.unknown_tags = tags1 or None
                items0.append(m1)
            ...
            return m0, position
        except REFUSALS as error:
            raise ProtocolError(f"Request version 3: {error}") from None

`codec_for(...).source` shows any other. On malformed bytes a decoder raises only `ProtocolError`,
and makes at most a few objects for each byte of the buffer, whatever lengths it claims. Bytes after
the message are left to the caller: the returned position is where they begin.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Generator
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from kdist.errors import ApiError, Error, ProtocolError
from kdist.protocol.codec_source import decoder_source, encoder_source
from kdist.protocol.schema import flexible_since
from kdist.wire.primitives import (
    BUFFERS,
    Buffer,
    get_tags,
    get_unsigned,
    put_tags,
    put_unsigned,
    refuse_count,
    refuse_entries,
    refuse_length,
    refuse_string,
    replaced,
)

M = TypeVar("M")
_VERSION = struct.Struct(">h")  # before a message outside requests


class Codec(NamedTuple, Generic[M]):
    """The compiled functions of one message at one version, and their Python source.

    `encode(message, out)` appends to `out`; it raises `ApiError` UNSUPPORTED_VERSION for a value
    that the version cannot carry. `decode(buffer, position)` returns the message and the position
    after it; `ProtocolError` for malformed bytes. Record sets are slices of `buffer`: pass a
    memoryview to avoid copies.
    """

    encode: Callable[[M, bytearray], None]
    decode: Callable[[Buffer, int], tuple[M, int]]
    source: str


SteppedDecoder = Callable[[Buffer, int], Generator[None, None, tuple[M, int]]]


def codec_for(cls: type[M], version: int) -> Codec[M]:
    """The codec of a `@message` class at `version`; compiled on the first call, then cached."""
    codec = _COMPILED.get((cls, version))
    if codec is None:
        codec = _COMPILED[cls, version] = _compile(cls, version)
    return codec


def stepped_decoder_for(cls: type[M], version: int) -> SteppedDecoder[M]:
    """As `codec_for(cls, version).decode`, but it decodes in steps; see `codec_source.py`."""
    decode = _STEPPED.get((cls, version))
    if decode is None:
        names, is_flexible = dict(_RUNTIME), version >= flexible_since(cls)
        source = decoder_source(cls, version, is_flexible, names, in_steps=True)
        decode = _STEPPED[cls, version] = _run(cls, version, source, names)["decode"]
    return decode


def put_versioned(message: object, version: int) -> bytes:
    """The version, then `message` encoded at that version."""
    out = bytearray(_VERSION.pack(version))
    codec_for(type(message), version).encode(message, out)
    return bytes(out)


def get_version(buffer: Buffer) -> int:
    """The version at the start of `buffer`; `ProtocolError` if it is negative or incomplete."""
    if len(buffer) < _VERSION.size:
        raise ProtocolError(f"{len(buffer)} bytes have no room for a version")
    version: int = _VERSION.unpack_from(buffer)[0]
    if version < 0:
        raise ProtocolError(f"a version of {version}")
    return version


def get_versioned(cls: type[M], buffer: Buffer, version: int) -> M:
    """The message after the version, decoded as `version`."""
    return codec_for(cls, version).decode(buffer, _VERSION.size)[0]


def _compile(cls: type[Any], version: int) -> Codec[Any]:
    is_flexible = version >= flexible_since(cls)
    names = dict(_RUNTIME)
    source = "\n".join(
        write(cls, version, is_flexible, names) for write in (encoder_source, decoder_source)
    )
    _run(cls, version, source, names)
    return Codec(names["encode"], names["decode"], source)


def _run(cls: type[Any], version: int, source: str, names: dict[str, Any]) -> dict[str, Any]:
    exec(compile(source, f"<{cls.__name__} version {version}>", "exec"), names)
    return names


def refuse_value(place: str, what: str) -> NoReturn:
    """A message holds what its version cannot carry (Kafka's UnsupportedVersionException)."""
    raise ApiError(Error.UNSUPPORTED_VERSION, f"{place} has no room for {what}")


_COMPILED: dict[tuple[type[Any], int], Codec[Any]] = {}
_STEPPED: dict[tuple[type[Any], int], SteppedDecoder[Any]] = {}
_RUNTIME: dict[str, Any] = {
    "BUFFERS": BUFFERS,
    "ProtocolError": ProtocolError,
    "REFUSALS": (ProtocolError, struct.error, IndexError),
    "UUID": uuid.UUID,
    "get_tags": get_tags,
    "get_unsigned": get_unsigned,
    "new": object.__new__,  # sets no field: the decoder sets each one exactly once
    "pack": struct.pack,
    "put_tags": put_tags,
    "put_unsigned": put_unsigned,
    "refuse_count": refuse_count,
    "refuse_entries": refuse_entries,
    "refuse_length": refuse_length,
    "refuse_string": refuse_string,
    "refuse_value": refuse_value,
    "replaced": replaced,
    "unpack_from": struct.unpack_from,
}
