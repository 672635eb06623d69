"""Produces beside a running clean.

One broker, one client that sends a record, waits for its answer, and sends the next. First while
nothing is cleaned, then while the broker's cleaner goes over several partitions full of old values;
in turn, as each clean is followed by writing them again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

sys.path += [str(Path(__file__).parents[1])]

import confluent_kafka as ck
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.integration.standalone_process import standalone
from tests.integration.zookeeper_server import free_port

PARTITIONS = 6
VALUE = bytes(400)
TIMEOUT_S = 60
RATIO = "min.cleanable.dirty.ratio"


def passes_of(port: int) -> int:
    """How many passes the cleaner has completed."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        lines = page.read().decode().splitlines()
    (line,) = (each for each in lines if each.startswith("kdist_cleaner_passes_total"))
    return int(float(line.split()[1]))


def set_ratio(address: dict[str, str], value: str) -> None:
    entry = ConfigEntry(RATIO, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "table", incremental_configs=[entry])
    admin = AdminClient(address)
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def fill(address: dict[str, str], records: int) -> None:
    producer = ck.Producer(address | {"linger.ms": 20, "queue.buffering.max.messages": 500_000})
    for number in range(records):
        while True:
            try:
                producer.produce("table", VALUE, b"user-%d" % (number % 5_000))
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(TIMEOUT_S) == 0


def latencies_ms(address: dict[str, str], goes_on: Callable[[int], bool]) -> list[float]:
    producer = ck.Producer(address | {"linger.ms": 0, "acks": "1"})
    found: list[float] = []
    while goes_on(len(found)):
        began = time.perf_counter()
        producer.produce("other", b"x" * 100)
        assert producer.flush(TIMEOUT_S) == 0
        found.append((time.perf_counter() - began) * 1e3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--produces", type=int, default=3_000)
    options = parser.parse_args()
    port = free_port()
    given = {
        "log.cleaner.backoff.ms": "100",
        "log.dir.reserved.bytes": "0",
        "http.address": f"127.0.0.1:{port}",
    }
    words = [word for each in given.items() for word in ("--config", "=".join(each))]
    with tempfile.TemporaryDirectory() as data, standalone(Path(data), *words) as run:
        address = {"bootstrap.servers": f"127.0.0.1:{run.port}"}
        table = {"cleanup.policy": "compact", RATIO: "1", "segment.bytes": str(1 << 20)}
        admin = AdminClient(address)
        topics = [NewTopic("table", PARTITIONS, 1, config=table), NewTopic("other", 1, 1)]
        for created in admin.create_topics(topics).values():
            created.result(TIMEOUT_S)
        quiet: list[float] = []
        beside: list[float] = []
        for _ in range(options.rounds):
            fill(address, options.records)
            quiet += latencies_ms(address, lambda n: _looked(port, n) >= 0 and n < options.produces)
            wanted, end_s = passes_of(port) + PARTITIONS, time.monotonic() + TIMEOUT_S
            set_ratio(address, "0")
            beside += latencies_ms(
                address,
                lambda n, wanted=wanted, end_s=end_s: (
                    _looked(port, n) < wanted and time.monotonic() < end_s
                ),
            )
            set_ratio(address, "1")
    print(json.dumps({
        "produces": [len(quiet), len(beside)],
        "p50_ms": [round(_share(each, 50), 2) for each in (quiet, beside)],
        "p99_ms": [round(_share(each, 99), 2) for each in (quiet, beside)],
        "p99_ratio": round(_share(beside, 99) / _share(quiet, 99), 2),
    }))  # fmt: skip


def _looked(port: int, count: int) -> int:
    """`passes_of` at each fiftieth produce, in both phases: the page costs the broker something."""
    return 0 if count % 50 else passes_of(port)


def _share(found: list[float], percent: int) -> float:
    return statistics.quantiles(found, n=100)[percent - 1]


if __name__ == "__main__":
    main()
