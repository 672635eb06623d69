"""The client's connection: answers are matched with requests, and every ending fails the rest."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
from network_broker import Broker, connect, heartbeat
from network_world import Served, World, framed, real_world, until

from kdist.errors import ApiError, Error, UserError
from kdist.network import client as module
from kdist.network.client import Client, ClientSettings
from kdist.network.network import CLIENT_PATIENCE, AsyncioNetwork, P, Patience
from kdist.protocol import api_versions, fetch, metadata, produce
from kdist.protocol.api_versions import ApiVersion
from kdist.protocol.fetch import (
    FetchRequest,
)
from kdist.protocol.heartbeat import HeartbeatRequest
from kdist.protocol.produce import ProduceRequest
from kdist.runtime.tick_loop import TickLoop
from tests.refusals import refused


def api(key: int, oldest: int, newest: int) -> ApiVersion:
    return ApiVersion(api_key=key, min_version=oldest, max_version=newest)


async def test_concurrent_requests_each_get_their_own_answer(world: World) -> None:
    async with Served(world, Broker()) as served:
        client = await connect(served, in_flight_max=7)
        answers = await asyncio.gather(*(client.send(heartbeat(n), 1) for n in range(100)))
        assert [answer.throttle_time_ms for answer in answers] == list(range(100))
        client.close()


async def test_no_more_than_in_flight_max_requests_are_in_flight(world: World) -> None:
    broker = Broker()
    async with Served(world, broker) as served:
        client = await connect(served, in_flight_max=3)
        sending = [asyncio.ensure_future(client.send(heartbeat(n, "later"), 1)) for n in range(5)]
        await until(lambda: len(broker.waiting) == 3)
        await asyncio.sleep(0.05)
        assert len(broker.waiting) == 3
        for n in range(5):
            await until(lambda n=n: len(broker.waiting) > n)  # type: ignore[misc]
            broker.answer(*broker.waiting[n])
        assert [answer.throttle_time_ms for answer in await asyncio.gather(*sending)] == [*range(5)]
        client.close()


async def test_requests_that_wait_to_be_sent_fail_when_the_connection_ends(world: World) -> None:
    broker = Broker()
    async with Served(world, broker) as served:
        client = await connect(served, in_flight_max=2)
        sending = [asyncio.ensure_future(client.send(heartbeat(n, "later"), 1)) for n in range(5)]
        await until(lambda: len(broker.waiting) == 2)
        client.close()
        for outcome in await asyncio.gather(*sending, return_exceptions=True):
            assert isinstance(outcome, ApiError)
            assert outcome.error is Error.NETWORK_EXCEPTION


async def test_kept_records_do_not_change_while_later_answers_arrive(world: World) -> None:
    async with Served(world, Broker()) as served:
        client = await connect(served)
        kept = []
        for number in range(1, 60):
            size = 1000 if number % 7 == 0 else 200_000 + number * 1000
            request = FetchRequest(max_wait_ms=number, min_bytes=1, max_bytes=size, topics=[])
            answer = await client.send(request, 12)
            kept.append((number, size, answer.responses[0].partitions[0].records))
            if len(kept) == 5:
                for number, size, records in kept:
                    assert bytes(records) == bytes([number]) * size
                kept = kept[3:]
        client.close()


async def test_negotiation_finds_the_highest_common_versions(world: World) -> None:
    theirs = [
        api(18, 0, 4),
        api(12, 0, 2),
        api(3, 0, 99),
        api(0, 50, 60),
    ]
    async with Served(world, Broker(theirs)) as served:
        client = await connect(served)
        await client.negotiate()
        assert client.version_of(api_versions.API) == 4
        assert client.version_of(HeartbeatRequest.api) == 2
        assert client.version_of(metadata.API) == metadata.API.newest
        for lacking in (produce.API, fetch.API):
            with refused(Error.UNSUPPORTED_VERSION):
                client.version_of(lacking)
        client.close()


async def test_negotiation_with_an_older_broker_retries_at_its_version(world: World) -> None:
    broker = Broker([api(18, 0, 2), api(12, 0, 1)])
    async with Served(world, broker) as served:
        client = await connect(served)
        await client.negotiate()
        assert broker.keys == [(18, 4), (18, 2)]
        answer = await client.send(heartbeat(9))
        assert answer.throttle_time_ms == 9
        client.close()


@pytest.mark.parametrize(
    ("version", "told"),
    [("0.1.0", "0.1.0"), ("0.1.0+site.2", "0.1.0-site.2"), ("1_b", "1-b"), ("+", "unknown")],
)
async def test_a_version_is_told_as_brokers_accept_it(
    world: World, version: str, told: str
) -> None:
    """They refuse an ApiVersions with a `+` in it, and with that everything (KIP-511)."""
    broker = Broker()
    async with Served(world, broker) as served:
        client = await connect(served, software_version=version)
        await client.negotiate()
        assert broker.software == [told]
        client.close()


async def test_a_request_without_an_answer_does_not_shift_the_others(world: World) -> None:
    broker = Broker()
    async with Served(world, broker) as served:
        client = await connect(served)
        first = asyncio.ensure_future(client.send(heartbeat(1), 1))
        await asyncio.sleep(0)
        await client.tell(
            ProduceRequest(transactional_id=None, acks=0, timeout_ms=1, topic_data=[]), 3
        )
        assert (await client.send(heartbeat(2), 1)).throttle_time_ms == 2
        assert (await first).throttle_time_ms == 1
        assert (0, 3) in broker.keys
        client.close()


@pytest.mark.parametrize("ending", ["server closes", "client closes", "garbage"])
async def test_when_the_connection_ends_all_waiting_requests_fail(
    world: World, ending: str
) -> None:
    broker = Broker()
    async with Served(world, broker) as served:
        client = await connect(served)
        sending = [asyncio.ensure_future(client.send(heartbeat(n, "later"), 1)) for n in range(3)]
        await until(lambda: len(broker.waiting) == 3)
        if ending == "server closes":
            broker.connected[0].close()
        elif ending == "client closes":
            client.close()
        else:
            broker.waiting[0][0].send((framed(b"\xff" * 20),))
        for each in sending:
            with refused(Error.NETWORK_EXCEPTION):
                await each
        with refused(Error.NETWORK_EXCEPTION):
            await client.send(heartbeat(4), 1)
        await until(lambda: served.metrics.open_connections == 0)


async def test_a_request_timeout_ends_the_connection(world: World) -> None:
    async with Served(world, Broker()) as served:
        client = await connect(served)
        patient = asyncio.ensure_future(client.send(heartbeat(1, "later"), 1))
        with refused(Error.REQUEST_TIMED_OUT):
            await client.send(heartbeat(2, "later"), 1, timeout_ms=50)
        with refused(Error.NETWORK_EXCEPTION):
            await patient
        assert client.is_closed


@pytest.mark.parametrize("world", ["simulated", "simulated TLS"], indirect=True)
async def test_each_request_has_its_own_timeout_which_ends_with_its_answer(world: World) -> None:
    async with Served(world, Broker()) as served:
        client = await connect(served)
        await client.send(heartbeat(1), 1, timeout_ms=50)
        cancelled = asyncio.ensure_future(client.send(heartbeat(2, "later"), 1, timeout_ms=50))
        await asyncio.sleep(0.01)
        cancelled.cancel()
        patient = asyncio.ensure_future(client.send(heartbeat(3, "later"), 1, timeout_ms=150))
        await asyncio.sleep(0.1)
        assert not client.is_closed
        with refused(Error.REQUEST_TIMED_OUT):
            await patient
        assert client.is_closed


class Resolving(TickLoop):
    """Resolves every host to two addresses, with nobody listening at the first."""

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        addresses = [("127.0.0.2", port), ("127.0.0.1", port)] if host == "two" else [(host, port)]
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", each) for each in addresses]


def test_a_host_is_reached_at_the_first_of_its_addresses_that_answers() -> None:
    for world in real_world(Resolving()):

        async def scenario(world: World = world) -> None:
            async with Served(world, Broker()) as served:
                client = await Client.connect(
                    world.client, "two", served.port, ClientSettings("test")
                )
                assert (await client.send(heartbeat(1), 1)).throttle_time_ms == 1
                client.close()

        world.run(scenario())


class Silent(Resolving):
    """The first of the two addresses does not answer at all. All sockets are remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.connecting: list[socket.socket] = []

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        self.connecting.append(sock)
        if address[0] == "127.0.0.2":
            await asyncio.Event().wait()
        await super().sock_connect(sock, address)


