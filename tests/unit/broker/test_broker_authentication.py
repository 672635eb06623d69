"""The gate: what a listener with SASL takes from whom, in virtual time."""

from __future__ import annotations

import asyncio
import gc
import random
import struct
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from kdist.broker.authentication import Gate, GateSettings, GateShared, Mechanism
from kdist.broker.crashes import Crashes
from kdist.errors import Error
from kdist.metrics.broker import AuthenticationMetrics, RequestMetrics
from kdist.metrics.declare import Family
from kdist.model import ANONYMOUS
from kdist.network.unproved import UnprovedLimits
from kdist.protocol.api_versions import ApiVersionsRequest
from kdist.protocol.create_topics import CreateTopicsRequest, NewTopic
from kdist.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kdist.protocol.find_coordinator import FindCoordinatorRequest
from kdist.protocol.frame import RequestHeader, encode_request
from kdist.protocol.heartbeat import HeartbeatRequest
from kdist.protocol.metadata import MetadataRequest
from kdist.protocol.sasl_authenticate import SaslAuthenticateRequest
from kdist.protocol.sasl_handshake import SaslHandshakeRequest
from kdist.protocol.versions import advertised_versions
from kdist.runtime.clock import SystemClock
from tests.simulator.cluster import PORT, create, produce
from tests.unit.broker.broker_gates import Gated, Peer, Word, scram
from tests.unit.network.network_world import Answering, Served, World, turning_world, until

HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
VERSIONS = ApiVersionsRequest(client_software_name="t", client_software_version="1")


def run(scenario: Callable[[Gated], Any], **settings: Any) -> None:
    cluster = Gated(**settings)

    async def opened() -> None:
        broker = await cluster.opened()
        await scenario(cluster)
        assert not broker.failure.done()

    cluster.run(opened())


def run_on_sockets(scenario: Callable[[World], Any]) -> None:
    for world in turning_world():
        world.run(scenario(world))


pytestmark = pytest.mark.played(by=run)
renewing = pytest.mark.played(by=run, mechanisms={"WORD": Mechanism(Word, reauth_ms=10_000)})


async def took_s(work: Any) -> tuple[Any, float]:
    began_s = asyncio.get_running_loop().time()
    found = await work
    return found, asyncio.get_running_loop().time() - began_s


# The states


@pytest.mark.parametrize("has_versions", [False, True])
@pytest.mark.parametrize("version", [0, 1, 2])
async def test_who_proves_who_it_is_is_served(
    cluster: Gated, /, has_versions: bool, version: int
) -> None:
    peer = await cluster.peer()
    if has_versions:
        answer = await peer.ask(VERSIONS, 4)
        assert answer.api_keys == advertised_versions(to_brokers=False)
    assert (await peer.handshake()).mechanisms == ["WORD"]
    assert (await peer.say("more", version)).auth_bytes == b"go on"
    answer = await peer.say("alice", version)
    assert (answer.error_code, answer.error_message, answer.auth_bytes) == (0, None, b"")
    assert answer.session_lifetime_ms == 0
    assert await peer.is_served()
    assert cluster.proofs().succeeded == 1
    assert cluster.brokers[1].measures.network.unauthenticated_connections == 0


async def test_tokens_without_headers_follow_a_handshake_of_version_0(cluster: Gated, /) -> None:
    peer = await cluster.peer()
    assert (await peer.handshake(version=0)).error_code == Error.NONE
    peer.send(b"more")
    assert await peer.frame() == b"go on"
    peer.send(b"alice")
    assert await peer.frame() == b""
    assert await peer.is_served()


async def test_a_wrong_token_without_header_ends_the_connection_without_an_answer(
    cluster: Gated, /
) -> None:
    peer = await cluster.peer()
    await peer.handshake(version=0)
    peer.send(b"wrong")
    frame, waited_s = await took_s(peer.frame())
    assert frame is None
    assert waited_s >= 0.1


@pytest.mark.parametrize("sent", [0, 1, 2])
@pytest.mark.parametrize(
    "request_",
    [MetadataRequest(topics=None), HEARTBEAT, SaslAuthenticateRequest(auth_bytes=b"alice")],
)
async def test_no_other_request_is_answered_before_a_handshake(
    cluster: Gated, /, request_: Any, sent: int
) -> None:
    peer = await cluster.peer()
    if sent:
        await peer.ask(VERSIONS, 3)
    if sent == 2:
        request_ = VERSIONS  # a second time
    assert await peer.ask(request_, 2 if sent < 2 else 3) is None


