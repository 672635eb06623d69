"""How many files a request passes on its way is known, and does not grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.trace_request import Way, traced, traced_beside

ROOT = Path(__file__).parents[2]
FILES_MAX = {
    "produce, general path, to the write": 15,
    "produce, general path, to the answer": 30,
    "produce, fast path, to the write": 11,
    "produce, fast path, to the answer": 28,
    "ISR shrink, on the leader": 20,
    "ISR shrink, on all brokers": 44,
}


@pytest.fixture(scope="module")
def ways() -> dict[str, Way]:
    return {way.name: way for way in traced()}


@pytest.mark.parametrize("name", FILES_MAX)
def test_a_request_passes_no_more_files_than_it_did(name: str, ways: dict[str, Way]) -> None:
    assert len(ways[name].files) <= FILES_MAX[name]


def test_a_produce_comes_from_the_socket_and_ends_in_the_log(ways: dict[str, Way]) -> None:
    for path in ("general", "fast"):
        files = ways[f"produce, {path} path, to the write"].files
        assert files[0].startswith("network/")
        assert "storage/log.py" in files


def test_a_request_takes_the_same_way_in_another_checkout_of_the_same_code(
    ways: dict[str, Way],
) -> None:
    beside = traced_beside(ROOT)
    assert [way.name for way in beside] == [*ways]
    for way in beside:
        assert way.files == ways[way.name].files
