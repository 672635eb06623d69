"""A partition's replica on this broker: appends, and what is visible to clients.

    log start offset      last stable offset    high watermark      log end offset
           | committed, decided  | committed, open       | not committed      |

A record is committed when every in-sync replica has it, and with `flush.before.expose` has flushed
it. The high watermark stands still while fewer replicas than `min.insync.replicas` are in sync: so
what a consumer has seen survives the loss of all but one of that many disks. So it does while
others than the ISR are eligible, lest they lack what is committed: leader and controller may know
different minima while that changes. A leader learns from their fetches how far the others are.

    role        appends                       high watermark
    Leading     `append`: what producers send the lowest end in the maximal ISR, never going back
    Following   `append_fetched`              the leader's, within the log, which may go back

Producer states, bytes and files are the log's.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from kdist.config.topic import TopicSettings
from kdist.errors import ApiError, Error, PoisonousRequest
from kdist.model import NO_EPOCH, LeaderAndIsr, TopicPartition
from kdist.records.batch import Batch
from kdist.records.validate import Rules, validating
from kdist.replication.acceptance import rules_of
from kdist.replication.alter_partition_manager import CommittedIsr, IsrChange, Proposal
from kdist.replication.delayed import (
    DelayedDelete,
    DelayedOperation,
    DelayedProduce,
    Dependent,
    Growth,
    OnCommitted,
    OnDeleted,
)
from kdist.replication.in_sync import FollowerFetch, InSyncReplicas
from kdist.replication.leadership import Following, Leading, Role
from kdist.replication.peers import PartitionContext
from kdist.replication.writer import LogWriter
from kdist.runtime.steps import Steps
from kdist.storage.append import Append
from kdist.storage.epochs import EpochEnd
from kdist.storage.log import Log
from kdist.wire.primitives import Buffer

logger = logging.getLogger(__name__)

READ_COMMITTED = 1  # of Fetch's and ListOffsets' isolation levels
ACKS_ALL = -1
NOBODY = LeaderAndIsr(leader=-1, leader_epoch=-1, isr=(), controller_epoch=-1, zk_version=-1)

_NS_PER_MS = 1_000_000
_PROPOSE_AGAIN_MS = 500  # after a follower was refused: it is about to stop, say
_OVERTAKEN = (Error.FENCED_LEADER_EPOCH, Error.INVALID_UPDATE_VERSION)  # by a newer state


class Partition:
    """Owner: `Replicas`. Whoever keeps a reference must check `is_leader` before each use."""

    __slots__ = (
        "_append",
        "_context",
        "_is_flushing",
        "_proposal",
        "_propose_from_ms",
        "_writer",
        "adding",
        "dependents",
        "fast_path_rules",
        "growth",
        "high_watermark",
        "in_sync",
        "key",
        "leader_high_watermark",
        "log",
        "refused",
        "replicas",
        "role",
        "rules",
        "state",
        "topic_id",
        "watchers",
    )

    def __init__(
        self, context: PartitionContext, log: Log, topic_id: uuid.UUID, high_watermark: int = 0
    ) -> None:
        """`high_watermark`: as it was last saved, if it was."""
        self._context = context
        self._writer = LogWriter(log, context.writers, self._grown)
        self._append = self._writer.append
        self._is_flushing = False
        self._proposal: asyncio.Future[CommittedIsr] | None = None
        self._propose_from_ms = 0
        self.key: TopicPartition = log.partition
        self.log = log
        self.topic_id = topic_id
        self.refused = context.writers.refused
        self.state = NOBODY
        self.replicas: tuple[int, ...] = ()
        self.adding: tuple[int, ...] = ()  # those of them that a move adds
        self.role: Role = Following(NO_EPOCH, NOBODY.leader)
        # The first offset that is not committed, as far as this replica knows. Invariant: within
        # the log, and while this broker leads in one epoch it never goes back.
        self.high_watermark = min(max(high_watermark, log.start_offset), log.end_offset)
        self.leader_high_watermark = self.high_watermark  # as a follower was last told it
        self.watchers: dict[DelayedOperation, None] = {}
        self.dependents: dict[Dependent, None] = {}
        self.growth = Growth()
        # While this broker leads, and others have replicas; None if nobody else has.
        self.in_sync: InSyncReplicas | None = None
        # A batch that meets these rules needs no `check`; None while every batch does.
        self.fast_path_rules: Rules | None = None
        self.configure(log.settings)

    def configure(self, settings: TopicSettings) -> None:
        """Apply new values of the topic's settings."""
        if settings is not self.log.settings:
            self.log.configure(settings)
        self.rules = rules_of(settings)
        self._choose_fast_path_rules()
        self.advance_high_watermark()

    # Who leads

    def lead_or_follow(
        self, state: LeaderAndIsr, replicas: tuple[int, ...], adding: tuple[int, ...] = ()
    ) -> None:
        """Apply the controller's newer state."""
        before, known = self.role, self.state
        self.state, self.replicas, self.adding = state, replicas, adding
        epoch, leader = state.leader_epoch, state.leader
        if leader != self._context.broker_id:
            self.role = Following(epoch, leader)
            self.log.epochs.resign()
            self._forget_isr()
        else:
            since = before.since if isinstance(before, Leading) else epoch
            self.role = Leading(epoch, since)
            if self.role != before:
                self._forget_isr()
                self.log.begin_epoch(epoch)
            self._take_isr(is_newer=self.role != before or state.zk_version > known.zk_version)
        self._choose_fast_path_rules()
        self.advance_high_watermark()
        self.changed()
        self.review_isr()

    def _take_isr(self, *, is_newer: bool) -> None:
        """Reckon with the others' replicas as the controller's state has them.

        A state that is no newer says nothing of a proposal that is under way.
        """
        if len(self.replicas) <= 1:
            self._forget_isr()
            return
        if self.in_sync is None:
            peers, log = self._context.peers, self.log
            self.in_sync = InSyncReplicas(
                self._context.broker_id,
                lambda: log.epochs.start_of_latest,
                peers.settings.lag_time_max_ms,
                peers.is_alive,
            )
        elif not is_newer:
            return
        self._end_proposal()
        self.in_sync.take(self.state, self.replicas, self._now_ms())

    def _forget_isr(self) -> None:
        self._end_proposal()
        self.in_sync = None

    def _end_proposal(self) -> None:
        """Wait no longer for the answer to a proposal; whether it was written is known now."""
        if self._proposal is not None:
            self._proposal.cancel()
            self._proposal = None

    def resign(self) -> None:
        """Stop leading: appends and reads are refused from here on, and waiting ones end."""
        self.role = Following(self.role.epoch, NOBODY.leader)
        self.log.epochs.resign()
        self._forget_isr()
        self.state = self.state._replace(leader=NOBODY.leader)  # else clients would be sent back
        self._choose_fast_path_rules()
        self.changed()

    def bounds_moved(self) -> None:
        """Records were deleted from the log's start, or its end was cut off.

        Below the high watermark that happens after an unclean election alone. Even of a leader: it
        may have been elected while the leader before it had it cut off.
        """
        log = self.log
        self.high_watermark = min(max(self.high_watermark, log.start_offset), log.end_offset)
        self.advance_high_watermark()
        self.changed()

    def changed(self) -> None:
        """Have everything attempted that waits for the partition, when this tick ends."""
        self._context.delayed.changed(self)
        self._context.delayed.changed(self.growth)

    def _now_ms(self) -> int:
        return self._context.writers.clock.monotonic_ns() // _NS_PER_MS

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return isinstance(self.role, Leading)

    @property
    def leader_epoch(self) -> int:
        """The epoch in which this broker leads or follows."""
        return self.role.epoch

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call `callback` once no append is in progress, perhaps at once."""
        self._writer.when_idle(callback)

    def require_leader(self, current_leader_epoch: int = NO_EPOCH) -> None:
        """Raise NOT_LEADER_OR_FOLLOWER if this broker does not lead the partition.

        If the client sent an epoch: FENCED_LEADER_EPOCH if it is older than the partition's,
        UNKNOWN_LEADER_EPOCH if it is newer (KIP-320).
        """
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise ApiError(Error.FENCED_LEADER_EPOCH)
            raise ApiError(Error.UNKNOWN_LEADER_EPOCH)
        if not self.is_leader:
            raise ApiError(Error.NOT_LEADER_OR_FOLLOWER)

    # Appending

    def check(self, records: Buffer, version: int, acks: int, now_ms: int) -> Steps[list[Batch]]:
        """The batches in the records of a Produce of `version`, for `append`.

        None for an empty message set. Raises `ApiError` if this broker may not take them.
        """
        self.require_leader()
        if acks == ACKS_ALL and self.is_under_min_isr:
            raise ApiError(Error.NOT_ENOUGH_REPLICAS)
        try:
            batches = yield from validating(records, self.rules, version, now_ms)
        except ApiError:
            raise
        except Exception as error:
            raise PoisonousRequest(f"records for {self.key} cannot be validated") from error
        size = sum(len(data) for _, data in batches)  # as stored, after conversion
        if size > self.log.settings.segment_bytes:
            raise ApiError(Error.RECORD_LIST_TOO_LARGE, f"{size} bytes do not fit a segment")
        return batches

    def append(self, batches: Sequence[Batch], now_ms: int) -> Append:
        """Append checked batches as the leader, all or none.

        What is returned is published or, if the disk is slow, will be, in this log;
        `await_committed` waits until all in-sync replicas have it. `ApiError` if it is refused.
        """
        self.require_leader()
        if self.refused.noted:
            self.refused.acceptable(self.key, batches[:1], self.log.producers)
        append = self._append(self.log.prepare_as_leader, batches, self.role.epoch, now_ms)
        self._grown(append)
        return append

    def append_coalesced(self, batches: Sequence[Batch], now_ms: int) -> Append:
        """As `append`, for batches of separate requests: the first, and those that share its write.

        Those are as many as `Append.offsets`. An error is that of the first alone.
        """
        if self.fast_path_rules is None:  # which it is not while this broker leads and may append
            self.require_leader()
        log = self.log
        if self.refused.noted:
            batches = self.refused.acceptable(self.key, batches, log.producers)
        prepare = log.prepare_coalesced if len(batches) > 1 else log.prepare_as_leader
        append = self._append(prepare, batches, self.role.epoch, now_ms)
        self._grown(append)
        return append

    def append_fetched(self, records: Sequence[Buffer], role: Following, now_ms: int) -> Append:
        """Append batches that were fetched from the leader, while following it in `role`.

        Raises as `Log.prepare_as_follower`.
        """
        assert role == self.role
        return self._append(self.log.prepare_as_follower, records, role.epoch, now_ms)

    @property
    def is_under_min_isr(self) -> bool:
        """Whether too few replicas are in sync for acks=all.

        Needed are `min.insync.replicas`, but no more than there are replicas, as in Kafka, without
        those that a move adds: else a partition with one could not be written with acks=all.
        """
        return len(self.state.isr) < self._min_isr

    @property
    def _min_isr(self) -> int:
        return min(self.log.settings.min_insync_replicas, self._wanted)

    @property
    def _wanted(self) -> int:  # to be in sync
        return len(self.replicas) - len(self.adding)

    @property
    def is_under_replicated(self) -> bool:
        """Whether fewer replicas are in sync than are to be."""
        return len(self.state.isr) < self._wanted

    @property
    def is_behind_its_epoch(self) -> bool:
        """Whether what was there when this broker began to lead is not all known as committed."""
        in_sync = self.in_sync
        return in_sync is not None and self.high_watermark < in_sync.epoch_start()

    @property
    def is_at_min_isr(self) -> bool:
        """Whether one more replica out of sync would be too many, though one is already."""
        return len(self.state.isr) == self._min_isr < self._wanted

    @property
    def low_watermark(self) -> int:
        """The lowest log start offset of the replicas alive; -1 if one of them is not known."""
        start_offset, in_sync = self.log.start_offset, self.in_sync
        return start_offset if in_sync is None else in_sync.lowest_start(start_offset)

    @property
    def replica_lag(self) -> int | None:
        """How many records the follower furthest behind lacks; None if none has fetched yet."""
        if self.in_sync is None:
            return 0
        return self.in_sync.lag(self.log.start_offset, self.log.end_offset)

    def _choose_fast_path_rules(self) -> None:
        """Set `fast_path_rules`, so that a fast path checks one attribute instead of all these."""
        rules = self.rules
        passes_check = (
            self.is_leader
            and rules.is_plain
            and rules.message_bytes_max <= self.log.settings.segment_bytes
            and not self.is_under_min_isr
        )
        self.fast_path_rules = rules if passes_check else None

    # The high watermark

    def _grown(self, append: Append) -> None:
        """An append was published, or will be: so the log has grown, or will have."""
        in_sync = self.in_sync
        if in_sync is None:
            self.advance_high_watermark()
        elif append.is_published and append.duplicate is None:
            in_sync.leave_behind(append.start_offset, self._now_ms())
            self._context.delayed.changed(self.growth)
            if len(in_sync.isr) == 1:
                self.advance_high_watermark()

    def advance_high_watermark(self) -> None:
        """Move the high watermark to where records are committed now, if this broker leads.

        Called when that may have changed: an append was published, or flushed, settings, the ISR or
        the role changed, a follower has fetched. Operations that wait for it are attempted when
        this tick ends. Nothing is committed while the log is being cut off, as a broker may yet do
        on the word of an earlier leader when it leads already: its end is about to move.
        """
        log, in_sync = self.log, self.in_sync
        if log.is_truncating:
            return
        committed = log.recovery_point if log.is_flushed_first else log.end_offset
        if in_sync is not None:
            if self.is_under_min_isr or self.state.eligible:
                return
            committed = in_sync.committed_end(committed, self._now_ms())
        if committed > self.high_watermark and isinstance(self.role, Leading):
            self.high_watermark = committed
            if self.watchers or self.dependents:
                self._context.delayed.changed(self)
            for dependent in self.growth.dependents:
                dependent.mark_dirty()  # told with the next answer
            if self.growth.is_read_nearby:
                self._context.delayed.hasten(self.growth)  # that one

    def await_committed(
        self, role: Role, end_offset: int, timeout_ms: int, client: object, done: OnCommitted
    ) -> None:
        """Call `done` with NONE once everything below `end_offset` is committed, or with an error.

        `role`: the partition's when it was appended, which may be a while before it is published.
        REQUEST_TIMED_OUT; NOT_LEADER_OR_FOLLOWER once the role is another; KAFKA_STORAGE_ERROR if
        the log cannot be flushed.
        """
        operation = DelayedProduce(self, role, end_offset, done)
        if not operation.attempt():
            self._context.delayed.add(operation, (self,), timeout_ms, client)

    def await_deleted(self, offset: int, timeout_ms: int, done: OnDeleted) -> None:
        """Call `done` with NONE once every live replica has deleted all below `offset`.

        REQUEST_TIMED_OUT; NOT_LEADER_OR_FOLLOWER once the role is another.
        """
        operation = DelayedDelete(self, self.role, offset, done)
        if not operation.attempt():
            self._context.delayed.add(operation, (self,), timeout_ms, None)

    def request_flush(self) -> None:
        """Have the log flushed, if that may advance the high watermark."""
        if self.log.is_flushed_first and not self._is_flushing:
            self._is_flushing = True
            self._context.flusher.request(self.log, self._flushed)

    def _flushed(self, error: BaseException | None) -> None:
        self._is_flushing = False
        if isinstance(error, ApiError):  # the flusher reports a failed disk
            for operation in tuple(self.watchers):
                if isinstance(operation, DelayedProduce):
                    self._context.delayed.end(operation)
                    operation.done(error.error)

    def flushed(self) -> None:
        """The log was flushed, for whatever reason: have waiting operations attempted."""
        self.advance_high_watermark()  # also if it need not be flushed first any more
        if self.log.is_flushed_first:
            self._context.delayed.changed(self)

    # The other replicas

    def follower_fetched(self, fetch: FollowerFetch) -> None:
        """A follower has been read to up to the end of its log, in this leader epoch."""
        in_sync = self.in_sync
        if in_sync is None or fetch.broker_id not in in_sync.remotes or self.log.is_truncating:
            return  # while it is being cut off, a follower may be beyond what will be its end
        remote = in_sync.remotes[fetch.broker_id]
        if 0 <= fetch.broker_epoch < remote.broker_epoch:
            return  # of an earlier life of that broker, which may have lost what it had (KIP-903)
        moved = remote.end_offset != fetch.end_offset
        trimmed = remote.start_offset != fetch.start_offset
        remote.note(fetch, self.log.end_offset, self._now_ms())
        if fetch.broker_id not in in_sync.isr:
            begin, committed = self.log.start_offset, self.high_watermark
            self._maybe_propose(in_sync.with_follower(fetch.broker_id, begin, committed))
        if moved:
            self.advance_high_watermark()
        if trimmed and self.watchers:
            self._context.delayed.changed(self)  # whoever waits for records to be deleted

    def take_leader_offsets(
        self,
        high_watermark: int,
        log_start_offset: int,
        trim: Callable[[Partition, int], None],
    ) -> None:
        """Take what the leader's answer tells a follower; `trim` deletes records, as it has."""
        log = self.log
        visible = min(max(high_watermark, log.start_offset), log.end_offset)
        if (visible, high_watermark) != (self.high_watermark, self.leader_high_watermark):
            self.high_watermark, self.leader_high_watermark = visible, high_watermark
            if self.watchers or self.dependents:
                self._context.delayed.changed(self)
        start_offset = min(log_start_offset, visible)
        if start_offset > log.start_offset:
            trim(self, start_offset)

    def note_truncation(self, offset: int) -> None:
        """The log is about to be cut off there: below the high watermark, records are lost."""
        if offset < self.high_watermark:
            self._context.metrics.truncated_committed += self.high_watermark - offset
            logger.error(
                "%s is cut off at %d, below its high watermark %d: its leader does not have what"
                " was committed, as after an unclean election",
                *(self.key, offset, self.high_watermark),
            )

    def review_isr(self) -> None:
        """Propose the ISR without members that are out of sync, or with a follower that is not.

        Called from time to time, and when something has changed besides what followers fetch: a
        proposal has been decided, or other brokers are alive.
        """
        in_sync = self.in_sync
        if in_sync is not None:
            begin, end = self.log.start_offset, self.log.end_offset
            isr = in_sync.without_laggards(end, self._now_ms())
            isr = isr or in_sync.with_another(begin, self.high_watermark, end, self._now_ms())
            self._maybe_propose(isr)
            self.advance_high_watermark()  # one that has stopped fetching may have held it back
        if self.state.is_recovering and self.is_leader and self._proposal is None:
            self._maybe_propose(self.state.isr)  # recovered: there is nothing that it waits for

    def _maybe_propose(self, isr: tuple[int, ...] | None) -> None:
        if isr is not None and self._now_ms() >= self._propose_from_ms:
            self._propose(isr)

    def _propose(self, isr: tuple[int, ...]) -> None:
        """Have the controller write this ISR, and that the leader has recovered."""
        state, peers, in_sync = self.state, self._context.peers, self.in_sync
        epochs: Mapping[int, int] = dict.fromkeys(isr, peers.broker_epoch())  # if it is alone
        if in_sync is not None:
            in_sync.propose(isr)
            epochs = in_sync.broker_epochs(isr, peers.broker_epoch())
        self._proposal = answer = peers.propose(
            Proposal(self.key, self.topic_id, state.leader_epoch, state.zk_version, epochs)
        )
        answer.add_done_callback(self._judge)

    def _judge(self, answer: asyncio.Future[CommittedIsr]) -> None:
        """Take the controller's answer, unless a LeaderAndIsr has overtaken it.

        After FENCED_LEADER_EPOCH and INVALID_UPDATE_VERSION one is on its way. After another
        refusal none may be, as after one of a topic that the controller cannot read for now. An
        earlier try may have been written all the same: so the proposal stands, and is tried again.
        """
        if answer.cancelled() or answer is not self._proposal:
            return
        error = answer.exception()
        if error is None:
            self._proposal = None
            self._take_committed(answer.result())
        elif isinstance(error, ApiError) and error.error is Error.INELIGIBLE_REPLICA:
            self._proposal = None
            if self.in_sync is not None:
                self.in_sync.withdraw()
            self._propose_from_ms = self._now_ms() + _PROPOSE_AGAIN_MS
            self._context.writers.tasks.call_later(_PROPOSE_AGAIN_MS, self.review_isr)
            self.advance_high_watermark()
        elif not isinstance(error, ApiError):
            raise error
        else:
            logger.info("the ISR of %s stays, for now: %s", self.key, error)
            if error.error not in _OVERTAKEN:
                again = partial(self._propose_again, answer)
                self._context.writers.tasks.call_later(_PROPOSE_AGAIN_MS, again)

    def _propose_again(self, refused: asyncio.Future[CommittedIsr]) -> None:
        if self._proposal is refused:
            proposed = self.in_sync.proposed if self.in_sync is not None else None
            self._propose(proposed or self.state.isr)

    def _take_committed(self, committed: CommittedIsr) -> None:
        after, version = committed.isr, committed.partition_epoch
        self._context.isr_changes.note(IsrChange(self.key, after, self.state.isr))
        self.state = self.state._replace(
            isr=after, zk_version=version, eligible=committed.eligible, is_recovering=False
        )
        if self.in_sync is not None:
            self.in_sync.take(self.state, self.replicas, self._now_ms())
        self._choose_fast_path_rules()
        self.advance_high_watermark()
        self._context.delayed.changed(self)  # those that wait may now be under the minimum
        self.review_isr()

    # Reading

    @property
    def last_stable_offset(self) -> int:
        """The first offset of an open transaction, or the high watermark."""
        return self.offset_snapshot[1]

    @property
    def offset_snapshot(self) -> tuple[int, int]:
        """The high watermark and the last stable offset; cheaper than both separately."""
        high_watermark = self.high_watermark
        unstable = self.log.producers.first_unstable_offset
        if unstable is None or unstable > high_watermark:
            return high_watermark, high_watermark
        return high_watermark, unstable

    def visible_end(self, replica_id: int, isolation_level: int) -> int:
        """The first offset not visible to a consumer (`replica_id` -1) or to a follower."""
        if replica_id >= 0:
            return self.log.end_offset
        if isolation_level == READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark

    def epoch_end(self, leader_epoch: int) -> EpochEnd:
        """The end of the newest epoch up to `leader_epoch`, as OffsetForLeaderEpoch answers it."""
        return self.log.epochs.end_offset_for(leader_epoch, self.log.end_offset)
