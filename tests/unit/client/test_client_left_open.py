"""Clients that nobody closed warn of it, as files do, and of records that are lost.

What a producer still sends as its program ends is in `test_integration_producer_left.py`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from kdist import Admin, Consumer, Producer
from kdist.classic import SimpleConsumer
from kdist.client.producer import at_exit
from tests.unit.client.producer_world import FINE, Fault, Scene, play

CLIENTS: list[Callable[[], Any]] = [
    lambda: Producer(bootstrap_servers="127.0.0.1:1"),
    lambda: Consumer("127.0.0.1:1"),
    lambda: Consumer("127.0.0.1:1", group_id="g"),
    lambda: SimpleConsumer("127.0.0.1", 1),
    lambda: Admin("127.0.0.1:1"),
]


@pytest.mark.parametrize("make", CLIENTS)
def test_a_client_that_is_left_unclosed_gives_a_resource_warning(make: Callable[[], Any]) -> None:
    clients = [make()]
    background, name = clients[0]._background, type(clients[0]).__name__
    with pytest.warns(ResourceWarning, match=f"unclosed kdist.{name}"):
        clients.clear()
    background.stop()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make", CLIENTS)
def test_a_closed_client_gives_no_warning(make: Callable[[], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # what earlier tests left open is not this client's
    client = make()
    client.close()
    del client
    gc.collect()


async def left_open(scene: Scene, fault: Fault) -> None:
    scene.brokers.fault = lambda *_: fault
    producer = await scene.producer(client_id="forgetful", linger_ms=0).start()
    for number in range(3):
        await producer.send("t", b"%d" % number)
    await asyncio.sleep(1)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    gc.collect()
    return [each.getMessage() for each in caplog.records if each.name == at_exit.logger.name]


def test_records_left_unacknowledged_when_the_loop_ended_are_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gc.collect()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        play(lambda scene: left_open(scene, Fault(delay_s=9.0)))
        (line,) = told(caplog)
    assert line == (
        "forgetful was not closed: 3 of its records were not acknowledged, and may be lost; "
        "use `with`, or close it"
    )


def test_a_producer_that_owes_nothing_or_was_closed_says_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def closed(scene: Scene) -> None:
        async with scene.producer(linger_ms=0) as producer:
            await producer.send("t", b"v")

    gc.collect()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        play(lambda scene: left_open(scene, FINE))
        play(closed)
        assert told(caplog) == []


def test_a_lock_that_is_never_released_does_not_delay_the_exit() -> None:
    producer = Producer(bootstrap_servers="127.0.0.1:1")
    with producer._lock:
        assert producer._core.count_unsettled() == 0
    producer.close()


def test_a_copy_in_another_process_does_not_warn(caplog: pytest.LogCaptureFixture) -> None:
    class Copy:
        process = os.getpid() + 1

        def count_unsettled(self) -> int:
            raise AssertionError("its lock may be held for ever")

    at_exit.warn_of_loss(Copy())  # type: ignore[arg-type]
    assert told(caplog) == []
