"""A DeleteRecords that waits: for whom, until when, and what it is told."""

from __future__ import annotations

import pytest

from kdist.errors import Error
from kdist.replication.delayed_delete import DelayedDelete
from kdist.replication.peers import ALONE
from kdist.replication.roles import Following, Leading, Role
from tests.unit.replication.replication_world import BROKER, World


class Partition:
    """Led by this broker in epoch 4, where every replica has deleted all below 10."""

    def __init__(self) -> None:
        self.role: Role = Leading(4, 4)
        self.low_watermark = 10


@pytest.mark.parametrize(("offset", "heard"), [(9, [Error.NONE]), (10, [Error.NONE]), (11, [])])
def test_it_ends_once_the_low_watermark_is_the_offset(offset: int, heard: list[Error]) -> None:
    partition, told = Partition(), list[Error]()
    waiting = DelayedDelete(partition, partition.role, offset, told.append)
    assert waiting.attempt() is bool(heard)
    assert told == heard


@pytest.mark.parametrize("role", [Following(4, 2), Following(5, 2), Leading(6, 6)])
def test_it_fails_once_somebody_else_has_led(role: Role) -> None:
    partition, told = Partition(), list[Error]()
    waiting = DelayedDelete(partition, partition.role, 9, told.append)
    partition.role = role
    assert waiting.attempt()
    assert told == [Error.NOT_LEADER_OR_FOLLOWER]


def test_it_goes_on_waiting_in_an_epoch_in_which_this_broker_leads_on() -> None:
    partition, told = Partition(), list[Error]()
    waiting = DelayedDelete(partition, partition.role, 11, told.append)
    partition.role = Leading(5, 4)
    assert not waiting.attempt()
    waiting.expire()
    assert told == [Error.REQUEST_TIMED_OUT]


def test_a_partition_has_it_wait_as_long_as_it_was_told() -> None:
    world, told = World(), list[Error]()
    partition = world.lead(replicas=(BROKER, 2))
    state = partition.state._replace(leader_epoch=partition.leader_epoch + 1)
    peers = ALONE._replace(is_alive=lambda _: True)
    partition._context = partition._context._replace(peers=peers)
    partition.lead_or_follow(state, (BROKER, 2))
    partition.await_deleted(0, 1_000, told.append)
    world.settle(999)
    assert told == []
    world.settle(2)
    assert told == [Error.REQUEST_TIMED_OUT]
