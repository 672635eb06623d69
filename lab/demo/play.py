"""The demo, step by step: input into the first datacenter, a mirror to the second, a load of that.

What each step does, a user could type: the processes are `kdist` commands, and the page at the end
names them. Only the flights go in by the client library, since that is what an application does.
"""

from __future__ import annotations

import json
import time
from collections import Counter
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
BROKERS = 2  # in each datacenter

_SLICE = 4_000  # flights handed to the producer at a time
_FIRST_PORT = 19_092
_MIRROR_TIMEOUT_S = 180.0


class Datacenter(NamedTuple):
    """A ZooKeeper and brokers, and where clients find them."""

    name: str
    broker: str
    process: Actor


class Outcome(NamedTuple):
    """What the demo has to show. Times are of the whole step, in seconds."""

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
        """All steps; `limit` takes only so many flights. `UserError` if one fails."""
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
            # ZooKeeper has the port below its brokers'.
            first = free_ports(len(names) * (BROKERS + 1), _FIRST_PORT)
            for number, name in enumerate(names):
                zookeeper = first + number * (BROKERS + 1)
                process = self._stage.start(
                    name,
                    *("standalone", "--json", "--brokers", str(BROKERS)),
                    *("--port", str(zookeeper + 1), "--zookeeper-port", str(zookeeper)),
                    *("--data", self._stage.path(name)),
                )
                self.datacenters.append(Datacenter(name, f"{HOST}:{zookeeper + 1}", process))
            for datacenter in self.datacenters:
                self._stage.wait_for_answer(datacenter.process)
            now.outcome = f"each a ZooKeeper and {BROKERS} brokers"

    def _start_pipes(self) -> None:
        """Topics, the mirror and this host's agent."""
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
        with step(self._console, "Produce the flights in dc1, as JSON") as now:
            start_s = time.monotonic()
            with Producer(
                bootstrap_servers=self.datacenters[0].broker, compression_type="lz4"
            ) as producer:
                futures = []
                for done, part in enumerate(flights.in_slices(sent, _SLICE), start=1):
                    values, keys = [each.value for each in part], [each.key for each in part]
                    futures.append(producer.send_many(FLIGHTS, values, keys))
                    now.advance_to(min(done * _SLICE, len(sent)), len(sent))
                for future in futures:
                    future.result()
            taken_s = time.monotonic() - start_s
            now.outcome = f"{len(sent) / taken_s:,.0f} records/s"
        return taken_s

    def _await_mirror(self, records: int) -> tuple[float, int]:
        """Until all flights are in dc2. How long that took, and the lag, which hosts may have."""
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
        found: list[dict[str, Any]] = answer[0]["partitions"]
        return found

    def _load(self) -> float:
        with step(self._console, "Load what dc2 has into files, with Spark") as now:
            start_s = time.monotonic()
            call("load", "--config", self.load_file, "--json")
            taken_s = time.monotonic() - start_s
            now.outcome = "Parquet, by day"
        return taken_s

    def _loaded(self, topic: str) -> Counter[str]:
        """How many rows the files have of each day: read by a stranger, Arrow."""
        files = pyarrow.dataset.dataset(self.output / f"topic={topic}", partitioning="hive")
        days = files.to_table(columns=["date"])["date"].value_counts().to_pylist()
        return Counter({str(each["values"]): each["counts"] for each in days})


def _lag(rows: list[dict[str, Any]], topic: str) -> tuple[int, int]:
    """Records of a topic that are still to be mirrored, and those that were."""
    lags = [(row["lag_records"], row["position"] or 0) for row in rows if row["topic"] == topic]
    return sum(behind for behind, _ in lags), sum(done for _, done in lags)
