"""Whole brokers in virtual time: their disks, network and ZooKeeper are in memory.

`Cluster.run` carries out a scenario on the loop. A broker's machine is named after its id: 1 is on
host `m1`. What a broker's code raises ends that broker, and the run too if it is a bug: none is to
stay unseen. Scenarios of a few steps have one ZooKeeper server that is no host, and one stream of
randomness; the simulator names servers, and then each source of randomness has a stream of its own.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from kdist.broker.broker import Broker
from kdist.broker.context import BrokerContext
from kdist.config.load import broker_from
from kdist.errors import KdistError
from kdist.network.client import Client, ClientSettings
from kdist.protocol.create_topics import CreateTopicsRequest, NewTopic, TopicSetting
from kdist.protocol.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from kdist.records.build import build_batch
from kdist.testing.memory_zookeeper import MemoryZooKeeper
from kdist.testing.simulated_disk import SimulatedDisk
from kdist.testing.simulated_network import SimulatedNetwork
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop
from kdist.testing.virtual_process import VirtualProcess
from tests.simulator.ensemble import WatchedEnsemble

PORT = 9092
PATIENCE_S = 60.0
UNWOUND_S = 1.0  # by when what was cancelled has ended
SETTINGS = {
    "zookeeper.connect": "memory",
    "zookeeper.session.timeout.ms": "6000",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.dir.reserved.bytes": "0",
}


class Cluster:
    """The world of all brokers."""

    def __init__(
        self,
        seed: int = 0,
        *,
        beside: Cluster | None = None,
        servers: Sequence[str] = (),
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`beside` is another cluster in the same time and network; its broker ids differ.

        `servers` are the hosts of ZooKeeper; `settings` are all brokers'.
        """
        self.clock = beside.clock if beside else VirtualClock()
        self.loop = beside.loop if beside else VirtualLoop(self.clock)
        self.seed = seed
        self.rng = beside.rng if beside else random.Random(seed)
        self._streams = Counter[str]() if servers else None
        self.network = (
            beside.network if beside else SimulatedNetwork(self.loop, self.stream("network"))
        )
        self.ensemble = WatchedEnsemble(
            self.clock,
            self.stream("zookeeper"),
            delay_ms_max=2,
            servers=servers or ("memory",),
            is_cut=self.network.is_cut if servers else None,
        )
        self.settings = SETTINGS | settings
        self.disks: dict[int, SimulatedDisk] = {}
        self.zks: dict[int, MemoryZooKeeper] = {}
        self.processes: dict[int, VirtualProcess] = {}
        self.brokers: dict[int, Broker] = {}  # the last of each id
        self.hosts: Mapping[int, str] = {}  # machines that brokers share; others have their own
        self.racks: Mapping[int, str] = {}  # of brokers that have one
        self.boots = Counter[int]()  # as each broker's machine counts them
        self.interrupts_threads = False  # of brokers, in the middle of their work
        self._begun: list[VirtualProcess] = beside._begun if beside else []
        # Tasks that do not end in time: collected while the loop runs, they would hide why it ends.
        self._left: set[asyncio.Task[Any]] = set()
        self.statuses: list[str] = []

    def run(self, scenario: Coroutine[Any, Any, Any]) -> Any:
        """Run the scenario, and end all tasks that it started."""
        try:
            return self.loop.run_until_complete(self._around(scenario))
        finally:
            for process in self._begun:  # also if a callback has ended the run
                process.unwind()
            self.loop.close()

    async def _around(self, scenario: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await scenario
        finally:
            for process in self._begun:
                process.unwind()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            if others:
                _, self._left = await asyncio.wait(others, timeout=UNWOUND_S)

    def broker(self, broker_id: int = 1, /, **settings: str) -> Broker:
        """A broker, not started yet, on the disk that its last run left."""
        if broker_id not in self.disks:
            self.replace_disk(broker_id)
        given = {
            "broker.id": str(broker_id),
            "log.dir": "/d",
            "listeners": f"PLAINTEXT://:{PORT}",
            "broker.host": self.machine(broker_id),
            **self.settings,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        if broker_id in self.racks:
            given["broker.rack"] = self.racks[broker_id]
        zk = self.zks[broker_id] = self.ensemble.client(host=f"m{broker_id}")
        rng, threads_rng = self.stream("process"), self.stream("threads")
        process = self.processes[broker_id] = VirtualProcess(
            self.loop, rng, threads_rng=threads_rng if self.interrupts_threads else None
        )
        self._begun.append(process)
        self.disks[broker_id].clock = process.clock
        broker = self.brokers[broker_id] = Broker(
            BrokerContext(
                config=broker_from(given),
                files=self.disks[broker_id],
                process=process,
                network=self.network.host(f"m{broker_id}"),
                zk=zk,
                host=f"m{broker_id}",
                boot_id=f"boot {self.boots[broker_id]}",
                status=self.statuses.append,
            )
        )
        process.on_failure = partial(self._failed, broker)
        return broker

    def replace_disk(self, broker_id: int) -> None:
        """Give a broker that does not run an empty disk."""
        disk = self.disks[broker_id] = SimulatedDisk(self.stream("disk"), self.clock)
        disk.make_directory("/d")
        disk.sync_directory("/")

    def machine(self, broker_id: int) -> str:
        """The host that a broker is on. On the network each broker is one of its own."""
        return self.hosts.get(broker_id, f"m{broker_id}")

    def process(self, name: str) -> VirtualProcess:
        """A client's process; what it raises ends the run, unless it was killed."""
        process = VirtualProcess(self.loop, self.stream(name))
        self._begun.append(process)
        return process

    def stream(self, name: str) -> random.Random:
        """Where something's randomness comes from; another of the same name has another stream."""
        if self._streams is None:
            return self.rng
        self._streams[name] += 1
        return random.Random(f"{self.seed} {name} {self._streams[name]}")

    def _failed(self, broker: Broker, error: BaseException) -> None:
        broker.fail(error)
        if not isinstance(error, KdistError):
            self.loop.end_run(error)

    async def started(self, broker_id: int = 1, /, **settings: str) -> Broker:
        """A broker that has started."""
        broker = self.broker(broker_id, **settings)
        await broker.start()
        return broker

    def kill(self, broker: Broker, *, is_power_lost: bool = False) -> None:
        """The process is gone; its session runs out by itself. With the power goes what was not
        synced."""
        self.network.crash(f"m{broker.id}", is_power_lost=is_power_lost)
        self.ensemble.suspend(self.zks[broker.id])
        self.processes[broker.id].kill()
        disk = self.disks[broker.id]
        if is_power_lost:
            self.disks[broker.id] = disk.crash(self.rng)
            self.boots[broker.id] += 1
        else:
            self.release_lock(broker)

    def release_lock(self, broker: Broker) -> None:
        """As the kernel does when the process that holds it ends."""
        if broker._service is not None:
            broker.service.directory._lock.release()

    async def client(self, broker_id: int = 1) -> Client:
        """A connection to a broker."""
        return await Client.connect(
            self.network.host("client"), f"m{broker_id}", PORT, ClientSettings("tests")
        )

    async def until(self, condition: Callable[[], object]) -> None:
        """Let time pass until the condition holds."""
        end_s = self.loop.time() + PATIENCE_S
        while not condition():
            assert self.loop.time() < end_s, "it did not happen in time"
            await asyncio.sleep(0.01)


async def create(client: Client, name: str, partitions: int = 1, **configs: str) -> Any:
    """Create a topic; its result."""
    settings = [TopicSetting(name=k.replace("_", "."), value=v) for k, v in configs.items()]
    new = NewTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        assignments=[],
        configs=settings,
    )
    answer = await client.send(CreateTopicsRequest(topics=[new], timeout_ms=10_000), 7)
    return answer.topics[0]


def records(*values: bytes) -> bytes:
    """A batch."""
    return bytes(build_batch(values, timestamp_ms=1_700_000_000_000))


def produce_request(
    topic: str, *values: bytes, acks: int = -1, partition: int = 0
) -> ProduceRequest:
    """A Produce to one partition."""
    part = ProducePartition(index=partition, records=records(*values))
    return ProduceRequest(
        acks=acks,
        timeout_ms=5_000,
        topic_data=[ProduceTopic(name=topic, partition_data=[part])],
    )


async def produce(client: Client, topic: str, *values: bytes, acks: int = -1) -> Any:
    """Produce to partition 0; its result."""
    answer: ProduceResponse = await client.send(produce_request(topic, *values, acks=acks), 9)
    return answer.responses[0].partition_responses[0]
