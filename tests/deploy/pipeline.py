"""kdist's main job as the drills see it: flights into one datacenter, files in the other."""

from __future__ import annotations

import itertools
import json
import shlex
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from kdist import Producer
from lab.demo import flights
from lab.demo.flights import Flight
from lab.demo.settings import FLIGHTS, HOSTS
from tests.deploy.client import read_all
from tests.deploy.deployed import KDIST, Cluster, Site
from tests.deploy.drilling import await_that

PYTHON = "/opt/kdist/spark/current/bin/python"

LOADED_S = 420.0  # until the timer's next load ends, after one that began too early

_MIRRORED_S = 120.0

_DAYS = """
import json, sys
import pyarrow.dataset
columns = ["date", "record_partition"]
rows = pyarrow.dataset.dataset(sys.argv[1], partitioning="hive").to_table(columns=columns)
found = rows.group_by(columns).aggregate([([], "count_all")]).to_pylist()
print(json.dumps([[x["record_partition"], str(x["date"]), x["count_all"]] for x in found]))
"""


class Pipeline:
    """A mirror flow and a load job of the site, and the flights sent through them."""

    def __init__(self, site: Site) -> None:
        self.gateway = site.group("spark")[0]
        self.job: str = self.gateway["kdist_spark_jobs"][0]["name"]
        self.target = _cluster(site, self.gateway["kdist_datacenter"])
        self.mirror = next(
            h for h in site.group("mirror") if h["kdist_datacenter"] == repr(self.target)
        )
        flow = self.mirror["kdist_mirrors"][0]
        self.flow: str = flow["name"]
        self.prefix: str = flow["prefix"]
        self.source = _cluster(site, flow["source"])
        self.sent: Counter[str] = Counter()
        self._left = iter(flights.read(flights.fetch()))

    @property
    def mirror_unit(self) -> str:
        return f"kdist-mirror@{self.flow}.service"

    @property
    def mirror_file(self) -> str:
        return f"/etc/kdist/mirror-{self.flow}.properties"

    @property
    def load_unit(self) -> str:
        return f"kdist-load@{self.job}.service"

    @property
    def timer(self) -> str:
        return f"kdist-load@{self.job}.timer"

    @property
    def job_file(self) -> str:
        return f"/etc/kdist/load/{self.job}.properties"

    @property
    def output(self) -> str:
        return f"{self.gateway['kdist_spark_output']}/{self.job}"

    # In

    def produce(self, count: int | None = None) -> None:
        """Send the next flights of the year (all the rest by default); wait for the acks."""
        with Producer(bootstrap_servers=self.source.bootstrap, compression_type="lz4") as producer:
            futures = []
            for part in flights.in_slices(self._take(count), 2_000):
                values, keys = [each.value for each in part], [each.key for each in part]
                futures.append(producer.send_many(FLIGHTS, values, keys))
                self.sent.update(flights.per_day(part))
            for future in futures:
                future.result(timeout=120)

    def _take(self, count: int | None) -> list[Flight]:
        return list(itertools.islice(self._left, count))

    # Between

    def mirrored(self) -> int:
        """How many flights have arrived in the target."""
        return sum(row["position"] or 0 for row in self._status() if row["topic"] == FLIGHTS)

    def _status(self) -> list[dict[str, Any]]:
        said = self.mirror.says(f"{KDIST} mirror status --json --config {self.mirror_file}")
        found: list[dict[str, Any]] = json.loads(said)["partitions"]
        return found

    def await_mirrored(self) -> None:
        """Return once all flights that were sent have arrived."""
        total = self.sent.total()
        await_that(
            lambda: self.mirrored() >= total, f"{total} flights in {self.target}", _MIRRORED_S
        )
        assert self.mirrored() == total

    def behind(self, topic: str) -> int:
        """How many records of a topic are still to be mirrored."""
        return sum(row["lag_records"] for row in self._status() if row["topic"] == topic)

    def delete_records(self, topic: str) -> None:
        """Delete all of a topic's records in the source, as retention would."""
        self.source.asks(
            *(
                "topics",
                "delete-records",
                topic,
                "--all",
                "--yes",
                "--broker",
                self.source.bootstrap,
            )
        )

    def lost(self) -> list[tuple[str, int]]:
        """The partitions whose records the source has deleted before they were mirrored."""
        rows = self._status()
        return sorted((row["topic"], row["partition"]) for row in rows if row["lost_records"])

    def stopped(self) -> list[tuple[str, int]]:
        """The partitions that the mirror reports as stopped by lost records."""
        port = self.mirror["kdist_mirrors"][0]["mirror_port"]
        said = self.mirror.shell.run(
            f"curl -sS --max-time 10 http://{self.mirror['kdist_address']}:{port}/health"
        ).stdout
        names = json.loads(said)["flows"][self.flow]["stopped"] if said else {}
        split = [name.rpartition("-") for name in names]
        return sorted((topic, int(partition)) for topic, _, partition in split)

    def seek(self, topic: str, partition: int) -> None:
        """Resume at the first record left, as the runbook says; the mirror must be stopped."""
        self.mirror.says(
            f"{KDIST} mirror seek --config {self.mirror_file} --flow {self.flow} --topic {topic}"
            f" --partition {partition} --to earliest"
        )

    # Out

    def loaded(self, topic: str) -> dict[int, Counter[str]]:
        """The number of a topic's rows in the files, by partition and day."""
        place = f"{self.output}/topic={self.prefix}{topic}"
        rows = json.loads(self.gateway.says(f"{PYTHON} -c {shlex.quote(_DAYS)} {place}"))
        found: dict[int, Counter[str]] = {}
        for partition, day, count in rows:
            found.setdefault(partition, Counter())[day] += count
        return found

    def flights_loaded(self) -> Counter[str]:
        """The number of flights in the files, by day."""
        return sum(self.loaded(FLIGHTS).values(), Counter())

    def await_loaded(self) -> None:
        """Return once a load started by the timer has loaded everything."""
        total = self.sent.total()
        await_that(
            lambda: self._has_loaded() and self.flights_loaded().total() >= total,
            f"{total} flights in files",
            LOADED_S,
        )

    def _has_loaded(self) -> bool:
        return self.gateway.works(f"ls {self.output}/topic={self.prefix}{FLIGHTS}/load=*")

    def run_load(self) -> None:
        """Run the job's unit, which must succeed."""
        self.gateway.says(f"systemctl start {self.load_unit}")

    @contextmanager
    def timer_off(self) -> Iterator[None]:
        """Stop the timer and any running load, so that loads run only when a test starts them."""
        self.gateway.says(f"systemctl stop {self.timer} {self.load_unit}")
        self.gateway.says(f"systemctl reset-failed {self.load_unit}")
        try:
            yield
        finally:
            self.gateway.says(f"systemctl start {self.timer}")

    def assert_once(self) -> None:
        """Assert that each flight sent is in the files once, and that the hosts' rows are right."""
        assert self.flights_loaded() == self.sent
        self.gateway.says(f"{PYTHON} -m kdist.cli load verify --deep --config {self.job_file}")
        hosts = read_all(self.source.bootstrap, HOSTS, len(self._partitions(HOSTS)))
        for partition, days in self.loaded(HOSTS).items():
            first = hosts[partition][: days.total()]
            assert days == Counter(_day(json.loads(value)) for value in first), partition

    def _partitions(self, topic: str) -> list[dict[str, Any]]:
        return [row for row in self._status() if row["topic"] == topic]


def _day(record: dict[str, Any]) -> str:
    return datetime.fromtimestamp(record["timestamp_ms"] / 1000, UTC).date().isoformat()


def _cluster(site: Site, datacenter: str) -> Cluster:
    return next(each for each in site.clusters if each.datacenter == datacenter)
