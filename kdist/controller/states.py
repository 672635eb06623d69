"""The states of a partition, and which may follow which (pure).

    state          what it is                                what it leaves for
    NON_EXISTENT   not assigned, or completely deleted       assigned: NEW
    NEW            assigned, but no state in ZooKeeper yet   a replica is alive: ONLINE; none
                                                             is, or its topic is doomed: OFFLINE
    ONLINE         has a leader                              leader changes: ONLINE; none of the
                                                             ISR is alive, or doomed: OFFLINE
    OFFLINE        has no leader; or its topic is doomed     one of the ISR is back: ONLINE;
                                                             its znodes are gone: NON_EXISTENT

Source: Apache Kafka's `PartitionStateMachine`.
"""

from __future__ import annotations

import enum


class PartitionState(enum.Enum):
    """A state; the value is its name in log lines."""

    NON_EXISTENT = "non-existent"
    NEW = "new"
    ONLINE = "online"
    OFFLINE = "offline"


NON_EXISTENT = PartitionState.NON_EXISTENT
NEW = PartitionState.NEW
ONLINE = PartitionState.ONLINE
OFFLINE = PartitionState.OFFLINE

FOLLOWERS: dict[PartitionState, frozenset[PartitionState]] = {
    NON_EXISTENT: frozenset({NEW}),
    NEW: frozenset({ONLINE, OFFLINE}),
    ONLINE: frozenset({ONLINE, OFFLINE}),
    OFFLINE: frozenset({ONLINE, OFFLINE, NON_EXISTENT}),
}
