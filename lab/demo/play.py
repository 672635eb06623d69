"""The demo's steps: produce into the first datacenter, mirror to the second, load from there.

Half-way, a broker of the first is killed, as nothing may be lost or come twice by that.

A user could type every step: the processes are `kdist` commands, and the page at the end names
them. Only the flights are produced with the client library, as an application would do it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.dataset
from rich.console import Console

from kdist import Producer
from kdist.errors import UserError
from lab.demo import flights
from lab.demo.flights import Flight
from lab.demo.settings import FLIGHTS, HOSTS, agent_settings, load_settings, mirror_settings
from lab.demo.stage import HOST, Actor, Stage, call, free_ports
from lab.demo.telling import step

PARTITIONS = 4
BROKERS = 3  # in each datacenter: enough for replicas

_SLICE = 4_000  # flights handed to the producer at a time
_FIRST_PORT = 19_092
_MIRROR_TIMEOUT_S = 180.0
_KILLED = "d02"


class Datacenter(NamedTuple):
    """A ZooKeeper and brokers; `broker` is the address for clients to bootstrap from.

    `pids` are its processes', by name.
    """

    name: str
    broker: str
    process: Actor
    pids: Mapping[str, int]


class Outcome(NamedTuple):
    """The demo's results. Each time is a whole step's, in seconds."""

    sent: Counter[str]
    sent_bytes: int
    produced_s: float
    mirrored_s: float
    lag_records: int
    load_s: float
    loaded: Counter[str]
    host_records: int


class Play:
    """One run of the demo. Owner: the command."""

    def __init__(self, stage: Stage, console: Console) -> None:
        self._stage = stage
        self._console = console
        self.datacenters: list[Datacenter] = []
        self.mirror_file = self.load_file = Path()
        self.output = stage.path("warehouse")

    def run(self, limit: int | None) -> Outcome:
        """Run all steps, with at most `limit` flights. Raises `UserError` if a step fails."""
        sent = self._read_input(limit)
        self._start_datacenters()
        self._start_pipes()
        produced_s = self._produce(sent)
        mirrored_s, lag_records = self._await_mirror(len(sent))
        load_s = self._load()
        return Outcome(
            sent=flights.per_day(sent),
            sent_bytes=sum(len(flight.value) for flight in sent),
            produced_s=produced_s,
            mirrored_s=mirrored_s,
            lag_records=lag_records,
            load_s=load_s,
            loaded=self._loaded(FLIGHTS),
            host_records=self._loaded(HOSTS).total(),
        )

    def _read_input(self, limit: int | None) -> list[Flight]:
        with step(self._console, "Fetch the flights of 2013 and read them") as now:
            found = flights.read(flights.fetch())[:limit]
            now.outcome = f"{len(found):,} flights"
        return found

    def _start_datacenters(self) -> None:
        with step(self._console, "Start two datacenters") as now:
            names = ("dc1", "dc2")
            # ZooKeeper takes the port just below its brokers' ports.
            first = free_ports(len(names) * (BROKERS + 1), _FIRST_PORT)
            started = []
            for number, name in enumerate(names):
                zookeeper = first + number * (BROKERS + 1)
                process = self._stage.start(
                    name,
                    *("standalone", "--json", "--brokers", str(BROKERS)),
                    *("--port", str(zookeeper + 1), "--zookeeper-port", str(zookeeper)),
                    *("--data", self._stage.path(name)),
                )
                started.append((name, f"{HOST}:{zookeeper + 1}", process))
            for name, broker, process in started:
                services = self._stage.wait_for_answer(process)["services"]
                pids = {each["name"]: each["pid"] for each in services}
                self.datacenters.append(Datacenter(name, broker, process, pids))
            now.outcome = f"each a ZooKeeper and {BROKERS} brokers"

    def _start_pipes(self) -> None:
        """Create the topics; start the mirror and this host's agent."""
        source, target = (datacenter.broker for datacenter in self.datacenters)
        with step(self._console, "Start a mirror, and this host's agent") as now:
            for topic, partitions in ((FLIGHTS, PARTITIONS), (HOSTS, 1)):
                create = ("topics", "create", topic, "--partitions", str(partitions))
                call(*create, "--broker", source)
            mirror = mirror_settings(source, target)
            self.mirror_file = self._stage.write_settings("mirror", mirror)
            load = load_settings(target, self.output)
            self.load_file = self._stage.write_settings("load", load)
            agent_file = self._stage.write_settings("agent", agent_settings(source))
            self._stage.start("mirror", "mirror", "--config", self.mirror_file)
            self._stage.start("agent", "agent", "--config", agent_file)
            now.outcome = "from dc1 to dc2"

    def _produce(self, sent: list[Flight]) -> float:
        with step(self._console, "Produce the flights in dc1; kill a broker") as now:
            start_s = time.monotonic()
            source, slices = self.datacenters[0], list(flights.in_slices(sent, _SLICE))
            with Producer(bootstrap_servers=source.broker, compression_type="lz4") as producer:
                futures = []
                for done, part in enumerate(slices, start=1):
                    if done == max(1, len(slices) // 2):
                        os.kill(source.pids[_KILLED], signal.SIGKILL)
                    values, keys = [each.value for each in part], [each.key for each in part]
                    futures.append(producer.send_many(FLIGHTS, values, keys))
                    now.advance_to(min(done * _SLICE, len(sent)), len(sent))
                for future in futures:
                    future.result()
            taken_s = time.monotonic() - start_s
            now.outcome = f"{len(sent) / taken_s:,.0f} records/s"
        return taken_s

    def _await_mirror(self, records: int) -> tuple[float, int]:
        """Wait until all flights are in dc2; return the seconds taken and the lag of both topics.

        Only the agent's topic may still lag: new records keep arriving in it.
        """
        with step(self._console, "Wait until dc2 has all of them") as now:
            start_s = time.monotonic()
            while True:
                rows = self._mirror_rows()
                behind, done = _lag(rows, FLIGHTS)
                now.advance_to(done, records)
                if not behind and done >= records:
                    break
                self._stage.check()
                if time.monotonic() - start_s > _MIRROR_TIMEOUT_S:
                    raise UserError(f"dc2 is still {behind} flights behind: see mirror.log")
                self._stage.pause()
            lag = behind + _lag(rows, HOSTS)[0]
            now.outcome = f"{lag} records behind"
        return time.monotonic() - start_s, lag

    def _mirror_rows(self) -> list[dict[str, Any]]:
        answer = json.loads(call("mirror", "status", "--config", self.mirror_file, "--json"))
        found: list[dict[str, Any]] = answer["partitions"]  # the one flow's
        return found

    def _load(self) -> float:
        with step(self._console, "Load what dc2 has into files, with Spark") as now:
            start_s = time.monotonic()
            call("load", "--config", self.load_file, "--json")
            taken_s = time.monotonic() - start_s
            now.outcome = "Parquet, by day"
        return taken_s

    def _loaded(self, topic: str) -> Counter[str]:
        """Rows per day in the files, counted independently of kdist, by Arrow."""
        files = pyarrow.dataset.dataset(self.output / f"topic={topic}", partitioning="hive")
        days = files.to_table(columns=["date"])["date"].value_counts().to_pylist()
        return Counter({str(each["values"]): each["counts"] for each in days})


def _lag(rows: list[dict[str, Any]], topic: str) -> tuple[int, int]:
    """The numbers of a topic's records that are still to be mirrored, and that have been."""
    lags = [(row["lag_records"], row["position"] or 0) for row in rows if row["topic"] == topic]
    return sum(behind for behind, _ in lags), sum(done for _, done in lags)
