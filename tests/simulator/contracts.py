"""What the parts of a broker promise each other, looked at where it is kept (C1 to C17).

A broken one does harm much later, only after a crash in the same millisecond, or only if another
part happens to look just then. So the parts are watched: each sentence here is in the docstring of
a part that others rely on, and none is about how it is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from kdist.broker.broker import Broker
from kdist.broker.fetch_sessions import FetchSessions
from kdist.broker.handlers.control import ControlHandler
from kdist.broker.metadata_cache import MetadataCache
from kdist.broker.offsets_log import OffsetsLoader
from kdist.errors import ApiError, DiskFull, Error
from kdist.groups import membership, rebalance
from kdist.groups.coordinator import GroupCoordinator
from kdist.groups.deletion import Deletion
from kdist.groups.group import Group, Home, Member
from kdist.groups.rebalance import Rebalancer
from kdist.groups.records import Loading
from kdist.groups.registry import Registry
from kdist.model import OFFSETS_TOPIC, LeaderAndIsr, TopicPartition
from kdist.protocol.update_metadata import UpdatedTopic
from kdist.records.batch import BatchHeader
from kdist.replication.alter_partition_manager import AlterPartitionManager
from kdist.replication.partition import Partition
from kdist.replication.replicas import Replicas
from kdist.storage import loading as opening
from kdist.storage import reading
from kdist.storage.append import Append
from kdist.storage.background import OffsetSaver
from kdist.storage.checkpoints import decode_offsets
from kdist.storage.flushing import Flusher
from kdist.storage.log import Log
from kdist.storage.names import RECOVERY_POINTS
from kdist.storage.producers import BATCHES_KEPT, ProducerState, ProducerStates
from kdist.storage.segment import Segment
from kdist.storage.trimming import Truncation
from kdist.testing.simulated_content import Content
from kdist.testing.simulated_disk import SimulatedDisk
from tests.simulator.bug import Bug, patched
from tests.simulator.machines import LOG_DIR
from tests.simulator.record import Violation, require

if TYPE_CHECKING:
    from tests.simulator.history import History

Call = Callable[..., Any]


class Contracts:
    """Owner: the history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._loop = history.cluster.loop
        self._sessions = dict[Any, FetchSessions]()  # by the clock of their process
        self._saves = Counter[OffsetSaver]()  # that have begun
        self._before = WeakKeyDictionary[Append, Mapping[int, ProducerState]]()
        self._read: dict[Loading, tuple[Partition, int]] = {}
        self._given = WeakKeyDictionary[Group, tuple[int, Mapping[str, bytes]]]()
        self._stored = WeakKeyDictionary[Group, int]()
        self._deleted = WeakKeyDictionary[Home, dict[TopicPartition, None]]()
        self._found = WeakSet[Group]()
        self._lines = WeakKeyDictionary[ControlHandler, tuple[int, int]]()
        self._failing: Flusher | None = None  # that tells who waits for it, one after the other

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within the block each part is."""
        watched: dict[tuple[Any, str], Callable[[Call], Call]] = {
            (OffsetSaver, "request"): self._request,
            (OffsetSaver, "_start"): self._start,
            (Truncation, "run"): self._run,
            (Log, "retire"): self._retire,
            (Log, "defer"): self._defer,
            (Log, "abandon"): self._abandon,
            (ProducerStates, "append"): self._append,
            (opening, "_complete_epochs"): self._complete_epochs,
            (reading, "_cut"): self._cut,
            (Partition, "bounds_moved"): self._bounds_moved,
            (Partition, "lead_or_follow"): self._lead_or_follow,
            (Partition, "request_flush"): self._request_flush,
            (Flusher, "_fail"): self._fail,
            (AlterPartitionManager, "_take_in"): self._take_in,
            (ControlHandler, "_fence"): self._fence,
            (Replicas, "_host"): self._carry_out,
            (Replicas, "_stop"): self._carry_out,
            (FetchSessions, "__init__"): self._note_sessions,
            (MetadataCache, "_update_topic"): self._update_topic,
            (OffsetsLoader, "_read"): self._read_offsets,
            (GroupCoordinator, "finish_loading"): self._finish_loading,
            (Rebalancer, "assign"): self._assign,
            (membership, "synced"): self._synced,
            (rebalance, "synced"): self._synced,
            (Rebalancer, "store"): self._store,
            (Deletion, "forget_partitions"): self._forget_partitions,
            (Registry, "find"): self._find,
        }
        with patched(*(Bug(*where, make) for where, make in watched.items())):
            yield

    def _require(self, is_so: bool, sentence: str, partition: TopicPartition | None = None) -> None:
        """In a broker's code a violation might be taken for a bug of one request."""
        if not is_so:
            self._loop.end_run(Violation(sentence, partition))

    # Storage

    def _request(self, request: Call) -> Call:
        """C1: each request is served by a save that began after it."""

        def request_seen(saver: OffsetSaver, done: Call | None = None) -> None:
            request(saver, done and partial(self._saved, saver, self._saves[saver], done))

        return request_seen

    def _start(self, start: Call) -> Call:
        def start_seen(saver: OffsetSaver) -> None:
            self._saves[saver] += 1
            start(saver)

        return start_seen

    def _saved(
        self, saver: OffsetSaver, begun: int, done: Call, error: BaseException | None
    ) -> None:
        is_later = error is not None or self._saves[saver] > begun
        self._require(is_later, "C1: a save serves who asked for it after it had begun")
        done(error)

    def _run(self, run: Call) -> Call:
        """C2: before a log is cut off, the disk has a recovery point that is no higher. C17: where
        there is no room to cut it off, its segments are as they were."""

        def run_seen(truncation: Truncation) -> None:
            log = truncation._log
            saved = saved_offset(log.context.files, RECOVERY_POINTS, log.partition)
            sentence = f"C2: {log.partition} is cut off at {log.recovery_point}, saved is {saved}"
            self._require(saved <= log.recovery_point, sentence, log.partition)
            before = _present_segments(log)
            try:
                run(truncation)
            except DiskFull:
                left = _present_segments(log)
                sentence = f"C17: of {before} a truncation without room has left {left}"
                self._require(left == before, sentence, log.partition)
                raise

        return run_seen

    def _retire(self, retire: Call) -> Call:
        """C3: while a log's end is cut off, nothing is taken from its beginning."""

        def retire_seen(log: Log, segments: Sequence[Segment]) -> None:
            sentence = f"C3: {log.partition} loses segments while it is cut off"
            self._require(not (log.is_truncating and segments), sentence, log.partition)
            retire(log, segments)

        return retire_seen

    def _cut(self, cut: Call) -> Call:
        """C4: what is read lies within its segment, and is not being cut off; and there is some."""

        def cut_seen(log: Log, place: Any, bytes_max: int, end_offset: int, *, whole: bool) -> Any:
            part = cut(log, place, bytes_max, end_offset, whole=whole)
            segment, what = place[0], f"C4: a read of {log.partition} to {end_offset}"
            is_there = segment.base_offset < log.truncating_from
            self._require(is_there, f"{what} finds what is being cut off", log.partition)
            if segment is not log.active:
                is_whole = log.segments[log.segments.index(segment) + 1].base_offset <= end_offset
                is_some = part is not None or not (is_whole and whole)
                self._require(is_some, f"{what} finds nothing in {segment.path}", log.partition)
            is_within = part is None or part.position + part.size <= segment.size
            self._require(is_within, f"{what} finds more than {segment.path}", log.partition)
            return part

        return cut_seen

    def _defer(self, defer: Call) -> Call:
        def defer_seen(log: Log, append: Append) -> Append:
            if append.buffers and append.totals.has_producers:
                self._before[append] = log.producers.producers
            deferred: Append = defer(log, append)
            return deferred

        return defer_seen

    def _abandon(self, abandon: Call) -> Call:
        """C5: of appends that are given up producers keep no sequence."""

        def abandon_seen(log: Log, append: Append) -> None:
            under_way = list(log._under_way)
            gone = under_way[under_way.index(append) :] if append in under_way else []
            before = next((self._before[each] for each in gone if each in self._before), None)
            abandon(log, append)
            is_same = before is None or log.producers.producers == before
            sentence = f"C5: {log.partition} gives up appends, and keeps their sequences"
            self._require(is_same, sentence, log.partition)

        return abandon_seen

    def _append(self, append: Call) -> Call:
        """C16: a batch from before those that are remembered of its producer is refused."""

        def append_seen(
            states: ProducerStates, header: BatchHeader, offset: int, *given: Any
        ) -> None:
            before = states.producer(header.producer_id)
            append(states, header, offset, *given)
            is_full = before is not None and len(before.batches) == BATCHES_KEPT
            if before is not None and is_full and before.epoch == header.producer_epoch:
                self._require_refused(states, header, before)

        return append_seen

    def _require_refused(
        self, states: ProducerStates, header: BatchHeader, before: ProducerState
    ) -> None:
        """Nobody sends the batch that was forgotten right now; what would become of it can be
        asked all the same."""
        oldest = before.batches[0]
        forgotten = header._replace(
            base_sequence=oldest.first_sequence, last_offset_delta=oldest.offset_delta
        )
        try:
            found: object = states.check(forgotten)
        except ApiError as error:
            found = error.error
        if found is not Error.OUT_OF_ORDER_SEQUENCE_NUMBER:
            sentence = f"C16: {oldest} of {header.producer_id} would be answered with {found}"
            self._require(False, sentence)

    def _complete_epochs(self, complete: Call) -> Call:
        """C15: a log is opened without the leader epochs that begin at its end, or behind."""

        def complete_seen(log: Log, **how: bool) -> Iterator[Any]:
            found, end = log.epochs.entries, log.end_offset
            yield from complete(log, **how)
            gone = {each.epoch for each in found if each.start_offset >= end}
            sentence = f"C15: {log} is opened with epochs {log.epochs.entries}, of {found}"
            is_there = log.epochs.start_of_latest >= end and log.epochs.latest in gone
            self._require(not is_there, sentence, log.partition)

        return complete_seen

    # Replication

    def _bounds_moved(self, bounds_moved: Call) -> Call:
        """C6: the high watermark lies within the log, whatever becomes of that."""

        def bounds_moved_seen(partition: Partition) -> None:
            bounds_moved(partition)
            log, mark = partition.log, partition.high_watermark
            is_within = log.start_offset <= mark <= log.end_offset
            self._require(is_within, f"C6: {log} has high watermark {mark}", partition.key)

        return bounds_moved_seen

    def _update_topic(self, update: Call) -> Call:
        """C11: what a broker tells of a partition is never older than what it told before."""

        def update_seen(cache: MetadataCache, told: UpdatedTopic) -> Any:
            known = cache.topics.get(told.topic_name)
            for state in told.partition_states:
                before = known and known.partitions.get(state.partition_index)
                if before and known and known.id == told.topic_id and state.leader_epoch >= 0:
                    ages = [(e.leader_epoch, e.zk_version) for e in (before, state)]
                    key = TopicPartition(told.topic_name, state.partition_index)
                    sentence = f"C11: metadata of {key} goes back from {before} to {state}"
                    self._require(ages[0] <= ages[1], sentence, key)
            return update(cache, told)

        return update_seen

    def _fence(self, fence: Call) -> Call:
        """C12: what the controller asks of an earlier registration, or on a connection that it has
        replaced, is refused."""

        async def fence_seen(handler: ControlHandler, request: Any, call: Any) -> Any:
            error = await fence(handler, request, call)
            if error is Error.NONE:
                self._require_present(handler._replicas, request)
                newest = self._lines.get(handler, (0, 0))
                line = self._lines[handler] = request.controller_epoch, call.connection.number
                sentence = f"C12: {line} is heard after {newest}: controller epoch and connection"
                self._require(line >= newest, sentence)
            return error

        return fence_seen

    def _carry_out(self, carry_out: Call) -> Call:
        """C12: also if it has waited meanwhile."""

        def carry_out_seen(replicas: Replicas, asked: Any, respond: Call) -> None:
            self._require_present(replicas, replicas._requests[0].request)
            carry_out(replicas, asked, respond)

        return carry_out_seen

    def _require_present(self, replicas: Replicas, request: Any) -> None:
        told, present = request.broker_epoch, replicas.broker_epoch
        sentence = f"C12: m{replicas.broker_id} is told as {told}, and has registered as {present}"
        self._require(told >= present, sentence)

    def _lead_or_follow(self, apply: Call) -> Call:
        """C13: a state that is no newer says nothing of a proposal that is under way."""

        def apply_seen(partition: Partition, state: LeaderAndIsr, *given: Any) -> None:
            role, known, proposal = partition.role, partition.state, partition._proposal
            is_shared = partition.in_sync is not None
            apply(partition, state, *given)
            is_newer = partition.role != role or state.zk_version > known.zk_version
            if proposal is not None and is_shared and partition.in_sync is not None:
                sentence = f"C13: a proposal of {partition.key} is ended by {state} after {known}"
                self._require(is_newer or partition._proposal is proposal, sentence, partition.key)

        return apply_seen

    def _take_in(self, take_in: Call) -> Call:
        """C13: nor does an answer of proposals that it does not judge."""

        def take_in_seen(manager: AlterPartitionManager, response: Any, sent: Any) -> Any:
            waiting = [e for e in manager._waiting.items() if sent.get(e[0]) is not e[1]]
            is_all = take_in(manager, response, sent)
            for key, each in waiting:
                sentence = f"C13: {each.proposal} is forgotten, as another is answered"
                self._require(manager._waiting.get(key) is each, sentence, key)
            return is_all

        return take_in_seen

    def _request_flush(self, request: Call) -> Call:
        """C14: whoever asks for a flush before records are exposed has one to come."""

        def request_seen(partition: Partition) -> None:
            request(partition)
            log, flusher = partition.log, partition._context.flusher
            if log.is_flushed_first and log not in flusher._wanted:  # first, as it is often asked
                sentence = f"C14: {partition.key} waits for a flush, and none is to come"
                self._require(flusher is self._failing, sentence, partition.key)

        return request_seen

    def _fail(self, fail: Call) -> Call:
        def fail_seen(flusher: Flusher, *given: Any) -> None:
            self._failing = flusher
            try:
                fail(flusher, *given)
            finally:
                self._failing = None

        return fail_seen

    def _note_sessions(self, init: Call) -> Call:
        def init_seen(sessions: FetchSessions, *given: Any) -> None:
            init(sessions, *given)
            self._sessions[sessions._clock] = sessions

        return init_seen

    def check(self, broker: Broker) -> None:
        """C7: what a fetch session does not look at by itself, it hears of. C8: only who leads a
        partition of `__consumer_offsets` loads or coordinates its groups."""
        service = broker.service
        for session in self._sessions[broker.context.process.clock]._sessions.values():
            for cached in session.partitions.values():
                is_heard_of = cached.is_dirty or cached.source is not None
                sentence = f"C7: a session of m{broker.id} would never look at {cached.key} again"
                require(is_heard_of, sentence, cached.key)
        for number in service.coordinator._registry.partitions():
            key = TopicPartition(OFFSETS_TOPIC, number)
            found = service.replicas.partitions.get(key)
            is_led = found is not None and found.is_leader
            require(is_led, f"C8: m{broker.id} coordinates groups of {key}, and leads it not", key)

    # Groups

    def _read_offsets(self, read: Call) -> Call:
        def read_seen(
            loader: OffsetsLoader, partition: Partition, loading: Loading, offset: int, **how: Any
        ) -> None:
            self._read[loading] = partition, offset
            read(loader, partition, loading, offset, **how)

        return read_seen

    def _finish_loading(self, finish: Call) -> Call:
        """C8: and who coordinates its groups has read all of it."""

        def finish_seen(coordinator: GroupCoordinator, loading: Loading) -> None:
            partition, offset = self._read.pop(loading)
            end = partition.log.end_offset
            is_all = max(offset, partition.log.start_offset) >= end
            sentence = f"C8: {partition.key} is loaded to {offset}, and ends at {end}"
            is_wanted = coordinator.is_wanted(loading)
            self._require(is_all or not is_wanted, sentence, partition.key)
            finish(coordinator, loading)

        return finish_seen

    def _forget_partitions(self, forget: Call) -> Call:
        def forget_seen(deletion: Deletion, partitions: Collection[TopicPartition]) -> None:
            for loading in deletion._registry.loadings():
                self._deleted.setdefault(loading.home, {}).update(dict.fromkeys(partitions))
            forget(deletion, partitions)

        return forget_seen

    def _find(self, find: Call) -> Call:
        """C10: a group has no offsets of topics that were deleted while it was loaded."""

        def find_seen(registry: Registry, group_id: str) -> Any:
            error, group = find(registry, group_id)
            if group is not None and group not in self._found:
                self._found.add(group)  # from now on it may have those of a topic of the name
                left = self._deleted.get(group.home, {}).keys() & {*group.offsets.all()}
                self._require(not left, f"C10: {group_id} has offsets of {left}, which is deleted")
            return error, group

        return find_seen

    def _assign(self, assign: Call) -> Call:
        def assign_seen(rebalancer: Rebalancer, group: Group, given: Mapping[str, bytes]) -> None:
            self._given[group] = group.generation, given
            self._history.aiming.assigning(rebalancer._context.partition_for(group.group_id))
            assign(rebalancer, group, given)

        return assign_seen

    def _store(self, store: Call) -> Call:
        def store_seen(rebalancer: Any, group: Group, assignments: Any, done: Call) -> None:
            generation = group.generation

            def stored(error: Error) -> None:
                if error is Error.NONE:
                    self._stored[group] = generation
                if group.generation == generation:
                    done(error)
                else:
                    self._be_late(group, generation, partial(done, error))

            store(rebalancer, group, assignments, stored)

        return store_seen

    def _be_late(self, group: Group, generation: int, done: Call) -> None:
        """C9: that of an earlier generation changes nothing any more."""
        before, is_same = _standing(group), False
        try:
            done()
            is_same = _standing(group) == before
        finally:
            sentence = f"C9: generation {group.generation} is changed by what {generation} stored"
            self._require(is_same, sentence)

    def _synced(self, synced: Call) -> Call:
        """C9: a member is given what its leader assigned in this generation, once that is in the
        log."""

        def synced_seen(group: Group, member: Member) -> Any:
            if group in self._given:  # else it was loaded
                generation, given = self._given[group]
                is_its_own = member.assignment == given.get(member.member_id, b"")
                is_stored = self._stored.get(group) == generation == group.generation
                sentence = f"C9: generation {group.generation} is given generation {generation}'s"
                self._require(is_its_own and is_stored, f"{sentence} assignment")
            return synced(group, member)

        return synced_seen


def _standing(group: Group) -> object:
    members = group.members.values()
    return group.state, {each.member_id: each.assignment for each in members}, {*group.syncing}


def saved_offset(disk: Any, name: str, partition: TopicPartition) -> int:
    """What a checkpoint has of a partition; 0 if nothing."""
    path = f"{LOG_DIR}/{name}"
    content = _content(disk, path)
    return 0 if content is None else decode_offsets(bytes(content.data), path).get(partition, 0)


def _present_segments(log: Log) -> list[str]:
    """The paths of those of its segments that are on the disk."""
    files = log.context.files
    return [each.path for each in log.segments if _content(files, each.path) is not None]


def _content(disk: Any, path: str) -> Content | None:
    """A file, looked at beside the disk's calls; None if there is none."""
    assert isinstance(disk, SimulatedDisk)
    try:
        return disk._names.content(path)
    except FileNotFoundError:
        return None
