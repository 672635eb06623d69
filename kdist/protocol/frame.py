"""Frames: requests and responses as they travel, whole: their sizes, headers and bodies.

    frame     size int32 | header | body: `size` bytes
    request   header v0  api key int16 | api version int16 | correlation id int32
                     v1  v0 | client id, nullable string
                     v2  v1 | tagged section
    response  header v0  correlation id int32
                     v1  v0 | tagged section

The client id has a plain length even in v2, so that a broker can read the header of an ApiVersions
request newer than itself (KIP-511). No header tag is defined; any are skipped, since a header is
never passed on. `Api` has the header version of each API version.

The server uses `decode_request` and `encode_response`, the client `encode_request` and
`decode_response`. Decoders take a frame without its size, encoders return one with it. Bytes after
a body are ignored, as by Kafka's broker: the frame's size says where the next request begins.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from kdist.errors import ProtocolError
from kdist.protocol.api import Api
from kdist.protocol.compiler import Codec, codec_for, stepped_decoder_for
from kdist.protocol.schema import Splice
from kdist.wire.primitives import Buffer, get_nullable_string, get_tags, put_nullable_string

SIZE_BYTES = 4
KEY_BYTES = 2  # of the API key, with which a request begins

_INT32 = struct.Struct(">i")  # a size, or a correlation id
_REQUEST = struct.Struct(">hhi")
_CORRELATION_ID_AT = _REQUEST.size - _INT32.size
CORRELATION_ID_IN_FRAME = SIZE_BYTES + _CORRELATION_ID_AT

# With what other protocols begin, where a frame has its size.
_OTHERS = {b"\x15\x03": "TLS", b"\x16\x03": "TLS", b"HT": "HTTP", b"GE": "HTTP", b"PO": "HTTP"}

Chunk = Buffer | Splice  # what a frame is made of
size_at = _INT32.unpack_from
"""The size of a frame (buffer, start), as a tuple of one."""


def bytes_wanted(
    buffer: Buffer,
    start: int,
    end: int,
    frame_bytes_max: int,
    request_bytes_max: Callable[[int], int] | None = None,
) -> int:
    """How many bytes from `start` the frame takes, size included; 4 while that is unknown.

    It is whole if the bytes received, which go to `end`, have as many.

    Raises `ProtocolError` for a size below 0 or above `frame_bytes_max` as soon as the size is
    there: a peer with another protocol is detected before a buffer is allocated for its "size".
    `request_bytes_max` gives an API's own limit, which counts as soon as a request's key is there.
    """
    content = start + SIZE_BYTES
    if content > end:
        return SIZE_BYTES
    size: int = size_at(buffer, start)[0]
    if request_bytes_max is not None and content + KEY_BYTES <= end:
        key = int.from_bytes(buffer[content : content + KEY_BYTES], "big")
        frame_bytes_max = min(frame_bytes_max, request_bytes_max(key))
    if not 0 <= size <= frame_bytes_max:
        looks = _OTHERS.get(bytes(buffer[start : start + 2]))
        doubt = f": it looks like {looks}" if looks else ""
        raise ProtocolError(f"a frame of {size} bytes; {frame_bytes_max} is the limit{doubt}")
    return SIZE_BYTES + size


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
    correlation_id: int = _INT32.unpack_from(buffer, _CORRELATION_ID_AT)[0]
    return correlation_id


def put_correlation_id(frame: bytearray, correlation_id: int) -> None:
    """Overwrite the correlation id in a request's frame, which begins with its size."""
    _INT32.pack_into(frame, CORRELATION_ID_IN_FRAME, correlation_id)


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
    if len(buffer) < _INT32.size:
        raise ProtocolError(f"a response of {len(buffer)} bytes has no room for its header")
    (correlation_id,) = _INT32.unpack_from(buffer)
    position = _INT32.size
    return correlation_id, _skip_tags(buffer, position) if header_version >= 1 else position


def put_response_header(out: bytearray, correlation_id: int, header_version: int) -> None:
    """Append the header."""
    out += _INT32.pack(correlation_id)
    if header_version >= 1:
        out.append(0)


def _skip_tags(buffer: Buffer, position: int) -> int:
    if position < len(buffer) and buffer[position] == 0:  # nearly always
        return position + 1
    return get_tags(buffer, position)[1]


