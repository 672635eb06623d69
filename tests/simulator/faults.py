"""What goes wrong in a history: which of the faults are on, and how often, its shape says."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING

from kdist.model import TopicPartition
from kdist.testing.simulated_disk import Call
from kdist.testing.simulated_transport import Conditions
from kdist.testing.virtual_process import VirtualProcess
from kdist.zk import znodes
from kdist.zk.client import Delete
from tests.simulator.machines import CHANGING, is_rename_in

if TYPE_CHECKING:
    from tests.simulator.history import History

ZOOKEEPER = ("z1", "z2", "z3")
CONDITIONS = Conditions(cut_share=0.05)
FREE_BYTES = 1 << 40
_IN_SYNC_S = 0.5  # by when who has started is
SETTLED_S = 3.0  # by when what has just gone well again is noticed
CALLS_MAX = 20  # that change the disk, before a broker dies in one
AIMED_SHARE = 0.3  # of faults that hit the controller's broker; of the others, a leader
STRUCK_SHARE = 0.03  # of fragile moments, at which a fault comes
PURSUED_SHARE = 0.4  # of faults, after which others come to the same partition
SWAP_DEATH_SHARE = 0.05  # of swaps
AWAY_SHARE = 0.2  # of a leader's swaps, after which a follower stays away
AWAY_S = 15.0
EMPTY_DISK = "empty disk"
_WRITING = ("write", "sync")
CALLS = (*CHANGING, "open", "read")  # that a slow disk is slow with


class Faults:
    """Owner: the history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._cluster = history.cluster
        self._loop = history.cluster.loop
        self._machines = history.machines
        self._rng = history.cluster.stream("faults")  # when they come
        self._struck_rng = history.cluster.stream("struck")
        self._deposing_rng = history.cluster.stream("deposing")
        self._cleaning_rng = history.cluster.stream("cleaning")
        self._cleanings = 0
        self._fault_rng = self._rng  # what the present one is: its own
        self._strikes = 0
        self._kinds = history.shape.kinds
        self._script = history.script
        self._is_over = False
        self.is_on = False
        self.is_settling = False  # all is over but what `aiming.py` has as the last
        self.names: list[str] = []  # of those that came
        self.stopped: set[int] = set()  # brokers that stay so until the end
        self._pending: list[asyncio.TimerHandle] = []  # what ends faults, or is yet to begin one

    async def go_on(self) -> None:
        """Break things, one after the other, for the time that the shape says."""
        shape, rng, cluster = self._history.shape, self._rng, self._cluster
        end_s = self._loop.time() + shape.faults_s
        if "reset" in self._kinds:
            cluster.network.conditions = CONDITIONS._replace(reset_share=rng.choice((0.002, 0.01)))
        if "lost answers" in self._kinds:
            cluster.ensemble.lost_answers = 0.05
        for name in ZOOKEEPER:
            cluster.ensemble.lag(name, shape.lag_ms)
        self.is_on = True
        number = 0
        while self._loop.time() < end_s and not self._is_last_over():
            number += 1
            await self._pass(rng.uniform(0, 2 * shape.pause_s))
            if rng.random() < PURSUED_SHARE:
                await self._pursue(number)
            else:
                self._befall(str(number), self._victim)
        self.is_on = False

    def _is_last_over(self) -> bool:
        script = self._script
        return script.ends_early and len(self.names) >= len(script.faults or ())

    async def _pass(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        self._machines.restart_due(self._loop.time())

    async def _pursue(self, number: int) -> None:
        """Break the replicas of one partition, one after the other: what has just come to pass at
        one, and is not yet known to all, is what the next fault meets."""
        shape, rng = self._history.shape, self._rng
        topic, partition = rng.choice(sorted(shape.topics)), rng.random()
        for part in range(rng.randint(2, 4)):
            self._befall(f"{number}.{part}", partial(self._replica, (topic, partition)))
            await self._pass(rng.choice((0.02, 0.3, 1.2 * shape.lag_s, 1.2 * shape.session_s)))

    def _replica(self, drawn: tuple[str, float], rng: random.Random) -> int | None:
        """One of those that host a partition, its leader mostly."""
        (topic, partition), known = drawn, self._history.known
        assignment = known.topics.get(topic)
        if assignment is None:
            return self._victim(rng)
        number = int(partition * len(assignment.partitions))
        state = known.states.get(TopicPartition(topic, number))
        leaders = [] if state is None else [state.leader]
        return rng.choice([*leaders, *assignment.partitions[number]])

    def _befall(self, name: str, choose: Callable[[random.Random], int | None]) -> None:
        """Have a fault come, unless the history is played without it."""
        rng = self._fault_rng = self._cluster.stream(f"fault {name}")
        kind, broker_id = rng.choice(self._kinds), choose(rng)
        if broker_id in self._machines.up and self.admit(name):
            self._history.trace.note(f"m{broker_id} suffers: {kind} ({name})")
            KINDS[kind](self, broker_id)

    def admit(self, name: str) -> bool:
        """Whether a fault of this name may come: the history may be played without it."""
        is_admitted = self._script.has(name)
        if is_admitted:
            self.names.append(name)
        return is_admitted

    def _victim(self, rng: random.Random) -> int | None:
        up = self._machines.up
        controller = self.controller()
        if rng.random() < AIMED_SHARE and controller in up:
            return controller
        leaders = [each.leader for each in self._history.known.states.values() if each.leader in up]
        if rng.random() < AIMED_SHARE and leaders:
            return rng.choice(leaders)
        return rng.choice(up) if up else None

    def controller(self) -> int | None:
        """The id of the broker that is it, as ZooKeeper has it."""
        tree, path = self._cluster.ensemble.tree, znodes.CONTROLLER.path()
        if not tree.exists(path):
            return None
        return znodes.CONTROLLER.decode(path, tree.get(path).data).broker_id

    def maybe_strike(self, broker_id: int, moment: str) -> None:
        """Have a fault come at a fragile moment of a broker, or right after it: to that broker, to
        another, or to the controller, who may be about to answer."""
        rng = self._struck_rng
        if not self.is_on or rng.random() >= STRUCK_SHARE:
            return
        self._strikes += 1
        name, others = f"s{self._strikes}", (self.controller(), *self._machines.up)
        victim = rng.choice((broker_id, broker_id, *others))
        self._history.trace.note(f"m{victim} is to suffer at {moment} ({name})")
        self._history.trace.count(f"struck at {moment}")
        delay_s = rng.choice((0, 0.002, 0.02))
        Context().run(self._loop.call_later, delay_s, self._strike, name, victim)

    def cleaning(
        self, broker_id: int, directory: str, merged: int, followers: Sequence[int]
    ) -> None:
        """A broker's cleaner is about to exchange so many segments for one. The broker may die
        among the renames, in each of their three phases as often as in the others; or, in some
        histories, a follower stays away for longer than tombstones do."""
        rng = self._cleaning_rng
        if not self.is_on:
            return
        if self._history.shape.leaves_behind and followers:
            if not self._machines.down and rng.random() < AWAY_SHARE:
                self._on_cleaning(partial(self._stay_away, rng.choice(followers)))
        elif rng.random() < SWAP_DEATH_SHARE:
            retired = 3 * (merged + 1)  # the renames to `.swap`, and those to `.deleted`
            phase = rng.randrange(3)
            calls = rng.randint(*((1, 3), (4, retired), (retired + 1, retired + 3))[phase])
            moment, which = f"phase {phase + 1} of a swap", partial(is_rename_in, directory)
            doom = partial(self._machines.doom, broker_id, calls, which, moment)
            self._on_cleaning(partial(doom, is_power_lost=rng.random() < 0.5))

    def _on_cleaning(self, fault: Callable[[], None]) -> None:
        self._cleanings += 1
        if self.admit(f"c{self._cleanings}"):
            Context().run(self._loop.call_soon, fault)

    def _stay_away(self, broker_id: int) -> None:
        if self.is_on and not self._machines.down:
            self._history.trace.note(f"m{broker_id} stays away while others clean")
            self._machines.end(broker_id)
            self._machines.down[broker_id] = self._loop.time() + AWAY_S

    def _strike(self, name: str, victim: int | None) -> None:
        if self.is_on:
            self._befall(name, lambda _: victim)

    def later(self, delay_s: float, call: Callable[..., object], *args: object) -> None:
        self._pending.append(self._loop.call_later(delay_s, call, *args))

    def lose_briefly(self, broker_id: int, for_s: float, *, is_disk_new: bool = False) -> None:
        """Let a broker's host lose power, or its disk be replaced, and be back soon."""
        if not self.is_on or broker_id not in self._machines.up:
            return
        up = {*self._machines.up}
        if is_disk_new and EMPTY_DISK in self._kinds:
            self.replace_disk(broker_id)
        else:
            self.lose_power(broker_id)
        for each in sorted(up - {*self._machines.up}):
            self.return_in(each, for_s)
        self._history.trace.count("back before its session ended")

    def return_in(self, broker_id: int, delay_s: float) -> None:
        """Have a broker that is down start after so long, and not wait for the next fault."""
        self._machines.down[broker_id] = self._loop.time() + delay_s
        restart = self._machines.restart_due
        self.later(delay_s, lambda: restart(self._loop.time()))

    def swap(self, broker_id: int, others: Sequence[int]) -> None:
        """A broker dies, and these are there instead."""
        if self.is_on and broker_id in self._machines.up:
            self.kill(broker_id)
            self._machines.down[broker_id] = self._loop.time() + AWAY_S / 2
            for each in others:
                if each in self._machines.down:
                    self.return_in(each, 0.1)

    # Processes and hosts

    def kill(self, broker_id: int) -> None:
        self._machines.end(broker_id)

    def lose_power(self, broker_id: int) -> None:
        self._machines.lose_power(broker_id)

    def replace_disk(self, broker_id: int) -> None:
        if self._history.copies.may_replace_disk(broker_id, self._machines.up):
            self._machines.replace_disk(broker_id)

    def die_in_a_call(self, broker_id: int) -> None:
        is_power_lost = self._fault_rng.random() < 0.4
        calls = self._fault_rng.randint(1, CALLS_MAX)
        self._machines.doom_somewhere(broker_id, calls, is_power_lost=is_power_lost)

    def stop(self, broker_id: int) -> None:
        is_power_lost = self._fault_rng.random() < 0.5
        self._loop.create_task(self._machines.stop(broker_id, is_power_lost=is_power_lost))

    def pause(self, broker_id: int) -> None:
        process = self._cluster.processes[broker_id]
        process.pause()
        shape = self._history.shape
        longer_s = 1.2 * self._fault_rng.choice((shape.session_s, shape.lag_s))
        self.later(self._fault_rng.choice((0.1, 1, 5, longer_s)), self._resume, broker_id, process)

    def _resume(self, broker_id: int, process: VirtualProcess) -> None:
        if broker_id not in self.stopped:
            process.resume()

    def step_the_clock(self, broker_id: int) -> None:
        self._cluster.processes[broker_id].clock.skew(
            self._fault_rng.uniform(0.95, 1.05), self._fault_rng.choice((-2_000, 500, 130_000))
        )

    def expire(self, broker_id: int) -> None:
        """End its session; mostly while its disk is slow, so that the next leader epoch begins
        during appends."""
        if self._fault_rng.random() < 0.8:
            self.slow_calls(broker_id, 12, self._fault_rng.choice((100, 300)))
            for _ in range(2):
                self.later(self._fault_rng.uniform(0.5, 8), self.expire_now, broker_id)
        else:
            self.expire_now(broker_id)

    def expire_now(self, broker_id: int) -> None:
        self._cluster.ensemble.expire(self._cluster.zks[broker_id])
        self._history.trace.count("session expired")

    def depose_leader(self, broker_id: int, is_dead: bool) -> None:
        """Have others lead what it leads: it dies, or its session ends."""
        if self.is_on and broker_id in self._machines.up:
            (self.kill if is_dead else self.expire_now)(broker_id)

    def depose(self, broker_id: int) -> None:
        """An operator deletes `/controller`, so that another broker is elected, of which the one
        that was it may hear late."""
        ensemble, path, found = self._cluster.ensemble, znodes.CONTROLLER.path(), self.controller()
        if ensemble.leader is not None and found is not None:
            name = ensemble.server_of(self._cluster.zks[found])
            if name is not None:
                ensemble.lag(name, 2_000)
                self.later(3, ensemble.lag, name, self._history.shape.lag_ms)
            now_ms = self._cluster.clock.now_ms()
            ensemble._publish(ensemble.tree.write((Delete(path),), 0, now_ms)[1])

    def maybe_depose(self) -> None:
        """The same as the controller is about to be asked for something."""
        if not self._is_over and "depose" in self._kinds and self._deposing_rng.random() < 0.5:
            self.depose(0)

    # Disks

    def slow_down(self, broker_id: int) -> None:
        """Let its disk wait for some time: when it writes, mostly, or whatever it does."""
        rng = self._fault_rng
        for_s, mean_ms = rng.choice((1, 5, 12)), rng.choice((5, 30, 200))
        self.slow_calls(broker_id, for_s, mean_ms, rng.choice((_WRITING, _WRITING, CALLS)))

    def slow_calls(
        self, broker_id: int, for_s: float, mean_ms: float, names: Collection[str] = _WRITING
    ) -> None:
        """Let these calls wait, for some time."""
        disk, rng = self._cluster.disks[broker_id], self._cluster.stream("latency")

        def latency_ms(call: Call) -> float:
            return rng.expovariate(1 / mean_ms) if call.name in names else 0.0

        disk.latency_ms = latency_ms
        self.later(for_s, _speed_up, disk)

    def fill(self, broker_id: int) -> None:
        """Leave no room, or so little that one of the next writes is done in part; often while a
        thread does the writes, so that appends are under way behind the one that is refused."""
        if self._fault_rng.random() < 0.5:
            self.slow_calls(broker_id, 6, self._fault_rng.choice((30, 100)))
            self.later(self._fault_rng.uniform(1, 3), self._fill, broker_id)
        else:
            self._fill(broker_id)

    def _fill(self, broker_id: int) -> None:
        disk = self._cluster.disks[broker_id]
        room = self._fault_rng.choice((0, self._fault_rng.randrange(400)))
        disk.fill(disk.used_bytes() + room)
        self.later(self._fault_rng.choice((0.5, 3)), self._make_room, broker_id)

    def _make_room(self, broker_id: int) -> None:
        self._cluster.disks[broker_id].fill(FREE_BYTES)

    def fail_the_disk(self, broker_id: int) -> None:
        self._cluster.disks[broker_id].fail(after_calls=self._fault_rng.randrange(20))

    # The network

    def cut_off(self, broker_id: int) -> None:
        """From all others, or from the clients or ZooKeeper alone, or from some brokers, perhaps
        in one direction."""
        rng, network = self._fault_rng, self._cluster.network
        mine = {f"m{broker_id}"}
        brokers = {f"m{each}" for each in self._machines.ids}
        clients = set(self._history.client_hosts)
        match rng.randrange(6):
            case 3 | 4 | 5 as which if len(brokers) > 1:
                others = sorted(brokers - mine)
                for other in rng.sample(others, rng.randint(1, len(others))):
                    if which != 4:
                        network.block(f"m{broker_id}", other)
                    if which != 5:
                        network.block(other, f"m{broker_id}")
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
        self.later(rng.choice((0.5, 3, 10)), network.heal)

    def delay(self, broker_id: int) -> None:
        """Have all come late that is sent on one of its connections, in one direction."""
        rng, network = self._fault_rng, self._cluster.network
        host = f"m{broker_id}"
        found = [each for each in network.connections() if each.local.host == host]
        if found:
            each = rng.choice(found)
            session_ms = 1_000 * self._history.shape.session_s
            late = each if rng.random() < 0.5 else each.peer
            late.late_ms = rng.choice((50, 300, rng.uniform(50, session_ms)))
            self.later(rng.choice((0.5, 3, 10)), late.release)

    # ZooKeeper

    def crash_a_server(self, broker_id: int) -> None:
        ensemble, name = self._cluster.ensemble, self._fault_rng.choice(ZOOKEEPER)
        ensemble.crash(name)
        self.later(self._fault_rng.choice((1, 5)), ensemble.restart, name)

    def lag(self, broker_id: int) -> None:
        ensemble, rng = self._cluster.ensemble, self._fault_rng
        ensemble.lag(rng.choice(ZOOKEEPER), rng.choice((0, 50, 1_000)))

    def nothing(self, broker_id: int) -> None:
        """It is on all the time, or at every start."""

    # The end

    def calm(self) -> None:
        """Have all be well from here on, but processes that are to stay stopped."""
        self._is_over = True
        for each in self._pending:
            each.cancel()
        cluster = self._cluster
        cluster.network.conditions = CONDITIONS
        cluster.network.heal()
        self._history.aiming.messages.end()
        cluster.ensemble.lost_answers = 0.0
        for name in ZOOKEEPER:
            cluster.ensemble.lag(name, 0)
            cluster.ensemble.restart(name)
        self._machines.spare()
        for broker_id in self._machines.ids:
            cluster.disks[broker_id].fill(FREE_BYTES)
            _speed_up(cluster.disks[broker_id])
        for broker_id in self._machines.up:
            self._resume(broker_id, cluster.processes[broker_id])

    async def end(self) -> None:
        """Have all of them pass: everything is up and in touch, and nothing is slow or full."""
        self._history.trace.note("all faults end")
        self.stopped.clear()
        self.calm()
        self.is_settling = True
        await asyncio.sleep(SETTLED_S)
        while not self._machines.are_ready:
            self._machines.restart_due(float("inf"))
            await asyncio.sleep(0.5)
        await asyncio.sleep(_IN_SYNC_S)
        self.is_settling = False
        self.calm()


def _speed_up(disk: object) -> None:
    disk.latency_ms = lambda _call: 0.0  # type: ignore[attr-defined]


KINDS: dict[str, Callable[[Faults, int], None]] = {
    "kill": Faults.kill,
    "lose power": Faults.lose_power,
    EMPTY_DISK: Faults.replace_disk,
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
    "late messages": Faults.delay,
    "reset": Faults.nothing,
    "lost answers": Faults.nothing,
    "ZooKeeper server": Faults.crash_a_server,
    "ZooKeeper lag": Faults.lag,
}
"""Named in a trace."""
