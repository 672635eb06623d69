"""Messages with a version of their own, outside requests: consumer metadata, group records.

version int16 | message
"""

from __future__ import annotations

import struct
from typing import TypeVar

from kdist.errors import ProtocolError
from kdist.protocol.compiler import codec_for
from kdist.wire.varint import Buffer

M = TypeVar("M")
_VERSION = struct.Struct(">h")


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
