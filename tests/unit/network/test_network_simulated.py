"""What only a simulated network does: partitions, crashes, resets, all reproducible by a seed."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from network_world import Answering, RawPeer, Served, World, framed, until

from kdist.network.network import CLIENT_PATIENCE
from kdist.testing.simulated_network import SimulatedNetwork
from kdist.testing.simulated_transport import Conditions, SimulatedTransport
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop
from tests.examples import examples


class Simulation:
    """A server and a client on hosts of a network that can be broken."""

    def __init__(self, seed: int = 1, conditions: Conditions | None = None) -> None:
        self.loop = VirtualLoop(VirtualClock())
        self.network = SimulatedNetwork(self.loop, random.Random(seed), conditions or Conditions())
        hosts = (self.network.host("server"), self.network.host("client"))
        self.world = World(self.loop, *hosts, "server")

    def run(self, scenario: Callable[[Served], Awaitable[None]]) -> None:
        async def serve() -> None:
            async with Served(self.world) as served:
                await scenario(served)

        self.loop.run_until_complete(serve())


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    made = Simulation()
    yield made
    made.loop.close()


def test_a_partition_stops_bytes_both_ways_and_its_end_lets_them_arrive(
    simulation: Simulation,
) -> None:
    async def scenario(served: Served) -> None:
        peer = await served.peer()
        peer.send(b"park")
        await until(lambda: len(served.handler.parked) == 1)
        simulation.network.partition({"server"}, {"client"})
        peer.send(b"during")
        served.handler.parked[0][0].send((framed(b"parked"),))
        await asyncio.sleep(60)
        assert served.handler.seen == [b"park"]
        assert peer.frames() == []
        simulation.network.heal()
        assert await peer.answers(2) == [b"parked", b"during"]

    simulation.run(scenario)


def test_what_is_blocked_one_way_passes_the_other(simulation: Simulation) -> None:
    async def scenario(served: Served) -> None:
        peer = await served.peer()
        peer.send(b"park")
        await until(lambda: len(served.handler.parked) == 1)
        simulation.network.block("client", "server")
        peer.send(b"during")
        served.handler.parked[0][0].send((framed(b"parked"),))
        assert await peer.answers(1) == [b"parked"]
        await asyncio.sleep(60)
        assert served.handler.seen == [b"park"]
        simulation.network.heal()
        await until(lambda: served.handler.seen == [b"park", b"during"])

    simulation.run(scenario)


def test_connecting_through_a_partition_waits_for_its_end_or_times_out(
    simulation: Simulation,
) -> None:
    async def scenario(served: Served) -> None:
        simulation.network.partition({"server"})
        with pytest.raises(TimeoutError):
            await served.peer()
        connecting = asyncio.ensure_future(served.peer())
        await asyncio.sleep(5)
        assert not connecting.done()
        simulation.network.heal()
        peer = await connecting
        peer.send(b"hello")
        assert await peer.answers(1) == [b"hello"]

    simulation.run(scenario)


def test_hosts_on_one_side_of_a_partition_reach_each_other(simulation: Simulation) -> None:
    async def scenario(served: Served) -> None:
        simulation.network.partition({"server", "client"}, {"other"})
        peer = await served.peer()
        peer.send(b"hello")
        assert await peer.answers(1) == [b"hello"]

    simulation.run(scenario)


@pytest.mark.parametrize(
    ("is_power_lost", "is_sending"), [(False, False), (True, False), (True, True)]
)
def test_a_crash_ends_connections_at_once_and_a_power_loss_by_a_send_or_keepalive(
    simulation: Simulation, is_power_lost: bool, is_sending: bool
) -> None:
    async def scenario(served: Served) -> None:
        peer = await served.peer()
        peer.send(b"park")
        await until(lambda: len(served.handler.parked) == 1)
        simulation.network.crash("server", is_power_lost=is_power_lost)
        await asyncio.sleep(CLIENT_PATIENCE.dead_s - 1)
        assert peer.is_closed is not is_power_lost
        assert served.handler.lost == []  # who is dead hears nothing
        with pytest.raises(ConnectionRefusedError):
            await served.peer()
        if is_sending:
            peer.send(b"is anybody there?")
        await asyncio.sleep(0.5 if is_sending else 2)
        assert peer.is_closed
        served.listener.connections.clear()
        served.listener._is_empty.set()

    simulation.run(scenario)


@pytest.mark.parametrize("ending", ["abort", "crash"])
def test_a_partitioned_host_does_not_notice_that_its_peer_is_gone(
    simulation: Simulation, ending: str
) -> None:
    async def scenario(served: Served) -> None:
        peer = await served.peer()
        peer.send(b"hello")
        await peer.answers(1)
        simulation.network.partition({"server"}, {"client"})
        if ending == "abort":
            peer.transport.abort()
        else:
            simulation.network.crash("client")
        await asyncio.sleep(60)
        assert served.handler.lost == []
        simulation.network.heal()
        await until(lambda: len(served.handler.lost) == 1)

    simulation.run(scenario)


def test_random_resets_are_seen_on_both_ends() -> None:
    simulation = Simulation(conditions=Conditions(reset_share=0.2))

    async def scenario(served: Served) -> None:
        peers = [await served.peer() for _ in range(30)]
        for peer in peers:
            for n in range(10):
                peer.send(b"%d" % n)
        await asyncio.sleep(10)
        lost = [peer for peer in peers if peer.is_closed]
        assert len(lost) > 0
        assert len(served.handler.lost) == len(lost)

    simulation.run(scenario)


def history(seed: int) -> list[tuple[float, bytes]]:
    """When each request arrived, on a network that resets and delays."""
    simulation = Simulation(seed, Conditions(delay_ms_max=50))
    seen: list[tuple[float, bytes]] = []

    class Noting(Answering):
        def on_frame(self, connection: object, frame: memoryview) -> None:
            seen.append((simulation.loop.time(), bytes(frame)))
            super().on_frame(connection, frame)  # type: ignore[arg-type]

    async def serve() -> None:
        async with Served(simulation.world, Noting()) as served:
            peers = [await served.peer() for _ in range(5)]
            for number, peer in enumerate(peers):
                for n in range(20):
                    peer.send(b"%d %d" % (number, n))
            for peer in peers:
                await peer.answers(20)

    simulation.loop.run_until_complete(serve())
    simulation.loop.close()
    return seen


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    assert history(1) == history(1)
    assert [content for _, content in history(1)] != [content for _, content in history(2)]


@examples(30)
@given(
    st.integers(0, 2**32),
    st.lists(st.binary(max_size=30_000), max_size=12),
    st.floats(0, 1),
)
def test_bytes_arrive_in_order_whatever_the_network_does(
    seed: int, contents: list[bytes], cut_share: float
) -> None:
    simulation = Simulation(seed, Conditions(delay_ms_max=20, cut_share=cut_share))

    async def scenario(served: Served) -> None:
        peer = await served.peer()
        peer.send(*contents)
        wanted = [b"" if content.startswith(b"quiet") else content for content in contents]
        assert await peer.answers(len(contents)) == wanted
        peer.transport.close()
        await until(lambda: len(served.handler.lost) == 1)

    simulation.run(scenario)
    simulation.loop.close()


def test_a_writer_faster_than_its_reader_is_paused(simulation: Simulation) -> None:
    class Writer(RawPeer):
        paused = 0
        resumed = 0

        def pause_writing(self) -> None:
            self.paused += 1

        def resume_writing(self) -> None:
            self.resumed += 1

    async def scenario(served: Served) -> None:
        writer = await simulation.world.client.connect(Writer, "server", served.port)
        writer.send(*[b"quiet" + bytes(1 << 19)] * 2)
        assert writer.paused == 1
        await until(lambda: len(served.handler.seen) == 2)
        assert writer.resumed == 1

    simulation.run(scenario)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_messages_that_are_held_back_arrive_at_one_moment_in_the_order_of_their_release(
    is_reversed: bool,
) -> None:
    simulation = Simulation(conditions=Conditions(cut_share=0))

    async def scenario(served: Served) -> None:
        times_s: list[float] = []
        noted = served.handler.on_frame

        def on_frame(*given: Any) -> None:
            times_s.append(simulation.loop.time())
            noted(*given)

        served.handler.on_frame = on_frame
        one, two = [await served.peer(), await served.peer()]
        for peer, content in ((one, b"one"), (two, b"two")):
            peer.transport.late_ms = math.inf
            peer.send(content)
        await asyncio.sleep(60)
        assert served.handler.seen == []
        for peer in (two, one) if is_reversed else (one, two):
            peer.transport.release()
        await until(lambda: len(served.handler.seen) == 2)
        assert served.handler.seen == ([b"two", b"one"] if is_reversed else [b"one", b"two"])
        assert times_s[0] == times_s[1]

    simulation.run(scenario)


def test_what_follows_a_message_that_is_held_back_stays_behind_it(simulation: Simulation) -> None:
    async def scenario(served: Served) -> None:
        peer = await served.peer()
        peer.send(b"before")
        peer.transport.late_ms = math.inf
        peer.send(b"held")
        peer.transport.late_ms = 0.0
        peer.send(b"after")
        await asyncio.sleep(60)
        assert served.handler.seen == [b"before"]
        peer.transport.release()
        assert await peer.answers(3) == [b"before", b"held", b"after"]

    simulation.run(scenario)


def test_a_late_connection_delays_no_other_and_one_direction_alone(simulation: Simulation) -> None:
    async def scenario(served: Served) -> None:
        late, other = await served.peer(), await served.peer()
        began_s = simulation.loop.time()
        late.transport.late_ms = 500
        late.send(b"late")
        other.send(b"other")
        assert await other.answers(1) == [b"other"]
        assert simulation.loop.time() < began_s + 0.1
        assert await late.answers(1) == [b"late"]
        assert 0.5 <= simulation.loop.time() - began_s < 0.6

    simulation.run(scenario)


def test_who_watches_the_network_sees_all_that_is_sent_before_it_is_on_the_way(
    simulation: Simulation,
) -> None:
    seen: list[tuple[str, bytes]] = []

    def watch(transport: SimulatedTransport, piece: bytes) -> None:
        seen.append((transport.local.host, piece))
        transport.late_ms = math.inf if piece == framed(b"second") else 0.0

    async def scenario(served: Served) -> None:
        peer = await served.peer()
        simulation.network.watch = watch
        peer.send(b"first")
        assert await peer.answers(1) == [b"first"]
        peer.send(b"second")
        await asyncio.sleep(60)
        assert served.handler.seen == [b"first"]
        assert seen == [
            ("client", framed(b"first")),
            ("server", framed(b"first")),
            ("client", framed(b"second")),
        ]

    simulation.run(scenario)
