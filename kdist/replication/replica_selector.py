"""Which replica a consumer is to read from: Kafka's rack-aware selector (pure).

    the consumer's rack          it reads from
    is not said                  the leader
    is the leader's              the leader
    has followers to choose from the one that has most, of several the one that caught up last
    has none                     the leader

Source: KIP-392, and `RackAwareReplicaSelector`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class ReplicaView(NamedTuple):
    """A follower from which the consumer may go on."""

    broker_id: int
    rack: str | None
    end_offset: int
    caught_up_ms: int


def nearest_follower(
    rack: str, leader_rack: str | None, followers: Iterable[ReplicaView]
) -> int | None:
    """The broker that a consumer of this rack is to read from; None: the leader."""
    if not rack or rack == leader_rack:
        return None
    near = (each for each in followers if each.rack == rack)
    best = max(
        near, key=lambda each: (each.end_offset, each.caught_up_ms, each.broker_id), default=None
    )
    return None if best is None else best.broker_id
