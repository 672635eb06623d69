"""Random pipelines against a live broker: `python tests/integration/pipelining.py --seconds 300`.

Several connections at once, each with topics of its own. It prints what was done. A failure names
the session, whose name is its seed: `--session` runs that one alone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from kdist.protocol import find_coordinator, offset_fetch
from tests.integration.broker_processes import BrokerProcess, broker_processes, settled
from tests.integration.fire_wire import Wire
from tests.integration.pipelining_asking import Cluster
from tests.integration.pipelining_sessions import Session
from tests.integration.zookeeper_server import PATIENT_TICK_MS, zookeeper_host

SETTINGS = {
    "auto_create_topics_enable": "false",
    "log_segment_delete_delay_ms": "0",
    "log_retention_ms": "-1",  # timestamps are of another year
    "offsets_topic_replication_factor": "1",
}
CAREFUL = {"log_flush_before_expose": "true", "log_flush_interval_ms": "20"}
THREADS = 4


class Report(NamedTuple):
    """What a run did."""

    ends: Counter[str]
    requests: int
    unanswered: int
    before_mib: float
    after_mib: float

    def text(self) -> str:
        """For people."""
        ends = ", ".join(f"{count} {name}" for name, count in self.ends.most_common())
        return (
            f"{self.requests} requests; {ends}; {self.unanswered} unanswered after a half-close\n"
            f"memory: {self.before_mib:.0f} MiB before, {self.after_mib:.0f} MiB after\n"
        )


class Runner:
    """Runs sessions in threads, up to a number or a time."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._seed = seed
        self._lock = threading.Lock()
        self._next = 0
        self.ends: Counter[str] = Counter()
        self.requests = self.unanswered = 0
        self.failed: list[AssertionError] = []

    def run(self, count: int, seconds: float) -> None:
        """AssertionError that names a session."""
        end_s = time.monotonic() + seconds

        def work() -> None:
            while not self.failed and time.monotonic() < end_s:
                with self._lock:
                    number, self._next = self._next, self._next + 1
                if number >= count:
                    return
                self.one(f"p{self._seed}-{number}")

        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failed:
            raise AssertionError("\n".join(map(str, self.failed)))

    def one(self, name: str) -> None:
        """A session."""
        session = Session(self._cluster, name)
        try:
            end = session.run()
        except AssertionError as error:
            self.failed.append(error)
            return
        with self._lock:
            self.ends[end] += 1
            self.requests += session.requests
            self.unanswered += session.unanswered


def run(broker: BrokerProcess, seed: int, count: int, seconds: float, session: str = "") -> Report:
    """Run a number of sessions, or for a time. AssertionError if anything is wrong."""
    cluster = Cluster(broker.port, broker.id, "log.flush.before.expose" in broker.settings)
    settled(lambda: has_groups(broker))
    Runner(cluster, -seed - 1).run(4, 60)  # it warms up
    before, before_mib = settled_descriptors(broker), memory_mib(broker)
    runner = Runner(cluster, seed)
    if session:
        runner.one(session)
        if runner.failed:
            raise runner.failed[0]
    else:
        runner.run(count, seconds)
    try:
        settled(lambda: len(descriptors(broker)) <= len(before))
    except AssertionError as error:
        more = Counter(descriptors(broker)) - Counter(before)
        raise AssertionError(f"left open: {more}") from error
    assert "Traceback" not in broker.text, broker.text
    assert broker.process.poll() is None
    return Report(runner.ends, runner.requests, runner.unanswered, before_mib, memory_mib(broker))


def has_groups(broker: BrokerProcess) -> bool:
    """Whether it coordinates some group, for which it makes a topic."""
    keys = ["some"]
    with Wire(broker.port) as wire:
        asked = find_coordinator.FindCoordinatorRequest(coordinator_keys=keys)
        (found,) = wire.ask(find_coordinator.API, 4, asked).coordinators
        if found.error_code:
            return False
        data = offset_fetch.OffsetFetchTopic(name="some", partition_indexes=[0])
        groups = [
            offset_fetch.OffsetFetchGroup(group_id=f"some-{n}", topics=[data]) for n in range(50)
        ]
        answer = wire.ask(offset_fetch.API, 8, offset_fetch.OffsetFetchRequest(groups=groups))
        return not any(group.error_code for group in answer.groups)


def settled_descriptors(broker: BrokerProcess) -> list[str]:
    """Once no session's are among them."""
    return settled(lambda: [d for d in [descriptors(broker)] if not any("/p-" in e for e in d)])[0]


def descriptors(broker: BrokerProcess) -> list[str]:
    """The files and sockets that the process has open.

    But for logs of groups, which are opened as they come; ZooKeeper's client polls now and then.
    """
    found = []
    for entry in pathlib.Path(f"/proc/{broker.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(entry))
    passing = ("/__consumer_offsets", "anon_inode:")
    return [name for name in found if not any(each in name for each in passing)]


def memory_mib(broker: BrokerProcess) -> float:
    """Its resident set."""
    text = pathlib.Path(f"/proc/{broker.process.pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


@contextmanager
def target(directory: pathlib.Path, **more: str) -> Iterator[BrokerProcess]:
    """A broker of its own."""
    (directory / "zookeeper").mkdir()
    settings = {**SETTINGS, **more}
    with (
        zookeeper_host(directory / "zookeeper", PATIENT_TICK_MS) as host,
        broker_processes(1, directory, host.settings.address, **settings) as (broker,),
    ):
        yield broker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--sessions", type=int, default=1 << 30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--session", default="", help="the name of one, to be run alone")
    parser.add_argument("--careful", action="store_true", help="with flush.before.expose=true")
    options = parser.parse_args()
    sys.stdout.write(f"seed {options.seed}\n")
    sys.stdout.flush()
    more = CAREFUL if options.careful else {}
    with (
        tempfile.TemporaryDirectory() as directory,
        target(pathlib.Path(directory), **more) as broker,
    ):
        try:
            report = run(broker, options.seed, options.sessions, options.seconds, options.session)
        except AssertionError:
            sys.stdout.write(broker.text[-3000:])
            raise
        sys.stdout.write(report.text())


if __name__ == "__main__":
    main()
