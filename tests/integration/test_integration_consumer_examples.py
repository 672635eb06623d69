"""The examples of docs/guides/consumer.md run as they stand, one after the other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kdist.client.consumer import aio, consumer
from kdist.client.consumer.batch import Batch
from tests.integration.consumer_members import create, produce
from tests.integration.standalone_process import standalone

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "consumer.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone(tmp_path_factory.mktemp("examples")) as run:
        address = f"127.0.0.1:{run.port}"
        create(address, "clicks", 2)
        for partition in (0, 1):
            produce(address, "clicks", 5, partition)
        producer = Producer({"bootstrap.servers": address})
        producer.produce("clicks", b"no JSON {", partition=0)
        assert producer.flush(20) == 0
        yield address


def test_every_example_runs(broker: str) -> None:
    names: dict[str, Any] = {"print": lambda *shown: list(map(repr, shown))}
    for number, block in enumerate(BLOCKS):
        exec(compile(block.replace("localhost:9092", broker), f"block {number}", "exec"), names)
    assert names["total"] == 19  # ten digits and nine characters


@pytest.mark.parametrize("front", [consumer.Consumer, aio.Consumer, Batch])
def test_every_public_method_has_an_example(front: type) -> None:
    page = PAGE.read_text()
    methods = [name for name in vars(front) if not name.startswith("_")]
    inner = {"over", "part", "body", "all_records", "offset_of", "key_of"}
    inner |= {"raw_records", "raw_values", "close"}  # `with` closes
    assert [name for name in methods if f".{name}" not in page and name not in inner] == []
