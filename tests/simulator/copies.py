"""Every replica's log beside what is committed (S1 to S3, S6, S7, S23), and what may be lost.

A batch is committed once a leader's high watermark has passed it. From then on whoever may lead has
it, and whatever anybody takes for committed is that. Nothing of a disk is trusted but its bytes.

A power loss takes what a replica has not flushed, but for one whose log was marked that it had
exposed nothing of that; a new disk takes all. As long as one of those who may be elected, in the
ISR or eligible, has lost nothing, or has it again, nothing committed may be lost. Only what was
written before the end of a time in which all of them had lost something, from the lowest offset on
that is sure to be on all their disks, may go. Who leads after that has what is committed from then
on, whatever was before; the others are held to it once they are seen to have been cut off to agree.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple

from kdist.model import NO_EPOCH, TopicPartition
from kdist.records.batch import read_header
from kdist.replication.partition import Partition
from kdist.storage.segment import Segment
from kdist.zk.values import PartitionState, TopicAssignment
from tests.simulator.compacted import Kept, Table, read_kept
from tests.simulator.electable import Electable
from tests.simulator.record import EVERY_S, NEVER_S, Trace, Violation, require
from tests.simulator.shape import TopicShape

_FOREVER_S = float("inf")
_end = attrgetter("end")


class Batch(NamedTuple):
    """A batch as it is on a disk; `crc` is of all but its offset and epoch.

    In a compacted log it is 0: each replica cleans its own.
    """

    base: int
    end: int
    epoch: int
    crc: int


class _Read:
    """How far a segment has been read."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.generation = segment.generation
        self.position = 0
        self.count = 0  # of batches


class Copy:
    """One replica's log in one life of its broker, read as it grows."""

    def __init__(self, partition: Partition, *, is_compacted: bool) -> None:
        self.partition = partition
        self.batches: list[Batch] = []
        self.agreed_end = 0  # up to where it was compared with what is committed
        self.is_apart = False  # below its high watermark, from what is committed
        self.epochs: tuple[tuple[int, ...], ...] = ()  # as its log told of them, and their starts
        self.kept: dict[int, Kept] | None = {} if is_compacted else None  # by base offset
        self.judged: tuple[int, ...] = ()  # what the table was compared with
        self.changes = 0
        self._reads: list[_Read] = []

    def read(self, content: Callable[[Segment], bytearray]) -> list[Batch]:
        """Take in what is new, without a call of the disk, which might be to fail."""
        log, reads = self.partition.log, self._reads
        if not log.has_files or log.is_truncating:
            return []
        segments = log.segments
        while reads and reads[0].segment is not segments[0]:  # retention has removed it
            del self.batches[: reads.pop(0).count]
        same = 0
        for each, segment in zip(reads, segments, strict=False):
            if each.segment is not segment or each.generation != segment.generation:
                break
            same += 1
        del self.batches[sum(each.count for each in reads[:same]) :]
        del reads[same:]
        self.agreed_end = min(self.agreed_end, self.batches[-1].end if self.batches else 0)
        before = len(self.batches)
        if reads:
            self._read(reads[-1], content)
        for segment in segments[same:]:
            reads.append(_Read(segment))
            self._read(reads[-1], content)
        if self.kept is not None:
            self.kept = {each.base: self.kept[each.base] for each in self.batches}
        return self.batches[before:]

    def _read(self, read: _Read, content: Callable[[Segment], bytearray]) -> None:
        segment = read.segment
        if read.position == segment.size:
            return
        data = content(segment)
        self.changes += 1
        while read.position < segment.size:
            header = read_header(data, read.position)
            end, epoch, crc = header.next_offset, header.partition_leader_epoch, header.crc
            if self.kept is not None:
                self.kept[header.base_offset] = read_kept(data, read.position, header)
                crc = 0
            self.batches.append(Batch(header.base_offset, end, epoch, crc))
            read.position += header.size
            read.count += 1

    def between(self, start: int, end: int) -> Iterable[Batch]:
        """The whole batches in this range of offsets."""
        for each in self.batches[bisect_left(self.batches, start + 1, key=_end) :]:
            if each.end > end:
                return
            yield each

    def is_across(self, end: int, batch: Batch) -> bool:
        """Whether a batch lies on both sides of an offset, and its log does not begin there."""
        return batch.base < end < batch.end and end > self.partition.log.start_offset


class Loss(NamedTuple):
    """In this time all who might be elected had lost what lies from this offset on, perhaps."""

    begin_s: float
    end_s: float
    from_offset: int


