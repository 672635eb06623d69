"""Random histories of connections with small limits: order, holds and limits are kept in all.

A handler does with each request what its first letter says, and holds the connection for any reason
at any time; the world answers, ends what holds it, and stops reading, when it likes.

    a  answer at once          p  park: answer later            q  no answer
    h  park, and hold the connection until it is answered   n  wait until nothing is parked as `n`
    t  have the client pause   l  answer with more bytes than may wait
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator

import pytest
from network_world import (
    RawPeer,
    Served,
    World,
    framed,
    simulated_tls_world,
    simulated_world,
)

from kdist.network.connection import Connection, Limits, ResponseSlot
from kdist.network.connection_state import CHANGE, DECODING, PRODUCES, WORK, Reason
from kdist.network.receiving import NotYet
from kdist.testing.simulated_transport import Conditions
from tests.examples import first_of

SEEDS = 300
REQUESTS = 40
LIMITS = Limits(in_flight_max=4, waiting_bytes_max=2000)
HOLDS = (CHANGE, WORK, DECODING)


class Acting:
    """Does what requests say. Whatever must not happen fails an assertion."""

    def __init__(self, rng: random.Random, now_s: Callable[[], float]) -> None:
        self.rng = rng
        self.now_s = now_s
        self.seen: list[bytes] = []
        self.connection: Connection
        self.parked: dict[bytes, ResponseSlot] = {}
        self.holds: dict[bytes, Reason] = {}
        self.pause_end_s = 0.0
        self.is_lost = False

    def on_connect(self, connection: Connection) -> None:
        self.connection = connection

    def on_disconnect(self, connection: Connection) -> None:
        self.is_lost = True

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        request = bytes(frame)
        assert not self.holds, "a request overtakes one that holds the connection"
        assert self.now_s() >= self.pause_end_s, "a request comes within a pause"
        assert len(connection._responses) < LIMITS.in_flight_max
        if request.startswith(b"n") and connection.pending_produces:
            raise NotYet(PRODUCES)
        self.seen.append(request)
        self.act(connection, request)

    def act(self, connection: Connection, request: bytes) -> None:
        match request[:1]:
            case b"q":
                connection.reserve().discard()
            case b"p" | b"h":
                self.parked[request] = connection.reserve()
                connection.pending_produces += 1
                if request.startswith(b"h"):
                    self.holds[request] = self.rng.choice(HOLDS)
                    connection.hold(self.holds[request])
            case b"l":
                connection.answer((framed(request + bytes(3000)),))
            case _:
                connection.answer_at_once(framed(request))
        if request.startswith(b"t"):
            self.pause_end_s = self.now_s() + 0.05
            connection.throttle(0.05)
        if self.parked and self.rng.random() < 0.3:
            self.end_one()  # in the same tick, before the limits are looked at

    def end_one(self) -> None:
        """Answer any request that waits, and end its hold, in either order."""
        request = self.rng.choice(list(self.parked))
        slot, reason = self.parked.pop(request), self.holds.pop(request, None)
        if reason is not None and self.rng.random() < 0.5:
            self.connection.end_hold(reason)
            reason = None
        slot.send((framed(request + bytes(self.rng.choice((0, 3000)))),))
        self.connection.end_pending_produce()
        if reason is not None:
            self.connection.end_hold(reason)


async def play(world: World, rng: random.Random) -> None:
    handler = Acting(rng, world.loop.time)
    requests = [
        b"%s %d" % (rng.choice((b"a", b"p", b"p", b"h", b"q", b"n", b"t", b"l")), number)
        for number in range(REQUESTS)
    ]
    requests.append(b"a last")  # once it is answered, all have been seen
    async with Served(world, handler) as served:
        served.listener.limits = LIMITS
        peer = await served.peer()
        left = list(requests)
        deadline_s = world.loop.time() + 60
        expected = [each for each in requests if not each.startswith(b"q")]
        while len(peer.ends()) < len(expected):
            assert world.loop.time() < deadline_s, f"stuck after {handler.seen}"
            step(rng, peer, handler, left)
            await asyncio.sleep(rng.choice((0, 0, 0.001, 0.02)))
        assert handler.seen == requests
        assert [each.rstrip(b"\0") for each in peer.frames()] == expected


def step(rng: random.Random, peer: RawPeer, handler: Acting, left: list[bytes]) -> None:
    """One thing that the world does."""
    match rng.randrange(5):
        case 0 if left:
            count = rng.randint(1, 8)
            peer.send(*left[:count])
            del left[:count]
        case 1 if handler.parked:
            handler.end_one()
        case 2:
            peer.transport.pause_reading()
        case _:
            peer.transport.resume_reading()


@pytest.mark.parametrize("make", [simulated_world, simulated_tls_world])
@pytest.mark.parametrize("seed", first_of(range(SEEDS), 20))
def test_no_history_breaks_a_connections_order_holds_or_limits(
    seed: int, make: Callable[[int, Conditions], Iterator[World]]
) -> None:
    rng = random.Random(seed)
    conditions = Conditions(cut_share=rng.choice((0.0, 0.5)))
    for world in make(seed, conditions):
        world.run(play(world, rng))
        assert world.server.tick.buffers.taken_bytes == 0
