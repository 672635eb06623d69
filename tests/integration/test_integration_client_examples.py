"""The examples of the guides for applications run as they stand, one after the other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kdist
from kdist import aio
from tests.integration.consumer_members import create, produce
from tests.integration.standalone_process import Standalone, standalone

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
NAMES = ("producer", "consumer", "connector")  # a test of its own runs the last
PAGES = {name: (GUIDES / f"{name}.md").read_text() for name in NAMES}
BLOCKS = {name: re.findall(r"```python\n(.*?)```", text, re.DOTALL) for name, text in PAGES.items()}
CODE = "".join(block for blocks in BLOCKS.values() for block in blocks)
GUIDE_CODE = "".join(  # the other guides' examples have tests of their own
    block
    for page in sorted(GUIDES.glob("*.md"))
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    with standalone(tmp_path) as run:
        create(f"127.0.0.1:{run.port}", "clicks", 2)
        yield run


def run_all(page: str, cluster: Standalone) -> dict[str, Any]:
    """The page's blocks, which share their names, as on the page."""
    names: dict[str, Any] = {"print": lambda *shown: list(map(repr, shown))}
    for number, block in enumerate(BLOCKS[page]):
        here = block.replace("localhost:9092", f"127.0.0.1:{cluster.port}")
        here = here.replace("localhost:2181", cluster.addresses["zookeeper"])
        exec(compile(here, f"{page}.md, block {number}", "exec"), names)
    return names


def test_the_examples_of_sending_run(cluster: Standalone) -> None:
    assert run_all("producer", cluster)["written"] == 10_000


def test_the_examples_of_reading_run(cluster: Standalone) -> None:
    address = f"127.0.0.1:{cluster.port}"
    for partition in (0, 1):
        produce(address, "clicks", 5, partition)
    with kdist.Producer(bootstrap_servers=address) as producer:
        producer.send("clicks", b"no JSON {", partition=0)
    assert run_all("consumer", cluster)["total"] == 19  # ten digits and nine characters


@pytest.mark.parametrize("name", kdist.__all__)
def test_every_public_name_has_an_example(name: str) -> None:
    assert re.search(rf"\b{name}\b", GUIDE_CODE)


INNER = {"over", "part", "encoded", "body"}
INNER |= {"all_offsets", "all_timestamps", "all_keys", "all_headers"}  # as records have them
INNER |= {"close", "start"}  # `with` does both
INNER |= {"create_message_streams"}  # in the connector's guide
INNER |= {"checked_values", "offset_at", "records_of", "raw_records", "raw_values"}
INNER |= {"numbers", "placed", "places"}


@pytest.mark.parametrize(
    "front", [kdist.Producer, aio.Producer, kdist.Consumer, aio.Consumer, kdist.Batch, kdist.Sent]
)
def test_every_public_method_has_an_example(front: type) -> None:
    methods = {name for name in dir(front) if not name.startswith("_")} - INNER - {"count", "index"}
    assert [name for name in sorted(methods) if f".{name}" not in CODE] == []


def test_every_error_is_in_a_table() -> None:
    errors = [
        name
        for name, home in kdist._HOME_OF.items()
        if home.startswith(("kdist.client.consumer", "kdist.client.producer", "kdist.errors"))
        and isinstance(getattr(kdist, name), type)
        and issubclass(getattr(kdist, name), Exception)
    ]
    rows = "\n".join(
        line for page in PAGES.values() for line in page.splitlines() if line.startswith("|")
    )
    assert [name for name in errors if f"`{name}`" not in rows] == ["KdistError"]