async def test_another_api_before_the_proof_is_refused_and_never_decoded(cluster: Gated, /) -> None:
    peer = await cluster.peer()
    await peer.handshake()
    bodyless = struct.pack(">hhih", FindCoordinatorRequest.api.key, 1, 7, -1)
    peer.send(bodyless)
    answer = await peer.response(FindCoordinatorRequest(key="g"), 1)
    assert answer.error_code == Error.ILLEGAL_SASL_STATE
    assert await peer.frame() is None
    assert cluster.proofs().failed == 1


@pytest.mark.parametrize("content", [b"\x60\x82\x02\x50 a GSSAPI token", b"", b"\0", b"GET / HTTP"])
async def test_what_is_no_request_ends_the_connection(cluster: Gated, /, content: bytes) -> None:
    peer = await cluster.peer()
    peer.send(content)
    assert await peer.frame() is None


async def test_an_unknown_version_of_api_versions_may_be_tried_before_the_right_one(
    cluster: Gated, /
) -> None:
    peer = await cluster.peer()
    peer.send(struct.pack(">hhih", 18, 9, 7, -1))
    refusal = await peer.response(VERSIONS, 0)
    assert refusal.error_code == Error.UNSUPPORTED_VERSION
    misnamed = ApiVersionsRequest(client_software_name="?", client_software_version="1")
    assert (await peer.ask(misnamed, 3)).error_code == Error.INVALID_REQUEST
    assert (await peer.ask(VERSIONS, 3)).error_code == Error.NONE
    assert (await peer.prove()).error_code == Error.NONE


@pytest.mark.parametrize(("key", "version"), [(17, 2), (36, 3)])
async def test_an_unknown_version_of_the_others_ends_the_connection(
    cluster: Gated, /, key: int, version: int
) -> None:
    peer = await cluster.peer()
    if key != 17:
        await peer.handshake()
    peer.send(struct.pack(">hhih", key, version, 7, -1))
    assert await peer.frame() is None


async def test_a_mechanism_that_is_not_enabled_is_refused_with_those_that_are(
    cluster: Gated, /
) -> None:
    peer = await cluster.peer()
    answer, waited_s = await took_s(peer.handshake("GSSAPI"))
    assert (answer.error_code, answer.mechanisms) == (Error.UNSUPPORTED_SASL_MECHANISM, ["WORD"])
    assert waited_s >= 0.1
    assert await peer.frame() is None
    assert cluster.proofs("none").failed == 1


async def test_a_bug_in_an_exchange_costs_the_connection(cluster: Gated, /) -> None:
    peer = await cluster.peer()
    await peer.handshake()
    assert await peer.ask(SaslAuthenticateRequest(auth_bytes=b"bug"), 1) is None
    assert cluster.brokers[1].measures.requests[("SaslAuthenticate",)].crashed == 1
    assert (await (await cluster.peer()).prove()).error_code == Error.NONE


async def test_once_served_a_peer_need_not_authenticate_again_and_cannot(cluster: Gated, /) -> None:
    peer = await cluster.peer()
    await peer.prove()
    await asyncio.sleep(5)
    answer = await peer.handshake()
    assert (answer.error_code, answer.mechanisms) == (Error.ILLEGAL_SASL_STATE, [])
    assert (await peer.say("bob")).error_code == Error.ILLEGAL_SASL_STATE
    assert await peer.is_served()


async def test_without_sasl_both_apis_are_refused_and_the_connection_stays(
    cluster: Gated, /
) -> None:
    peer = await cluster.peer(PORT)
    assert (await peer.handshake()).error_code == Error.ILLEGAL_SASL_STATE
    assert (await peer.say("alice")).error_code == Error.ILLEGAL_SASL_STATE
    assert await peer.is_served()


async def test_the_name_proved_is_the_principal_and_there_is_none_before(cluster: Gated, /) -> None:
    peers = [await cluster.peer() for _ in range(3)]
    await peers[0].prove("alice")
    await peers[1].prove("wrong")
    assert {name for _, name in cluster.gate._users} == {"alice"}
    (connection,) = cluster.gate._users["WORD", "alice"]
    assert connection.principal == connection.subject.principal == ("User", "alice")
    (waiting,) = (each for each, login in cluster.gate._logins.items() if login.name is None)
    assert waiting.principal == waiting.subject.principal == ANONYMOUS


# Failures


async def test_a_failure_is_told_late_and_then_the_connection_ends(cluster: Gated, /) -> None:
    peer = await cluster.peer()
    await peer.handshake()
    answer, waited_s = await took_s(peer.say("wrong"))
    assert (answer.error_code, answer.error_message) == (58, "wrong word")
    assert 0.1 <= waited_s < 0.2
    assert await peer.frame() is None
    assert cluster.proofs().failed == 1


