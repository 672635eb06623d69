"""A cluster of minimal brokers: a registration, a candidate controller and its peer each.

Everything happens in virtual time, from a seed. A `Node` can be killed, paused (cut off from
ZooKeeper, which it learns only later), have its session expired, and restarted. `differences` says
how the brokers' metadata and disks differ from what ZooKeeper has.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from controller_brokers import FakeNetwork, StateUpdate

from kdist.config.addresses import Listener
from kdist.config.broker_config import BrokerConfig
from kdist.config.load import broker_from
from kdist.config.topic import TopicSettings
from kdist.controller.controller import Controller
from kdist.controller.term import ControllerDependencies
from kdist.metrics.controller import ControllerMetrics
from kdist.model import TopicPartition
from kdist.protocol.create_partitions import GrownTopic
from kdist.protocol.create_topics import NewTopic, ReplicaAssignment, TopicSetting
from kdist.protocol.delete_topics import TopicToDelete
from kdist.testing.memory_zookeeper import MemoryEnsemble, MemoryZooKeeper
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop
from kdist.zk import znodes
from kdist.zk.client import Create, Delete, Operation, SessionState, Set
from kdist.zk.errors import NodeExists, ZooKeeperError
from kdist.zk.registration import BrokerRegistration, Endpoint
from kdist.zk.values import ControllerInfo, EntitySettings, TopicAssignment

SESSION_TIMEOUT_MS = 6_000
PATIENCE_MS = 60_000  # for a cluster to converge
GIVEN = {
    "broker.id": "1",
    "log.dir": "/d",
    "listeners": "PLAINTEXT://:9092",
    "zookeeper.connect": "z",
}


class FusedLoop(VirtualLoop):
    """A virtual loop in which something happens at a chosen turn."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.turns = 0
        self.fuse = -1
        self.blow: Callable[[], None] = lambda: None

    def _begin_turn(self, pause_ns: int | None) -> None:
        self.turns += 1
        if self.turns == self.fuse:
            self.blow()
            pause_ns = 0
        super()._begin_turn(pause_ns)

    def arm(self, turns: int, blow: Callable[[], None]) -> None:
        """Call `blow` this many turns from now."""
        self.fuse, self.blow = self.turns + turns, blow


