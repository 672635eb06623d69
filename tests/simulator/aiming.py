"""Faults aimed at moments of the code, which those that come at any time hardly ever hit.

A moment is short: one write of all, one rename of a dozen, the answer of ZooKeeper that decides.
The code is at some of them often, so each has a share in which its fault comes, and each kind of
aim is on or off in a history. `moments.py` knows where the code is.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING

from kdist.model import OFFSETS_TOPIC
from kdist.replication.partition import Partition
from kdist.runtime.simulated_disk import Call
from kdist.storage.segment import Segment
from kdist.zk import znodes
from kdist.zk.session import Multi, Request
from tests.simulator.machines import CHANGING, LOG_DIR, is_change_in, is_rename_in
from tests.simulator.messages import (
    FETCHED,
    JUDGED,
    KINDS,
    LEADER_AND_ISR,
    STOP_REPLICA,
    UPDATE_METADATA,
    Messages,
    Wanted,
)

if TYPE_CHECKING:
    from tests.simulator.faults import Faults
    from tests.simulator.history import History

FAILED_CALLS = "failed calls"
DEATHS = "deaths between calls"
JOINED = "joined messages"
LOST_STATES = "lost answers to states"
LONG_TRUNCATIONS = "long truncations"
UNEVEN = "uneven followers"
INTERRUPTED = "interrupted threads"
AIMS = (FAILED_CALLS, DEATHS, JOINED, LOST_STATES, LONG_TRUNCATIONS, UNEVEN, INTERRUPTED)

_LOST_SHARE = 0.08  # of the controller's writes of states
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Aiming:
    """Owner: the history's faults."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._cluster = history.cluster
        self._machines = history.machines
        self._aims = history.shape.aims
        self._rngs: dict[str, random.Random] = {}  # each moment has its own
        self._counts = Counter[str]()
        cluster = history.cluster
        self.messages = Messages(history.trace, history.shape.broker_ids, cluster.stream("joined"))
        if JOINED in self._aims:
            self.messages.begin()
        if LOST_STATES in self._aims:
            cluster.ensemble.is_to_be_lost = self._is_to_be_lost

    def _comes(self, aim: str, moment: str, share: float) -> random.Random | None:
        """Whether a fault is to come at this moment: then what decides about it, its own."""
        faults, of_it = self._history.faults, f"{aim} at {moment}"
        if aim not in self._aims or faults is None or not faults.is_on:
            return None
        if of_it not in self._rngs:
            self._rngs[of_it] = self._cluster.stream(of_it)
        if self._rngs[of_it].random() >= share:
            return None
        self._counts[of_it] += 1
        name = f"{of_it} {self._counts[of_it]}".replace(" ", "-")
        rng = self._cluster.stream(f"fault {name}")
        return rng if faults.admit(name) else None

    @property
    def _faults(self) -> Faults:
        assert self._history.faults is not None, "a fault has just been admitted"
        return self._history.faults

    def _id_of(self, files: object) -> int:
        return next(each for each, disk in self._cluster.disks.items() if disk is files)

    # One call that fails

    def appending(self, files: object, segment: Segment, moment: str, share: float) -> None:
        """An append is about to be written: let it fail, for lack of space or of a descriptor."""
        rng = self._comes(FAILED_CALLS, moment, share)
        if rng is None:
            return
        path, name, error = segment.path, "write", rng.choice(_FULL)
        if rng.random() < 0.4:
            segment.close_idle()  # as each retention check does
            if segment._file is None:
                name, error = "open", errno.EMFILE
        self._fail(files, error, lambda call: call.path == path and call.name == name)

    def _fail(
        self, files: object, error: int, when: Callable[[Call], bool], after: int = 0
    ) -> None:
        disk = self._cluster.disks[self._id_of(files)]
        disk.fail(error, after_calls=after, when=when, forever=False)

    def renaming(
        self, files: object, directory: str, moment: str, calls: int = 6, share: float = 0.1
    ) -> None:
        """Some files of a log are about to be renamed, removed, cut: let one of the renames fail,
        or the broker die among these `calls`."""
        if (rng := self._comes(FAILED_CALLS, moment, share)) is not None:
            is_rename = partial(is_rename_in, directory)
            self._fail(files, rng.choice(_FULL), is_rename, after=rng.randrange(calls))
        elif (rng := self._comes(DEATHS, moment, share)) is not None:
            self._doom(files, rng.randint(1, calls), partial(is_change_in, directory), rng, moment)

    def saving(self, files: object) -> None:
        """Some checkpoints are about to be saved, one after the other."""
        moment = "a save of checkpoints"
        if (rng := self._comes(DEATHS, moment, 0.01)) is not None:
            self._doom(files, rng.randint(1, 20), _is_change_of_checkpoints, rng, moment)

    def deleting(self, files: object) -> None:
        """A log's directory is about to be renamed, and then left out of the checkpoints."""
        if (rng := self._comes(DEATHS, "a deletion", 0.1)) is not None:
            self._doom(files, rng.randint(1, 15), _is_change_of_checkpoints, rng, "a deletion")

    def _doom(
        self,
        files: object,
        calls: int,
        which: Callable[[Call], bool],
        rng: random.Random,
        moment: str,
    ) -> None:
        is_power_lost = rng.random() < 0.5
        doom = partial(self._machines.doom, self._id_of(files), calls, which, moment)
        doom(is_power_lost=is_power_lost)

    # Messages that meet

    def diverging(self, leader: int, follower: int) -> None:
        """A leader is about to tell a follower where their logs diverge."""
        rng = self._comes(JOINED, "a divergence", 0.9)
        if rng is not None:
            until_s = 1.2 * self._history.shape.session_s
            wanted = Wanted(FETCHED, leader, (LEADER_AND_ISR,), until_s)
            self.messages.hold(follower, wanted)
            if rng.random() < 0.8:
                self._soon(self._faults.expire_now, leader)

    def proposing(self, leader: int) -> None:
        """A leader is about to propose another ISR."""
        rng = self._comes(JOINED, "a proposal", 0.1)
        if rng is not None:
            until_s = rng.choice((0.05, self._history.shape.session_s))
            until = rng.choice(((LEADER_AND_ISR,), (FETCHED, LEADER_AND_ISR, UPDATE_METADATA)))
            self.messages.hold(leader, Wanted(JUDGED, None, until, until_s))
            if rng.random() < 0.5:
                self._soon(self._faults.expire_now, rng.choice([leader, *self._machines.up]))

    def changing_role(self, partition: Partition) -> None:
        """A broker is told who leads; others are told, too, or hear of it by their fetches."""
        self._following(partition)
        rng = self._comes(JOINED, "a change of role", 0.05)
        if rng is not None:
            shape = self._history.shape
            until_s = rng.choice((0.05, 0.3, shape.lag_s, 1.2 * shape.session_s))
            kind = rng.choice((FETCHED, LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA))
            to = rng.choice(self._machines.ids)
            self.messages.hold(to, Wanted(kind, None, [e for e in KINDS if e != kind], until_s))

    # Followers of which one has more than another, when their leader goes

    def appended(self, partition: Partition) -> None:
        """A leader has appended something: let one follower hear late of it, and the leader go."""
        is_rare = partition.key.topic == OFFSETS_TOPIC or partition.log.may_leave_gaps
        share = 0.1 if is_rare else 0.01  # which is appended to seldom
        rng = self._comes(UNEVEN, "an append", share)
        leader, isr = partition._context.broker_id, partition.state.isr
        followers = [each for each in isr if each != leader]
        if rng is not None and followers:
            self.messages.delay(leader, rng.choice(followers), 1.2 * self._history.shape.session_s)
            faults = self._faults
            self._soon(
                faults.later,
                rng.choice((0.02, 0.3, 1)),
                faults.depose_leader,
                leader,
                rng.random() < 0.5,
            )

    def _following(self, partition: Partition) -> None:
        """A follower is about to ask its leader for the first time: let it have no answer until a
        retention check has come, or several."""
        leader = partition.state.leader
        if leader not in (-1, partition._context.broker_id):
            rng = self._comes(UNEVEN, "a first fetch", 0.25)
            if rng is not None:
                self.messages.delay(leader, partition._context.broker_id, rng.choice((0.6, 3.5)))

    # Truncations that last, while another leader is elected

    def truncating(self, partition: Partition) -> None:
        """A follower is about to cut its log off: let that take long, and its leader be deposed;
        mostly where a coordinator may come to load what is being cut."""
        share = 0.6 if partition.key.topic == OFFSETS_TOPIC else 0.1
        rng = self._comes(LONG_TRUNCATIONS, "a truncation", share)
        if rng is not None:
            broker_id, mean_ms = partition._context.broker_id, rng.choice((50, 200))
            self._soon(self._faults.slow_calls, broker_id, 3.0, mean_ms, _CUTTING)
            if partition.state.leader in self._machines.up:
                self._soon(self._faults.expire_now, partition.state.leader)

    def _soon(self, call: Callable[..., None], *given: object) -> None:
        Context().run(self._cluster.loop.call_soon, call, *given)

    # ZooKeeper's answers

    def _is_to_be_lost(self, request: Request) -> bool:
        """Whether the connection is to end before the client knows what became of this."""
        if not isinstance(request, Multi):
            return False
        if all(znodes.PARTITION_STATE.names(each.path) is None for each in request.operations):
            return False
        return self._comes(LOST_STATES, "a write of states", _LOST_SHARE) is not None


_CUTTING = ("rename", "truncate", "sync", "sync_directory", "remove", "create")


def _is_change_of_checkpoints(call: Call) -> bool:
    return call.name in CHANGING and call.path.rpartition("/")[0] == LOG_DIR
