"""The states of a group, and which may follow which (pure).

    state                 what it answers                             what it leaves for
    EMPTY                 no members; commits of non-members are      first join: PREPARING
                          accepted
    PREPARING_REBALANCE   joins wait; heartbeats and syncs get        all joined or time up:
                          REBALANCE_IN_PROGRESS; members of the old   COMPLETING, or EMPTY if
                          generation may still commit                 nobody is left
    COMPLETING_REBALANCE  syncs wait for the leader's; heartbeats     the assignment is in the
                          are accepted; commits get                   log: STABLE; a member joins,
                          REBALANCE_IN_PROGRESS                       leaves or changes: PREPARING
    STABLE                a sync gets its assignment at once          a member joins, leaves or
                                                                      changes: PREPARING
    DEAD                  nothing: the group is deleted, or another   never
                          broker coordinates it now

Source: Apache Kafka's group coordinator, 0.9 to 3.9; KIP-62.
"""

from __future__ import annotations

import enum


class GroupState(enum.Enum):
    """A state; the value is its name on the wire."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY, PREPARING, COMPLETING, STABLE, DEAD = GroupState

# A loaded group starts EMPTY or STABLE.
FOLLOWERS: dict[GroupState, frozenset[GroupState]] = {
    EMPTY: frozenset({PREPARING, DEAD}),
    PREPARING: frozenset({COMPLETING, EMPTY, DEAD}),
    COMPLETING: frozenset({STABLE, PREPARING, DEAD}),
    STABLE: frozenset({PREPARING, DEAD}),
    DEAD: frozenset(),
}
