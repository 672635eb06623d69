"""Request and response headers, with which each frame begins.

    request   v0  api key int16 | api version int16 | correlation id int32
              v1  v0 | client id, nullable string
              v2  v1 | tagged section
    response  v0  correlation id int32
              v1  v0 | tagged section

The client id has a plain length even in v2, so that a broker can read the header of an ApiVersions
request newer than itself (KIP-511). No header tag is defined; any are skipped, since a header is
never passed on. `Api` has the header version of each API version.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kdist.errors import ProtocolError
from kdist.protocol.framing import SIZE_BYTES
from kdist.wire.primitives import get_nullable_string, get_tags, put_nullable_string
from kdist.wire.varint import Buffer

KEY_BYTES = 2  # of the API key, with which a request begins
_REQUEST = struct.Struct(">hhi")
_CORRELATION_ID = struct.Struct(">i")
_CORRELATION_ID_AT = _REQUEST.size - _CORRELATION_ID.size
CORRELATION_ID_IN_FRAME = SIZE_BYTES + _CORRELATION_ID_AT


class RequestHeader(NamedTuple):
    """A request's header. The response has the same correlation id."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None


def get_fixed_fields(buffer: Buffer) -> tuple[int, int, int]:
    """The api key, api version and correlation id that every request begins with."""
    if len(buffer) < _REQUEST.size:
        raise ProtocolError(f"a request of {len(buffer)} bytes has no room for its header")
    key, version, correlation_id = _REQUEST.unpack_from(buffer)
    return key, version, correlation_id


def get_correlation_id(buffer: Buffer) -> int:
    """The correlation id of a request that is known to be long enough."""
    correlation_id: int = _CORRELATION_ID.unpack_from(buffer, _CORRELATION_ID_AT)[0]
    return correlation_id


def put_correlation_id(frame: bytearray, correlation_id: int) -> None:
    """Overwrite the correlation id in a request's frame, which begins with its size."""
    _CORRELATION_ID.pack_into(frame, CORRELATION_ID_IN_FRAME, correlation_id)


def get_client_id(buffer: Buffer, header_version: int) -> tuple[str | None, int]:
    """The client id after the fixed fields (None in version 0), and where the body begins."""
    if header_version == 0:
        return None, _REQUEST.size
    client_id, position = get_nullable_string(buffer, _REQUEST.size)
    return client_id, _skip_tags(buffer, position) if header_version >= 2 else position


def put_request_header(out: bytearray, header: RequestHeader, header_version: int) -> None:
    """Append the header; v0 leaves the client id out."""
    out += _REQUEST.pack(header.api_key, header.api_version, header.correlation_id)
    if header_version >= 1:
        put_nullable_string(out, header.client_id)
    if header_version >= 2:
        out.append(0)


def get_response_header(buffer: Buffer, header_version: int) -> tuple[int, int]:
    """The correlation id at the start of a response's frame, and where the body begins."""
    if len(buffer) < _CORRELATION_ID.size:
        raise ProtocolError(f"a response of {len(buffer)} bytes has no room for its header")
    (correlation_id,) = _CORRELATION_ID.unpack_from(buffer)
    position = _CORRELATION_ID.size
    return correlation_id, _skip_tags(buffer, position) if header_version >= 1 else position


def put_response_header(out: bytearray, correlation_id: int, header_version: int) -> None:
    """Append the header."""
    out += _CORRELATION_ID.pack(correlation_id)
    if header_version >= 1:
        out.append(0)


def _skip_tags(buffer: Buffer, position: int) -> int:
    if position < len(buffer) and buffer[position] == 0:  # nearly always
        return position + 1
    return get_tags(buffer, position)[1]
