"""The brokers' machines: they start, stop, lose power, fail; and what that may have cost.

A broker whose disk has failed comes back with the disk as its last successful sync left it. After
a failed sync the page cache cannot be trusted, and whoever starts the broker on that disk again has
the host read it afresh.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from typing import NamedTuple

from kdist.broker.broker import Broker, State
from kdist.errors import DiskFailed, KdistError
from kdist.model import TopicPartition
from kdist.storage.meta import BootNote
from kdist.storage.names import (
    BOOT,
    CLEAN_SHUTDOWN,
    DirectoryState,
    flush_mark_in,
    parse_directory_name,
)
from kdist.testing.simulated_content import Content
from kdist.testing.simulated_disk import SimulatedDisk
from kdist.testing.simulated_faults import Call, PowerLoss
from kdist.testing.simulated_names import Directory
from tests.simulator.record import Trace, Violation

CHANGING = ("write", "sync", "sync_directory", "create", "rename", "remove", "truncate")
LOG_DIR = "/d"  # as `Cluster` has it


class Stopped(NamedTuple):
    """What a broker had when it had stopped cleanly: for each partition topic id and log end."""

    ends: dict[TopicPartition, tuple[object, int]]


class Machines:
    """Owner: the history."""

    def __init__(self, trace: Trace, broker_ids: Sequence[int], rng: random.Random) -> None:
        self.trace = trace
        self.cluster = trace.cluster
        self.loop = trace.cluster.loop
        self.ids = broker_ids
        self.rng = rng
        self.is_skewed = False  # whether their clocks go wrong
        self.down: dict[int, float] = {}  # brokers, with the time at which each is to return
        self.starting: dict[int, asyncio.Task[None]] = {}
        self._stopped: dict[int, Stopped] = {}
        self._durable_ends: dict[int, dict[TopicPartition, int]] = {each: {} for each in broker_ids}
        self.on_ending: Callable[[Broker], None] = lambda _: None
        self.on_damage: Callable[..., None] = lambda *_given, **_named: None
        # To die in a call, at some moment; whether by a power loss.
        self._doomed: dict[int, tuple[str, bool]] = {}
        self.deleted_while_down: set[int] = set()

    @property
    def up(self) -> list[int]:
        return [each for each in self.ids if each not in self.down]

    @property
    def are_ready(self) -> bool:
        brokers = self.cluster.brokers
        return not self.down and all(brokers[each].state is State.READY for each in self.ids)

    def brokers(self) -> list[Broker]:
        """Those that are ready."""
        found = [self.cluster.brokers[each] for each in self.up]
        return [each for each in found if each.state is State.READY and not each.failure.done()]

    def is_stopping(self, broker: Broker) -> bool:
        """Whether it has been told to stop, and is still there."""
        return broker.id not in self.down and broker.state is State.STOPPING

    # Lives

    def start(self, broker_id: int) -> None:
        self.down.pop(broker_id, None)
        broker = self.cluster.broker(broker_id)
        process = self.cluster.processes[broker_id]
        process.on_failure = partial(self._failed, broker)
        if self.is_skewed:
            process.clock.skew(self.rng.uniform(0.95, 1.05), self.rng.randint(-5_000, 5_000))
        broker.failure.add_done_callback(lambda _: self._ended(broker))
        self.trace.note(f"m{broker_id} starts")
        self.starting[broker_id] = self.loop.create_task(self._started(broker))

    async def _started(self, broker: Broker) -> None:
        stopped = self._stopped.pop(broker.id, None)
        try:
            await broker.start()
        except KdistError as error:
            self.trace.note(f"m{broker.id} cannot start: {error}")
            if self.cluster.brokers[broker.id] is broker:
                self.end(broker.id)
            return
        except PowerLoss:
            self._die(broker.id)
            return
        self.trace.note(f"m{broker.id} has started")
        if stopped is not None:
            self._compare(broker, stopped)

    def _compare(self, broker: Broker, stopped: Stopped) -> None:
        """S20: a start after a clean stop truncates nothing, and need not look."""
        storage = broker.measures.storage
        if storage.recovered_logs or storage.truncated_bytes:
            self.loop.end_run(Violation(f"S20: m{broker.id} recovers after a clean stop"))
        for key, (topic_id, end) in stopped.ends.items():
            found = broker.service.replicas.partitions.get(key)
            if found is None or found.topic_id != topic_id or len(found.replicas) > 1:
                continue  # a follower's end may have been cut off already, to agree with its leader
            if found.log.end_offset < end:
                sentence = f"S20: {key} ended at {end}, and {found.log.end_offset} after the start"
                self.loop.end_run(Violation(sentence, key))
        self.trace.count("clean stop")

    def _failed(self, broker: Broker, error: BaseException) -> None:
        if isinstance(error, PowerLoss):
            self._die(broker.id)
            return
        broker.fail(error)
        if not isinstance(error, KdistError):
            self.loop.end_run(error)

    def _ended(self, broker: Broker) -> None:
        """A broker says that it cannot go on: its process ends."""
        if broker.id not in self.down and self.cluster.brokers[broker.id] is broker:
            error = broker.failure.result()
            if isinstance(error, PowerLoss):
                self._die(broker.id)
                return
            self.trace.note(f"m{broker.id} fails: {error}")
            has_disk_failed = isinstance(error, DiskFailed)
            self.trace.count("disk failed", has_disk_failed)
            self.end(broker.id, is_power_lost=has_disk_failed)

    def lose_power(self, broker_id: int) -> None:
        """A broker's host goes off, with all brokers on it."""
        machine = self.cluster.machine
        for each in self.ids:
            if machine(each) == machine(broker_id):
                self.end(each, is_power_lost=True)

    def replace_disk(self, broker_id: int) -> None:
        """A broker dies with its disk, and comes back with an empty one."""
        self.end(broker_id)
        self._stopped.pop(broker_id, None)
        self.cluster.replace_disk(broker_id)
        self.on_damage(broker_id, {}, {}, is_disk_new=True)
        self._durable_ends[broker_id] = {}
        self.trace.note(f"m{broker_id} has a new disk")
        self.trace.count("disk replaced")

    def end(
        self, broker_id: int, *, is_power_lost: bool = False, is_in_a_call: bool = False
    ) -> None:
        """Kill a broker; it returns after a while, within its session's time or not. What one that
        dies in a call has in memory may be half of something."""
        if broker_id in self.down:
            return
        broker = self.cluster.brokers[broker_id]
        if broker.state is State.READY and not is_in_a_call:
            self.on_ending(broker)
        content_id = None
        if broker._service is not None:
            content_id = broker.service.directory.content_id
            logs = broker.service.directory.logs
            self._durable_ends[broker_id] |= {key: log.recovery_point for key, log in logs.items()}
            self.trace.count("died in a pass", broker.service.cleaner._pass is not None)
        self._doomed.pop(broker_id, None)
        self.trace.harvest(broker)
        self.cluster.processes[broker_id].resume()
        disk = self.cluster.disks[broker_id]
        disk.heal()
        if not is_power_lost:  # of the process alone
            disk.is_off = disk._is_doomed = False
        self.cluster.kill(broker, is_power_lost=is_power_lost)
        self.cluster.release_lock(broker)
        self.down[broker_id] = self.loop.time() + self.rng.choice((0.2, 2, 8, 15))
        self.trace.count("broker restarted")
        is_noted = content_id in (None, noted_content(disk))
        if is_power_lost or not is_noted:
            marks, ends = flush_marks(disk), self._durable_ends[broker_id]
            how = {"is_disk_new": False, "is_killed": not is_power_lost, "is_noted": is_noted}
            self.on_damage(broker_id, ends, marks, **how)
        if is_power_lost:
            self.trace.count("power lost, and a log was marked", bool(marks))
            self.trace.count("power lost")
        self.trace.note(f"m{broker_id} ends, power lost: {is_power_lost}")

    def restart_due(self, now_s: float) -> None:
        """Start those whose time has come."""
        for broker_id, due_s in list(self.down.items()):
            if due_s <= now_s:
                self.start(broker_id)

    # Dying in the middle of a call on the disk

    def doom_somewhere(self, broker_id: int, calls: int, *, is_power_lost: bool) -> None:
        """Have it die in the `calls`-th of the calls that change its disk, or of the appends: their
        producers then have no answer."""
        if self._is_mortal(broker_id):
            which = self.rng.choice((_is_change, _is_append, _is_append))
            self.doom(broker_id, calls, which, "", is_power_lost=is_power_lost)

    def doom(
        self,
        broker_id: int,
        calls: int,
        which: Callable[[Call], bool],
        moment: str,
        *,
        is_power_lost: bool,
    ) -> None:
        """Have it die in the `calls`-th of these calls on its disk, unless it is to die anyway."""
        if self._is_mortal(broker_id):
            self._doomed[broker_id] = moment, is_power_lost
            disk = self.cluster.disks[broker_id]
            disk.on_power_loss = partial(self._die, broker_id)
            disk.crash_at(calls, which)

    def _is_mortal(self, broker_id: int) -> bool:
        return broker_id not in self.down and broker_id not in self._doomed

    def _die(self, broker_id: int) -> None:
        """Its code still runs: have it end when that has returned, and do nothing more."""
        self.cluster.processes[broker_id].kill()
        doomed = self._doomed.pop(broker_id, None)
        if doomed is not None:  # else it is dead already
            moment, is_power_lost = doomed
            self.trace.count("died in a call on the disk")
            self.trace.count(f"died in {moment}", bool(moment))
            end = partial(self.end, broker_id, is_power_lost=is_power_lost, is_in_a_call=True)
            Context().run(self.loop.call_soon, end)

    def spare(self) -> None:
        """No disk is to fail, and nobody to die in a call, any more."""
        self._doomed.clear()
        for disk in self.cluster.disks.values():
            disk.heal()

    # Clean stops

    async def stop(self, broker_id: int, *, is_power_lost: bool) -> None:
        """Stop a broker; with `is_power_lost` its host goes off right afterwards."""
        broker = self.cluster.brokers[broker_id]
        if broker_id in self.down or broker.state is not State.READY or broker.failure.done():
            return
        self.trace.note(f"m{broker_id} is told to stop")
        try:
            await broker.stop()
        except PowerLoss:
            self._die(broker_id)
            return
        if broker_id in self.down or self.cluster.brokers[broker_id] is not broker:
            return
        directory = broker.service.directory
        if broker.state is State.STOPPED and self._has_marker(broker_id):
            partitions = broker.service.replicas.partitions
            self._stopped[broker_id] = Stopped(
                {
                    key: (partitions[key].topic_id, log.end_offset)
                    for key, log in directory.logs.items()
                    if key in partitions
                }
            )
        self.trace.note(f"m{broker_id} has stopped: {broker.state.value}")
        self.end(broker_id, is_power_lost=is_power_lost)

    def _has_marker(self, broker_id: int) -> bool:
        """Looked up beside the disk's calls, one of which might be to fail."""
        names = self.cluster.disks[broker_id]._names
        return CLEAN_SHUTDOWN in names.directory(LOG_DIR).entries


