"""Members of a group, as processes, that join, leave and are killed at random under load.

Afterwards the members' logs say who owned which partition when, and how often each value was read.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer

from tests.integration.churn_member import read_log, values_in

ROOT = Path(__file__).parents[2]
ENDED_S = 60.0
FOUND_S = 90.0


class Owned(NamedTuple):
    """A partition was one member's from `start_ns` to `end_ns`."""

    start_ns: int
    end_ns: int
    member: str


class Member:
    """A process, its log, and when it was gone."""

    def __init__(self, kind: str, name: str, directory: Path, arguments: Sequence[str]) -> None:
        self.name = f"{kind}-{name}"
        self.log = directory / f"{self.name}.log"
        self.log.touch()
        self.ended_ns: int | None = None
        self.diagnostics = directory / f"{self.name}.err"
        command = [sys.executable, "-m", "tests.integration.churn_member", kind, str(self.log)]
        with self.diagnostics.open("wb") as errors:
            self.process = subprocess.Popen([*command, *arguments], cwd=ROOT, stderr=errors)

    def end(self, how: signal.Signals) -> None:
        """Signal it; a member that leaves may take a while."""
        self.process.send_signal(how)
        if how is signal.SIGKILL:
            self.process.wait(ENDED_S)
            self.ended_ns = time.monotonic_ns()

    def wait(self) -> None:
        """Wait until it has left, without an error."""
        assert self.process.wait(ENDED_S) == 0, self.diagnostics.read_text()[-4000:]

    @property
    def is_gone(self) -> bool:
        return self.process.poll() is not None

    @property
    def is_up(self) -> bool:
        """Whether it has begun, and can be told to leave."""
        return self.log.stat().st_size > 0


class Producing:
    """A producer in a thread, of numbers from 0 on."""

    def __init__(self, broker: str, topic: str, each_second: int) -> None:
        self.acknowledged: set[bytes] = set()
        self._producer = Producer({"bootstrap.servers": broker, "linger.ms": 20, "acks": "all"})
        self._topic = topic
        self._each_second = each_second
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        number = 0
        while not self._is_stopping.wait(0.1):
            for _ in range(self._each_second // 10):
                value = b"%d" % number
                self._producer.produce(self._topic, value, on_delivery=self._note)
                number += 1
            self._producer.poll(0)

    def _note(self, error: object, message: object) -> None:
        if error is None:
            self.acknowledged.add(message.value())  # type: ignore[attr-defined]

    def stop(self) -> None:
        """Stop producing; everything produced is acknowledged."""
        self._is_stopping.set()
        self._thread.join()
        assert self._producer.flush(ENDED_S) == 0


class Churn:
    """The group. `kinds` are taken in turn; `arguments` are what members of each kind get."""

    def __init__(
        self, directory: Path, seed: int, count: int, arguments: dict[str, Sequence[str]]
    ) -> None:
        self.directory = directory
        self.rng = random.Random(seed)
        self.count = count
        self.arguments = arguments
        self.members: list[Member] = []
        self.counts: Counter[str] = Counter()

    @property
    def living(self) -> list[Member]:
        return [each for each in self.members if each.ended_ns is None and not each.is_gone]

    def join(self) -> None:
        """Start one more member."""
        number = len(self.members)
        kind = list(self.arguments)[number % len(self.arguments)]
        self.members.append(Member(kind, str(number), self.directory, self.arguments[kind]))
        self.counts["joined"] += 1

    def run(self, duration_s: float, pause_s: float) -> None:
        """Start all members; then one joins or goes about every `pause_s`."""
        for _ in range(self.count):
            self.join()
        while not all(each.is_up for each in self.living):
            time.sleep(0.1)
        end_s = time.monotonic() + duration_s
        leaving: list[Member] = []
        while time.monotonic() < end_s:
            time.sleep(self.rng.uniform(0.2, 2) * pause_s)
            staying = [each for each in self.living if each not in leaving]
            candidates = [each for each in staying if each.is_up]
            what = self.rng.random()
            if len(candidates) < self.count // 2 or (len(candidates) < self.count and what < 0.5):
                self.join()
            elif candidates and what < 0.75:
                self.rng.choice(candidates).end(signal.SIGKILL)
                self.counts["killed"] += 1
            elif candidates:
                leaver = self.rng.choice(candidates)
                leaver.end(signal.SIGTERM)
                leaving.append(leaver)
                self.counts["left"] += 1
        for each in leaving:
            each.wait()

    def wait_for(self, wanted: set[bytes]) -> None:
        """Wait until each of these values was read by some member."""
        end_s = time.monotonic() + FOUND_S
        while missing := wanted - self.found().keys():
            assert time.monotonic() < end_s, f"{len(missing)} were never given: {min(missing)!r}"
            time.sleep(0.5)

    def leave(self) -> None:
        """All that are still there."""
        living = self.living
        for each in living:
            while not each.is_up:
                time.sleep(0.1)
            each.end(signal.SIGTERM)
        for each in living:
            each.wait()

    def kill(self) -> None:
        """Whatever happened: nothing is left."""
        for each in self.members:
            if not each.is_gone:
                each.process.kill()
                each.process.wait(ENDED_S)

    # Afterwards

    @property
    def kills_ns(self) -> list[int]:
        """When somebody was killed."""
        return [each.ended_ns for each in self.members if each.ended_ns is not None]

    def found(self) -> Counter[bytes]:
        """How often each value was read."""
        return Counter(value for each in self.members for value in values_in(each.log.read_text()))

    def ownerships(self) -> dict[int, list[Owned]]:
        """Of each partition, in order. A killed member owned until it was gone."""
        found: dict[int, list[Owned]] = {}
        for member in self.members:
            since: dict[int, int] = {}
            for what, at_ns, partition in read_log(member.log.read_text()):
                if what == "own":
                    assert partition not in since, f"{member.name} owns {partition} twice"
                    since[partition] = at_ns
                elif (start_ns := since.pop(partition, None)) is not None:
                    owned = Owned(start_ns, at_ns, member.name)
                    found.setdefault(partition, []).append(owned)
            for partition, start_ns in since.items():
                assert member.ended_ns is not None, f"{member.name} left, and owns {partition}"
                owned = Owned(start_ns, member.ended_ns, member.name)
                found.setdefault(partition, []).append(owned)
        return {partition: sorted(found[partition]) for partition in sorted(found)}


def overlaps(ownerships: dict[int, list[Owned]]) -> list[str]:
    """Where two owned a partition at once."""
    return [
        f"{partition}: {one} and {other}"
        for partition, several in ownerships.items()
        for one, other in pairwise(several)
        if other.start_ns < one.end_ns
    ]


def gaps_s(ownerships: dict[int, list[Owned]]) -> list[float]:
    """How long partitions had no owner, sorted."""
    return sorted(
        (other.start_ns - one.end_ns) / 1e9
        for several in ownerships.values()
        for one, other in pairwise(several)
    )


def settling_s(ownerships: dict[int, list[Owned]], kills_ns: Sequence[int]) -> list[float]:
    """The gaps, counted from the last kill in each: every kill may take a session's time anew."""
    return sorted(
        (other.start_ns - max(one.end_ns, *(at for at in kills_ns if at < other.start_ns), 0)) / 1e9
        for several in ownerships.values()
        for one, other in pairwise(several)
    )


@contextmanager
def churn(
    directory: Path, seed: int, count: int, arguments: dict[str, Sequence[str]]
) -> Iterator[Churn]:
    """A group whose processes are all ended afterwards."""
    group = Churn(directory, seed, count, arguments)
    try:
        yield group
    finally:
        group.kill()