async def test_the_delay_doubles_with_each_failure_of_an_address_and_ends_with_a_pause(
    cluster: Gated, /
) -> None:
    async def delay_s(host: str = "peer") -> float:
        peer = await cluster.peer(host=host)
        await peer.handshake()
        return (await took_s(peer.say("wrong")))[1]

    assert [round(await delay_s(), 1) for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 4, 4]
    assert round(await delay_s("another"), 1) == 0.1
    await asyncio.sleep(61)
    assert round(await delay_s(), 1) == 0.1


async def test_nothing_that_a_refused_peer_sends_meanwhile_is_taken(cluster: Gated, /) -> None:
    peer = await cluster.peer()
    await peer.handshake()
    for word in ("wrong", "alice"):
        peer.send_request(SaslAuthenticateRequest(auth_bytes=word.encode()), 1)
    assert (await peer.response(SaslAuthenticateRequest(auth_bytes=b""), 1)).error_code == 58
    assert await peer.frame() is None
    assert cluster.proofs().succeeded == 0


async def test_failures_leave_nothing_behind(cluster: Gated, /) -> None:
    for number in range(30):
        peer = await cluster.peer(host=f"peer{number % 3}")
        await peer.handshake()
        peer.send_request(SaslAuthenticateRequest(auth_bytes=b"wrong"), 1)
        if number % 2:
            peer.transport.abort()
    await cluster.until(lambda: not cluster.gate._logins)
    assert cluster.brokers[1].measures.network.unauthenticated_connections == 0
    assert not cluster.gate._users
    assert len(cluster.gate._failures._of) == 3


async def test_the_log_tells_of_an_address_once_a_minute_and_of_no_password(
    cluster: Gated, /, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        peer = await cluster.peer()
        await peer.handshake()
        await peer.say("wrong")
    told = [each for each in caplog.messages if "does not authenticate" in each]
    assert len(told) == 1
    assert "WORD: said wrong" in told[0]


@pytest.mark.parametrize("word", ["wrong", "more", "alice"])
@pytest.mark.played(by=run_on_sockets)
async def test_a_connection_that_has_ended_is_freed_without_the_garbage_collector(
    world: World, /, word: str
) -> None:
    shared = GateShared(
        SystemClock(),
        Crashes(Family(RequestMetrics, "api"), pytest.fail),
        Family(AuthenticationMetrics, "listener", "mechanism"),
    )
    settings = GateSettings({"WORD": Mechanism(Word)}, failed_delay_ms=1)
    inner = Answering()
    gate = Gate("SECURE", inner, settings, shared)
    async with Served(world, gate) as served:
        peer = await world.client.connect(Peer, world.host, served.port)
        await peer.handshake()
        await peer.say(word)
        (gone,) = map(weakref.ref, gate._logins)
        gc.disable()
        try:
            inner.connected.clear()
            peer.transport.close()
            await until(lambda: not gate._logins)
            inner.lost.clear()
            await until(lambda: gone() is None)
        finally:
            gc.enable()


# Hostile


def hostile_frame(rng: random.Random) -> bytes:
    """A frame of the protocol with a few bytes changed, or cut, or of anything."""
    requests = (
        (VERSIONS, 3),
        (SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), rng.randrange(2)),
        (SaslAuthenticateRequest(auth_bytes=b"n,,n=alice,r=nonce"), rng.randrange(3)),
        (SaslAuthenticateRequest(auth_bytes=b"c=biws,r=nonce,p=AAAA"), rng.randrange(3)),
    )
    request, version = rng.choice(requests)
    header = RequestHeader(request.api.key, version, 1, "hostile")
    frame = bytearray(encode_request(header, request)[4:])
    match rng.randrange(5):
        case 0:
            return rng.randbytes(rng.randrange(60))
        case 1:
            del frame[rng.randrange(len(frame)) :]
        case 2 | 3:
            for _ in range(rng.randrange(1, 4)):
                frame[rng.randrange(len(frame))] = rng.randrange(256)
    return bytes(frame)


@pytest.mark.played(by=run, mechanisms={"SCRAM-SHA-256": Mechanism(scram)})
async def test_hostile_frames_get_nobody_in_and_meet_no_bug(cluster: Gated, /) -> None:
    rng = random.Random(7)
    for number in range(400):
        peer = await cluster.peer(host=f"peer{number}")
        peer.send(*(hostile_frame(rng) for _ in range(rng.randrange(1, 6))))
        await asyncio.sleep(0.01)
        peer.transport.abort()
    await cluster.until(lambda: not cluster.gate._logins)
    requests = cluster.brokers[1].measures.requests
    assert not any(each.crashed for each in requests.values())
    assert cluster.proofs("SCRAM-SHA-256").failed > 10
    assert cluster.proofs("SCRAM-SHA-256").succeeded == 0


