"""Which arguments beside the value a producer accepts, and which it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from kdist.client.classic.producer import MessageSet
from kdist.client.producer.sync import Producer
from tests.unit.client.producer_world import Scene, play


@pytest.mark.parametrize(
    "headers",
    [
        {"a": b"b"},
        {"ab": b"c"},
        "ab",
        ["ab"],
        [("a",)],
        [("a", b"b", "c")],
        [("a", "b")],
        [(b"a", b"b")],
        [None],
    ],
)
def test_headers_that_are_not_pairs_are_a_type_error(headers: Any) -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer() as producer:
            with pytest.raises(TypeError, match="header"):
                await producer.send("t", b"a", headers=headers)
            await producer.send_and_wait("t", b"a", headers=[["a", b"b"], ("a", None)])

    play(work)


@pytest.mark.parametrize("partition", ["0", 0.0, b"0"])
def test_an_invalid_partition_is_a_type_error(partition: Any) -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer() as producer:
            for _ in range(2):  # before and after the topic is known
                with pytest.raises(
                    TypeError, match=f"a partition must be an int, not {partition!r}"
                ):
                    await producer.send("t", b"a", partition=partition)
                await producer.send_and_wait("t", b"a")

    play(work)


def test_a_flush_with_a_timeout_of_zero_does_not_wait() -> None:
    with Producer(bootstrap_servers="localhost:1", max_block_ms=1) as producer:
        for timeout in (0, -1):
            producer.flush(timeout)

    async def work(scene: Scene) -> None:
        async with scene.producer() as producer:
            core = producer._started
            await producer.send("t", b"a")
            for timeout in (0, -1):
                with pytest.raises(TimeoutError):
                    await core.flush(timeout)
            await core.flush()
            await core.flush(-1)

    play(work)


def test_a_message_set_of_the_first_design_is_no_value() -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer() as producer:
            with pytest.raises(TypeError, match="a value is of type MessageSet, not bytes or None"):
                await producer.send("t", MessageSet([b"a"]))

    play(work)


@pytest.mark.parametrize("timeout", ["x", [1], float("nan")])
def test_an_invalid_timeout_is_a_type_error_and_closes_nothing(timeout: Any) -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer() as producer:
            with pytest.raises(TypeError, match="timeout_s must be a number of seconds"):
                await producer.close(timeout)
            await producer.send_and_wait("t", b"it is open")

    play(work)
    with Producer(bootstrap_servers="127.0.0.1:1") as producer:
        for wait in (producer.flush, producer.close):
            with pytest.raises(TypeError, match="timeout_s must be a number of seconds"):
                wait(timeout)
        assert not producer._accumulator.is_closed


def test_invalid_columns_are_named() -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer() as producer:
            with pytest.raises(TypeError, match="values must be an iterable, such as a list"):
                await producer.send_many("t", None)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=r"keys must be an iterable.* not 7"):
                await producer.send_many("t", [b"a"], 7)  # type: ignore[arg-type]

    play(work)


@pytest.mark.parametrize("timeout", ["x", [], float("nan")])
def test_an_invalid_timeout_of_a_future_is_a_type_error(timeout: Any) -> None:
    async def scenario(scene: Scene) -> None:
        async with scene.producer() as producer:
            sent = await producer.send("clicks", b"v")
            for wait in (sent.result, sent.exception):
                with pytest.raises(TypeError, match="timeout must be a number of seconds or None"):
                    wait(timeout)
            await sent

    play(scenario)
