"""A random history of an ensemble of three: what clients did and saw, beside what was decided.

Clients write, read and watch a few znodes; servers crash and lag, the network parts, answers are
lost, sessions expire. Every write that the leader decides goes into a log, from which `Model` (a
few dicts, and no code of the ensemble's) says what each znode was after each transaction.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from kdist.testing.memory_zookeeper import MemoryZooKeeper
from kdist.zk.client import Check, Create, Delete, Operation, SessionState, Set, Stat, Watch, Znode
from kdist.zk.errors import MultiFailed, NoNode, Refused, ZooKeeperError
from tests.unit.zk.zk_ensemble import SERVERS, EnsembleWorld, run_ensemble

PATHS = ("/a", "/b", "/c")
STEPS = 40


class Decided(NamedTuple):
    """A transaction of the leader's; `outcomes` is None if it was refused."""

    session_id: int
    operations: tuple[Operation, ...]
    outcomes: list[Any] | None


class Value(NamedTuple):
    """What a model's znode is."""

    data: bytes
    version: int
    created: int  # positions in the log
    written: int
    owner: int


class Model:
    """The znodes after each decision: `at[n]` is after the first `n`."""

    def __init__(self) -> None:
        self.at: list[dict[str, Value]] = [{}]

    def decide(self, decided: Decided) -> None:
        """Carry out a decision, and compare its outcome."""
        number = len(self.at)
        values = dict(self.at[-1])
        if _carry_out(values, decided, number):
            assert decided.outcomes is not None, f"{decided} was refused without a reason"
            for operation, outcome in zip(decided.operations, decided.outcomes, strict=True):
                if isinstance(operation, Set):
                    assert outcome.version >= 1, "the first version is 0"
            self.at.append(values)
        else:
            assert decided.outcomes is None, f"{decided} had to be refused"
            self.at.append(self.at[-1])


def _carry_out(values: dict[str, Value], decided: Decided, number: int) -> bool:
    for operation in decided.operations:
        path, found = operation.path, values.get(operation.path)
        if isinstance(operation, Create):
            if found is not None:
                return False
            owner = decided.session_id if operation.ephemeral else 0
            values[path] = Value(operation.data, 0, number, number, owner)
        elif found is None or operation.version not in (-1, found.version):
            return False
        elif isinstance(operation, Set):
            values[path] = found._replace(
                data=operation.data, version=found.version + 1, written=number
            )
        elif isinstance(operation, Delete):
            del values[path]
    return True


