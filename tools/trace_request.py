"""How far a request walks through the code: files, functions and calls, counted by a profiler.

Three brokers run in the simulator's world, so a count is the same each time. Counted is
- an acks=all produce to a partition of three replicas, on its leader: from the request to the
  write, and on, with the followers' fetches, to the answer; on the general path, and on the fast
  path. Of some produces the one with the fewest calls, since others have an idle fetch among them;
- a follower's leaving the ISR, on all brokers, until each knows of it: only functions that do not
  also run in as much time in which nothing happens. It is not the first one, which has codecs made.

Left out are the simulated runtime, network and ZooKeeper, clients, the lines of a log that somebody
has set up, and the records' codec, of which
a profiler sees the reference only. With `--beside DIR` another checkout of kdist, after its `make
setup`, is counted beside this one; of an old one only `tests/simulator/cluster.py` must be alike.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from kdist.protocol.create_topics import CreateTopicsRequest, NewTopic
from kdist.runtime.process import CURRENT
from tests.simulator.cluster import Cluster, produce_request

ROOT = Path(__file__).resolve().parents[1]
CLIENT = "client"  # its host, in the simulator's world
TOPIC = "traced"
PRODUCE_VERSION = 9
BROKERS = (1, 2, 3)
LAG_MS = 3000
IDLE_S = 60  # all that is done now and then is done meanwhile
PRODUCES = 10
LEFT_OUT = (
    *("testing/", "runtime/simulated", "runtime/virtual", "network/simulated", "zk/memory"),
    *("records/_", "runtime/diagnostics"),
)
CLOCKS = ("VirtualClock.", "ProcessClock.")

Function = tuple[str, str]
"""File below kdist/, and qualified name."""
Calls = Counter[Function]


class Way(NamedTuple):
    """What ran from one moment to another."""

    name: str
    calls: dict[str, int]  # by "file: function"

    @classmethod
    def of(cls, name: str, calls: Calls) -> Way:
        return cls(name, {f"{file}: {function}": n for (file, function), n in calls.items()})

    @property
    def files(self) -> list[str]:
        """In the order in which they were met."""
        return list(dict.fromkeys(each.split(":")[0] for each in self.calls))


class Profile:
    """Calls by broker, while it is switched on. Owner: `trace`."""

    def __init__(self, brokers: dict[Any, int]) -> None:
        """`brokers`: each process's broker id."""
        self._brokers = brokers
        self._functions: dict[CodeType, Function | None] = {}
        self.calls: dict[int, Calls] = {}
        self.on_call: dict[Function, Callable[[int, FrameType], None]] = {}
        """Called with broker id and frame when a function begins; it may be a simulated one."""

    def total(self) -> Calls:
        """Of all brokers."""
        return sum(self.calls.values(), Calls())

    @contextmanager
    def on(self) -> Iterator[None]:
        """Count from nothing."""
        self.calls = {broker: Counter() for broker in self._brokers.values()}
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        try:
            function = self._functions[code]
        except KeyError:
            function = self._functions[code] = _function_of(code)
        if function is None or (broker := self._brokers.get(CURRENT.get())) is None:
            return
        if function in self.on_call:
            self.on_call[function](broker, frame)
        if not (function[0].startswith(LEFT_OUT) or function[1].startswith(CLOCKS)):
            self.calls[broker][function] += 1


def _function_of(code: CodeType) -> Function | None:
    """None for what is not kdist's, or a comprehension, which is part of its function."""
    _, found, path = code.co_filename.rpartition("/kdist/")
    return (path, code.co_qualname) if found and code.co_name[0] != "<" else None


class Stage:
    """Three brokers, and a partition that another than the controller leads."""

    def __init__(self) -> None:
        settings = {
            "offsets.topic.replication.factor": "3",
            "replica.lag.time.max.ms": str(LAG_MS),
        }
        self.cluster = Cluster(seed=1, settings=settings)
        self.partition = 0
        self.leader = 0

    async def start(self) -> None:
        cluster = self.cluster
        cluster.network.conditions = cluster.network.conditions._replace(cut_share=0)
        for broker in BROKERS:
            await cluster.started(broker)
        client = await cluster.client(BROKERS[0])
        new = NewTopic(
            name=TOPIC, num_partitions=3, replication_factor=3, assignments=[], configs=[]
        )
        await client.send(CreateTopicsRequest(topics=[new], timeout_ms=10_000), 7)
        await cluster.until(lambda: all(self._known(b) is not None for b in BROKERS))
        controller = cluster.brokers[BROKERS[0]].service.cache.controller_id
        known: Any = self._known(BROKERS[0])
        leaders = {each.leader: index for index, each in known.partitions.items()}
        self.leader = max({*leaders} - {controller})
        self.partition = leaders[self.leader]

    def _known(self, broker: int) -> Any:
        return self.cluster.brokers[broker].service.cache.topics.get(TOPIC)

    def isr(self, broker: int) -> list[int]:
        """The partition's, as a broker knows it."""
        isr: list[int] = self._known(broker).partitions[self.partition].isr
        return isr

    async def connect(self) -> Any:
        """A client's connection to the leader."""
        return await self.cluster.client(self.leader)

    async def produce(self, client: Any, acks: int = -1) -> None:
        """A record."""
        request = produce_request(TOPIC, b"value", acks=acks, partition=self.partition)
        answer = await client.send(request, PRODUCE_VERSION)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer

    def follower(self) -> int:
        """One that is neither the leader nor the controller."""
        known = self.cluster.brokers[self.leader].service.cache.controller_id
        return min({*BROKERS} - {self.leader, known})


