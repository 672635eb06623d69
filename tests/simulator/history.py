"""One random history of a cluster: what a seed stands for, and what must hold.

The seed decides the cluster's shape, which faults are on and how often they come, and all that
happens. Each source of randomness has a stream of its own, so that one event less does not shift
the others. In the end faults stop, and what must become true becomes true (L1, L5, L7, L8), or is a
violation; what must never happen (S1 and so on, of the replication reference, §4.1) is looked for
all the time.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from kdist.broker.broker import Broker, State
from kdist.client.consumer.aio import Consumer
from kdist.client.producer.asynchronous import AsyncProducer
from kdist.client.producer.context import ProducerContext
from kdist.errors import DiskFailed, Error, KdistError
from kdist.model import TopicPartition
from kdist.network.simulated import SimulatedNetwork
from kdist.network.simulated_transport import Conditions
from kdist.records.batch import read_header
from kdist.runtime.simulated_disk import Call
from kdist.runtime.simulated_faults import PowerLoss
from kdist.zk import znodes
from kdist.zk.memory import MemoryEnsemble
from tests.simulator.cluster import PORT, Cluster, create
from tests.unit.client.client_group_world import HASTY, consumer_on

TOPIC = "clicks"
FAULTS_S = 40.0
PATIENCE_S = 90.0  # for all that must become true once the faults are over
EVENTS_SHOWN = 50
LIFE_S_MAX = 1_000
CONDITIONS = Conditions(cut_share=0.05)
KINDS = (
    *("kill", "lose power", "stop", "cut off", "slow disk", "full disk", "dead disk", "expire"),
    *("lost answers", "ZooKeeper server", "ZooKeeper lag", "reset", "wrong clock"),
)
SOMETIMES = (
    *("broker restarted", "writer thread used", "leader epoch began during an append"),
    *("session expired", "controller changed", "acknowledged", "not acknowledged"),
    *("disk failed", "power lost"),
)


class Violation(AssertionError):
    """Something that must not be; `partition` is the one concerned, if it is about one."""

    def __init__(self, sentence: str, partition: TopicPartition | None = None) -> None:
        super().__init__(sentence)
        self.partition = partition


class Outcome(NamedTuple):
    """What a run of a seed gives."""

    seed: int
    trace_hash: str
    violation: str
    last_events: tuple[str, ...]
    sometimes: dict[str, int]


class SimulatedCluster(Cluster):
    """Three ZooKeeper servers; a stream of randomness for each source."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.seed = seed
        self._streams: Counter[str] = Counter()
        self.network = SimulatedNetwork(self.loop, self.stream("network"), CONDITIONS)
        self.ensemble = MemoryEnsemble(
            self.clock,
            self.stream("zookeeper"),
            delay_ms_max=2,
            servers=("z1", "z2", "z3"),
            is_cut=self.network.is_cut,
        )

    def stream(self, name: str) -> random.Random:
        self._streams[name] += 1
        return random.Random(f"{self.seed} {name} {self._streams[name]}")


