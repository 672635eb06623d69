"""`kdist bench` and progress bars: what is measured, and how it is reported."""

from __future__ import annotations

import json
import sys
from io import StringIO
from typing import cast

import pytest

from kdist.cli import bench
from kdist.cli.bench import Load, Run, show_summary, started_producer, summarise
from kdist.cli.shared.progress import progress
from kdist.client.producer.sync import Producer
from tests.unit.cli.cli_cluster import CliCluster


@pytest.fixture(scope="module")
def topic(cluster: CliCluster) -> str:
    cluster.done("topics", "create", "load", "--partitions", 2)
    return "load"


@pytest.mark.parametrize("words", [[], ["--bulk"], ["--codec", "lz4", "-X", "linger.ms=1"]])
def test_written_records_are_counted_and_timed(
    cluster: CliCluster, topic: str, words: list[str]
) -> None:
    output = cluster.done(
        "bench", "produce", topic, "--records", 3000, "--size", 50, *words, "--json"
    )
    found = json.loads(output)
    assert (found["records"], found["bytes"]) == (3000, 150_000)
    assert found["records_per_second"] > 0
    assert found["latency_ms"]["p50"] <= found["latency_ms"]["p99"] <= found["latency_ms"]["max"]


def test_a_rate_is_kept(cluster: CliCluster, topic: str) -> None:
    words = ("bench", "produce", topic, "--records", 300, "--rate", 1000, "--json")
    found = json.loads(cluster.done(*words))
    assert 0.29 <= found["seconds"] < 10  # the last ten are due after 290 ms
    assert found["records_per_second"] < 1050


def test_all_written_records_are_read(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "reload", "--partitions", 2)
    cluster.done("bench", "produce", "reload", "--records", 2000, "--size", 20)
    for words in ([], ["--one-by-one"]):
        found = json.loads(cluster.done("bench", "consume", "reload", *words, "--json"))
        assert (found["records"], found["bytes"]) == (2000, 40_000)
    text = cluster.done("bench", "consume", "reload")
    assert text.startswith("2,000 records (39.1 KiB) in ")


def test_a_poll_without_records_does_not_end_it_before_all_are_read() -> None:
    polls = iter([(2, 20), (0, 0), (1, 10), (0, 0)])  # the first pause is a quota's
    over = iter([False, True])  # the second is what compaction has left out
    read, _ = bench._read_all(
        lambda: bench.Read(*next(polls)), 4, lambda _: None, lambda: next(over)
    )
    assert read == (3, 30)


@pytest.mark.parametrize(
    ("words", "quota"),
    [
        (("produce", "held", "--key", "k"), "producer_byte_rate"),
        (("consume", "held", "--from-beginning", "--max", "1"), "consumer_byte_rate"),
        (("bench", "produce", "held", "--records", "1", "--size", "3000"), "producer_byte_rate"),
        (("bench", "consume", "held", "--records", "1"), "consumer_byte_rate"),
    ],
)
def test_a_command_says_once_that_a_quota_holds_it(
    cluster: CliCluster, words: tuple[str, ...], quota: str
) -> None:
    cluster.run("topics", "create", "held")
    cluster.done("produce", "held", text="x" * 3000 + "\n")
    id_ = "-".join(words[:2])
    cluster.done("configs", "alter", "client", id_, "--set", f"{quota}=1000")
    told = cluster.run(*words, "-X", f"client.id={id_}", text="x" * 3000 + "\n").stderr
    cluster.done("configs", "alter", "client", id_, "--unset", quota)
    assert told.count("kdist: ") == 1
    assert f"throttles client '{id_}', whose quota is used up\n" in told


def test_an_interrupt_closes_the_producer_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[float | None] = []

    class Closing:
        def close(self, timeout_s: float | None = None) -> None:
            closed.append(timeout_s)

    monkeypatch.setattr("kdist.client.producer.sync.Producer", Closing)
    with pytest.raises(KeyboardInterrupt), started_producer({}):
        raise KeyboardInterrupt
    with started_producer({}):
        pass
    assert closed == [2.0, None]


def test_latency_is_from_end_to_end(cluster: CliCluster, topic: str) -> None:
    words = ("bench", "latency", topic, "--records", 20)
    found = json.loads(cluster.done(*words, "--json"))
    assert found["records"] == 20
    assert found["acknowledged_ms"]["p50"] <= found["consumed_ms"]["p50"]
    assert "consumed after" in cluster.done(*words)


def test_a_benchmark_that_cannot_run_is_refused(cluster: CliCluster, topic: str) -> None:
    for command in ("produce", "consume", "latency"):
        sentence = cluster.refused("bench", command, "laod")
        assert sentence == "there is no topic laod: did you mean load?"
    cluster.done("topics", "create", "void")
    assert cluster.refused("bench", "consume", "void").startswith("topic void is empty")
    too_large = ("--size", 2000, "-X", "max.request.size=1000")
    assert cluster.refused("bench", "produce", topic, "--records", 1, *too_large)
    for command in ("produce", "latency"):
        sentence = cluster.refused("bench", command, topic, "--size", 1 << 60)
        limit = "larger than max_request_size, 1048576 bytes"
        assert sentence == f"records of {1 << 60} bytes are {limit}"


def test_large_records_are_a_few_that_repeat() -> None:
    def made(records: int, size: int) -> list[bytes]:
        return Run(cast(Producer, None), Load("load", records, size, None, False))._payloads

    assert [len(set(made(*given))) for given in ((2000, 50), (7, 50), (2000, 32 << 20))] == [
        1000,
        7,
        2,
    ]


def test_percentiles_are_by_nearest_rank() -> None:
    found = summarise([float(n) for n in range(1000)])
    assert found == {
        "mean": 499.5,
        "p50": 500.0,
        "p95": 950.0,
        "p99": 990.0,
        "p99.9": 999.0,
        "max": 999.0,
    }
    assert summarise([]) == {}
    assert show_summary({"p50": 1.0, "max": 2000.5}) == "p50 1.00 ms, max 2,000.50 ms"


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_progress_bar_is_drawn_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, is_wanted, is_drawn in (
        (Terminal(), True, True),
        (Terminal(), False, False),
        (StringIO(), True, False),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress("reading", 10, is_wanted=is_wanted) as advance:
            advance(10)
        assert ("reading" in stream.getvalue()) is is_drawn