class History:
    """One run, by its world's seed. `rare` counts what a good set of seeds brings about."""

    def __init__(self, world: EnsembleWorld) -> None:
        self.world = world
        self.rng = world.rng
        self.log: list[Decided] = []
        self.model = Model()
        self.rare: Counter[str] = Counter()
        self.attempts = 0
        self._acknowledged: dict[bytes, str] = {}  # by the write's own data: how it ended
        self._write = world.ensemble.tree.write
        world.ensemble.tree.write = self._log_write  # type: ignore[method-assign]

    def _log_write(self, operations: tuple[Operation, ...], session_id: int, *how: Any) -> Any:
        try:
            outcomes, events = self._write(operations, session_id, *how)
        except MultiFailed:
            self._decided(Decided(session_id, operations, None))
            raise
        self._decided(Decided(session_id, operations, outcomes))
        return outcomes, events

    def _decided(self, decided: Decided) -> None:
        self.log.append(decided)
        self.model.decide(decided)
        assert self.world.ensemble.tree.zxid == len(self.log)

    async def run(self) -> None:
        """Clients and faults side by side; in the end all is mended and compared."""
        clients = [Client(self, await self.world.client()) for _ in range(3)]
        await asyncio.gather(*(client.live() for client in clients), self._break())
        self._mend()
        for server in SERVERS:
            self.world.ensemble.lag(server, 0)
        await asyncio.sleep(30)
        for client in clients:
            await client.compare()
        self.judge_writes()

    async def _break(self) -> None:
        for _ in range(STEPS // 2):
            await asyncio.sleep(self.rng.uniform(0, 2))
            self._break_something()

    def _break_something(self) -> None:
        world, rng = self.world, self.rng
        ensemble, network = world.ensemble, world.network
        zk, server = rng.choice(world.clients), rng.choice(SERVERS)
        leader = ensemble.leader
        lag = partial(ensemble.lag, server, rng.choice((100, 4_000)))
        rng.choice(
            (
                *(self._mend, self._mend, self._mend, lag, lag, lag, lag),
                lambda: ensemble.crash(server),
                lambda: ensemble.restart(server),
                lambda: world.isolate(server),
                lambda: world.isolate(zk.host),
                lambda: world.isolate(leader or server, zk.host),
                lambda: network.partition([leader or server, zk.host], self._others(leader, zk)),
                lambda: network.partition([server, zk.host], self._others(server, zk)),
                lambda: setattr(ensemble, "lost_answers", rng.choice((0, 0.3))),
                lambda: ensemble.disconnect(zk),
                lambda: ensemble.expire(zk),
            )
        )()
        if ensemble.leader != leader:
            self.rare["a leader was lost"] += 1

    def _others(self, server: str | None, zk: MemoryZooKeeper) -> list[str]:
        hosts = [*SERVERS, *(each.host for each in self.world.clients)]
        return [host for host in hosts if host not in (server, zk.host)]

    def _mend(self) -> None:
        self.world.network.heal()
        self.world.ensemble.lost_answers = 0
        for server in SERVERS:
            self.world.ensemble.restart(server)

    def acknowledge(self, data: bytes, how: str) -> None:
        """A write that carried `data`, which no other does, has ended."""
        self._acknowledged[data] = how

    def judge_writes(self) -> None:
        """Acknowledged is decided, refused is not, nothing twice, a session's in their order."""
        last: dict[int, int] = {}
        written = Counter(
            operation.data
            for decided in self.log
            for operation in decided.operations
            if decided.outcomes is not None and isinstance(operation, Create | Set)
        )
        for data, how in self._acknowledged.items():
            assert written[data] in {"done": (1,), "refused": (0,), "lost": (0, 1)}[how], data
            self.rare[f"a {how} write was decided {written[data]} times"] += 1
        for decided in self.log:
            for attempt in (int(each.data) for each in decided.operations if _has_number(each)):
                assert attempt >= last.get(decided.session_id, 0), f"{attempt} came late"
                last[decided.session_id] = attempt


class Client:
    """One client of a history: a session never goes back, and misses nothing of its own."""

    def __init__(self, history: History, zk: MemoryZooKeeper) -> None:
        self.history = history
        self.zk = zk
        self.rng = history.rng
        self._session_id = zk.session_id
        self._server = history.world.ensemble.server_of(zk)
        self._seen = 0  # the least position in the log that explains all that the session saw
        self._watched: dict[str, list[object]] = {}  # a value by path, until its event comes

    async def live(self) -> None:
        """Do this and that; whatever fails, go on."""
        self.zk.add_listener(self._hear)
        for _ in range(STEPS):
            await asyncio.sleep(self.rng.uniform(0, 1))
            try:
                if self.zk.state is SessionState.EXPIRED:
                    await self.zk.reconnect()
                await self.rng.choice((self._write, self._read, self._both, self._sync))()
            except ZooKeeperError:
                pass

    def _hear(self, state: SessionState) -> None:
        self._watched.clear()
        server = self.history.world.ensemble.server_of(self.zk)
        if state is SessionState.CONNECTED:
            if self.zk.session_id == self._session_id and server != self._server:
                self.history.rare["a session moved"] += 1
            self._server = server

    async def compare(self) -> None:
        """After all faults: this client sees what was decided last."""
        while self.zk.state is SessionState.EXPIRED:
            await self.zk.reconnect()
        await self._sync()
        for path in PATHS:
            await self._read_path(path)

    def _enter_session(self) -> None:
        if self.zk.session_id != self._session_id:
            self._session_id, self._seen = self.zk.session_id, 0

    async def _write(self) -> None:
        history = self.history
        history.attempts += 1
        data = b"%d" % history.attempts
        begun = len(history.log)
        try:
            outcomes = await self.zk.multi(self._operations(data))
        except MultiFailed:
            history.acknowledge(data, "refused")
        except Refused:
            raise AssertionError("a multi fails as a whole") from None
        except ZooKeeperError:
            history.acknowledge(data, "lost")
            raise
        else:
            self._enter_session()
            history.acknowledge(data, "done")
            positions = [n for n, each in enumerate(history.log, 1) if _wrote(each, data)]
            assert len(positions) == 1
            assert positions[0] > begun, "decided before it was asked for"
            stats = [outcome for outcome in outcomes if isinstance(outcome, Stat)]
            assert all(stat.mzxid == positions[0] for stat in stats)
            self._seen = max(self._seen, positions[0])

    def _operations(self, data: bytes) -> Sequence[Operation]:
        """Of each kind; the one that carries the data is not the first."""
        rng, path, other = self.rng, *self.rng.sample(PATHS, 2)
        version = rng.choice((-1, -1, 0, 1, 2))
        return rng.choice(
            (
                [Create(path, data)],
                [Create(path, data, ephemeral=True)],
                [Set(path, data, version)],
                [Delete(other), Create(path, data, ephemeral=rng.random() < 0.5)],
                [Delete(path), Create(path, data)],
                [Check(other, version), Set(path, data)],
                [Check(other), Set(path, b"old" + data), Set(path, data)],
            )
        )

    async def _sync(self) -> None:
        decided = len(self.history.log)
        await self.zk.sync("/")
        self._enter_session()
        self._seen = max(self._seen, decided)

    async def _read(self) -> None:
        await self._read_path(self.rng.choice(PATHS))

    async def _both(self) -> None:
        """A read that is sent right behind a write comes after it."""
        path = self.rng.choice(PATHS)
        writing = asyncio.ensure_future(self._write())
        reading = asyncio.ensure_future(self._found(path, None))
        await asyncio.gather(writing, reading, return_exceptions=True)
        if writing.exception() is None and reading.exception() is None:
            self._judge_read(path, reading.result())

    async def _read_path(self, path: str) -> None:
        event: list[object] = [None]
        kept = self._watched.get(path)
        found = await self._found(path, lambda _: event.clear())
        self._judge_read(path, found)
        if kept and self._watched.get(path) is kept:
            assert kept[0] == found, f"{path} has changed, and its watch was not called"
        if found is not None and event:
            event[0] = found
            self._watched[path] = event

    async def _found(self, path: str, watch: Watch | None) -> Znode | None:
        try:
            return await self.zk.get(path, watch)
        except NoNode:
            return None

    def _judge_read(self, path: str, found: Znode | None) -> None:
        history = self.history
        self._enter_session()
        log_end = len(history.log)
        seen = next(
            (n for n in range(self._seen, log_end + 1) if _is(history.model.at[n], path, found)),
            None,
        )
        assert seen is not None, f"{path} as {found} is older than what the session has seen"
        if not _is(history.model.at[log_end], path, found):
            history.rare["a read was stale"] += 1
        self._seen = seen


def _has_number(operation: Operation) -> bool:
    return isinstance(operation, Create | Set) and not operation.data.startswith(b"old")


def _wrote(decided: Decided, data: bytes) -> bool:
    return decided.outcomes is not None and any(
        isinstance(each, Create | Set) and each.data == data for each in decided.operations
    )


def _is(values: dict[str, Value], path: str, found: Znode | None) -> bool:
    value = values.get(path)
    if value is None or found is None:
        return value is None and found is None
    stat = found.stat
    read = Value(found.data, stat.version, stat.czxid, stat.mzxid, stat.ephemeral_owner)
    return value == read


SEEDS = 30
RARE = {
    "a read was stale",
    "a leader was lost",
    "a session moved",
    "a lost write was decided 0 times",
    "a lost write was decided 1 times",
    "a done write was decided 1 times",
    "a refused write was decided 0 times",
}


def test_writes_have_one_order_and_no_session_goes_back_in_any_history() -> None:
    rare: Counter[str] = Counter()

    async def scenario(world: EnsembleWorld) -> None:
        history = History(world)
        await history.run()
        rare.update(history.rare)

    for seed in range(SEEDS):
        run_ensemble(scenario, seed)
    assert set(rare) == RARE, "what these seeds never brought about is not tested"
