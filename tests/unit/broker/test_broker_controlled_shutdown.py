"""A broker that stops: how often it asks for its leaders to be moved, and for how long."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from kdist.broker.controller_access import ControllerAccess, move_leaders
from kdist.config.broker import BrokerSettings
from kdist.config.load import broker_from
from kdist.errors import ApiError, Error
from kdist.protocol.controlled_shutdown import ControlledShutdownRequest
from kdist.runtime.clock import VirtualClock
from kdist.runtime.virtual_loop import VirtualLoop
from tests.simulator.cluster import Cluster, create

REQUEST = ControlledShutdownRequest(broker_id=1, broker_epoch=7)
GIVEN = {
    "broker.id": "1",
    "log.dir": "/d",
    "listeners": "PLAINTEXT://:9092",
    "zookeeper.connect": "z",
}


class FakeAccess:
    """Answers with each outcome in turn: how many partitions remain, or an error."""

    def __init__(self, *outcomes: int | Error) -> None:
        self._outcomes = list(outcomes)
        self.asked = 0

    async def shut_down(self, request: ControlledShutdownRequest) -> int:
        assert request is REQUEST
        self.asked += 1
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Error):
            raise ApiError(outcome)
        return outcome


def stop(access: FakeAccess, *, has_shared: bool = True, **settings: str) -> float:
    """Move the leaders; how long it took, in seconds."""
    given = {f"controlled.shutdown.{k.replace('_', '.')}": v for k, v in settings.items()}
    found: BrokerSettings = broker_from(GIVEN | given).broker
    loop = VirtualLoop(VirtualClock())
    moving = move_leaders(cast(ControllerAccess, access), found, REQUEST, lambda: has_shared)
    try:
        loop.run_until_complete(moving)
        return loop.time()
    finally:
        loop.close()


@pytest.mark.parametrize(
    ("outcomes", "asked", "took_s"),
    [
        ((0,), 1, 0),
        ((3, 0), 2, 5),
        ((3, 2, 1), 3, 10),
        ((Error.NOT_CONTROLLER, 0), 2, 5),
        ((Error.NETWORK_EXCEPTION,) * 3, 3, 10),
    ],
)
def test_a_broker_asks_until_nothing_remains_or_its_tries_are_over(
    outcomes: tuple[int | Error, ...], asked: int, took_s: float
) -> None:
    access = FakeAccess(*outcomes)
    assert stop(access) == pytest.approx(took_s)
    assert access.asked == asked


def test_a_broker_whose_partitions_have_no_other_replica_does_not_ask() -> None:
    access = FakeAccess()
    assert stop(access, has_shared=False) == 0
    assert access.asked == 0


def test_tries_and_pauses_can_be_set_or_controlled_shutdown_turned_off() -> None:
    assert stop(FakeAccess(1, 1), max_retries="2", retry_backoff_ms="70") == pytest.approx(0.07)
    assert stop(FakeAccess(), enable="false") == 0
    assert stop(FakeAccess(), max_retries="0") == 0


def test_a_broker_stops_though_the_controller_never_answers() -> None:
    class Silent(FakeAccess):
        async def shut_down(self, request: ControlledShutdownRequest) -> int:
            self.asked += 1
            return await asyncio.get_running_loop().create_future()

    access = Silent()
    assert stop(access) == pytest.approx(3 * 30 + 2 * 5)
    assert access.asked == 3


def test_with_one_replica_each_a_stop_takes_no_longer_than_without_controlled_shutdown() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started()
        await create(await cluster.client(), "clicks", 3)
        start_s = cluster.loop.time()
        await broker.stop()
        assert cluster.loop.time() - start_s < 1

    cluster.run(scenario())
