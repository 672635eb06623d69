"""A client proves who it is before it asks anything else, and again before its session ends."""

from __future__ import annotations

import asyncio
import datetime
import random
import ssl
from collections.abc import Callable, Iterator

import pytest
from network_broker import Broker, heartbeat
from network_world import Answering, RawPeer, Served, World, simulated_world, until
from sasl_broker import SaslBroker

from kdist.errors import ApiError, Error
from kdist.network.client import Client, ClientSettings, HeldBack
from kdist.network.client_security import ClientSecurity, Sasl, with_password
from kdist.network.connection import Connection
from kdist.network.tls import ClientTls, ServerTls
from kdist.protocol.frame import decode_request, encode_response
from kdist.protocol.produce import ProduceRequest
from kdist.protocol.sasl_handshake import SaslHandshakeResponse
from kdist.security.sasl import (
    Authenticated,
    AuthenticationFailed,
    OAuthClient,
    OAuthServer,
    PlainServer,
    ServerExchange,
)
from kdist.security.scram import ScramServer, new_credential
from tests.certificates import Authority, client_context, server_context
from tests.refusals import refused

RNG = random.Random(1)
SCRAM = "SCRAM-SHA-256"
CREDENTIAL = new_credential(SCRAM, "secret", b"salt")
CREDENTIAL_512 = new_credential("SCRAM-SHA-512", "secret", b"salt")


def validate(token: str) -> Authenticated:
    if token != "good":
        raise AuthenticationFailed("no good")
    return Authenticated("alice")


MAKE: dict[str, Callable[[], ServerExchange]] = {
    "PLAIN": lambda: PlainServer({"alice": "secret"}.get),
    SCRAM: lambda: ScramServer(SCRAM, {"alice": CREDENTIAL}.get, "n", b"s"),
    "SCRAM-SHA-512": lambda: ScramServer("SCRAM-SHA-512", {"alice": CREDENTIAL_512}.get, "n", b"s"),
    "OAUTHBEARER": lambda: OAuthServer(validate),
}


@pytest.fixture
def virtual() -> Iterator[World]:
    """Sessions end by the clock, so that they are played in virtual time."""
    yield from simulated_world()


def by_password(password: str = "secret", mechanism: str = SCRAM) -> Sasl:
    if mechanism == "OAUTHBEARER":
        token = "good" if password == "secret" else "bad"
        return Sasl(mechanism, lambda: OAuthClient(token), RNG)
    return with_password(mechanism, "alice", password, RNG)


async def connect(served: Served, sasl: Sasl | None = None, **more: float) -> Client:
    security = ClientSecurity(sasl=sasl or by_password())
    settings = ClientSettings("test", security=security)._replace(**more)
    world = served.world
    return await Client.connect_negotiated(world.client, world.host, served.port, settings)


@pytest.mark.parametrize("mechanism", MAKE)
async def test_a_client_that_proves_who_it_is_is_served(world: World, mechanism: str) -> None:
    broker = SaslBroker(mechanism, MAKE[mechanism])
    async with Served(world, broker) as served:
        client = await connect(served, by_password(mechanism=mechanism))
        assert (await client.send(heartbeat(7), 1)).throttle_time_ms == 7
        assert broker.names == ["alice"]
        assert broker.intruders == []
        client.close()


async def test_versions_are_asked_for_once(world: World) -> None:
    broker = SaslBroker(SCRAM, MAKE[SCRAM])
    async with Served(world, broker) as served:
        client = await connect(served)
        assert broker.keys == [(18, 4), (17, 1), (36, 2), (36, 2)]
        client.close()


@pytest.mark.parametrize("mechanism", MAKE)
async def test_a_refused_password_or_token_is_told_and_not_shown(
    world: World, mechanism: str
) -> None:
    async with Served(world, SaslBroker(mechanism, MAKE[mechanism])) as served:
        with refused(Error.SASL_AUTHENTICATION_FAILED, mechanism) as raised:
            await connect(served, by_password("wrong", mechanism))
        assert "wrong" not in str(raised.value)
        await until(lambda: len(served.handler.lost) == 1)


async def test_a_token_that_cannot_be_sent_is_a_failed_authentication(world: World) -> None:
    broker = SaslBroker("OAUTHBEARER", MAKE["OAUTHBEARER"])
    async with Served(world, broker) as served:
        with refused(Error.SASL_AUTHENTICATION_FAILED, "no token may have"):
            await connect(served, Sasl("OAUTHBEARER", lambda: OAuthClient("a b"), RNG))


async def test_a_mechanism_that_is_not_enabled_is_told_with_those_that_are(world: World) -> None:
    async with Served(world, SaslBroker("PLAIN", MAKE["PLAIN"])) as served:
        with refused(Error.UNSUPPORTED_SASL_MECHANISM, "it has PLAIN"):
            await connect(served)