def test_an_address_that_is_silent_keeps_nobody_from_the_next_one() -> None:
    for world in real_world(loop := Silent()):

        async def scenario(world: World = world) -> None:
            async with Served(world, Broker()) as served:
                client = await Client.connect(
                    *(world.client, "two", served.port),
                    ClientSettings("test", connect_timeout_ms=5000),
                )
                assert (await client.send(heartbeat(1), 1)).throttle_time_ms == 1
                await until(lambda: loop.connecting[0].fileno() < 0)
                assert [each.fileno() < 0 for each in loop.connecting] == [True, False]
                client.close()

        world.run(scenario())


@pytest.mark.parametrize("host", ["127.0.0.2", "two"])
def test_a_client_that_gives_up_connecting_leaves_no_socket_open(host: str) -> None:
    class AllSilent(Silent):
        async def sock_connect(self, sock: socket.socket, address: Any) -> None:
            await super().sock_connect(sock, ("127.0.0.2", address[1]))

    for world in real_world(loop := AllSilent()):

        async def scenario(world: World = world) -> None:
            with refused(Error.NETWORK_EXCEPTION):
                await Client.connect(
                    world.client, host, 1, ClientSettings("test", connect_timeout_ms=400)
                )
            await until(lambda: all(each.fileno() < 0 for each in loop.connecting))
            assert len(loop.connecting) == (2 if host == "two" else 1)

        world.run(scenario())