async def trace(stage: Stage) -> list[Way]:
    """All that is counted, in order."""
    await stage.start()
    profile = Profile({stage.cluster.processes[each]: each for each in BROKERS})
    await stage.produce(await stage.connect())  # so that the log is open
    found: dict[str, list[dict[str, Calls]]] = {"general path": [], "fast path": []}
    for _ in range(PRODUCES):
        client = await stage.connect()
        await asyncio.sleep(0.1)
        for ends in found.values():  # a connection's second produce is usual, and so are others
            ends.append(await _trace_produce(stage, profile, client))
    fewest = {
        path: min(ends, key=lambda each: each["answer"].total()) for path, ends in found.items()
    }
    ways = [
        Way.of(f"produce, {path}, to the {end}", calls)
        for path, ends in fewest.items()
        for end, calls in ends.items()
    ]
    await _trace_shrink(stage, profile)
    return ways + await _trace_shrink(stage, profile)


async def _trace_produce(stage: Stage, profile: Profile, client: Any) -> dict[str, Calls]:
    """Calls to the write and to the answer."""
    found: dict[str, Calls] = {}

    def see_write(broker: int, frame: FrameType) -> None:
        of_log = frame.f_locals["self"].path.endswith(".log")
        if broker == stage.leader and of_log:
            found.setdefault("write", profile.calls[broker].copy())

    def see_send(broker: int, frame: FrameType) -> None:
        if broker == stage.leader and frame.f_locals["self"].remote.host == CLIENT:
            found.setdefault("answer", profile.calls[broker].copy())
            found.setdefault("answer, on all brokers", profile.total())

    for folder in ("runtime", "testing"):
        profile.on_call[f"{folder}/simulated_disk.py", "SimulatedFile.write"] = see_write
    for folder in ("network", "testing"):
        file = f"{folder}/simulated_transport.py"
        profile.on_call[file, "SimulatedTransport.write"] = see_send
    with profile.on():
        await stage.produce(client)
    profile.on_call.clear()
    return found


async def _trace_shrink(stage: Stage, profile: Profile) -> list[Way]:
    """What all brokers called; in the end the follower is back."""
    cluster, away = stage.cluster, stage.follower()
    with profile.on():
        await asyncio.sleep(IDLE_S)
    idle = profile.calls
    cluster.network.block(f"m{away}", f"m{stage.leader}")
    await stage.produce(await stage.connect(), acks=1)  # which the follower does not get
    with profile.on():
        await cluster.until(lambda: all(away not in stage.isr(each) for each in BROKERS))
    cluster.network.heal()
    await cluster.until(lambda: all(away in stage.isr(each) for each in BROKERS))
    ways = []
    all_own: Calls = Counter()
    for broker, calls in profile.calls.items():
        own = Counter({f: n for f, n in calls.items() if f not in idle[broker]})
        all_own += own
        if broker == stage.leader:
            ways.append(Way.of("ISR shrink, on the leader", own))
        elif broker != away:
            ways.append(Way.of("ISR shrink, on the controller", own))
    return [*ways, Way.of("ISR shrink, on all brokers", all_own)]


def traced() -> list[Way]:
    """All that is counted of the kdist that is imported here."""
    stage = Stage()
    ways: list[Way] = stage.cluster.run(trace(stage))
    return ways


def traced_beside(tree: Path) -> list[Way]:
    """The same of another checkout, by its own Python."""
    command = [str(tree / ".venv/bin/python"), str(Path(__file__).resolve()), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    told = subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.PIPE)
    return [Way(way["way"], way["functions"]) for way in json.loads(told.stdout)["kdist"]]


def table(trees: dict[str, list[Way]]) -> str:
    """A line for each way and tree."""
    lines = [f"{'way':54} {'tree':12} {'files':>6} {'functions':>10} {'calls':>7}"]
    for of_way in zip(*trees.values(), strict=True):
        for tree, way in zip(trees, of_way, strict=True):
            numbers = f"{len(way.files):6} {len(way.calls):10} {sum(way.calls.values()):7}"
            lines.append(f"{way.name:54} {tree:12} {numbers}")
    return "\n".join(lines)


def _listed(way: Way) -> Iterator[str]:
    """Its files in the order of the walk, each with what ran there."""
    yield f"\n{way.name}"
    for file in way.files:
        here = [(each.split(": ")[1], n) for each, n in way.calls.items() if each.startswith(file)]
        yield f"  {file}: " + ", ".join(f"{name} {n}" for name, n in here)


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--functions", action="store_true", help="what ran, after the table")
    parser.add_argument("--beside", metavar="DIR", type=Path, help="another checkout of kdist")
    arguments = parser.parse_args()
    trees = {"kdist": traced()}
    if arguments.beside:
        trees["other kdist"] = traced_beside(arguments.beside.absolute())
    if arguments.json:
        told = {
            tree: [
                {
                    "way": way.name,
                    "files": way.files,
                    "calls": sum(way.calls.values()),
                    "functions": way.calls,
                }
                for way in ways
            ]
            for tree, ways in trees.items()
        }
        print(json.dumps(told, indent=1))
        return
    print(table(trees))
    if arguments.functions:
        for way in trees["kdist"]:
            print("\n".join(_listed(way)))


if __name__ == "__main__":
    main()
