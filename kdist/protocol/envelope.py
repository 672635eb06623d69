"""Whole requests and responses: header and body together, for server and client.

The server uses `decode_request` and `encode_response`, the client `encode_request` and
`decode_response`. Decoders take a frame without its size, encoders return one with it. Bytes after
a body are ignored, as by Kafka's broker: the frame's size says where the next request begins.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import Any, NamedTuple

from kdist.errors import ProtocolError
from kdist.protocol.api import Api
from kdist.protocol.compiler import Codec, codec_for, stepped_decoder_for
from kdist.protocol.framing import SIZE_BYTES
from kdist.protocol.headers import (
    RequestHeader,
    get_client_id,
    get_fixed_fields,
    get_response_header,
    put_request_header,
    put_response_header,
)
from kdist.protocol.splice import SplicedBuffer
from kdist.wire.varint import Buffer

_SIZE = struct.Struct(">i")


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
    out = _start_frame()
    put_response_header(out, correlation_id, route.response_header_version)
    route.response.encode(response, out)
    return _finish_frame(out)


def encode_request(header: RequestHeader, request: Any) -> SplicedBuffer:
    """The frame of a request, in the version that `header` has."""
    route = _route(request.api, header.api_version)
    out = _start_frame()
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


def _start_frame() -> SplicedBuffer:
    return SplicedBuffer(SIZE_BYTES)  # zeros, until the size is known


def _finish_frame(out: SplicedBuffer) -> SplicedBuffer:
    _SIZE.pack_into(out, 0, out.size() - SIZE_BYTES)
    return out
