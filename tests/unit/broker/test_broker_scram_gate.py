"""SCRAM through the gate, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kdist.broker.authentication import Mechanism
from kdist.errors import Error
from kdist.security.scram import ScramClient, ScramLogin
from tests.unit.broker.broker_gates import Gated, Peer, scram


def run(scenario: Callable[[Gated], Any]) -> None:
    cluster = Gated(mechanisms={"SCRAM-SHA-256": Mechanism(scram)})

    async def opened() -> None:
        await cluster.opened()
        await scenario(cluster)

    cluster.run(opened())


pytestmark = pytest.mark.played(by=run)


@pytest.mark.parametrize("is_framed", [True, False])
async def test_scram_is_spoken_through_the_gate(cluster: Gated, /, is_framed: bool) -> None:
    peer = await cluster.peer()
    await peer.handshake("SCRAM-SHA-256", int(is_framed))
    client = ScramClient(ScramLogin("SCRAM-SHA-256", "alice", "secret"), "a-nonce-of-the-client")
    message = client.respond(None)
    while message is not None:
        if is_framed:
            challenge = (await peer.say(message.decode())).auth_bytes
        else:
            peer.send(message)
            challenge = await peer.frame() or b""
        message = client.respond(challenge)
    assert await peer.is_served()


async def test_an_unknown_user_fails_as_a_wrong_password_does(cluster: Gated, /) -> None:
    told = []
    for number, (name, password) in enumerate([("alice", "wrong"), ("nobody", "secret")]):
        peer: Peer = await cluster.peer(host=f"peer{number}")
        await peer.handshake("SCRAM-SHA-256")
        client = ScramClient(ScramLogin("SCRAM-SHA-256", name, password), "the-clients-nonce")
        first = await peer.say((client.respond(None) or b"").decode())
        assert first.error_code == Error.NONE
        began_s = asyncio.get_running_loop().time()
        answer = await peer.say((client.respond(first.auth_bytes) or b"").decode())
        told.append((answer, round(asyncio.get_running_loop().time() - began_s, 1)))
    assert told[0] == told[1]
