"""kafka-python's integration tests, run for four eras of brokers.

`KAFKA_VERSION` makes the client talk as it would to that version: 0.9 means magic 0 and no
ApiVersions, 0.11 the first record batches, 2.4 and 4.2 flexible versions and idempotent producers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import patience
import pytest_suite
import sources
from cluster import Cluster
from outcome import Outcome

SUITE = "kafka-python"
ERAS = ("0.9.0.1", "0.11.0.3", "2.4.1", "4.2.0")
TESTS = "test/integration/"
TEST_TIMEOUT_S = 60
CONSUMER, PRODUCER, ADMIN = (
    f"test_{part}_integration.py::test_" for part in ("consumer", "producer", "admin")
)
# The requests of a 0.9 client, and those that only the newest client sends.
SMALL_OF_ALL_ERAS = (
    f"{ADMIN}list_partition_offsets",
    f"{CONSUMER}consumer",
    f"{CONSUMER}consumer_topics",
    f"{CONSUMER}group",
    f"{CONSUMER}heartbeat_thread",
    f"{CONSUMER}kafka_consumer",
    f"{CONSUMER}kafka_consumer__blocking",
    f"{CONSUMER}kafka_consumer__offset_commit_resume",
    f"{CONSUMER}kafka_consumer_position_after_seek_to_end",
    f"{CONSUMER}kafka_consumer_unsupported_encoding",
    f"{CONSUMER}paused",
    *(f"{PRODUCER}end_to_end[{codec}]" for codec in ("None", "gzip", "lz4", "snappy")),
)
SMALL_OF_THE_NEWEST = (
    f"{ADMIN}create_delete_topics",
    f"{ADMIN}create_partitions",
    f"{ADMIN}describe_group_exists",
    f"{CONSUMER}kafka_consumer_max_bytes_one_msg",
    f"{CONSUMER}kafka_consumer_max_bytes_simple",
    f"{CONSUMER}kafka_consumer_offsets_for_time",
    f"{CONSUMER}kafka_consumer_offsets_for_times_errors",
    f"{CONSUMER}kafka_consumer_offsets_search_many_partitions",
    f"{PRODUCER}end_to_end[zstd]",
    f"{PRODUCER}idempotent_producer",
    f"{PRODUCER}idempotent_producer_high_throughput",
    *(f"{PRODUCER}idempotent_producer_max_in_flight[{count}]" for count in (1, 2, 5)),
    *(
        f"{PRODUCER}kafka_producer_proper_record_metadata[{codec}]"
        for codec in ("None", "gzip", "lz4", "snappy", "zstd")
    ),
)
SMALL = {
    ERAS[0]: SMALL_OF_ALL_ERAS,
    ERAS[-1]: SMALL_OF_ALL_ERAS + SMALL_OF_THE_NEWEST,
}

# The source distribution lacks a module that the fixtures import; against a running broker, no test
# uses more of it than this.
SERVICE = '''"""Stands in for the module that starts services: the broker is there already."""


class ExternalService:
    def __init__(self, host, port):
        self.address = (host, port)


class SpawnedService:
    def __init__(self, *arguments):
        raise RuntimeError("this suite runs against a broker that is there already")
'''


def prepare(given: Path | None) -> Path:
    """The folder to run in, with the missing module added."""
    with sources.locked():
        folder = sources.kafka_python(given)
        sources.python()
        (folder / "test" / "__init__.py").touch()
        if not (folder / "test" / "service.py").exists():
            (folder / "test" / "service.py").write_text(SERVICE)
        return folder


def run(cluster: Cluster, folder: Path, era: str, names: Sequence[str] = ()) -> Iterator[Outcome]:
    """Run the named tests, or all, in one era."""
    first = cluster.address.split(",")[0]
    timeout = f"{patience.scaled(TEST_TIMEOUT_S):.0f}"
    arguments = ["-o", "addopts=", "--timeout", timeout, "--timeout-method=signal", "-q"]
    arguments += ["-p", "kdist_topics", "-p", "kdist_replicas"]
    arguments += [f"{TESTS}{name}" for name in names or [""]]
    environment = {
        "KAFKA_ROOT": str(folder),
        "KAFKA_URI": f"kafka://{first}",
        "KAFKA_VERSION": era,
        "KDIST_REPLICAS": str(cluster.replicas),
    }
    for outcome in pytest_suite.run(f"{SUITE} {era}", folder, arguments, environment):
        yield outcome._replace(test=outcome.test.removeprefix(TESTS))
