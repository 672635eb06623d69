"""One partition that a fetcher fetches: what it asks for next, and whether it may.

    state      why                                                    leaves for
    READY      to be in the next fetch                                BUSY
    BUSY       records of it are being written or flushed, or its     READY, when that has ended
               end is being cut off, or its place is being looked for
    BACKED_OFF the leader has refused it, or what it sent, or         READY, after a pause
               enough was fetched for now (`throttles.py`)
    FENCED     the leader knows a newer epoch: the controller will    (followed anew, in that epoch)
               tell of it

Only a READY one is fetched. So with `flush.before.expose` the offset that a follower fetches from
tells the leader what is durable here (design R7).
"""

from __future__ import annotations

import enum
import uuid
from typing import NamedTuple

from kdist.replication.partition import Partition
from kdist.replication.roles import Following


class FetchState(enum.Enum):
    """The value is its name in log lines."""

    READY = "ready"
    BUSY = "busy"
    BACKED_OFF = "backed off"
    FENCED = "fenced"


READY, BUSY, BACKED_OFF, FENCED = FetchState


class Told(NamedTuple):
    """What a leader was last asked for a partition, in a session."""

    offset: int
    leader_epoch: int
    last_epoch: int
    start_offset: int
    topic_id: uuid.UUID


class FollowedPartition:
    """Owner: the `ReplicaFetcher`. `role` is the partition's when the fetcher took it.

    `first_round` is the number of the first fetch that may ask for it in this role: the answers to
    those before are about an earlier one. `asked_round` is that of the last one that named it.
    """

    __slots__ = (
        "asked_round",
        "errors",
        "first_round",
        "is_aligned",
        "partition",
        "pause_ms",
        "role",
        "state",
    )

    def __init__(self, partition: Partition, role: Following, first_round: int) -> None:
        self.partition = partition
        self.role = role
        self.first_round = self.asked_round = first_round
        self.state = READY
        self.is_aligned = False  # with a leader that does not find by itself where logs diverge
        self.errors = 0  # in succession
        self.pause_ms = 0.0  # after what is being written, as enough was fetched for now

    @property
    def is_current(self) -> bool:
        """Whether the partition still has the role in which the fetcher took it."""
        return self.partition.role == self.role

    def wanted(self) -> Told:
        """What to ask for now: what follows the end of the log."""
        log, topic_id = self.partition.log, self.partition.topic_id
        last_epoch = log.epochs.latest
        return Told(log.reserved_offset, self.role.epoch, last_epoch, log.start_offset, topic_id)

    def still_wants(self, told: Told) -> bool:
        """Whether an answer to this is one to what is wanted now: `wanted` begins the same."""
        log = self.partition.log
        return (
            told.offset == log.reserved_offset
            and told.leader_epoch == self.role.epoch
            and told.last_epoch == log.epochs.latest
        )