class Baseline(NamedTuple):
    """What a leader began with whose log was taken for what is committed, after losses."""

    number: int = 0
    leader_epoch: int = NO_EPOCH
    log_end: int = 0  # as its epoch began: it may have appended before it was looked at
    taken_s: float = NEVER_S


class Committed:
    """What is known of one partition, of whatever topic has the name now."""

    def __init__(self, shape: TopicShape) -> None:
        self.shape = shape
        self.state: PartitionState | None = None
        self.leaders: dict[int, int] = {}  # by epoch
        self.replicas: tuple[int, ...] = ()
        self.adding: tuple[int, ...] = ()  # those of them that a move adds
        self.end = 0
        self.last_start = 0  # of any replica
        self.batches: dict[int, Batch] = {}  # that are committed, by base offset
        self.times_s: dict[int, float] = {}  # when they were
        self.places: dict[tuple[int, int], Batch] = {}  # all that ever were, by offset and epoch
        self.damaged: dict[int, int] = {}  # brokers, with the offset to which they lack nothing
        # Those that were damaged since they were found to be in sync, though they may have lost
        # nothing of this; whether their disks are new.
        self.suspect: dict[int, bool] = {}
        self.losses: list[Loss] = []
        self.is_settled = True  # there was no loss, or who leads since then is known
        self.baseline = Baseline()
        self.agreed: dict[int, int] = {}  # brokers, with the last baseline that each was seen at
        self.power_lost_s: list[float] = []  # by any replica
        # When another replica came to lead, or could, and how long the one before went on leading.
        self.handed_over_s = NEVER_S
        self.unclean_epoch = NO_EPOCH  # of the last leader that was elected uncleanly
        self.table = Table(shape.delete_retention_s) if shape.is_compacted else None

    def may_be_lost(self, since_s: float, offset: int) -> bool:
        return any(each.end_s > since_s and offset >= each.from_offset for each in self.losses)

    def prolong_loss(self, until_s: float) -> None:
        """A leader that an unclean election has deposed does not know of it yet: as it may be alone
        in its ISR, it acknowledges, with acks=all too, what is lost once it does."""
        last = self.losses[-1]
        self.losses[-1] = last._replace(end_s=max(last.end_s, until_s))

    @property
    def is_open(self) -> bool:
        """Whether all who might be elected have lost something, and have it not again."""
        return bool(self.losses) and self.losses[-1].end_s == _FOREVER_S

    def holds(self, broker_id: int) -> bool:
        """Whether a replica is held to what is committed: it has been, since the last loss."""
        return self.is_settled and self.agreed.get(broker_id, 0) == self.baseline.number

    def is_sure(self, since_s: float) -> bool:
        """Whether nothing but what is committed now was so at any time since then."""
        return self.is_settled and self.baseline.taken_s < since_s

    def settle(self, partition: Partition, now_s: float) -> None:
        """Take this leader's log for what is committed, as if it was so now; all before it was."""
        self.is_settled, self.end = True, max(self.end, partition.log.start_offset)
        epoch, number = partition.leader_epoch, self.baseline.number + 1
        self.baseline = Baseline(number, epoch, partition.log.epochs.start_of_latest, now_s)
        self.agreed[partition._context.broker_id] = number
        self.times_s = dict.fromkeys(self.times_s, now_s)

    def may_come_back(self) -> None:
        """Keys that were deleted may come back, if it is compacted."""
        if self.table is not None:
            self.table.may_come_back = True


