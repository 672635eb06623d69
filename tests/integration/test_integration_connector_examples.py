"""The examples of the guides on streams and on delivery run as they stand, one after the other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kdist.classic import connector, simple
from tests.integration.consumer_members import create, produce
from tests.integration.standalone_process import ROOT, Standalone, standalone

GUIDES = ROOT / "docs" / "guides"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("connector-examples")) as run:
        address = f"127.0.0.1:{run.port}"
        for topic in ("clicks", "topic1"):
            create(address, topic, 2)
            for partition in (0, 1):
                produce(address, topic, 5, partition)
        create(address, "amounts", 1)
        produce(address, "amounts", 5, 0, start=1)
        producer = Producer({"bootstrap.servers": address})
        producer.produce("clicks", b"no JSON {", partition=0)
        assert producer.flush(20) == 0
        yield run


def blocks(page: str, cluster: Standalone) -> list[str]:
    """The page's examples, for this cluster."""
    text = (GUIDES / page).read_text()
    found = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    addresses = {
        "localhost:2181": cluster.addresses["zookeeper"],
        "localhost:9092": f"127.0.0.1:{cluster.port}",
        '"localhost", 9092': f'"127.0.0.1", {cluster.port}',
    }
    for documented, real in addresses.items():
        found = [block.replace(documented, real) for block in found]
    return found


def run(sources: list[str], names: dict[str, Any]) -> dict[str, Any]:
    names["print"] = lambda *shown: list(map(repr, shown))
    for number, source in enumerate(sources):
        exec(compile(source, f"block {number}", "exec"), names)
    return names


def test_the_papers_sample_runs_as_a_program(cluster: Standalone) -> None:
    sample = blocks("connector.md", cluster)[0]
    program = subprocess.Popen(
        [sys.executable, "-u", "-c", sample],
        cwd=ROOT,
        env={**os.environ, "KDIST_ZOOKEEPER": cluster.addresses["zookeeper"]},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    try:
        found = [program.stdout.readline() for _ in range(10)]
    finally:
        program.kill()
        program.communicate()
    assert sorted(found) == sorted(f"b'{number}'\n" for number in range(5) for _ in range(2))


def test_every_example_about_streams_runs(cluster: Standalone) -> None:
    names = run(blocks("connector.md", cluster)[1:], {})
    assert sorted(names["decoded"]) == sorted([*range(5), *range(5)])


def test_every_example_about_delivery_runs(
    cluster: Standalone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    totals = run(blocks("delivery.md", cluster), {})["totals"]
    assert totals == {
        "at-least-once": 15,
        "at-most-once": 15,
        "exactly-once": 15,
        "replayed": 15,
        "from the third": 3,
    }


@pytest.mark.parametrize("package", [connector, simple])
def test_every_public_name_has_an_example(package: Any) -> None:
    page = (GUIDES / "connector.md").read_text()
    results = {"ConsumerConnector", "Message", "Stream", "FetchedSet", "MessageAndOffset"}
    assert [name for name in package.__all__ if name not in page and name not in results] == []
    for result in results & set(package.__all__):
        shown = [name for name in vars(getattr(package, result)) if not name.startswith("_")]
        inner = {"put", "look", "fail", "stop", "settle", "is_full", "raise_error", "offset"}
        assert [name for name in shown if name not in page and name not in inner] == []
