"""What the deploy tests conclude from the replicas that brokers tell of (pure)."""

from __future__ import annotations

from tests.chaos.availability import Outage
from tests.deploy.client import Replicas, crowded, out_of_sync
from tests.deploy.load import pauses

RACKS = {101: "r1", 102: "r1", 201: "r2", 301: "r3"}


def replicas(assigned: tuple[int, ...], isr: tuple[int, ...] | None = None) -> Replicas:
    in_sync = frozenset(assigned if isr is None else isr)
    return Replicas("t-0", min(in_sync, default=-1), frozenset(assigned), in_sync)


def test_a_partition_is_out_of_sync_without_one_of_its_replicas_or_its_leader() -> None:
    whole, lacks, nobody = replicas((101, 201)), replicas((101, 201), (101,)), replicas((101,), ())
    assert out_of_sync([whole, lacks, nobody]) == [lacks, nobody]


def test_two_replicas_in_a_rack_are_too_many_while_another_rack_has_none() -> None:
    apart, together = replicas((101, 201, 301)), replicas((101, 102, 201))
    assert list(crowded([apart, together, replicas((201,))], RACKS)) == [together]


def test_replicas_that_outnumber_the_racks_are_not_crowded() -> None:
    assert list(crowded([replicas((101, 102, 201, 301))], RACKS)) == []


def test_a_row_tells_the_longest_pause_where_the_broken_broker_led_and_elsewhere() -> None:
    found = [Outage("cut", 0, True, 0.4), Outage("cut", 1, True, 1.26), Outage("cut", 2, False, 3)]
    assert pauses("cut", found, 6) == "cut: 1.3 s where it led, 3.0 s elsewhere, of 6"
