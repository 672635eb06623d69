"""kafka-python's integration tests, in the guise of four eras of brokers.

`KAFKA_VERSION` makes the client speak as it would to that version: 0.9 magic 0 and no
ApiVersions, 0.11 the first record batches, 2.4 and 4.2 flexible versions and idempotent producers.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest_suite
import sources
from cluster import Cluster
from outcome import Outcome

SUITE = "kafka-python"
ERAS = ("0.9.0.1", "0.11.0.3", "2.4.1", "4.2.0")
TESTS = "test/integration/"
SMALL = (
    "test_producer_integration.py::test_end_to_end[gzip]",
    "test_consumer_integration.py::test_kafka_consumer__offset_commit_resume",
)

# The distribution leaves out what the fixtures import; no test against a running broker uses more.
SERVICE = '''"""Stands in for the module that starts services: the broker is there already."""


class ExternalService:
    def __init__(self, host, port):
        self.address = (host, port)


class SpawnedService:
    def __init__(self, *arguments):
        raise RuntimeError("this suite runs against a broker that is there already")
'''


def prepare(given: Path | None) -> Path:
    """The folder to run in, made whole."""
    with sources.locked():
        folder = sources.kafka_python(given)
        sources.python()
        if not (folder / "test" / "service.py").exists():
            whole = sources.CACHE / "kafka-python-whole"
            shutil.rmtree(whole, ignore_errors=True)
            shutil.copytree(folder, whole)
            (whole / "test" / "__init__.py").touch()
            (whole / "test" / "service.py").write_text(SERVICE)
            return whole
        return folder


def run(cluster: Cluster, folder: Path, era: str, names: Sequence[str] = ()) -> Iterator[Outcome]:
    """The named tests, or all, in one era."""
    first = cluster.address.split(",")[0]
    arguments = ["-o", "addopts=", "--timeout", "60", "--timeout-method=signal", "-q"]
    arguments += ["-p", "kdist_topics", *(f"{TESTS}{name}" for name in names or [""])]
    environment = {"KAFKA_ROOT": str(folder), "KAFKA_URI": f"kafka://{first}", "KAFKA_VERSION": era}
    for outcome in pytest_suite.run(f"{SUITE} {era}", folder, arguments, environment):
        yield outcome._replace(test=outcome.test.removeprefix(TESTS))