class History:
    """Owner: the loop."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.cluster = SimulatedCluster(seed)
        self.loop = self.cluster.loop
        self.rng = self.cluster.stream("faults")
        shape = self.cluster.stream("shape")
        self.ids = range(1, shape.randint(1, 4) + 1)
        self.partitions = [TopicPartition(TOPIC, n) for n in range(shape.randint(1, 4))]
        self.kinds = [kind for kind in KINDS if shape.random() < 0.4]
        self.pause_s = shape.uniform(0.5, 5)
        self.is_flushed = shape.random() < 0.5  # before records are exposed
        self.producers = [Producing(self, n, shape) for n in range(shape.randint(1, 3))]
        self.readers: list[Reading] = []
        self.events: deque[str] = deque(maxlen=5_000)
        self.hash = hashlib.sha256()
        self.sometimes: Counter[str] = Counter()
        self.power_lost: set[int] = set()  # brokers whose unflushed records may be gone
        self.down: dict[int, float] = {}  # brokers, with the time at which each is to return
        self.seen: dict[tuple[TopicPartition, int], bytes] = {}
        self._epochs: dict[TopicPartition, int] = {}
        self._high_watermarks: dict[tuple[int, TopicPartition], int] = {}
        self._controller_epoch = 0
        self._starting: dict[int, asyncio.Task[None]] = {}
        self.is_over = False

    # Running

    def run(self) -> Outcome:
        violation, last = "", ()
        self.loop.before_time_moves = self._watch_time
        try:
            self.cluster.run(self._traced())
        except Violation as error:
            violation, last = str(error), self._last(error.partition)
        except Exception as error:  # noqa: BLE001 - a bug ends the history, and is what it found
            violation, last = repr(error), self._last(None)
        return Outcome(self.seed, self.hash.hexdigest(), violation, last, dict(self.sometimes))

    def _last(self, partition: TopicPartition | None) -> tuple[str, ...]:
        name = str(partition) if partition else ""
        of_it = [event for event in self.events if name in event or " m" in event]
        return tuple(of_it[-EVENTS_SHOWN:])

    def note(self, event: str) -> None:
        """Add to the trace."""
        line = f"{self.cluster.clock.monotonic_ns() / 1e9:.6f} {event}"
        self.events.append(line)
        self.hash.update(line.encode())

    async def _traced(self) -> None:
        try:
            await self._run()
        finally:  # before what is left is ended, in no particular order
            self.note("the end")
            self.hash.update(repr(self.cluster.network._rng.getstate()).encode())

    async def _run(self) -> None:
        for each in self.ids:
            self._start(each)
        await asyncio.wait_for(asyncio.gather(*self._starting.values()), PATIENCE_S)
        await self._create()
        checking = self.loop.create_task(self._check_always())
        for producer in self.producers:
            producer.begin()
        self.readers = [Reading(self, f"r{n}", n > 0) for n in range(3)]
        faults = self.loop.create_task(self._break_things())
        await asyncio.wait((faults, checking), return_when=asyncio.FIRST_COMPLETED)
        if checking.done():
            checking.result()
        faults.result()
        await self._heal()
        await self._judge(checking)

    async def _create(self) -> None:
        configs = {"flush_before_expose": "true", "flush_ms": "500"} if self.is_flushed else {}
        for each in self.ids:
            client = await self.cluster.client(each)
            await client.negotiate()
            result = await create(client, TOPIC, len(self.partitions), **configs)
            client.close()
            if result.error_code == Error.NONE:
                return
        raise Violation("L7: nobody is the controller")

    # Brokers

    def _start(self, broker_id: int) -> None:
        self.down.pop(broker_id, None)
        broker = self.cluster.broker(broker_id)
        process = self.cluster.processes[broker_id]
        process.on_failure = partial(self._failed, broker)
        if "wrong clock" in self.kinds:
            process.clock.skew(self.rng.uniform(0.95, 1.05), self.rng.randint(-5_000, 5_000))
        broker.failure.add_done_callback(lambda _: self._ended(broker))
        self.note(f"m{broker_id} starts")
        self._starting[broker_id] = self.loop.create_task(self._started(broker))

    async def _started(self, broker: Broker) -> None:
        try:
            await broker.start()
        except KdistError as error:
            self.note(f"m{broker.id} cannot start: {error}")
            if self.cluster.brokers[broker.id] is broker:
                self.end(broker.id)
        else:
            self.note(f"m{broker.id} has started")

    def _failed(self, broker: Broker, error: BaseException) -> None:
        broker.fail(error)
        if not isinstance(error, KdistError | PowerLoss):
            self.loop.end_run(error)

    def _ended(self, broker: Broker) -> None:
        """A broker says that it cannot go on: its process ends."""
        if broker.id not in self.down and self.cluster.brokers[broker.id] is broker:
            error = broker.failure.result()
            self.note(f"m{broker.id} fails: {error}")
            if isinstance(error, DiskFailed):
                self.sometimes["disk failed"] += 1
            self.end(broker.id)

    def end(self, broker_id: int, *, is_power_lost: bool = False) -> None:
        """Kill a broker; it returns after a while, within its session's time or not."""
        if broker_id in self.down:
            return
        broker = self.cluster.brokers[broker_id]
        process = self.cluster.processes[broker_id]
        process.resume()
        self.cluster.disks[broker_id].heal()
        self.cluster.kill(broker, is_power_lost=is_power_lost)
        self.cluster.release_lock(broker)
        self.down[broker_id] = self.loop.time() + self.rng.choice((0.2, 2, 8, 15))
        self.sometimes["broker restarted"] += 1
        if is_power_lost:
            self.power_lost.add(broker_id)
            self.sometimes["power lost"] += 1
        self.note(f"m{broker_id} ends, power lost: {is_power_lost}")

    def _restart_due(self, now_s: float) -> None:
        for broker_id, due_s in list(self.down.items()):
            if due_s <= now_s:
                self._start(broker_id)

    @property
    def up(self) -> list[int]:
        return [each for each in self.ids if each not in self.down]

    # Faults

    async def _break_things(self) -> None:
        end_s = self.loop.time() + FAULTS_S
        if "reset" in self.kinds:
            self.cluster.network.conditions = CONDITIONS._replace(reset_share=0.002)
        if "lost answers" in self.kinds:
            self.cluster.ensemble.lost_answers = 0.05
        while self.loop.time() < end_s:
            await asyncio.sleep(self.rng.uniform(0, 2 * self.pause_s))
            self._restart_due(self.loop.time())
            if self.kinds and self.up:
                await self._break(self.rng.choice(self.kinds), self.rng.choice(self.up))

    async def _break(self, kind: str, broker_id: int) -> None:
        rng, cluster = self.rng, self.cluster
        self.note(f"m{broker_id} suffers: {kind}")
        match kind:
            case "kill":
                self.end(broker_id)
            case "lose power":
                self.end(broker_id, is_power_lost=True)
            case "stop":
                process = cluster.processes[broker_id]
                process.pause()
                self.loop.call_later(rng.choice((0.1, 1, 5, 12)), process.resume)
            case "cut off":
                rest = [f"m{each}" for each in self.ids if each != broker_id]
                others = [*rest, "z1", "z2", "z3", *(f"p{n}" for n in range(3)), "client"]
                others += [each.name for each in self.readers]
                cluster.network.partition((f"m{broker_id}",), others)
                self.loop.call_later(rng.choice((0.5, 3, 10)), cluster.network.heal)
            case "slow disk":
                self._slow_down(broker_id, rng.choice((1, 5, 12)))
            case "full disk":
                disk = cluster.disks[broker_id]
                disk.fill(1)
                self.loop.call_later(rng.choice((0.5, 3)), disk.fill, 1 << 40)
            case "dead disk":
                cluster.disks[broker_id].fail(after_calls=rng.randrange(20))
            case "expire":
                if rng.random() < 0.6:  # so that the next leader epoch begins during appends
                    self._slow_down(broker_id, 12)
                    await asyncio.sleep(2)
                cluster.ensemble.expire(cluster.zks[broker_id])
                self.sometimes["session expired"] += 1
            case _:
                self._break_zookeeper(kind, rng.choice(("z1", "z2", "z3")))

    def _break_zookeeper(self, kind: str, name: str) -> None:
        ensemble, rng = self.cluster.ensemble, self.rng
        if kind == "ZooKeeper server":
            ensemble.crash(name)
            self.loop.call_later(rng.choice((1, 5)), ensemble.restart, name)
        elif kind == "ZooKeeper lag":
            ensemble.lag(name, rng.choice((0, 50, 1_000)))

    def _slow_down(self, broker_id: int, for_s: float) -> None:
        """Let a broker's disk wait, for some time."""
        disk, rng = self.cluster.disks[broker_id], self.cluster.stream("latency")
        mean_ms = self.rng.choice((5, 30, 200))

        def latency_ms(call: Call) -> float:
            return rng.expovariate(1 / mean_ms) if call.name in ("write", "sync") else 0.0

        disk.latency_ms = latency_ms
        self.loop.call_later(for_s, setattr, disk, "latency_ms", lambda _call: 0.0)

    async def _heal(self) -> None:
        self.note("all faults end")
        cluster = self.cluster
        cluster.network.conditions = CONDITIONS
        cluster.network.heal()
        cluster.ensemble.lost_answers = 0.0
        for name in ("z1", "z2", "z3"):
            cluster.ensemble.lag(name, 0)
            cluster.ensemble.restart(name)
        await asyncio.sleep(15)  # what was begun ends by itself
        for broker_id in self.ids:
            disk = cluster.disks[broker_id]
            disk.heal()
            disk.fill(1 << 40)
            disk.latency_ms = lambda _call: 0.0
        end_s = self.loop.time() + PATIENCE_S
        while not self._are_ready():
            self._restart_due(self.loop.time() + 60)
            self.require(self.loop.time() < end_s, "L7: brokers do not become ready")
            await asyncio.sleep(0.5)

    def _are_ready(self) -> bool:
        return not self.down and all(
            self.cluster.brokers[each].state is State.READY for each in self.ids
        )

    # What must hold

    def require(self, is_so: bool, sentence: str, partition: TopicPartition | None = None) -> None:
        if not is_so:
            raise Violation(sentence, partition)

    async def _check_always(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            self._check_now()

    def _check_now(self) -> None:
        acting: list[int] = []
        for broker_id in self.up:
            broker = self.cluster.brokers[broker_id]
            if broker._service is None or broker.state is not State.READY:
                continue
            if broker.service.controller.is_active:
                acting.append(broker_id)
            writers = broker.service.replicas._context.writers
            if writers.thread_until_ns > broker.context.process.clock.monotonic_ns():
                self.sometimes["writer thread used"] += 1
            life = id(broker)
            for key, partition in broker.service.replicas.partitions.items():
                if key.topic == TOPIC:
                    self._check_partition(broker_id, life, key, partition)
        epoch_node = self.cluster.ensemble.tree.exists(znodes.CONTROLLER_EPOCH.path())
        if epoch_node is not None and epoch_node.version != self._controller_epoch:
            self._controller_epoch = epoch_node.version
            self.sometimes["controller changed"] += 1

    def _check_partition(
        self, broker_id: int, life: int, key: TopicPartition, partition: object
    ) -> None:
        mark, log = partition.high_watermark, partition.log  # type: ignore[attr-defined]
        before = self._high_watermarks.get((life, key), 0)
        self.require(mark >= before, f"S8: the high watermark of {key} fell to {mark}", key)
        self._high_watermarks[life, key] = mark
        self.require(mark <= log.end_offset, f"{key}: high watermark beyond the end", key)
        if partition.is_leader:  # type: ignore[attr-defined]
            epoch = partition.leader_epoch  # type: ignore[attr-defined]
            known = self._epochs.get(key, -1)
            if epoch > known:
                self._epochs[key] = epoch
                self.note(f"{key} is led by m{broker_id} in epoch {epoch} from {log.end_offset}")
                if log.reserved_offset > log.end_offset:
                    self.sometimes["leader epoch began during an append"] += 1

    async def _judge(self, checking: asyncio.Task[None]) -> None:
        for producer in self.producers:
            await self._in_time(producer.end(), "L5: a producer is not answered")
        await self._until(self._are_led, "L1: a partition has no leader")
        for key in self.partitions:
            self._check_log(key)
        await self._until(self._are_read, "L8: the readers do not reach the end")
        for reader in self.readers:
            await self._in_time(reader.end(), "L5: a consumer cannot be closed")
        active = [e for e in self.ids if self.cluster.brokers[e].service.controller.is_active]
        self.require(len(active) == 1, f"L7: controllers are {active}")
        if checking.done():
            checking.result()
        checking.cancel()

    async def _in_time(self, work: object, sentence: str) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        done, _ = await asyncio.wait((task,), timeout=PATIENCE_S)
        self.require(bool(done), sentence)
        task.result()

    def _watch_time(self) -> None:
        if self.loop.clock.monotonic_ns() > LIFE_S_MAX * 1e9:
            raise Violation("the history does not end")

    async def _until(self, condition: Callable[[], bool], sentence: str) -> None:
        end_s = self.loop.time() + PATIENCE_S
        while not condition():
            if self.loop.time() >= end_s:
                raise Violation(f"{sentence}: read {self.ends_read}, of {self._ends()}")
            await asyncio.sleep(0.2)

    def _leader(self, key: TopicPartition) -> object:
        for broker_id in self.up:
            found = self.cluster.brokers[broker_id].service.replicas.partitions.get(key)
            if found is not None and found.is_leader:
                return found
        return None

    def _are_led(self) -> bool:
        return all(self._leader(key) is not None for key in self.partitions)

    def _check_log(self, key: TopicPartition) -> None:
        """The log of the leader against what was sent and acknowledged."""
        partition = self._leader(key)
        log = partition.log  # type: ignore[attr-defined]
        broker_id = partition._context.broker_id  # type: ignore[attr-defined]
        stored: dict[int, bytes] = {}
        expected = log.start_offset
        for segment in log.segments if log.has_files else ():
            data, position = segment.file.read(0, segment.size), 0
            while position < len(data):
                header = read_header(data, position)
                self.require(header.base_offset == expected, f"S5: {key} is not dense", key)
                expected = header.last_offset + 1
                known = log.epochs.epoch_of(header.last_offset)
                self.require(
                    known == header.partition_leader_epoch,
                    f"S2: {key} has epoch {header.partition_leader_epoch} at"
                    f" {header.last_offset}, and OffsetForLeaderEpoch says {known}",
                    key,
                )
                for record in _records(data, position):
                    stored[record[0]] = record[1]
                position += header.size
        self.require(expected == log.end_offset, f"S5: {key} ends at {expected}", key)
        is_power_lost = broker_id in self.power_lost
        for producer in self.producers:
            # Only with acks=all does an answer wait for the flush.
            is_kept = not is_power_lost or (self.is_flushed and producer.acks == "all")
            producer.check(key, stored, may_be_lost=not is_kept)
        for (seen_key, offset), value in self.seen.items():
            if seen_key == key and (self.is_flushed or not is_power_lost):
                self.require(stored.get(offset) == value, f"S17: {key} at {offset} changed", key)

    def _are_read(self) -> bool:
        return all(self.ends_read.get(key, 0) >= end for key, end in self._ends().items())

    def _ends(self) -> dict[TopicPartition, int]:
        leaders = {key: self._leader(key) for key in self.partitions}
        return {key: led.log.end_offset for key, led in leaders.items() if led is not None}  # type: ignore[attr-defined]

    @property
    def ends_read(self) -> dict[TopicPartition, int]:
        """How far the group has read."""
        ends: dict[TopicPartition, int] = {}
        for reader in self.readers:
            for key, end in reader.ends.items():
                ends[key] = max(end, ends.get(key, 0))
        return ends


def _records(data: bytes, position: int) -> list[tuple[int, bytes]]:
    from kdist.records.build import read_batch

    return [(record.offset, record.value or b"") for record in read_batch(data, position)]


class Producing:
    """A producer that sends all the time, and the outcome of each record."""

    def __init__(self, history: History, number: int, shape: random.Random) -> None:
        self.name = f"p{number}"
        self._history = history
        self.is_idempotent = shape.random() < 0.6
        self.acks = "all" if self.is_idempotent else shape.choice(("all", "1", "0"))
        self._linger_ms = shape.choice((0, 5, 50))
        self._pause_s = shape.choice((0.05, 0.3, 0.8))
        self._rng = history.cluster.stream(self.name)
        self._sent: dict[TopicPartition, list[tuple[bytes, asyncio.Future[object]]]] = {}
        self._is_sending = True

    def begin(self) -> None:
        cluster = self._history.cluster
        context = ProducerContext(
            cluster.network.host(self.name), cluster.clock, cluster.stream(self.name)
        )
        settings = {} if self.is_idempotent else {"enable_idempotence": False}
        self._producer = AsyncProducer(
            context=context,
            bootstrap_servers=",".join(f"m{each}:{PORT}" for each in self._history.ids),
            linger_ms=self._linger_ms,
            acks=self.acks,
            request_timeout_ms=1_500,
            delivery_timeout_ms=20_000,
            **settings,
        )
        self._task = cluster.loop.create_task(self._work())

    async def _work(self) -> None:
        rng, number = self._rng, 0
        async with self._producer as producer:
            while self._is_sending:
                key = rng.choice(self._history.partitions)
                value = b"%s:%d" % (self.name.encode(), number)
                number += 1
                sent = await producer.send(key.topic, value, partition=key.partition)
                self._sent.setdefault(key, []).append((value, sent))
                await asyncio.sleep(rng.uniform(0, 2 * self._pause_s))
            await producer.flush()

    async def end(self) -> None:
        self._is_sending = False
        await self._task

    def check(self, key: TopicPartition, stored: dict[int, bytes], *, may_be_lost: bool) -> None:
        """S1 and S10: acknowledged records are there; idempotent ones once and in order."""
        history = self._history
        mine = {v: o for o, v in stored.items() if v.startswith(self.name.encode() + b":")}
        for value, sent in self._sent.get(key, []):
            error = sent.exception() if sent.done() else None
            is_acked = sent.done() and error is None
            history.sometimes["acknowledged" if is_acked else "not acknowledged"] += 1
            if is_acked and self.acks != "0" and not may_be_lost:
                history.require(value in mine, f"S1: {key} lost {value!r}, acks={self.acks}", key)
        if self.is_idempotent:
            count = sum(v.startswith(self.name.encode() + b":") for v in stored.values())
            history.require(count == len(mine), f"S10: {key} has a record twice", key)
            numbers = [int(v.split(b":")[1]) for _, v in sorted(stored.items()) if v in mine]
            history.require(numbers == sorted(numbers), f"S10: {key} is out of order", key)


class Reading:
    """A consumer: a member of the group, or one that was given all partitions."""

    def __init__(self, history: History, name: str, is_member: bool) -> None:
        self.name = name
        self.ends: dict[TopicPartition, int] = {}
        self._history = history
        self._consumer: Consumer = consumer_on(history.cluster, name, **HASTY)
        if is_member:
            self._consumer.subscribe([TOPIC])
        else:
            self._consumer.assign(history.partitions)
            self._consumer.seek_to_beginning()
        self._is_polling = True
        self._task = history.loop.create_task(self._work())

    async def _work(self) -> None:
        history = self._history
        while self._is_polling:
            try:
                for record in await self._consumer.poll(0.5):
                    key = TopicPartition(record.topic, record.partition)
                    self.ends[key] = max(self.ends.get(key, 0), record.offset + 1)
                    self._compare(key, record.offset, record.value or b"")
            except KdistError as error:
                history.note(f"{self.name}: {type(error).__name__}")
                await asyncio.sleep(0.1)

    def _compare(self, key: TopicPartition, offset: int, value: bytes) -> None:
        history = self._history
        before = history.seen.setdefault((key, offset), value)
        if before != value and (history.is_flushed or not history.power_lost):
            history.loop.end_run(Violation(f"S17: {key} at {offset} was {before!r}", key))
        if history.power_lost:
            history.seen[key, offset] = value

    async def end(self) -> None:
        self._is_polling = False
        await self._task
        await self._consumer.close()
