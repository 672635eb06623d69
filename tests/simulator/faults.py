"""What goes wrong in a history: which of the faults are on, and how often, its shape says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from kdist.network.simulated_transport import Conditions
from kdist.runtime.simulated_disk import Call
from kdist.zk import znodes
from kdist.zk.client import Delete

if TYPE_CHECKING:
    from tests.simulator.history import History

ZOOKEEPER = ("z1", "z2", "z3")
CONDITIONS = Conditions(cut_share=0.05)
FREE_BYTES = 1 << 40
SETTLED_S = 10.0  # by when what was begun has ended by itself
CALLS_MAX = 20  # that change the disk, before a broker dies in one
AIMED_SHARE = 0.3  # of faults that hit the controller's broker


class Faults:
    """Owner: the history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._cluster = history.cluster
        self._loop = history.cluster.loop
        self._machines = history.machines
        self._rng = history.cluster.stream("faults")
        self._kinds = history.shape.kinds
        self._is_over = False

    async def go_on(self) -> None:
        """Break things, one after the other, for the time that the shape says."""
        shape, rng, cluster = self._history.shape, self._rng, self._cluster
        end_s = self._loop.time() + shape.faults_s
        if "reset" in self._kinds:
            cluster.network.conditions = CONDITIONS._replace(reset_share=0.002)
        if "lost answers" in self._kinds:
            cluster.ensemble.lost_answers = 0.05
        for name in ZOOKEEPER:
            cluster.ensemble.lag(name, shape.lag_ms)
        while self._loop.time() < end_s:
            await asyncio.sleep(rng.uniform(0, 2 * shape.pause_s))
            self._machines.restart_due(self._loop.time())
            if self._machines.up:
                kind, broker_id = rng.choice(self._kinds), self._victim()
                self._history.trace.note(f"m{broker_id} suffers: {kind}")
                KINDS[kind](self, broker_id)

    def _victim(self) -> int:
        up, rng = self._machines.up, self._rng
        tree = self._cluster.ensemble.tree
        path = znodes.CONTROLLER.path()
        if rng.random() < AIMED_SHARE and tree.exists(path):
            found = znodes.CONTROLLER.decode(path, tree.get(path).data).broker_id
            if found in up:
                return found
        return rng.choice(up)

    def _later(self, delay_s: float, call: Callable[..., object], *args: object) -> None:
        self._loop.call_later(delay_s, call, *args)

    # Processes and hosts

    def kill(self, broker_id: int) -> None:
        self._machines.end(broker_id)

    def lose_power(self, broker_id: int) -> None:
        self._machines.end(broker_id, is_power_lost=True)

    def die_in_a_call(self, broker_id: int) -> None:
        is_power_lost = self._rng.random() < 0.4
        calls = self._rng.randint(1, CALLS_MAX)
        self._machines.doom(broker_id, calls, is_power_lost=is_power_lost)

    def stop(self, broker_id: int) -> None:
        is_power_lost = self._rng.random() < 0.5
        self._loop.create_task(self._machines.stop(broker_id, is_power_lost=is_power_lost))

    def pause(self, broker_id: int) -> None:
        process = self._cluster.processes[broker_id]
        process.pause()
        self._later(self._rng.choice((0.1, 1, 5, 9)), process.resume)

    def step_the_clock(self, broker_id: int) -> None:
        self._cluster.processes[broker_id].clock.skew(
            self._rng.uniform(0.95, 1.05), self._rng.choice((-2_000, 500, 130_000))
        )

    def expire(self, broker_id: int) -> None:
        """End its session; mostly while its disk is slow, so that the next leader epoch begins
        during appends."""
        if self._rng.random() < 0.8:
            self._slow_down(broker_id, 12, self._rng.choice((100, 300)))
            for _ in range(2):
                self._later(self._rng.uniform(0.5, 8), self._expire, broker_id)
        else:
            self._expire(broker_id)

    def _expire(self, broker_id: int) -> None:
        self._cluster.ensemble.expire(self._cluster.zks[broker_id])
        self._history.trace.count("session expired")

    def depose(self, broker_id: int) -> None:
        """An operator deletes `/controller`, so that another broker is elected, of which the one
        that was it may hear late."""
        ensemble, path = self._cluster.ensemble, znodes.CONTROLLER.path()
        if ensemble.leader is not None and ensemble.tree.exists(path):
            found = znodes.CONTROLLER.decode(path, ensemble.tree.get(path).data).broker_id
            name = ensemble.server_of(self._cluster.zks[found])
            if name is not None:
                ensemble.lag(name, 2_000)
                self._later(3, ensemble.lag, name, self._history.shape.lag_ms)
            now_ms = self._cluster.clock.now_ms()
            ensemble._publish(ensemble.tree.write((Delete(path),), 0, now_ms)[1])

    def maybe_depose(self) -> None:
        """The same as the controller is about to be asked for something."""
        if not self._is_over and "depose" in self._kinds and self._rng.random() < 0.5:
            self.depose(0)

    # Disks

    def slow_down(self, broker_id: int) -> None:
        for_s = self._rng.choice((1, 5, 12))
        self._slow_down(broker_id, for_s, self._rng.choice((5, 30, 200)))

    def _slow_down(self, broker_id: int, for_s: float, mean_ms: float) -> None:
        """Let a broker's disk wait, for some time."""
        disk, rng = self._cluster.disks[broker_id], self._cluster.stream("latency")

        def latency_ms(call: Call) -> float:
            return rng.expovariate(1 / mean_ms) if call.name in ("write", "sync") else 0.0

        disk.latency_ms = latency_ms
        self._later(for_s, _speed_up, disk)

    def fill(self, broker_id: int) -> None:
        """Leave no room, or so little that one of the next writes is done in part; often while a
        thread does the writes, so that appends are under way behind the one that is refused."""
        if self._rng.random() < 0.5:
            self._slow_down(broker_id, 6, self._rng.choice((30, 100)))
            self._later(self._rng.uniform(1, 3), self._fill, broker_id)
        else:
            self._fill(broker_id)

    def _fill(self, broker_id: int) -> None:
        disk = self._cluster.disks[broker_id]
        room = self._rng.choice((0, self._rng.randrange(400)))
        disk.fill(disk.used_bytes() + room)
        self._later(self._rng.choice((0.5, 3)), self._make_room, broker_id)

    def _make_room(self, broker_id: int) -> None:
        self._cluster.disks[broker_id].fill(FREE_BYTES)

    def fail_the_disk(self, broker_id: int) -> None:
        self._cluster.disks[broker_id].fail(after_calls=self._rng.randrange(20))

    # The network

    def cut_off(self, broker_id: int) -> None:
        """From all others, or from the clients or ZooKeeper alone."""
        rng, network = self._rng, self._cluster.network
        mine = {f"m{broker_id}"}
        brokers = {f"m{each}" for each in self._machines.ids}
        clients = set(self._history.client_hosts)
        match rng.randrange(3):
            case 0:
                network.partition(sorted(mine), sorted((brokers | clients | {*ZOOKEEPER}) - mine))
            case 1:
                network.partition(sorted(brokers | {*ZOOKEEPER}), sorted(clients))
            case 2:
                some = [each for each in sorted(brokers | clients) if rng.random() < 0.5]
                rest = [each for each in sorted(brokers | clients) if each not in some]
                servers = rng.choice((ZOOKEEPER[:2], ZOOKEEPER[:1]))
                others = [each for each in ZOOKEEPER if each not in servers]
                network.partition([*some, *servers], [*rest, *others])
        self._later(rng.choice((0.5, 3, 10)), network.heal)

    # ZooKeeper

    def crash_a_server(self, broker_id: int) -> None:
        ensemble, name = self._cluster.ensemble, self._rng.choice(ZOOKEEPER)
        ensemble.crash(name)
        self._later(self._rng.choice((1, 5)), ensemble.restart, name)

    def lag(self, broker_id: int) -> None:
        ensemble, rng = self._cluster.ensemble, self._rng
        ensemble.lag(rng.choice(ZOOKEEPER), rng.choice((0, 50, 1_000)))

    def nothing(self, broker_id: int) -> None:
        """It is on all the time, or at every start."""

    # The end

    async def end(self) -> None:
        """Have all of them pass: everything is up and in touch, and nothing is slow or full."""
        self._is_over = True
        self._history.trace.note("all faults end")
        cluster = self._cluster
        cluster.network.conditions = CONDITIONS
        cluster.network.heal()
        cluster.ensemble.lost_answers = 0.0
        for name in ZOOKEEPER:
            cluster.ensemble.lag(name, 0)
            cluster.ensemble.restart(name)
        self._machines.spare()
        await asyncio.sleep(SETTLED_S)
        for broker_id in self._machines.ids:
            disk = cluster.disks[broker_id]
            disk.fill(FREE_BYTES)
            _speed_up(disk)
        while not self._machines.are_ready:
            self._machines.restart_due(self._loop.time() + 60)
            await asyncio.sleep(0.5)


def _speed_up(disk: object) -> None:
    disk.latency_ms = lambda _call: 0.0  # type: ignore[attr-defined]


KINDS: dict[str, Callable[[Faults, int], None]] = {
    "kill": Faults.kill,
    "lose power": Faults.lose_power,
    "die in a call": Faults.die_in_a_call,
    "stop": Faults.stop,
    "pause": Faults.pause,
    "wrong clock": Faults.step_the_clock,
    "expire": Faults.expire,
    "depose": Faults.depose,
    "slow disk": Faults.slow_down,
    "full disk": Faults.fill,
    "dead disk": Faults.fail_the_disk,
    "cut off": Faults.cut_off,
    "reset": Faults.nothing,
    "lost answers": Faults.nothing,
    "ZooKeeper server": Faults.crash_a_server,
    "ZooKeeper lag": Faults.lag,
}
"""Named in a trace."""