# Limits before the proof


async def test_a_frame_above_the_bound_is_refused_before_the_proof_and_taken_after(
    cluster: Gated, /
) -> None:
    names = [
        NewTopic(
            name=f"{'x' * 200}{n}",
            num_partitions=1,
            replication_factor=1,
            assignments=[],
            configs=[],
        )
        for n in range(400)
    ]
    large = CreateTopicsRequest(topics=names, timeout_ms=1, validate_only=True)
    peer = await cluster.peer()
    await peer.prove()
    assert len((await peer.ask(large, 4)).topics) == 400
    peer = await cluster.peer()
    peer.transport.write(struct.pack(">ihhih", (64 << 10) + 1, 18, 0, 1, -1))
    frame, waited_s = await took_s(peer.frame())
    assert frame is None
    assert waited_s < 1


@pytest.mark.parametrize("drip", [b"", b"\0"])
async def test_who_takes_too_long_is_disconnected_however_slowly_it_sends(
    cluster: Gated, /, drip: bytes
) -> None:
    peer = await cluster.peer()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    peer.transport.write(struct.pack(">i", 60_000))
    while not peer.is_closed:
        peer.transport.write(drip)
        await asyncio.sleep(0.5)
    assert 9.5 < loop.time() - began_s < 11
    assert cluster.brokers[1].measures.network.unauthenticated_ended_connections == 1


@pytest.mark.played(by=run, unproved=UnprovedLimits(most=4, most_per_host=2))
async def test_at_a_bound_the_oldest_that_waits_is_disconnected(cluster: Gated, /) -> None:
    served = await cluster.peer()
    await served.prove()
    ours = [await cluster.peer(host="a") for _ in range(3)]
    await cluster.until(lambda: ours[0].is_closed)
    others = [await cluster.peer(host=host) for host in ("b", "c", "d")]
    await cluster.until(lambda: ours[1].is_closed)
    assert [each.is_closed for each in (ours[2], *others)] == [False] * 4
    assert await served.is_served()
    assert (await ours[2].prove()).error_code == Error.NONE


# Sessions


def waiting_fetch(topic: str, max_wait_ms: int = 60_000) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )


@renewing
async def test_a_session_that_is_not_renewed_ends_on_time_with_what_waits(
    cluster: Gated, /
) -> None:
    peer = await cluster.peer()
    await create(await cluster.client(), "clicks")
    assert (await peer.prove()).session_lifetime_ms == 10_000
    frame, waited_s = await took_s(peer.ask(waiting_fetch("clicks"), 11))
    assert frame is None
    assert 9.9 < waited_s < 10.1
    assert cluster.proofs().expired == 1
    assert not cluster.gate._users


async def test_a_session_ends_with_its_credential(cluster: Gated, /) -> None:
    peer = await cluster.peer()
    soon_ms = cluster.clock.now_ms() + 3_000
    assert 2_900 < (await peer.prove(f"alice until {soon_ms}")).session_lifetime_ms <= 3_000
    _, waited_s = await took_s(cluster.until(lambda: peer.is_closed))
    assert 2.9 < waited_s < 3.1


async def test_who_proves_it_by_an_expired_credential_is_disconnected_at_once(
    cluster: Gated, /
) -> None:
    peer = await cluster.peer()
    await peer.handshake()
    peer.send_request(SaslAuthenticateRequest(auth_bytes=b"alice until 1"), 1)
    peer.send_request(HEARTBEAT, 3)
    await cluster.until(lambda: peer.is_closed)
    assert cluster.proofs().expired == 1


@renewing
async def test_a_renewed_session_lasts_anew_and_answers_keep_their_order(cluster: Gated, /) -> None:
    peer = await cluster.peer()
    await peer.prove()
    for _ in range(3):
        await asyncio.sleep(8)
        peer.send_request(HEARTBEAT, 3)
        peer.send_request(SaslHandshakeRequest(mechanism="WORD"), 1)
        assert (await peer.response(HEARTBEAT, 3)).error_code != 0  # there is no such group
        again = await peer.response(SaslHandshakeRequest(mechanism="WORD"), 1)
        assert again.error_code == Error.NONE
        assert (await peer.say("alice")).session_lifetime_ms == 10_000
        assert await peer.is_served()
    assert (cluster.proofs().succeeded, cluster.proofs().renewed) == (1, 3)