class Node:
    """One broker: its end of the controller's connections, its session, its candidacy."""

    def __init__(self, world: Cluster, broker_id: int) -> None:
        self.id = broker_id
        self.peer = world.network.add(broker_id)
        self.metrics = ControllerMetrics()
        self.disk, self.content = f"disk of {broker_id}", "content 1"
        self.controller: Controller | None = None
        self.zk: MemoryZooKeeper | None = None
        self._world = world
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_up(self) -> bool:
        return self.peer.is_up

    def start(self) -> None:
        """Connect, register, stand for election."""
        self.peer.is_up = True
        self.peer.forget()
        self.zk = self._world.ensemble.client(session_timeout_ms=SESSION_TIMEOUT_MS)
        self.controller = Controller(
            ControllerDependencies(
                zk=self.zk,
                clock=self._world.clock,
                broker_id=self.id,
                config=lambda: self._world.config,
                connect=self._world.network.connect,
                listener="PLAINTEXT",
                rng=self._world.rng,
                metrics=self.metrics,
                on_planned=lambda _: None,
                load_settings=_load_nothing,
                settings_of=self._world.settings_of,
            )
        )
        self._tasks = [asyncio.create_task(self._live(self.zk, self.controller))]

    def kill(self) -> None:
        """The process is gone; ZooKeeper learns of it by the session's timeout."""
        self.peer.is_up = False
        for task in self._tasks:
            task.cancel()
        if self.zk is not None:
            self._world.ensemble.suspend(self.zk)
        self.controller = None

    def lose_page_cache(self) -> None:
        """Its host went down; it is up again, within the session's time."""
        self.content = f"{self.content} gone"
        self.expire()

    def replace_disk(self) -> None:
        """It is on another disk, within the session's time."""
        self.disk = f"after {self.disk}"
        self.expire()

    def pause(self, ms: float) -> None:
        """Cut off from ZooKeeper for a while, at the end of which it hears what happened."""
        assert self.zk is not None
        self._world.ensemble.suspend(self.zk, noticed_after_ms=ms)
        asyncio.get_running_loop().call_later(ms / 1000, self._resume, self.zk)

    def _resume(self, zk: MemoryZooKeeper) -> None:
        if self.is_up and self.zk is zk:  # not killed meanwhile
            self._world.ensemble.resume(zk)

    def expire(self) -> None:
        """The servers end its session."""
        assert self.zk is not None
        self._world.ensemble.expire(self.zk)

    def usurp(self) -> None:
        """Become controller at once; the previous one learns of it later, amid its work."""
        self._tasks.append(asyncio.create_task(self._usurp()))

    async def _usurp(self) -> None:
        assert self.zk is not None
        path, epoch_path = znodes.CONTROLLER.path(), znodes.CONTROLLER_EPOCH.path()
        epoch = int(self._world.ensemble.tree.get(epoch_path).data)
        await self.zk.multi(
            [
                Delete(path),
                Create(path, znodes.CONTROLLER.encode(ControllerInfo(self.id, 0)), ephemeral=True),
                Set(epoch_path, znodes.CONTROLLER_EPOCH.encode(epoch + 1)),
            ]
        )

    async def _live(self, zk: MemoryZooKeeper, controller: Controller) -> None:
        changed = asyncio.Event()
        zk.add_listener(lambda _: changed.set())
        await zk.connect()
        self._tasks.append(asyncio.create_task(controller.run()))
        while True:
            changed.clear()
            with suppress(ZooKeeperError):  # the next state says how to continue
                if zk.state is SessionState.EXPIRED:
                    await zk.reconnect()
                if zk.state is SessionState.CONNECTED:
                    await self._register(zk)
            await changed.wait()

    async def _register(self, zk: MemoryZooKeeper) -> None:
        path = znodes.BROKER.path(self.id)
        listener = Listener("PLAINTEXT", f"host-{self.id}", 9092)
        endpoints = (Endpoint(listener, "PLAINTEXT"),)
        value = BrokerRegistration(endpoints, 0, disk=self.disk, content=self.content)
        while True:
            try:
                await zk.create(path, znodes.BROKER.encode(value), ephemeral=True)
            except NodeExists:
                stat = await zk.exists(path)
                if stat is not None and stat.ephemeral_owner != zk.session_id:
                    await asyncio.sleep(0.1)  # the last session's, which runs out
                    continue
            stat = await zk.exists(path)
            if stat is not None:
                self.peer.epoch = stat.czxid
                return


async def _load_nothing(_: Mapping[str, uuid.UUID]) -> None:
    """Settings are read where they are asked for."""


