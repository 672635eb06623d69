"""Every loop of the guides on three brokers, while these freeze and die and members come and go.

    python -m tests.soak --minutes 20 --seed 3 [--loops "for,await poll"]

Each loop has groups of both protocols of assignment, fast and slow, a process each, all at once.
Exits with 1 if a record was skipped, or came twice without a commit that was refused, if an event
loop stood still for the client's sake, or a thread or task was left over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count, product
from pathlib import Path
from typing import IO, Any

from kdist import Admin, NewTopic, Producer, aio
from tests.integration.broker_processes import BrokerProcess, broker_processes
from tests.integration.zookeeper_server import zookeeper_host
from tests.soak.group import ASYNCIO, BLOCKING
from tests.soak.judge import judge

ROOT = Path(__file__).parents[2]
PARTITIONS, BROKERS = 3, 3
EACH_SECOND = {"fast": 90, "slow": 3}  # by topic
STRATEGIES = ("range", "cooperative-sticky")
WARM_S, PAUSE_S, FAULT_S = 10.0, (5.0, 15.0), (1.0, 12.0)
ENDED_S = 180.0
SESSION_MS = "6000"
PATIENCE: dict[str, Any] = {"acks": "all", "delivery_timeout_ms": 600_000}
IN_BULK = 10

STARTED_S = time.monotonic()


def say(text: str) -> None:
    """A line of the transcript."""
    print(f"{time.monotonic() - STARTED_S:7.1f} s  {text}", flush=True)


# --- producers ----------------------------------------------------------------------------------

Numbers = Iterator[int]  # paced; it ends when the run does


def send(brokers: str, topic: str, numbers: Numbers) -> set[int]:
    """What was acknowledged."""
    with Producer(bootstrap_servers=brokers, **PATIENCE) as producer:
        sent = {
            number: producer.send(topic, b"%d" % number, key=b"%d" % number if number % 2 else None)
            for number in numbers
        }
        return {number for number, each in sent.items() if each.result(ENDED_S)}


def send_many(brokers: str, topic: str, numbers: Numbers) -> set[int]:
    """The same, ten in a call."""
    acknowledged: set[int] = set()
    with Producer(bootstrap_servers=brokers, **PATIENCE) as producer:
        for number in numbers:
            several = range(number * IN_BULK, (number + 1) * IN_BULK)
            producer.send_many(topic, [b"%d" % each for each in several]).result(ENDED_S)
            acknowledged.update(several)
    return acknowledged


def send_awaited(brokers: str, topic: str, numbers: Numbers) -> set[int]:
    """The same with asyncio."""

    async def work() -> set[int]:
        acknowledged: set[int] = set()
        async with aio.Producer(bootstrap_servers=brokers, **PATIENCE) as producer:
            while (number := await asyncio.to_thread(next, numbers, None)) is not None:
                await producer.send_and_wait(topic, b"%d" % number)
                acknowledged.add(number)
        return acknowledged

    return asyncio.run(work())


SENDERS: dict[str, tuple[Callable[[str, str, Numbers], set[int]], int]] = {
    "send": (send, 1),
    "send_many": (send_many, IN_BULK),
    "await send": (send_awaited, 1),
}


def paced(is_over: threading.Event, start: int, pause_s: float) -> Numbers:
    """Numbers from `start` on, one each `pause_s`."""
    for number in count(start):
        if is_over.wait(pause_s):
            return
        yield number


# --- groups -------------------------------------------------------------------------------------


class Reading:
    """The process of a group, and its journal."""

    def __init__(self, directory: Path, brokers: str, words: tuple[str, ...], seed: int) -> None:
        loop, strategy, self.topic = words
        self.name = ", ".join(words)
        self.path = directory / f"{self.name}.jsonl"
        self.errors: IO[bytes] = self.path.with_suffix(".err").open("wb")
        command = (loop, strategy, brokers, self.topic, str(self.path), str(seed))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.group", *command],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stderr=self.errors,
        )

    def anomalies(self, acknowledged: set[int]) -> list[str]:
        """What its journal shows so far."""
        whole = self.path.read_text().rpartition("\n")[0]
        return judge(map(json.loads, whole.splitlines()), acknowledged)

    def has_skipped(self, acknowledged: set[int]) -> bool:
        """Whether it has not yet read all."""
        return any("skipped" in each for each in self.anomalies(acknowledged))

    def tell_to_end(self) -> None:
        """Have its members leave, and wait for nothing."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def end(self) -> int:
        """Wait until it has ended; its exit status."""
        try:
            return self.process.wait(ENDED_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


# --- faults -------------------------------------------------------------------------------------


def freeze(broker: BrokerProcess, seconds: float) -> None:
    """SIGSTOP, and SIGCONT."""
    broker.process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    broker.process.send_signal(signal.SIGCONT)


def kill(broker: BrokerProcess, seconds: float) -> None:
    """kill -9, and a start later."""
    broker.end()
    time.sleep(seconds)
    broker.start()


def injure(brokers: list[BrokerProcess], rng: random.Random, end_s: float) -> None:
    """One fault after another until `end_s`."""
    while time.monotonic() < end_s:
        act, broker, seconds = (
            rng.choice((freeze, kill)),
            rng.choice(brokers),
            rng.uniform(*FAULT_S),
        )
        say(f"{act.__name__} broker {broker.id} for {seconds:.1f} s")
        act(broker, seconds)
        time.sleep(rng.uniform(*PAUSE_S))


# --- the run ------------------------------------------------------------------------------------


def play(directory: Path, seconds: float, seed: int, loops: list[str]) -> dict[str, list[str]]:
    """The anomalies by group."""
    with (
        ExitStack() as stack,
        zookeeper_host(directory) as host,
        broker_processes(
            *(BROKERS, directory, host.settings.address),
            default_replication_factor="3",
            min_insync_replicas="2",
            offsets_topic_replication_factor="3",
            zookeeper_session_timeout_ms=SESSION_MS,
        ) as brokers,
        ThreadPoolExecutor(len(SENDERS) * len(EACH_SECOND)) as pool,
    ):
        addresses = ",".join(each.address for each in brokers)
        with Admin(addresses) as admin:
            admin.create_topics([NewTopic(name, PARTITIONS, BROKERS) for name in EACH_SECOND])
        groups = [
            Reading(directory, addresses, words, seed + number)
            for number, words in enumerate(product(loops, STRATEGIES, EACH_SECOND))
        ]
        for each in groups:
            stack.callback(each.process.kill)  # whatever happens
        is_over = threading.Event()
        sending: dict[str, list[Future[set[int]]]] = {topic: [] for topic in EACH_SECOND}
        for topic, each_second in EACH_SECOND.items():
            for number, (work, at_once) in enumerate(SENDERS.values()):
                pause_s = at_once * len(SENDERS) / each_second
                numbers = paced(is_over, number * 10_000_000, pause_s)
                sending[topic].append(pool.submit(work, addresses, topic, numbers))
        try:
            time.sleep(WARM_S)
            injure(brokers, random.Random(seed), time.monotonic() + seconds)
        finally:
            is_over.set()
        acknowledged = {
            topic: set[int]().union(*(each.result(ENDED_S) for each in several))
            for topic, several in sending.items()
        }
        say(f"{sum(map(len, acknowledged.values())):,} records acknowledged")
        late_s = time.monotonic() + ENDED_S
        for each in groups:
            while each.has_skipped(acknowledged[each.topic]) and time.monotonic() < late_s:
                time.sleep(1)
        for each in groups:
            each.tell_to_end()
        statuses = {each.name: each.end() for each in groups}
        found = {each.name: each.anomalies(acknowledged[each.topic]) for each in groups}
    for name, status in statuses.items():
        if status:
            found[name].append(f"ended with {status}: {directory / name}.err says why")
    return found


def main() -> int:
    every = [*BLOCKING, *ASYNCIO]
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="for how long faults begin")
    parser.add_argument("--seed", type=int, default=0, help="of what is done to whom, and when")
    parser.add_argument("--loops", default=",".join(every), help="with commas between")
    given = parser.parse_args()
    loops = given.loops.split(",")
    if unknown := {*loops} - {*every}:
        parser.error(f"no such loop: {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    directory = Path(tempfile.mkdtemp(prefix="kdist-soak-"))
    say(f"seed {given.seed}, in {directory}")
    found = play(directory, given.minutes * 60, given.seed, loops)
    for name, anomalies in found.items():
        print(f"{name:40} {'; '.join(anomalies) or 'nothing'}")
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
