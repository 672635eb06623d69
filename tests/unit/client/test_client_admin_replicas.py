"""How far replicas are behind: what their brokers told, beside what the leader's told."""

from __future__ import annotations

import pytest

from kdist.client.admin.replicas import ReplicaState, _Log, review
from kdist.client.admin.topics import Partition

PARTITION = Partition(0, leader=2, leader_epoch=5, replicas=(1, 2, 3), isr=(1, 2))
LEADERS = _Log(start_offset=10, end_offset=100, size_bytes=9000)


@pytest.mark.parametrize(
    ("broker", "log", "state"),
    [
        (2, LEADERS, ReplicaState(2, True, True, 100, 0, 0)),
        (1, LEADERS, ReplicaState(1, False, True, 100, 0, 0)),
        (1, _Log(10, 98, 8800), ReplicaState(1, False, True, 98, 2, 200)),
        (3, _Log(10, 40, 3000), ReplicaState(3, False, False, 40, 60, 6000)),
        # Asked a moment after the leader: it has what was written meanwhile.
        (1, _Log(10, 101, 9100), ReplicaState(1, False, True, 101, 0, 0)),
        # Sizes say nothing of logs that begin at different offsets.
        (3, _Log(0, 40, 9500), ReplicaState(3, False, False, 40, 60, None)),
        (3, _Log(10, 40, None), ReplicaState(3, False, False, 40, 60, None)),
        (3, None, ReplicaState(3, False, False)),
    ],
)
def test_a_replica_beside_its_leader(broker: int, log: _Log | None, state: ReplicaState) -> None:
    assert review(broker, PARTITION, log, LEADERS) == state


def test_without_a_leader_nobody_is_behind_anybody() -> None:
    partition = PARTITION._replace(leader=None)
    assert review(1, partition, LEADERS, None) == ReplicaState(1, False, True, 100)