class OpenBroker(Broker):
    """A listener without SASL."""

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        if int.from_bytes(frame[:2], "big") != 17:
            super().on_frame(connection, frame)
            return
        header, _ = decode_request(frame)
        answer = SaslHandshakeResponse(error_code=Error.ILLEGAL_SASL_STATE.code, mechanisms=[])
        encoded = encode_response(header.api_version, header.correlation_id, answer)
        connection.reserve().send((encoded,))


async def test_a_port_without_sasl_is_told(world: World) -> None:
    async with Served(world, OpenBroker()) as served:
        with refused(Error.ILLEGAL_SASL_STATE, "security.protocol"):
            await connect(served)


async def test_a_broker_that_does_not_know_the_password_is_left(world: World) -> None:
    class Liar:
        def __init__(self) -> None:
            self._answers = iter([b"r=x,s=c2FsdA==,i=4096", b"v=AAAA"])

        def respond(self, message: bytes) -> tuple[bytes, Authenticated | None]:
            nonce = message.rpartition(b"r=")[2]
            return next(self._answers).replace(b"r=x", b"r=" + nonce + b"x"), None

    async with Served(world, SaslBroker(SCRAM, Liar)) as served:
        with refused(Error.SASL_AUTHENTICATION_FAILED, "does not prove"):
            await connect(served)
        await until(lambda: len(served.handler.lost) == 1)


async def test_what_an_exchange_needs_is_prepared_each_time(virtual: World) -> None:
    prepared = []

    async def prepare() -> None:
        prepared.append(virtual.loop.time())

    broker = SaslBroker(SCRAM, MAKE[SCRAM], session_ms=2000)
    async with Served(virtual, broker) as served:
        client = await connect(served, by_password()._replace(prepare=prepare))
        await until(lambda: len(broker.names) == 3)
        assert len(prepared) == 3
        client.close()


@pytest.mark.parametrize(("session_ms", "renewals"), [(-1, 0), (0, 0), (1, 5)])
async def test_a_broker_cannot_have_a_client_authenticate_all_the_time(
    virtual: World, session_ms: int, renewals: int
) -> None:
    broker = SaslBroker(SCRAM, MAKE[SCRAM], session_ms)
    async with Served(virtual, broker) as served:
        client = await connect(served)
        await asyncio.sleep(5.5)
        assert len(broker.names) == 1 + renewals
        client.close()


async def test_a_session_is_renewed_before_it_ends(virtual: World) -> None:
    broker = SaslBroker(SCRAM, MAKE[SCRAM], session_ms=10_000)
    async with Served(virtual, broker) as served:
        begun_s = virtual.loop.time()
        client = await connect(served)
        for count in (2, 3):
            await until(lambda count=count: len(broker.names) == count)  # type: ignore[misc]
            assert 8.4 < virtual.loop.time() - begun_s < 9.6
            begun_s = virtual.loop.time()
        client.close()


async def test_nothing_is_lost_or_out_of_order_while_a_session_is_renewed(virtual: World) -> None:
    broker = SaslBroker(SCRAM, MAKE[SCRAM], session_ms=2000)
    async with Served(virtual, broker) as served:
        client = await connect(served)
        answered: list[int] = []

        async def ask(number: int) -> None:
            answered.append((await client.send(heartbeat(number), 1)).throttle_time_ms)

        asking = []
        while len(broker.names) < 5:
            asking.append(asyncio.ensure_future(ask(len(asking))))
            await asyncio.sleep(0.0003)
        await asyncio.gather(*asking)
        assert answered == list(range(len(asking)))
        assert broker.intruders == []
        client.close()


async def test_what_is_asked_at_once_during_a_renewal_is_sent_after_it(virtual: World) -> None:
    broker = SaslBroker(SCRAM, MAKE[SCRAM], session_ms=2000)
    async with Served(virtual, broker) as served:
        client = await connect(served)
        early = client.ask(heartbeat(1, "later"), 1)
        await until(lambda: len(broker.waiting) == 1)
        await asyncio.sleep(2)
        assert [key for key, _ in broker.keys].count(17) == 2
        held = [client.ask(heartbeat(number), 1) for number in (2, 3)]
        frame = client.encode(heartbeat(4), 1, 0)
        answered = virtual.loop.create_future()
        client.repeat(frame, heartbeat(4).api, 1, answered, 1000)
        frame[:] = bytes(len(frame))
        telling = asyncio.ensure_future(
            client.tell(ProduceRequest(acks=0, timeout_ms=1, topic_data=[]))
        )
        await asyncio.sleep(0)
        broker.answer(*broker.waiting[0])
        answers = await asyncio.gather(early, *held, answered)
        assert [each.throttle_time_ms for each in answers] == [1, 2, 3, 4]
        await telling
        await until(lambda: broker.keys[-1][0] == 0)
        assert broker.intruders == []
        client.close()


