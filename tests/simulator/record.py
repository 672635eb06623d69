"""What a history leaves: its events, their hash, the rare states that came up, the violation.

The hash covers what each process did: what clients were told, what changed in ZooKeeper, how often
each disk was called, and where the network's randomness has come to. So two runs of a seed that
differ are seen to.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from typing import NamedTuple

from kdist.broker.broker import Broker
from kdist.model import TopicPartition
from tests.simulator.cluster import Cluster

EVENTS_KEPT = 5_000
EVENTS_SHOWN = 50
NEVER_S = float("-inf")
EVERY_S = 0.2  # between two looks at everything
MET = "met: "  # begins the names of planted bugs that were, among the rare states

CORE_WAYS = ("dead", "stopped", "cut off", "out of touch")
SOMETIMES = (
    *("broker restarted", "power lost", "died in a call on the disk", "clean stop", "disk failed"),
    *("truncation after a power loss", "write in part", "refused append", "writer thread used"),
    *("leader epoch began during an append", "session expired", "controller changed"),
    *("controller changed during a deletion", "answer lost after effect"),
    *("topic deleted", "topic created again", "topic deleted while its broker was down"),
    *("topic grown", "records deleted", "settings changed"),
    *("records deleted on all who are alive", "a replica was away while records were deleted"),
    *("move begun", "move superseded", "move cancelled", "move completed"),
    *("consumer sent to a follower", "read from a follower"),
    *("acknowledged", "not acknowledged", "refused for good", "retry was a duplicate"),
    *("rebalance", "member expired", "member died", "offset committed", "commit in doubt"),
    "write in several multis",
    *("preferred leader elected", "group deleted", "group's offsets deleted"),
    *("unclean election", "flush.before.expose was set", "cleanup.policy was set"),
    *("power lost, and a log was marked", "power lost at a change of what is flushed first"),
    "died in a change of a flush mark",
    *("producer epoch raised", "zombie fenced", "wrong sequence refused"),
    *("member committed", "commit refused", "commit fenced"),
    *("offsets partition loaded again", "fetch session evicted"),
    *("segment cleaned", "tombstone removed", "died in a pass", "truncated during a pass"),
    *("disk replaced", "all who may be elected have lost something", "committed records lost"),
    *("a loss is over", "left an ISR below its minimum"),
    *("ISR shrank", "ISR expanded", "eligible replica elected", "recovering leader elected"),
    *(
        "under min ISR",
        "high watermark below the epoch's start",
        "duplicate of what is not committed",
    ),
    "proposal refused: FENCED_LEADER_EPOCH",
    *("proposal refused: INELIGIBLE_REPLICA", "LeaderAndIsr while a proposal was pending"),
    *("diverging epoch", "follower truncates", "follower begins anew"),
    *("follower was refused: FENCED_LEADER_EPOCH", "follower was refused: OFFSET_OUT_OF_RANGE"),
    "acks=all answered late with NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "acks=all answered late with NOT_LEADER_OR_FOLLOWER",
    *(f"a core went on while others were {how}" for how in CORE_WAYS),
    *("append across epochs failed", "several appends failed at once"),
    *("died in a truncation", "died in a deletion", "died in a save of checkpoints"),
    *(f"died in phase {number} of a swap" for number in (1, 2, 3)),
    *("an answer to Fetch joined with LeaderAndIsr", "LeaderAndIsr joined with an answer to Fetch"),
    *("an answer to AlterPartition joined with LeaderAndIsr", "a term ended while it wrote states"),
    "coordinator loads while its log is truncated",
    *(
        f"struck at {moment}"
        for moment in ("a proposal", "a truncation", "a change of role", "a clean")
    ),
)
"""What must come up in many seeds, or else the faults do not reach it."""


class Violation(AssertionError):
    """Something that must not be; `partition` is the one concerned, if it is about one."""

    def __init__(self, sentence: str, partition: TopicPartition | None = None) -> None:
        super().__init__(sentence)
        self.partition = partition


class Outcome(NamedTuple):
    """What a run of a seed gives."""

    seed: int
    trace_hash: str
    violation: str
    is_promise: bool  # what is violated is a promise that is checked; else something was raised
    last_events: tuple[str, ...]
    events: tuple[str, ...]
    sometimes: dict[str, int]
    faults: tuple[str, ...]  # that came, by name
    passed_s: float  # of the world's time


class Trace:
    """Owner: the history."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.sometimes: Counter[str] = Counter()
        self.events: deque[str] = deque(maxlen=EVENTS_KEPT)
        self._hash = hashlib.sha256()

    @property
    def now_s(self) -> float:
        """By the world's clock, whosever code asks."""
        return self.cluster.clock.monotonic_ns() / 1e9

    def note(self, event: str) -> None:
        """Add an event that people want to read."""
        line = f"{self.now_s:.6f} {event}"
        self.events.append(line)
        self._hash.update(line.encode())

    def add(self, *facts: object) -> None:
        """Add to the hash what would only fill the page."""
        self._hash.update(repr(facts).encode())

    def count(self, state: str, times: int = 1) -> None:
        """A rare state has come up."""
        if times:
            self.sometimes[state] += times

    def harvest(self, broker: Broker) -> None:
        """Count what a broker's metrics tell of its life, at the end of that."""
        measures = broker.measures
        self.count("refused append", measures.storage.refused_appends)
        self.count("fetch session evicted", measures.replication.evicted_sessions)
        self.count("rebalance", measures.groups.finished_rebalances)
        self.count("member expired", measures.groups.expired_members)
        if measures.storage.truncated_bytes:
            self.count("truncation after a power loss")

    @property
    def hash(self) -> str:
        """Of all so far."""
        return self._hash.hexdigest()

    def close(self) -> None:
        """The history is over; what is left is yet to be ended, in no particular order."""
        self.note("the end")
        for broker_id, disk in sorted(self.cluster.disks.items()):
            self.add(broker_id, sum(disk.calls.values()))
        self.add(self.cluster.network._rng.getstate(), self.cluster.ensemble.requests)

    def last(self, partition: TopicPartition | None) -> tuple[str, ...]:
        """The last events of a partition, and of all brokers."""
        name = str(partition) if partition else ""
        of_it = [event for event in self.events if name in event or " m" in event]
        return tuple(of_it[-EVENTS_SHOWN:])


def require(is_so: bool, sentence: str, partition: TopicPartition | None = None) -> None:
    """Raise the violation unless it is so."""
    if not is_so:
        raise Violation(sentence, partition)