@renewing
async def test_a_request_that_waits_is_answered_before_the_session_is_renewed(
    cluster: Gated, /
) -> None:
    client = await cluster.client()
    await create(client, "clicks")
    peer = await cluster.peer()
    await peer.prove()
    await asyncio.sleep(5)
    fetch, handshake = waiting_fetch("clicks"), SaslHandshakeRequest(mechanism="WORD")
    peer.send_request(fetch, 11)
    peer.send_request(handshake, 1)
    peer.send_request(SaslAuthenticateRequest(auth_bytes=b"alice"), 1)
    await asyncio.sleep(1)
    assert peer.frames()[peer.read :] == []
    await produce(client, "clicks", b"one")
    assert (await peer.response(fetch, 11)).responses[0].partitions[0].records
    assert (await peer.response(handshake, 1)).error_code == Error.NONE
    proved = await peer.response(SaslAuthenticateRequest(auth_bytes=b""), 1)
    assert proved.session_lifetime_ms == 10_000


@renewing
async def test_a_session_is_not_renewed_by_another_principal(cluster: Gated, /) -> None:
    peer = await cluster.peer()
    await peer.prove()
    await asyncio.sleep(5)
    assert (await peer.prove("bob")).error_code == Error.SASL_AUTHENTICATION_FAILED
    assert await peer.frame() is None


@pytest.mark.played(
    by=run, mechanisms={name: Mechanism(Word, reauth_ms=10_000) for name in ("WORD", "OTHER")}
)
async def test_a_session_is_not_renewed_by_another_mechanism(cluster: Gated, /) -> None:
    peer = await cluster.peer()
    await peer.prove()
    await asyncio.sleep(5)
    assert (await peer.handshake("OTHER")).error_code == Error.ILLEGAL_SASL_STATE
    assert await peer.frame() is None


@renewing
async def test_a_session_is_not_renewed_within_its_first_second(cluster: Gated, /) -> None:
    peer = await cluster.peer()
    await peer.prove()
    assert (await peer.handshake()).error_code == Error.ILLEGAL_SASL_STATE
    assert await peer.is_served()


@renewing
async def test_nothing_else_is_served_while_a_session_is_renewed(cluster: Gated, /) -> None:
    peer = await cluster.peer()
    await peer.prove()
    await asyncio.sleep(5)
    await peer.handshake()
    assert (await peer.ask(HEARTBEAT, 3)).error_code == Error.ILLEGAL_SASL_STATE
    assert await peer.frame() is None


@pytest.mark.played(by=run, mechanisms={"WORD": Mechanism(Word, reauth_ms=60_000)})
async def test_a_renewal_may_wait_behind_a_long_fetch(cluster: Gated, /) -> None:
    """A client gets no answer to its handshake before that to what it asked earlier."""
    await create(await cluster.client(), "clicks")
    peer = await cluster.peer()
    await peer.prove()
    await asyncio.sleep(5)
    fetch, handshake = waiting_fetch("clicks", 30_000), SaslHandshakeRequest(mechanism="WORD")
    peer.send_request(fetch, 11)
    peer.send_request(handshake, 1)
    assert await peer.response(fetch, 11) is not None
    assert (await peer.response(handshake, 1)).error_code == Error.NONE
    assert (await peer.say("alice")).session_lifetime_ms == 60_000
    assert await peer.is_served()


@renewing
async def test_the_old_session_ends_on_time_while_it_is_renewed(cluster: Gated, /) -> None:
    peer = await cluster.peer()
    await peer.prove()
    await asyncio.sleep(8)
    await peer.handshake()
    await peer.say("more")
    _, waited_s = await took_s(cluster.until(lambda: peer.is_closed))
    assert 1.9 < waited_s < 2.1


# Revoked


async def test_a_revoked_user_is_disconnected_and_others_are_not(cluster: Gated, /) -> None:
    alice, bob = await cluster.peer(), await cluster.peer()
    await alice.prove("alice")
    await bob.prove("bob")
    cluster.gate.disconnect("WORD", "alice")
    await cluster.until(lambda: alice.is_closed)
    assert await bob.is_served()
    cluster.gate.disconnect("WORD", "nobody")


async def test_an_exchange_under_way_does_not_outlive_its_users_credential(
    cluster: Gated, /
) -> None:
    peer = await cluster.peer()
    await peer.handshake()
    await peer.say("more")
    cluster.gate.disconnect("WORD", "alice")
    _, waited_s = await took_s(cluster.until(lambda: peer.is_closed))
    assert waited_s < 1
