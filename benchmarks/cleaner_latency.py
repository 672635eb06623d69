"""Produces beside a running clean.

One broker, one client that sends a record, waits for its answer, and sends the next. First while
nothing is cleaned, then beside a process of idle priority that copies files and syncs the copies,
then while the broker's cleaner goes over several partitions full of old values; in turn, as each
clean is followed by writing them again. No cleaner can cost less than the copies do.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
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
# What any cleaner has to do, and at what priority, without Python in its way: argument 1 is where.
COPIES = """
cd "$1" && head -c 64M /dev/urandom >source
while :; do dd if=source of=copied bs=1M conv=fsync status=none; mv copied cleaned; done
"""


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
    parser.add_argument("--segment-bytes", type=int, default=1 << 24)
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
        table = {
            "cleanup.policy": "compact",
            RATIO: "1",
            "segment.bytes": str(options.segment_bytes),
        }
        admin = AdminClient(address)
        topics = [NewTopic("table", PARTITIONS, 1, config=table), NewTopic("other", 1, 1)]
        for created in admin.create_topics(topics).values():
            created.result(TIMEOUT_S)
        quiet: list[float] = []
        beside_copies: list[float] = []
        beside: list[float] = []
        for _ in range(options.rounds):
            fill(address, options.records)
            as_many = partial(_goes_on, port, options.produces)
            quiet += latencies_ms(address, as_many)
            with copies(Path(data)):
                beside_copies += latencies_ms(address, as_many)
            wanted, end_s = passes_of(port) + PARTITIONS, time.monotonic() + TIMEOUT_S
            set_ratio(address, "0")
            beside += latencies_ms(
                address,
                lambda n, wanted=wanted, end_s=end_s: (
                    _looked(port, n) < wanted and time.monotonic() < end_s
                ),
            )
            set_ratio(address, "1")
    found = {"quiet": quiet, "copies": beside_copies, "cleaner": beside}
    print(json.dumps({
        name: {
            "produces": len(each),
            "p50_ms": round(_share(each, 50), 2),
            "p99_ms": round(_share(each, 99), 2),
            "p99_ratio": round(_share(each, 99) / _share(quiet, 99), 2),
        }
        for name, each in found.items()
    }, indent=1))  # fmt: skip


@contextmanager
def copies(data: Path) -> Iterator[None]:
    """Something that copies files at idle priority, on the broker's disk, until the end."""
    with tempfile.TemporaryDirectory(dir=data.parent) as place:
        command = ["chrt", "--idle", "0", "sh", "-c", COPIES, "sh", place]
        process = subprocess.Popen(command, start_new_session=True)
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _goes_on(port: int, produces: int, count: int) -> bool:
    return _looked(port, count) >= 0 and count < produces


def _looked(port: int, count: int) -> int:
    """`passes_of` at each fiftieth produce, in both phases: the page costs the broker something."""
    return 0 if count % 50 else passes_of(port)


def _share(found: list[float], percent: int) -> float:
    return statistics.quantiles(found, n=100)[percent - 1]


if __name__ == "__main__":
    main()