async def test_a_renewal_waits_for_an_answer_that_takes_longer_than_connecting_may(
    virtual: World,
) -> None:
    broker = SaslBroker(SCRAM, MAKE[SCRAM], session_ms=2000)
    async with Served(virtual, broker) as served:
        client = await connect(served, connect_timeout_ms=1_000)
        joining = client.ask(heartbeat(1, "later"), 1, 300_000)
        await asyncio.sleep(10)
        broker.answer(*broker.waiting[0])
        assert (await joining).throttle_time_ms == 1
        assert (await client.send(heartbeat(2), 1)).throttle_time_ms == 2
        client.close()


async def test_a_refused_renewal_ends_the_connection_and_what_waits_may_be_tried_again(
    virtual: World,
) -> None:
    passwords = {"alice": "secret"}
    broker = SaslBroker("PLAIN", lambda: PlainServer(passwords.get), session_ms=2000)
    async with Served(virtual, broker) as served:
        client = await connect(served, by_password(mechanism="PLAIN"))
        passwords["alice"] = "changed"
        early = client.ask(heartbeat(1, "later"), 1)
        await asyncio.sleep(2)
        held = client.ask(heartbeat(2), 1)
        broker.answer(*broker.waiting[0])
        assert (await early).throttle_time_ms == 1
        with refused(Error.NETWORK_EXCEPTION, "refuses the credentials"):
            await held
        assert client.is_closed
        with refused(Error.SASL_AUTHENTICATION_FAILED):
            await connect(served, by_password(mechanism="PLAIN"))


def test_what_is_held_back_may_be_changed_by_who_sent_it() -> None:
    held, frame = HeldBack(), bytearray(b"frame")
    held.write(memoryview(frame))
    frame[:] = b"other"
    assert held.frames == [b"frame"]
    assert held.get_write_buffer_size() == 5


async def test_a_port_with_tls_that_is_met_in_clear_is_told(world: World) -> None:
    class Alerting(Answering):
        def on_frame(self, connection: Connection, frame: memoryview) -> None:
            connection.reserve().send((bytes.fromhex("15030300020246"),))

    async with Served(world, Alerting()) as served:
        with refused(Error.NETWORK_EXCEPTION, "looks like TLS"):
            await connect(served)


async def test_a_connection_that_is_closed_during_a_renewal_fails_what_waits(
    virtual: World,
) -> None:
    broker = SaslBroker(SCRAM, MAKE[SCRAM], session_ms=2000)
    async with Served(virtual, broker) as served:
        client = await connect(served)
        early = client.ask(heartbeat(1, "later"), 1)
        await asyncio.sleep(2)
        held = client.ask(heartbeat(2), 1)
        client.close()
        for each in (early, held):
            with refused(Error.NETWORK_EXCEPTION):
                await each
        with pytest.raises(ApiError):
            await client.send(heartbeat(3), 1)
        assert broker.names == ["alice"]


def security_of(context: ssl.SSLContext) -> ClientSecurity:
    return ClientSecurity(tls=ClientTls(lambda: context, now_ms))


def now_ms() -> int:
    return int(datetime.datetime.now(datetime.UTC).timestamp() * 1000)


async def told(world: World, port: int, security: ClientSecurity | None) -> str:
    """What a client is told that cannot connect so."""
    settings = ClientSettings("test", security=security)
    with refused(Error.NETWORK_EXCEPTION, str(port)) as raised:
        await Client.connect_negotiated(world.client, world.host, port, settings)
    return str(raised.value)


async def test_what_a_client_meets_in_place_of_what_it_expects_is_told(socket_world: World) -> None:
    world = socket_world
    served = await world.server.listen(
        RawPeer, world.host, 0, tls=ServerTls(server_context, now_ms)
    )
    other = client_context(trusts=Authority("another CA").pem)
    assert "TLS" in await told(world, served.port, None)
    assert "its certificate is refused" in await told(world, served.port, security_of(other))
    served.close()
    async with Served(world, Broker()) as clear:
        security = security_of(client_context())
        assert "does it speak TLS?" in await told(world, clear.port, security)


async def test_a_user_authenticates_over_tls(socket_world: World) -> None:
    world, broker = socket_world, SaslBroker("PLAIN", MAKE["PLAIN"])
    async with Served(world, broker) as served:
        port = await served.listener.listen(world.host, 0, ServerTls(server_context, now_ms))
        security = security_of(client_context())._replace(sasl=by_password(mechanism="PLAIN"))
        settings = ClientSettings("test", security=security)
        client = await Client.connect_negotiated(world.client, world.host, port, settings)
        assert (await client.send(heartbeat(7), 1)).throttle_time_ms == 7
        assert broker.names == ["alice"]
        client.close()