class Cluster:
    """The world of a scenario."""

    def __init__(self, seed: int, brokers: int = 3) -> None:
        self.clock = VirtualClock()
        self.loop = FusedLoop(self.clock)
        self.rng = random.Random(seed)
        self.ensemble = MemoryEnsemble(self.clock, self.rng, delay_ms_max=3)
        self.network = FakeNetwork(self.rng)
        self.config: BrokerConfig = broker_from(GIVEN)
        self.nodes = {i: Node(self, i) for i in range(1, brokers + 1)}
        self._make_paths()
        self._write = self.ensemble.tree.write
        self.ensemble.tree.write = self._judged_write  # type: ignore[method-assign]

    def run(self, scenario: Coroutine[Any, Any, Any]) -> Any:
        """Run a scenario to its end, and end all that it has begun."""
        try:
            return self.loop.run_until_complete(self._around(scenario))
        finally:
            self.loop.close()

    async def _around(self, scenario: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await scenario
        finally:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    async def start(self) -> None:
        """All nodes are up, node 1 is the controller, and every broker has its metadata."""
        self.nodes[1].start()
        await self.until(lambda: self.controller is not None)
        for node in list(self.nodes.values())[1:]:
            node.start()
        await self.converge()

    @property
    def alive(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_up]

    @property
    def controller(self) -> Controller | None:
        """The node that believes that it is the controller and is connected."""
        for node in self.alive:
            if node.controller is not None and node.controller.is_active:
                return node.controller
        return None

    async def until(
        self, condition: Callable[[], object], patience_ms: float = PATIENCE_MS
    ) -> None:
        """Let time pass until the condition holds."""
        end_s = self.loop.time() + patience_ms / 1000
        while not condition():
            assert self.loop.time() < end_s, "it did not happen in time"
            await asyncio.sleep(0.01)

    async def converge(self) -> None:
        """Let time pass until brokers know what ZooKeeper has, and nothing is half done."""
        end_s = self.loop.time() + PATIENCE_MS / 1000
        while found := list(self.differences()):
            assert self.loop.time() < end_s, "\n".join(found)
            await asyncio.sleep(0.05)

    async def create(
        self, name: str, partitions: int = 3, on: Sequence[int] = (), **configs: str
    ) -> str:
        """Have the controller create a topic; the name of the error.

        `on`: the broker of each partition, if the controller is not to choose.
        """
        settings = [TopicSetting(name=k.replace("_", "."), value=v) for k, v in configs.items()]
        new = NewTopic(
            name=name,
            num_partitions=-1 if on else partitions,
            replication_factor=-1 if on else 1,
            assignments=[
                ReplicaAssignment(partition_index=index, broker_ids=[broker_id])
                for index, broker_id in enumerate(on)
            ],
            configs=settings,
        )
        assert self.controller is not None
        return (await self.controller.create_topics([new], 30_000))[0].error.name

    async def grow(self, name: str, count: int) -> str:
        """Have the controller add partitions; the name of the error."""
        assert self.controller is not None
        grown = GrownTopic(name=name, count=count, assignments=None)
        return (await self.controller.create_partitions([grown], 30_000))[0].error.name

    async def delete(self, name: str) -> str:
        """Have the controller delete a topic; the name of the error."""
        assert self.controller is not None
        return (await self.controller.delete_topics([TopicToDelete(name=name)], 30_000))[
            0
        ].error.name

    def settings_of(self, name: str) -> TopicSettings:
        """A topic's settings, which all brokers know at once."""
        path = znodes.TOPIC_SETTINGS.path(name)
        found = self.ensemble.tree.exists(path) and self.ensemble.tree.get(path).data
        overrides = znodes.TOPIC_SETTINGS.decode(path, found or b"").settings
        return self.config.topic(overrides) if overrides else self.config.topic_defaults

    def configure(self, name: str, **overrides: str) -> None:
        """Give a topic settings of its own, of which the controller hears."""
        settings = {key.replace("_", "."): value for key, value in overrides.items()}
        path, data = znodes.TOPIC_SETTINGS.path(name), EntitySettings(settings).encode()
        write = Set(path, data) if self.exists(path) else Create(path, data)
        self.ensemble.tree.write((write,), 0, 0)
        for node in self.alive:
            if node.controller is not None:
                node.controller.note_settings_change(name)

    # What ZooKeeper has

    def exists(self, path: str) -> bool:
        return self.ensemble.tree.exists(path) is not None

    def topics(self) -> list[str]:
        return self.ensemble.tree.children(znodes.TOPICS.path())

    def queued_for_deletion(self) -> list[str]:
        return self.ensemble.tree.children(znodes.TOPIC_DELETIONS.path())

    def registered(self) -> dict[int, int]:
        """Broker epochs by id."""
        paths = {int(i): znodes.BROKER.path(i) for i in self.ensemble.tree.children("/brokers/ids")}
        return {i: self.ensemble.tree.get(path).stat.czxid for i, path in paths.items()}

    def topic(self, name: str) -> TopicAssignment:
        path = znodes.TOPIC.path(name)
        return znodes.TOPIC.decode(path, self.ensemble.tree.get(path).data)

    def states(self) -> dict[TopicPartition, StateUpdate | None]:
        """What there is to tell of each partition of each topic; None where there is no state."""
        found: dict[TopicPartition, StateUpdate | None] = {}
        for name in self.topics():
            topic = self.topic(name)
            for index, replicas in topic.partitions.items():
                partition = TopicPartition(name, index)
                found[partition] = None
                path = znodes.PARTITION_STATE.path(*partition)
                if topic.topic_id is not None and self.exists(path):
                    state = znodes.PARTITION_STATE.decode(path, self.ensemble.tree.get(path).data)
                    found[partition] = StateUpdate(
                        topic.topic_id, state.leader, state.leader_epoch, state.isr, replicas
                    )
        return found

    def differences(self) -> Iterator[str]:
        """Everything that differs from the required end state, a line each."""
        registered = self.registered()
        if sorted(registered) != [node.id for node in self.alive]:
            yield f"registered are {sorted(registered)}"
        if (
            sum(node.controller is not None and node.controller.is_active for node in self.alive)
            != 1
        ):
            yield "there is not one controller"
        states = {
            each: update
            for each, update in self.states().items()
            if each.topic not in self.queued_for_deletion()
        }
        for partition, update in states.items():
            alive = set(update.replicas if update else ()) & registered.keys()
            if update is None or (update.leader == -1 if alive else update.leader != -1):
                yield f"{partition} is left with {update}"
        for name in self.queued_for_deletion():
            replicas = self.topic(name).partitions.values() if name in self.topics() else ()
            waits_for = {replica for assigned in replicas for replica in assigned}
            if waits_for <= registered.keys():
                yield f"{name} waits for no broker and is not deleted"
        for node in self.alive:
            yield from self._differences_of(node, states)

    def _differences_of(
        self, node: Node, states: dict[TopicPartition, StateUpdate | None]
    ) -> Iterator[str]:
        peer = node.peer
        if peer.epoch != self.registered().get(node.id):
            yield f"{node.id} does not know its epoch"
        if peer.brokers != set(self.registered()):
            yield f"{node.id} takes {sorted(peer.brokers)} for alive"
        mine = {
            each: update for each, update in states.items() if update and node.id in update.replicas
        }
        for what, has, wants in (
            ("was told", peer.metadata, states),
            ("leads", peer.led, mine),
            ("holds", peer.logs, {each: update.topic_id for each, update in mine.items()}),
        ):
            if has != wants:
                wrong = sorted(e for e in {*has, *wants} if has.get(e) != wants.get(e))
                yield f"{node.id} {what} otherwise of {[str(each) for each in wrong]}"

    def _judged_write(self, operations: Sequence[Operation], *rest: Any) -> Any:
        """No write of a state is by a controller that was replaced before."""
        outcome = self._write(operations, *rest)
        for operation in operations:
            if isinstance(operation, Create | Set) and operation.path.endswith("/state"):
                state = znodes.PARTITION_STATE.decode(operation.path, operation.data)
                epoch = self.ensemble.tree.get(znodes.CONTROLLER_EPOCH.path()).data
                assert state.controller_epoch == int(epoch)
        return outcome

    def _make_paths(self) -> None:
        for path in znodes.STARTING_PATHS:
            for end in [i for i, c in enumerate(path) if c == "/" and i] + [len(path)]:
                if not self.exists(path[:end]):
                    self.ensemble.tree.write((Create(path[:end]),), 0, 0)


def in_cluster(
    scenario: Callable[[Cluster], Coroutine[Any, Any, Any]], seed: int, brokers: int = 3
) -> None:
    """Run a scenario in a cluster of its own."""
    cluster = Cluster(seed, brokers)
    cluster.run(scenario(cluster))