def flush_marks(disk: SimulatedDisk) -> dict[TopicPartition, bool]:
    """The partitions whose logs have flush marks that count, on a disk that has lost power.

    Whether they count for sure: if they are of the last content, a controller must have judged the
    replicas by that.
    """
    top, note, found = disk._names.directory(LOG_DIR), boot_note(disk), {}
    if note is None:
        return {}
    for name, node in top.entries.items():
        parsed = parse_directory_name(name)
        if parsed and parsed.state is DirectoryState.LIVE and isinstance(node, Directory):
            ids = {flush_mark_in(each) for each in node.entries}
            if not ids.isdisjoint((*note.vetted, note.content_id)):
                found[parsed.partition] = not ids.isdisjoint(note.vetted)
    return found


def boot_note(disk: SimulatedDisk) -> BootNote | None:
    """Looked up beside the disk's calls."""
    boot = disk._names.directory(LOG_DIR).entries.get(BOOT)
    return BootNote.decode(bytes(boot.data), BOOT) if isinstance(boot, Content) else None


def noted_content(disk: SimulatedDisk) -> str | None:
    note = boot_note(disk)
    return note and note.content_id


def _is_change(call: Call) -> bool:
    return call.name in CHANGING


def is_rename_in(directory: str, call: Call) -> bool:
    """Whether a file of a log gets another name; not a small file that replaces another."""
    return call.name == "rename" and is_in(directory, call) and not call.path.endswith(".tmp")


def is_change_in(directory: str, call: Call) -> bool:
    return _is_change(call) and is_in(directory, call)


def is_in(directory: str, call: Call) -> bool:
    return call.path == directory or call.path.startswith(f"{directory}/")


def _is_append(call: Call) -> bool:
    return call.name == "write" and call.path.endswith(".log")