class SplicedBuffer(bytearray):
    """Encoded bytes, with splices between them, which go from file to socket without a copy.

    A fetch response is a few hundred bytes around megabytes of record batches. Its record sets may
    be `Splice`s: the encoder notes where each belongs, and `chunks` returns all pieces in order.

    `splices` has the position of each splice and the splice, or is None: most responses have none,
    and making a `SplicedBuffer` must cost no more than a bytearray.
    """

    splices: list[tuple[int, Splice]] | None = None

    def splice(self, splice: Splice) -> None:
        """Insert the bytes of `splice` at the end of those encoded so far."""
        if self.splices is None:
            self.splices = []
        self.splices.append((len(self), splice))

    def size(self) -> int:
        """The size of all pieces together, in bytes."""
        if self.splices is None:
            return len(self)
        return len(self) + sum(len(splice) for _, splice in self.splices)

    def chunks(self) -> list[Chunk]:
        """All pieces in order. Those of the buffer are views, which keep it from being resized."""
        chunks: list[Chunk] = []
        view = memoryview(self)
        start = 0
        for position, splice in self.splices or ():
            if start < position:
                chunks.append(view[start:position])
            chunks.append(splice)
            start = position
        if start < len(self):
            chunks.append(view[start:])
        return chunks


class UnsupportedVersionError(ProtocolError):
    """A request of a supported API in a version that is not supported.

    Kafka closes the connection, except for ApiVersions: that it answers in version 0 with
    UNSUPPORTED_VERSION and its own range (KIP-511), for which the broker needs `header`.
    """

    def __init__(self, api: Api, header: RequestHeader) -> None:
        built = f"{api.oldest} to {api.newest}"
        super().__init__(f"{api.name} version {header.api_version} is not one of {built}")
        self.header = header


class _Route(NamedTuple):
    """The codecs and header versions of one API version, found with a single lookup."""

    api: Api
    request: Codec[Any]
    request_header_version: int
    response: Codec[Any]
    response_header_version: int


def decode_request(frame: Buffer) -> tuple[RequestHeader, Any]:
    """The header and the API's request message. Record sets are views of `frame`.

    Raises `UnsupportedVersionError`, or `ProtocolError` for an unknown API or malformed bytes.
    """
    header, route, position = _begin_request(frame)
    request, _ = route.request.decode(memoryview(frame), position)
    return header, request


def decode_request_in_steps(frame: Buffer) -> Generator[None, None, tuple[RequestHeader, Any]]:
    """As `decode_request`, for a large request: what it returns comes after some steps.

    Raises `ProtocolError` as well for more entries than an honest one has.
    """
    header, route, position = _begin_request(frame)
    decode = stepped_decoder_for(route.api.request, header.api_version)
    request, _ = yield from decode(memoryview(frame), position)
    return header, request


def _begin_request(frame: Buffer) -> tuple[RequestHeader, _Route, int]:
    """A request's header, how to decode it, and where its body begins."""
    key, version, correlation_id = get_fixed_fields(frame)
    route = _ROUTES.get((key, version))
    if route is None:
        from kdist.protocol.versions import api_for  # imports all messages; a client needs few

        api = api_for(key)
        if not api.has(version):
            # The client id is in the same place in every header that a newer peer may send.
            client_id, _ = get_client_id(frame, header_version=1)
            header = RequestHeader(key, version, correlation_id, client_id)
            raise UnsupportedVersionError(api, header)
        route = _route(api, version)
    client_id, position = get_client_id(frame, route.request_header_version)
    return RequestHeader(key, version, correlation_id, client_id), route, position


def encode_response(api_version: int, correlation_id: int, response: Any) -> SplicedBuffer:
    """The frame of a response. If it has `splices`, send its `chunks()`, else itself."""
    route = _route(response.api, api_version)
    out = SplicedBuffer(SIZE_BYTES)  # zeros, until the size is known
    put_response_header(out, correlation_id, route.response_header_version)
    route.response.encode(response, out)
    return _finish_frame(out)


def encode_request(header: RequestHeader, request: Any) -> SplicedBuffer:
    """The frame of a request, in the version that `header` has."""
    route = _route(request.api, header.api_version)
    out = SplicedBuffer(SIZE_BYTES)  # zeros, until the size is known
    put_request_header(out, header, route.request_header_version)
    route.request.encode(request, out)
    return _finish_frame(out)


def decode_response(api: Api, api_version: int, frame: Buffer) -> tuple[int, Any]:
    """The correlation id and the response message, for a request sent as `api_version`."""
    route = _route(api, api_version)
    correlation_id, position = get_response_header(frame, route.response_header_version)
    response, _ = route.response.decode(memoryview(frame), position)
    return correlation_id, response


_ROUTES: dict[tuple[int, int], _Route] = {}  # by API key and version


def _route(api: Api, version: int) -> _Route:
    """The route of a supported version; compiled on first use."""
    route = _ROUTES.get((api.key, version))
    if route is None:
        assert api.has(version), f"{api.name} version {version} is not built"
        route = _ROUTES[api.key, version] = _Route(
            api,
            codec_for(api.request, version),
            api.request_header_version(version),
            codec_for(api.response, version),
            api.response_header_version(version),
        )
    return route


def _finish_frame(out: SplicedBuffer) -> SplicedBuffer:
    _INT32.pack_into(out, 0, out.size() - SIZE_BYTES)
    return out
