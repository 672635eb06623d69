"""Kafka's rack-aware selector: the leader, or the best follower in the consumer's rack."""

from __future__ import annotations

import pytest

from kdist.replication.replica_selector import ReplicaView, nearest_follower

FOLLOWERS = (
    ReplicaView(2, "b", 10, 500),
    ReplicaView(3, "c", 10, 500),
    ReplicaView(4, "c", 12, 400),
    ReplicaView(5, "d", 10, 500),
    ReplicaView(6, "d", 10, 600),
    ReplicaView(7, None, 12, 600),
)


@pytest.mark.parametrize(
    ("rack", "nearest"),
    [
        ("a", None),  # the leader's
        ("b", 2),
        ("c", 4),  # it has more
        ("d", 6),  # it had caught up later
        ("e", None),
        ("", None),
    ],
)
def test_a_consumer_reads_from_the_best_replica_in_its_rack(rack: str, nearest: int | None) -> None:
    assert nearest_follower(rack, "a", FOLLOWERS) == nearest


def test_a_leader_without_a_rack_is_in_no_consumers_rack() -> None:
    assert nearest_follower("b", None, FOLLOWERS) == 2
    assert nearest_follower("", None, FOLLOWERS) is None