def test_of_two_addresses_that_answer_at_once_one_is_left() -> None:
    class Both(Silent):
        async def sock_connect(self, sock: socket.socket, address: Any) -> None:
            self.connecting.append(sock)
            if address[0] == "127.0.0.2":
                await until(lambda: len(self.connecting) == 2)
            await TickLoop.sock_connect(self, sock, ("127.0.0.1", address[1]))

    for world in real_world(loop := Both()):

        async def scenario(world: World = world) -> None:
            async with Served(world, Broker()) as served:
                settings = ClientSettings("test", connect_timeout_ms=5000)
                client = await Client.connect(world.client, "two", served.port, settings)
                await until(lambda: any(each.fileno() < 0 for each in loop.connecting))
                assert [each.fileno() < 0 for each in loop.connecting].count(False) == 1
                client.close()

        world.run(scenario())


@pytest.mark.parametrize("pauses", [[10_000] * 9, [10_000, 9_000, 8_000], [1, -30_000, -1]])
async def test_a_pause_that_many_answers_tell_is_waited_for_once(
    world: World, pauses: list[int]
) -> None:
    broker = Broker()
    async with Served(world, broker) as served:
        client = await connect(served, request_timeout_ms=30_000)
        began_s = world.loop.time()
        asked = [client.ask(heartbeat(each), 1) for each in pauses]
        last = client.ask(heartbeat(1, "later"), 1)
        await asyncio.gather(*asked)
        (left,) = client._in_flight
        assert 0 <= left.until_s - began_s - 30 - max(pauses) / 1000 < 5
        await until(lambda: bool(broker.waiting))
        broker.answer(*broker.waiting[0])
        await last
        client.close()


async def test_a_cancelled_request_does_not_take_the_next_ones_answer(world: World) -> None:
    broker = Broker()
    async with Served(world, broker) as served:
        client = await connect(served)
        cancelled = asyncio.ensure_future(client.send(heartbeat(1, "later"), 1))
        await until(lambda: len(broker.waiting) == 1)
        cancelled.cancel()
        sending = asyncio.ensure_future(client.send(heartbeat(2), 1))
        broker.answer(*broker.waiting[0])
        assert (await sending).throttle_time_ms == 2
        client.close()


