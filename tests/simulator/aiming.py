"""Faults aimed at moments of the code, which those that come at any time hardly ever hit.

A moment is short: one write of all, one rename of a dozen, the answer of ZooKeeper that decides.
The code is at some of them often, so each has a share in which its fault comes, and each kind of
aim is on or off in a history. `moments.py` knows where the code is.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING

from kdist.model import OFFSETS_TOPIC, TopicPartition
from kdist.replication.partition import Partition
from kdist.storage.flushing import FlushJob
from kdist.storage.names import LEADER_EPOCHS
from kdist.storage.segment import Segment
from kdist.testing.simulated_disk import Call
from kdist.zk import znodes
from kdist.zk.session import Multi, Request
from tests.simulator.machines import CHANGING, LOG_DIR, is_change_in, is_in, is_rename_in
from tests.simulator.messages import (
    ALTER_PARTITION,
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
LATE_FLUSHES = "late flushes"
FLUSHES = "failed flushes"
RETURNS = "quick returns"
LATE_PROPOSALS = "late proposals"
REPEATED = "repeated orders"
LEFT_ALONE = "leaders left alone"
AIMS = (
    *(FAILED_CALLS, DEATHS, JOINED, LOST_STATES, LONG_TRUNCATIONS, UNEVEN, INTERRUPTED),
    *(FLUSHES, RETURNS, LATE_PROPOSALS, REPEATED, LEFT_ALONE, LATE_FLUSHES),
)
_LAST = (FAILED_CALLS, JOINED, REPEATED)
"""Those that go on a little longer than all other faults, which would set right what they leave."""
_LAST_SHARE = 4.0  # times as often
_LAST_MAX = 4

_LONG_S = 10.0
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
        self._last_left = _LAST_MAX
        cluster = history.cluster
        self.messages = Messages(history.trace, history.shape.broker_ids, cluster.stream("joined"))
        if {JOINED, LATE_PROPOSALS, REPEATED} & {*self._aims}:
            self.messages.begin()
        if LOST_STATES in self._aims:
            cluster.ensemble.is_to_be_lost = self._is_to_be_lost

    def _comes(self, aim: str, moment: str, share: float) -> random.Random | None:
        """Whether a fault is to come at this moment: then what decides about it, its own."""
        faults, of_it = self._history.faults, f"{aim} at {moment}"
        if aim not in self._aims or faults is None:
            return None
        if not faults.is_on:
            if not (self._last_left and faults.is_settling and aim in _LAST):
                return None
            share *= _LAST_SHARE
        if of_it not in self._rngs:
            self._rngs[of_it] = self._cluster.stream(of_it)
        if self._rngs[of_it].random() >= share:
            return None
        self._counts[of_it] += 1
        self._last_left -= not faults.is_on
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

    def flushing(self, jobs: Sequence[FlushJob]) -> None:
        """Some logs are about to be flushed, with their small files: let one of these fail, and the
        broker die later, or among the calls."""
        job = next((each for each in jobs if each.unsynced.files_to_save), None)
        if job is None:
            return
        has_epochs = any(path.endswith(LEADER_EPOCHS) for path in job.unsynced.files_to_save)
        rng = self._comes(FLUSHES, "a flush", 0.2 if has_epochs else 0.02)
        if rng is None:
            return
        files, directory = job.log.context.files, job.log.directory
        if rng.random() < 0.4:
            is_change = partial(is_change_in, directory)
            self._doom(files, rng.randint(1, 8), is_change, rng, "a flush")
            return
        self._fail(files, rng.choice(_FULL), partial(_is_of_small_file, directory))
        if rng.random() < 0.6:
            kill = partial(self._faults.depose_leader, self._id_of(files), is_dead=True)
            self._soon(self._faults.later, rng.choice((0.3, 1.5)), kill)

    def truncating_files(self, files: object, directory: str, dropped: int) -> None:
        """A log is about to be cut off, after the checkpoints are saved, which may fail, too."""
        moment = "a save before a truncation"
        rng = self._comes(FAILED_CALLS, moment, 0.2)
        if rng is not None:
            self._fail(files, rng.choice(_FULL), partial(_is_of_small_file, LOG_DIR))
        else:
            share = 0.9 if dropped else 0.3
            self.renaming(files, directory, "a truncation", 3 * dropped + 6, share)

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
        self._lose_answer(leader)
        rng = self._comes(JOINED, "a proposal", 0.1)
        if rng is not None:
            until_s = rng.choice((0.05, self._history.shape.session_s))
            until = rng.choice(((LEADER_AND_ISR,), (FETCHED, LEADER_AND_ISR, UPDATE_METADATA)))
            self.messages.hold(leader, Wanted(JUDGED, None, until, until_s))
            if rng.random() < 0.5:
                self._soon(self._faults.expire_now, rng.choice([leader, *self._machines.up]))

    def _lose_answer(self, leader: int) -> None:
        """Let the answer to a proposal be lost, or the proposal itself; or let the answer be late,
        so that there is another one meanwhile."""
        rng, controller = self._comes(REPEATED, "a proposal", 0.15), self._controller
        if rng is None or controller in (None, leader):
            return
        others = [each for each in self._machines.up if each not in (leader, controller)]
        if others and rng.random() < 0.5:
            self.messages.hold(leader, Wanted(JUDGED, controller, (), 0.7))
            self._soon(self._faults.expire_now, rng.choice(others))
        else:
            reset = partial(self.messages.reset, leader, controller)
            self._soon(self._faults.later, rng.choice((0.001, 0.003, 0.01)), reset)

    def joining(self, leader: int, follower: int) -> None:
        """A follower is about to be proposed: let it lose what it has, register anew and be kept
        from its leader before the controller hears of the proposal."""
        controller = self._controller
        if controller in (None, leader, follower):
            return
        rng = self._comes(LATE_PROPOSALS, "a proposal to join", 0.2)
        if rng is not None:
            self.messages.hold(controller, Wanted(ALTER_PARTITION, leader, (), 2.5))
            network = self._cluster.network
            self._soon(network.block, f"m{leader}", f"m{follower}")
            self._soon(self._faults.later, 4, network.heal)
            self._soon(self._faults.lose_briefly, follower, rng.choice((0.05, 0.2)))

    def changing_role(self, partition: Partition) -> None:
        """A broker is told who leads; others are told, too, or hear of it by their fetches."""
        self._following(partition)
        self._repeat(partition)
        rng = self._comes(JOINED, "a change of role", 0.05)
        if rng is not None:
            shape = self._history.shape
            until_s = rng.choice((0.05, 0.3, shape.lag_s, 1.2 * shape.session_s))
            kind = rng.choice((FETCHED, LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA))
            to = rng.choice(self._machines.ids)
            self.messages.hold(to, Wanted(kind, None, [e for e in KINDS if e != kind], until_s))

    def _repeat(self, partition: Partition) -> None:
        """A leader is told that it leads: let the answer be lost, so that it is told again, as it
        proposes another ISR or has just been answered."""
        leader, controller = partition._context.broker_id, self._controller
        patience_s = int(self._cluster.settings["controller.socket.timeout.ms"]) / 1_000
        rng = self._comes(REPEATED, "an order", 0.05) if patience_s < _LONG_S else None
        if rng is not None and controller is not None:
            kind, to = rng.choice((LEADER_AND_ISR, UPDATE_METADATA)), rng.choice(self._machines.ids)
            self.messages.hold(to, Wanted(kind, controller, (), 3 * patience_s))
        if not partition.is_leader or controller in (None, leader):
            return
        rng = self._comes(REPEATED, "a leader's order", 0.2)
        if rng is not None:
            is_before = rng.random() < 0.5
            late_s = 0.3 if is_before else 0.1
            self.messages.hold(controller, Wanted(ALTER_PARTITION, leader, (), late_s))
            if not is_before:
                self.messages.hold(leader, Wanted(LEADER_AND_ISR, controller, (JUDGED,), 0.5))
            self._soon(self.messages.reset, controller, leader)

    @property
    def _controller(self) -> int | None:
        faults = self._history.faults
        return None if faults is None else faults.controller()

    # Followers of which one has more than another, when their leader goes

    def appended(self, partition: Partition) -> None:
        """A leader has appended something: let one follower hear late of it, and the leader go."""
        is_rare = partition.key.topic == OFFSETS_TOPIC or partition.log.may_leave_gaps
        share = 0.1 if is_rare else 0.01  # which is appended to seldom
        rng = self._comes(UNEVEN, "an append", share)
        leader, isr = partition._context.broker_id, partition.state.isr
        self._unflushed(partition)
        self._alone(partition)
        self._awaited(partition)
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

    def _unflushed(self, partition: Partition) -> None:
        """What is to be flushed before it is exposed is not yet, and others may have it: let the
        leader lose it, and be back before anybody has noticed."""
        if not partition.log.settings.flush_before_expose or len(partition.state.isr) < 2:
            return
        rng = self._comes(RETURNS, "an append that is not flushed", 0.03)
        if rng is not None:
            leader, back_s = partition._context.broker_id, rng.choice((0.05, 0.3, 1.0))
            after_s, is_disk_new = rng.choice((0.003, 0.006, 0.2)), rng.random() < 0.25
            lose = partial(self._faults.lose_briefly, leader, back_s, is_disk_new=is_disk_new)
            self._soon(self._faults.later, after_s, lose)
            if rng.random() < 0.7:
                self._soon(self._faults.later, after_s, self._distract, leader, rng.random())

    def _distract(self, from_id: int, drawn: float) -> None:
        """Have the controller hear late of who registers, and have something to tell all."""
        controller, ensemble = self._controller, self._cluster.ensemble
        others = [each for each in self._machines.up if each not in (from_id, controller)]
        if controller is not None and others:
            name = ensemble.server_of(self._cluster.zks[controller])
            if name is not None:
                ensemble.lag(name, 1_000)
                self._faults.later(3, ensemble.lag, name, self._history.shape.lag_ms)
            self._faults.expire_now(others[int(drawn * len(others))])

    def _alone(self, partition: Partition) -> None:
        """A leader below the minimum has appended what nobody else has: let it die, and somebody
        lead who did so before it."""
        leader, eligible = partition._context.broker_id, partition.state.eligible
        if partition.state.isr != (leader,) or not eligible:
            return
        rng = self._comes(LEFT_ALONE, "an append of who is left alone", 0.3)
        if rng is not None:
            after_s = rng.choice((0.02, 0.3))
            self._soon(self._faults.later, after_s, self._faults.swap, leader, eligible)

    def _awaited(self, partition: Partition) -> None:
        """A leader has appended what another one alone might commit: let others hear late of it,
        and one of them lead, while whoever sent it still waits."""
        followers = [e for e in partition.state.isr if e != partition._context.broker_id]
        if not followers or partition._min_isr > 1:
            return
        rng = self._comes(UNEVEN, "an append that is waited for", 0.03)
        if rng is not None:
            leader = partition._context.broker_id
            for each in followers:
                self.messages.delay(leader, each, self._history.shape.session_s)
            self._soon(self._faults.later, 0.02, self._faults.expire_now, leader)

    def _following(self, partition: Partition) -> None:
        """A follower is about to ask its leader for the first time: let it have no answer until a
        retention check has come, or several."""
        leader = partition.state.leader
        if leader not in (-1, partition._context.broker_id):
            rng = self._comes(UNEVEN, "a first fetch", 0.25)
            if rng is not None:
                self.messages.delay(leader, partition._context.broker_id, rng.choice((0.6, 3.5)))

    def assigning(self, partition: int) -> None:
        """A group's assignment is about to be appended: let that take long, and another member
        come meanwhile."""
        state = self._history.known.states.get(TopicPartition(OFFSETS_TOPIC, partition))
        followers = [] if state is None else [e for e in state.isr if e != state.leader]
        rng = self._comes(UNEVEN, "an assignment", 0.2) if followers else None
        if state is not None and rng is not None:
            late_s = min(4.0, self._history.shape.lag_s)
            self.messages.delay(state.leader, rng.choice(followers), late_s)
            self._soon(self._faults.later, rng.uniform(0, 0.5), self._history.group.join)

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

    # Records that were exposed before they were to be flushed first

    def flushing_first(self, partition: Partition) -> None:
        """A replica is to flush first from now on: let one that is preferred lose power before it
        has flushed what there is, and the others in its ISR be away when it is back."""
        log, broker_id, up = partition.log, partition._context.broker_id, self._machines.up
        others = [each for each in partition.state.isr if each != broker_id]
        moment = "a change of what is flushed first"
        is_preferred = partition.replicas[:1] == (broker_id,)
        if is_preferred and log.recovery_point < log.end_offset and {*others} <= {*up}:
            rng = self._comes(LATE_FLUSHES, moment, 0.9)
            if rng is not None:
                self._history.trace.count(f"power lost at {moment}")
                self._soon(self._faults.lose_power, broker_id)
                for each in others:
                    self._soon(self._faults.later, rng.choice((0.0, 0.3)), self._faults.kill, each)

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


def _is_of_small_file(directory: str, call: Call) -> bool:
    is_written = call.name in ("create", "write") and call.path.endswith(".tmp")
    return is_written and is_in(directory, call)


def _is_change_of_checkpoints(call: Call) -> bool:
    return call.name in CHANGING and call.path.rpartition("/")[0] == LOG_DIR
