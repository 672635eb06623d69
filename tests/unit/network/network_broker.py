"""A broker for the tests of the client's connection, and the requests that they send to it."""

from __future__ import annotations

from network_world import Answering, Served

from kdist.errors import Error
from kdist.network.client import Client, ClientSettings
from kdist.network.connection import Connection, ResponseSlot
from kdist.protocol import api_versions, fetch, produce
from kdist.protocol.api_versions import ApiVersion, ApiVersionsResponse
from kdist.protocol.fetch import FetchPartitionResult, FetchResponse, FetchTopicResult
from kdist.protocol.frame import UnsupportedVersionError, decode_request, encode_response
from kdist.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kdist.protocol.versions import advertised_versions


class Broker(Answering):
    """Answers heartbeats with their generation as the throttle time; some only when told to."""

    def __init__(self, versions: list[ApiVersion] | None = None) -> None:
        super().__init__()
        self.versions = advertised_versions(to_brokers=False) if versions is None else versions
        self.waiting: list[tuple[ResponseSlot, int, int]] = []
        self.keys: list[tuple[int, int]] = []
        self.software: list[str] = []

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        reply = connection.reserve()
        try:
            header, request = decode_request(frame)
        except UnsupportedVersionError as error:
            refused = ApiVersionsResponse(
                error_code=Error.UNSUPPORTED_VERSION.code, api_keys=self.versions
            )
            reply.send((encode_response(0, error.header.correlation_id, refused),))
            return
        self.keys.append((header.api_key, header.api_version))
        if header.api_key == api_versions.API.key:
            self.software.append(request.client_software_version)
            self.answer_versions(reply, header.api_version, header.correlation_id)
        elif header.api_key == produce.API.key:
            reply.discard()
        elif header.api_key == fetch.API.key:
            found = FetchPartitionResult(
                partition_index=0,
                error_code=0,
                high_watermark=0,
                records=bytes([request.max_wait_ms]) * request.max_bytes,
            )
            topics = [FetchTopicResult(topic="clicks", partitions=[found])]
            answer = FetchResponse(responses=topics)
            reply.send((encode_response(12, header.correlation_id, answer),))
        elif request.group_id == "later":
            self.waiting.append((reply, header.correlation_id, request.generation_id))
        else:
            self.answer(reply, header.correlation_id, request.generation_id)

    def answer_versions(self, reply: ResponseSlot, version: int, correlation_id: int) -> None:
        newest = next((each.max_version for each in self.versions if each.api_key == 18), 0)
        if version > newest:
            refused = ApiVersionsResponse(
                error_code=Error.UNSUPPORTED_VERSION.code, api_keys=self.versions
            )
            reply.send((encode_response(0, correlation_id, refused),))
            return
        answer = ApiVersionsResponse(error_code=0, api_keys=self.versions)
        reply.send((encode_response(version, correlation_id, answer),))

    def answer(self, reply: ResponseSlot, correlation_id: int, generation_id: int) -> None:
        answer = HeartbeatResponse(error_code=0, throttle_time_ms=generation_id)
        reply.send((encode_response(1, correlation_id, answer),))


def heartbeat(generation_id: int, group_id: str = "now") -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group_id, generation_id=generation_id, member_id="m")


async def connect(served: Served, **settings: float | str) -> Client:
    world = served.world
    return await Client.connect(
        world.client,
        world.host,
        served.port,
        ClientSettings("test", **settings),  # type: ignore[arg-type]
    )