async def test_a_number_or_text_that_cannot_be_encoded_is_the_callers_mistake(world: World) -> None:
    async with Served(world, Broker()) as served:
        client = await connect(served)
        with pytest.raises(UserError, match="a number is out of range for Heartbeat"):
            await client.send(heartbeat(1 << 31), 1)
        with pytest.raises(UserError, match=r"'g\\udcff' is not valid UTF-8 text"):
            await client.send(heartbeat(2, "g\udcff"), 1)
        for name in (None, 5, b"group"):
            with pytest.raises(UserError, match="cannot encode Heartbeat"):
                await client.send(heartbeat(2, name), 1)  # type: ignore[arg-type]
        assert (await client.send(heartbeat(2), 1)).throttle_time_ms == 2
        client._settings = ClientSettings("x" * 40_000)
        with pytest.raises(UserError, match=r"cannot encode .* a string of 40000 bytes"):
            await client.send(heartbeat(2), 1)
        client.close()


@pytest.mark.parametrize("ticks", range(6))
async def test_a_connect_cancelled_as_it_fails_is_cancelled(ticks: int) -> None:
    loop, settings = asyncio.get_running_loop(), ClientSettings("test")
    refused = loop.create_future()

    class Refusing(AsyncioNetwork):
        async def connect(
            self,
            make: Callable[[], P],
            host: str,
            port: int,
            patience: Patience = CLIENT_PATIENCE,
        ) -> P:
            del make, host, port, patience
            await refused
            raise AssertionError("it is refused")

    connecting = loop.create_task(Client.connect(Refusing(loop), "nobody", 1, settings))
    await asyncio.sleep(0)
    loop.call_soon(refused.set_exception, ConnectionRefusedError())
    for _ in range(ticks):
        await asyncio.sleep(0)
    was_under_way = connecting.cancel()
    await asyncio.wait([connecting])
    assert connecting.cancelled() == was_under_way


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "\udcff"])
async def test_an_invalid_host_name_is_a_network_exception(host: str) -> None:
    network = AsyncioNetwork(asyncio.get_running_loop())
    with refused(Error.NETWORK_EXCEPTION):
        await Client.connect(network, host, 1, ClientSettings("test"))


@pytest.mark.parametrize("asking", ["send", "tell"])
async def test_a_request_that_waits_to_be_sent_times_out_on_a_silent_broker(
    world: World, asking: str
) -> None:
    """The request in flight was cancelled: its timeout does not end the connection."""
    async with Served(world, Broker()) as served:
        client = await connect(served, in_flight_max=1, request_timeout_ms=50)
        under_way = client.ask(heartbeat(1, "later"), 1)
        under_way.cancel()
        if asking == "tell":
            client.pause_writing()
        with refused(Error.REQUEST_TIMED_OUT):
            await getattr(client, asking)(heartbeat(2), 1)
        assert client.is_closed


async def test_a_request_that_waits_to_be_sent_keeps_waiting_while_others_are_answered(
    world: World,
) -> None:
    broker = Broker()
    async with Served(world, broker) as served:
        client = await connect(served, in_flight_max=1, request_timeout_ms=300)
        sending = [asyncio.ensure_future(client.send(heartbeat(n, "later"), 1)) for n in range(5)]
        for n in range(5):
            await until(lambda n=n: len(broker.waiting) > n)  # type: ignore[misc]
            await asyncio.sleep(0.1)
            broker.answer(*broker.waiting[n])
        assert len(await asyncio.gather(*sending)) == 5
        client.close()


def test_an_error_while_reading_an_answer_fails_all_waiting_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lack_memory(*_: object) -> None:
        raise MemoryError

    raised: list[object] = []
    for world in real_world():

        async def scenario(world: World = world) -> None:
            async with Served(world, Broker()) as served:
                client = await connect(served)
                monkeypatch.setattr(module, "decode_response", lack_memory)
                world.loop.set_exception_handler(
                    lambda _, context: raised.append(type(context["exception"]))
                )
                with refused(Error.NETWORK_EXCEPTION):
                    await asyncio.wait_for(client.send(heartbeat(1), 1), 5)

        world.run(scenario())
    assert raised == [MemoryError]
