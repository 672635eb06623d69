"""Every public name, method and error of the clients is in the guides for applications."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kdist
from kdist import aio

GUIDES = Path(__file__).parents[3] / "docs" / "guides"
NAMES = ("producer", "consumer", "client-metrics", "connector")
PAGES = {name: (GUIDES / f"{name}.md").read_text() for name in NAMES}
BLOCKS = {name: re.findall(r"```python\n(.*?)```", text, re.DOTALL) for name, text in PAGES.items()}
CODE = "".join(block for blocks in BLOCKS.values() for block in blocks)
GUIDE_CODE = "".join(  # the other guides' examples have tests of their own
    block
    for page in sorted(GUIDES.glob("*.md"))
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
)


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


@pytest.mark.parametrize("front", [kdist.Admin, aio.Admin])
def test_every_public_method_of_an_admin_has_an_example(front: type) -> None:
    page = (GUIDES / "admin.md").read_text() + PAGES["client-metrics"]
    methods = {name for name in dir(front) if not name.startswith("_")}
    inner = {"cluster", "run", "start"}
    assert {name for name in methods - inner if f".{name}(" not in page} == set()


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