class Copies:
    """Owner: `Invariants`, which tells of all changes."""

    def __init__(
        self,
        trace: Trace,
        topics: dict[str, TopicShape],
        is_of_topic: Callable[[Partition], bool],
    ) -> None:
        """`is_of_topic`: whether a partition is of the topic that has its name now."""
        self._trace = trace
        self.electable = Electable(trace)
        self._is_of_topic = is_of_topic
        self._disks = trace.cluster.disks
        self._shapes = topics
        self._unflushed: set[str] = set()  # topics that were not flushed at some time
        self._unclean: set[str] = set()  # that may have had unclean elections
        self._copies: dict[Partition, Copy] = {}
        self._partitions: dict[TopicPartition, Committed] = {}

    def of(self, key: TopicPartition) -> Committed:
        found = self._partitions.get(key)
        if found is None:
            shape = self._shapes.get(key.topic, TopicShape(1, 1, is_flushed=False))
            if key.topic in self._unflushed:
                shape = shape._replace(is_flushed=False)
            found = self._partitions[key] = Committed(shape)
        return found

    def last_start(self, key: TopicPartition) -> int:
        """Where any replica's log has begun at most."""
        brokers = self._trace.cluster.brokers.values()
        found = (e._service.replicas.partitions.get(key) for e in brokers if e._service is not None)
        starts = [each.log.start_offset for each in found if each is not None]
        return max(self.of(key).last_start, *starts, 0)

    def will_set(self, topic: str, name: str, value: str) -> None:
        """A setting is about to be changed: records may be less safe, from now on."""
        if (name, value) == ("flush.before.expose", "false") and topic in self._shapes:
            self._unflushed.add(topic)
            for key, found in self._partitions.items():
                if key.topic == topic:
                    found.shape = found.shape._replace(is_flushed=False)
        if (name, value) == ("unclean.leader.election.enable", "true"):
            self._unclean.add(topic)

    def forget_topic(self, name: str) -> None:
        """It was deleted; another of the name may come."""
        for key in [key for key in self._partitions if key.topic == name]:
            del self._partitions[key]

    def may_be_lost(self, key: TopicPartition, since_s: float, offset: int | None = None) -> bool:
        """Whether what was committed at a time, at an offset or any, may be gone."""
        offset = _ANY if offset is None else offset
        return self.of(key).may_be_lost(since_s, offset)

    def may_be_lost_uncommitted(self, key: TopicPartition, since_s: float) -> bool:
        """The same of what the leader alone had, by acks=1."""
        found = self.of(key)
        times_s = (found.handed_over_s + EVERY_S, *found.power_lost_s)
        since = (each >= since_s for each in times_s)
        return found.shape.replication_factor > 1 or any(since)

    # What happens to replicas

    def changed(
        self,
        key: TopicPartition,
        state: PartitionState,
        assignment: TopicAssignment,
        alive: Iterable[int],
    ) -> None:
        """ZooKeeper has another state of a partition; these brokers are at work."""
        found, before = self.of(key), self.of(key).state
        if before is None:  # some may be in the ISR whose loss is not known yet
            hurt = self.electable.hurt()
            found.suspect = {each: new for each, new in hurt.items() if each in state.isr}
        else:
            is_new = not {*state.isr} <= {*before.isr, *before.eligible}
            if is_new and state.is_recovering and key.topic in self._unclean:
                # Others who are dead may have had more: that was announced.
                found.damaged |= dict.fromkeys(state.isr, 0)
                found.unclean_epoch = state.leader_epoch
                self._trace.count("unclean election")
            may_lack = {*found.damaged, *found.suspect}
            self.electable.check(key, before, state, assignment, may_lack, alive)
            if state.leader_epoch == before.leader_epoch:  # their leader found them to be in sync
                for each in {*state.isr} - {*before.isr}:
                    found.suspect.pop(each, None)
                    if self.electable.is_back(each):
                        found.damaged.pop(each, None)
        is_alone = len(state.isr) == 1
        if found.state is not None and not (is_alone and state.isr == found.state.isr):
            found.handed_over_s = self._trace.now_s
        found.state = state
        found.leaders[state.leader_epoch] = state.leader
        found.replicas = assignment.partitions.get(key.partition, ())
        found.adding = assignment.adding.get(key.partition, ())
        self._see_losses(found)

    def damage(
        self,
        broker_id: int,
        durable_ends: dict[TopicPartition, int],
        marks: dict[TopicPartition, bool],
        *,
        is_disk_new: bool,
        is_killed: bool = False,
        is_noted: bool = True,
    ) -> None:
        """A broker has lost power, or has got a new disk; for `marks` see `flush_marks`.

        One that is only killed, and whose boot is not noted, comes back with another content id:
        the controller judges it as if it had lost something. Whose log is marked has lost nothing
        committed, and is known for it; likewise where the topic was flushed first from the start.
        """
        is_judged = is_noted and not self.electable.is_hurt(broker_id)
        self.electable.note_damage(broker_id, is_disk_new=is_disk_new)
        for key, found in self._partitions.items():
            if broker_id not in found.replicas:
                continue
            if not is_killed:
                found.power_lost_s.append(self._trace.now_s)
            if found.end and (marks.get(key) or (key in marks and is_judged)):
                continue
            found.suspect[broker_id] = is_disk_new or found.suspect.get(broker_id, False)
            if is_killed:
                continue
            lacks_its_mark = found.end and found.shape.is_flushed and key not in marks
            if is_disk_new or not lacks_its_mark:
                end = 0 if is_disk_new else durable_ends.get(key, 0)
                found.damaged[broker_id] = min(end, found.damaged.get(broker_id, end))
                found.agreed[broker_id] = -1  # until it has been compared again
                if not is_disk_new:
                    found.may_come_back()
                self._see_losses(found)

    def _see_losses(self, found: Committed) -> None:
        if found.state is None:
            return
        electable = {*found.state.isr, *found.state.eligible}
        if electable <= found.damaged.keys():
            end = min(found.damaged[each] for each in electable)
            if found.is_open:
                begin_s, _, before = found.losses.pop()
                found.losses.append(Loss(begin_s, _FOREVER_S, min(before, end)))
            else:
                found.losses.append(Loss(self._trace.now_s, _FOREVER_S, end))
                self._trace.count("all who may be elected have lost something")
            found.is_settled = False
        elif found.is_open:
            found.losses[-1] = found.losses[-1]._replace(end_s=self._trace.now_s)

    def may_replace_disk(self, broker_id: int, up: Iterable[int]) -> bool:
        """Whether each partition that it hosts has somebody else who is up and has lost nothing:
        else it might be offline for good, as nobody knows what it had."""
        sound = {*up} - {broker_id}
        return all(
            bool({*found.state.isr, *found.state.eligible} & sound - found.damaged.keys())
            for found in self._partitions.values()
            if broker_id in found.replicas and found.state is not None
        )

    # What partitions tell

    def advanced(self, partition: Partition, before: int) -> None:
        """A leader's high watermark has moved."""
        if not self._is_of_topic(partition):
            return
        key, mark = partition.key, partition.high_watermark
        found, isr = self.of(key), partition.state.isr
        wanted = len(found.replicas) - len(found.adding)
        needed = min(partition.log.settings.min_insync_replicas, wanted)
        sentence = f"S23: {key} is committed from {before} to {mark} by {isr}, needed are {needed}"
        require(len(partition.replicas) <= 1 or len(isr) >= needed, sentence, key)
        broker_id = partition._context.broker_id
        copy = self._read(broker_id, partition)
        if mark > found.end and (found.holds(broker_id) or self._is_led_by(found, partition)):
            self._commit(found, copy)
        self._check_members(found, partition)

    def _check_members(self, found: Committed, partition: Partition) -> None:
        """S3 and S18, as something is committed: all in the ISR have it, and have flushed it."""
        if found.state is None or not (found.is_settled and self._is_led_by(found, partition)):
            return
        key, mark = partition.key, partition.high_watermark
        is_flushed = found.shape.is_flushed and partition.log.settings.flush_before_expose
        for broker_id in found.state.isr:
            other = self._replica(broker_id, partition)
            if other is None or broker_id in found.damaged or broker_id in found.suspect:
                continue
            log = other.log
            has = min(log.end_offset, log.recovery_point) if is_flushed else log.end_offset
            sentence = f"{key} is committed to {mark}, and m{broker_id}, in the ISR, has {has}"
            require(has >= mark, f"{'S18' if is_flushed else 'S3'}: {sentence}", key)

    def _replica(self, broker_id: int, partition: Partition) -> Partition | None:
        """A broker's, as it is or was when the broker died; None if it is not at rest."""
        broker = self._trace.cluster.brokers.get(broker_id)
        service = None if broker is None else broker._service
        found = service and service.replicas.partitions.get(partition.key)
        is_so = found and found.topic_id == partition.topic_id and not found.log.is_truncating
        return found if is_so else None

    def proposing(self, partition: Partition, isr: Iterable[int]) -> None:
        """S3 of those whom a leader is about to propose for the ISR."""
        found, key = self.of(partition.key), partition.key
        if found.state is None or not (found.is_settled and self._is_led_by(found, partition)):
            return
        for broker_id in {*isr} - {*found.state.isr} - found.damaged.keys() - found.suspect.keys():
            other = self._replica(broker_id, partition)
            if other is not None and found.holds(broker_id):
                fault = self._fault(found, self._read(broker_id, other))
                require(not fault, f"S3: m{broker_id} is proposed for {key}, {fault}", key)

    def _is_led_by(self, found: Committed, partition: Partition) -> bool:
        state, here = found.state, (partition._context.broker_id, partition.leader_epoch)
        return bool(state) and partition.is_leader and state[:2] == here

    def _commit(self, found: Committed, copy: Copy) -> None:
        for each in copy.between(found.end, copy.partition.high_watermark):
            if copy.is_across(found.end, each):
                return  # it has taken the place of what was committed: see `_fault`
            if found.table is not None and copy.kept is not None:
                fault = found.table.commit(copy.kept[each.base], self._trace.now_s)
                sentence = f"S25: {copy.partition.key} {fault}"
                require(not (fault and found.is_settled), sentence, copy.partition.key)
            found.batches[each.base] = each
            found.times_s[each.base] = self._trace.now_s
            found.end = each.end

    def truncating(self, partition: Partition, offset: int) -> None:
        """A follower is about to cut its log off.

        If an epoch's records were all cleaned away before they were fetched, a leader does not know
        of it, and has those of a follower's that still has them cut off: none of them is a last.
        """
        key, mark, broker_id = partition.key, partition.high_watermark, partition._context.broker_id
        self._trace.note(f"{key} on m{broker_id} is cut off at {offset}, high watermark {mark}")
        found = self.of(key)
        is_sound = offset >= mark or not found.holds(broker_id) or not self._is_of_topic(partition)
        is_sound = is_sound or (found.table is not None and not found.table.needs(offset, mark))
        require(is_sound, f"S7: m{broker_id} truncates {key} to {offset}, below {mark}", key)

    def look(self, broker_id: int, partition: Partition) -> None:
        """Compare one replica's log, as it is now, with the others' and with what is committed."""
        copy = self._read(broker_id, partition)
        key, log, mark = partition.key, partition.log, partition.high_watermark
        found = self.of(key)
        if log.is_truncating or found.state is None:
            return
        if partition.is_leader:
            told, epoch = log.epochs.latest, partition.leader_epoch
            sentence = f"S2: m{broker_id} leads {key} in epoch {epoch}, and its log tells of {told}"
            require(told == epoch, sentence, key)
        is_led = self._is_led_by(found, partition)
        found.last_start = max(found.last_start, log.start_offset)
        if partition.is_leader and not is_led:
            found.handed_over_s = self._trace.now_s
            if partition.leader_epoch < found.unclean_epoch:
                found.prolong_loss(self._trace.now_s + EVERY_S)
        if is_led and mark > found.end:
            self._commit(found, copy)
        fault = self._fault(found, copy)
        if is_led and fault:
            times_s = (at for base, at in found.times_s.items() if base >= copy.agreed_end)
            when_s = max(times_s, default=0.0)
            is_lost = found.may_be_lost(when_s, copy.agreed_end)
            require(is_lost, f"S1: m{broker_id} leads {key}, {fault}", key)
            self._lose(found, copy)
            self._commit(found, copy)
            fault = ""
        if not fault and found.damaged.pop(broker_id, None) is not None:
            self._see_losses(found)
        self._see_agreement(found, copy, broker_id, is_led=is_led)
        is_known = mark <= found.end or not found.holds(broker_id)
        sentence = f"S6: m{broker_id} takes {key} for committed to {mark}, and it is to {found.end}"
        require(is_known, sentence, key)
        if broker_id in found.state.isr and found.damaged.get(broker_id, found.end) >= found.end:
            require(not fault, f"S3: m{broker_id} is in the ISR of {key}, {fault}", key)
        if not fault and found.table is not None and found.holds(broker_id):
            self._judge(broker_id, copy, found.table)

    def _see_agreement(self, found: Committed, copy: Copy, broker_id: int, *, is_led: bool) -> None:
        """Whether a log is what is committed after a loss: from then on it is held to that."""
        partition, last = copy.partition, copy.batches[-1] if copy.batches else None
        if is_led and not found.is_settled and not found.is_open:
            found.settle(partition, self._trace.now_s)
            self._trace.note(f"{partition.key} is committed to {found.end}, after a loss")
            self._trace.count("a loss is over")
        baseline, log = found.baseline, partition.log
        epoch, end = (last.epoch, last.end) if last else (log.epochs.latest, log.end_offset)
        is_stale = epoch < baseline.leader_epoch and end > baseline.log_end
        is_beyond = copy.is_apart or partition.high_watermark > found.end
        is_deposed = partition.is_leader and not is_led  # it may yet commit what is cut off then
        if found.is_settled and not (is_stale or is_beyond or is_deposed):
            found.agreed[broker_id] = baseline.number

    def _judge(self, broker_id: int, copy: Copy, table: Table) -> None:
        """S24: what a compacted log must still have."""
        log = copy.partition.log
        now = copy.changes, table.end, log.start_offset
        if copy.judged == now or copy.kept is None:
            return
        copy.judged, before = now, len(table.expired)
        fault = table.fault(copy.kept.values(), log.start_offset, self._trace.now_s)
        require(not fault, f"S24: {copy.partition.key} on m{broker_id} {fault}", copy.partition.key)
        self._trace.count("tombstone removed", len(table.expired) - before)

    def _fault(self, found: Committed, copy: Copy) -> str:
        """What is wrong with a copy that must have all that is committed; "" if nothing is.

        What lies before its log's start is deleted, and only takes place on the disk still.
        """
        key, broker_id = copy.partition.key, copy.partition._context.broker_id
        copy.agreed_end = max(copy.agreed_end, copy.partition.log.start_offset)
        copy.is_apart = False
        for each in copy.between(copy.agreed_end, found.end):
            committed = found.batches.get(each.base)
            if committed != each:
                copy.is_apart = each.end <= copy.partition.high_watermark
                if copy.is_apart and found.holds(broker_id):
                    raise Violation(f"S2: {key} has {each}, and {committed} is committed", key)
                return f"has {each} where {committed} is committed"
            copy.agreed_end = each.end
        after = copy.batches[bisect_left(copy.batches, found.end + 1, key=_end) :][:1]
        if after and copy.is_across(found.end, after[0]):
            return f"has {after[0]}, and all below {found.end} is committed"
        end = copy.partition.log.end_offset
        return f"ends at {end}, and {found.end} is committed" if end < found.end else ""

    def _lose(self, found: Committed, copy: Copy) -> None:
        """What was committed is gone, as may happen: the rest is what the leader has of it."""
        end = copy.agreed_end
        for base in [base for base, each in found.batches.items() if each.end > end]:
            del found.batches[base], found.times_s[base]
        self._trace.note(f"{copy.partition.key} has lost {end} to {found.end}")
        self._trace.count("committed records lost")
        found.end = min(found.end, end)
        for other in self._copies.values():
            if other.partition.key == copy.partition.key:
                other.agreed_end = min(other.agreed_end, end)
                other.judged = ()
        if found.table is not None:
            found.table.cut(found.end)

    def _read(self, broker_id: int, partition: Partition) -> Copy:
        copy = self._copies.get(partition)
        if copy is None:
            is_compacted = self.of(partition.key).table is not None
            copy = self._copies[partition] = Copy(partition, is_compacted=is_compacted)
        names, key = self._disks[broker_id]._names, partition.key
        log, places = partition.log, self.of(key).places

        def content(segment: Segment) -> bytearray:
            file: Any = segment._file  # while a cleaner renames it, it is open
            found = names.content(segment.path) if file is None else file._content
            return found.data

        new = copy.read(content)
        epoch = copy.batches[-len(new) - 1].epoch if len(copy.batches) > len(new) else -1
        for each in new:
            require(each.epoch >= epoch, f"S5: {key} has {each} after epoch {epoch}", key)
            epoch, other = each.epoch, places.setdefault((each.base, each.epoch), each)
            require(other == each, f"S2: {key} has {each} and {other}", key)
        if log.has_files and not log.is_truncating:
            self._check_epochs(broker_id, copy, new)
        return copy

    def _check_epochs(self, broker_id: int, copy: Copy, new: list[Batch]) -> None:
        """S2: a replica tells of the epochs that its batches' headers have, of all of them.

        Compared are those that are new, and all once it tells of others. An epoch without records
        is at the log's end; its leader alone has it, who has yet to append.
        """
        log, key = copy.partition.log, copy.partition.key
        told = tuple(log.epochs._epochs), tuple(log.epochs._starts)
        compared = new if told == copy.epochs else copy.batches
        copy.epochs = told
        for each in compared:
            first, last = max(each.base, log.start_offset), each.end - 1
            found = [log.epochs.epoch_of(offset) for offset in (first, last) if first <= last]
            sentence = (
                f"S2: {key} on m{broker_id} has {each}, and tells of epochs {found} of {told}"
            )
            require({*found} <= {each.epoch}, sentence, key)
        newest, end = log.epochs.start_of_latest, log.end_offset
        sentence = f"S2: {key} on m{broker_id} ends at {end}, and tells of epochs {told}"
        require(newest <= log.reserved_offset, sentence, key)
        if newest == end > log.start_offset and not log.is_appending:
            leader = self.of(key).leaders.get(log.epochs.latest, broker_id)
            require(leader == broker_id, f"{sentence}, the last of which was m{leader}'s", key)


_ANY = 1 << 62
