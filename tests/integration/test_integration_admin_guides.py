"""docs/guides/commands.md and admin.md run as they stand, against two brokers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kdist.client.admin.asynchronous import AsyncAdmin
from kdist.client.admin.sync import Admin
from tests.integration.page_commands import blocks, environment, run_block
from tests.integration.standalone_process import Standalone, standalone

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
COMMANDS, ADMIN = GUIDES / "commands.md", GUIDES / "admin.md"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Standalone]:
    with standalone(tmp_path / "data", "--brokers", 2) as running:
        yield running


def test_every_command_of_the_page_does_what_it_says(run: Standalone, tmp_path: Path) -> None:
    around = environment(tmp_path, run.port)
    for command, expected in blocks(COMMANDS):
        here = command.replace("127.0.0.1:9092", f"127.0.0.1:{run.port}")
        run_block(here, expected, tmp_path, around)


def test_every_example_of_the_page_runs(run: Standalone) -> None:
    printed: list[str] = []
    names: dict[str, Any] = {"print": lambda *shown: printed.append(" ".join(map(str, shown)))}
    examples = re.findall(r"```python\n(.*?)```", ADMIN.read_text(), re.DOTALL)
    for number, block in enumerate(examples):
        here = block.replace("localhost:9092", f"127.0.0.1:{run.port}")
        exec(compile(here, f"block {number}", "exec"), names)
    for line in (
        "TOPIC_ALREADY_EXISTS",
        "3",
        "86400000 topic",
        "172800000",
        "['clicks', 'orders']",
    ):
        assert line in printed


@pytest.mark.parametrize("front", [Admin, AsyncAdmin])
def test_every_public_method_has_an_example(front: type) -> None:
    page = ADMIN.read_text()
    methods = {name for name in dir(front) if not name.startswith("_")}
    inner = {"cluster", "run", "start"}
    assert {name for name in methods - inner if f".{name}(" not in page} == set()
