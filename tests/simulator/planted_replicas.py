"""Known bugs of replication, to be planted: rows and rules of the replication reference.

Most have been in Apache Kafka, whose issues are named; some the simulator found in ours.

Not planted are bugs that do no harm here, as another rule stands in their way. A fetch whose leader
epoch is not compared (KIP-320): the last fetched epoch is, and shows any divergence. Sequences that
a follower checks (6003): it knows of producers what its leader knew, so the check passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from kdist.broker import service
from kdist.broker.handlers import control, fetch, offset_lookups
from kdist.broker.offsets_log import OffsetsLoader
from kdist.controller import elections, isr_proposals
from kdist.controller.context import ControllerContext, Loss
from kdist.controller.elections import Candidates, Election
from kdist.errors import ApiError, Error
from kdist.model import NO_LEADER
from kdist.replication import delayed, fetcher, leadership, replicas
from kdist.replication.alter_partition_manager import RETRY_MS, AlterPartitionManager
from kdist.replication.fetcher import ReplicaFetcher
from kdist.replication.follower_session import FollowedPartition
from kdist.replication.in_sync import InSyncReplicas
from kdist.replication.partition import Partition
from kdist.replication.replicas import Replicas
from kdist.storage.log import Log
from tests.simulator.bug import Bug, Planted

Make = Callable[[Any], Any]


def _always(value: object) -> Make:
    """A function that returns it, whatever it is given."""
    return lambda _sound: lambda *_given, **_named: value


def _property(value: object) -> Make:
    return lambda _sound: property(lambda _self: value)


def _answer_unreplicated(_: Callable[..., None]) -> Callable[..., None]:
    def await_committed(self: Partition, *asked: Any) -> None:
        if self.log.is_flushed_first:
            self.request_flush()
        asked[-1](Error.NONE)

    return await_committed


def _count_unflushed(advance: Callable[..., None]) -> Callable[..., None]:
    def advance_high_watermark(self: Partition) -> None:
        log = self.log
        flushed, log.recovery_point = log.recovery_point, log.end_offset
        try:
            advance(self)
        finally:
            log.recovery_point = flushed

    return advance_high_watermark


def _fetch_unflushed(_: Callable[..., None]) -> Callable[..., None]:
    def appended(self: ReplicaFetcher, each: FollowedPartition, result: Any, outcome: Any) -> None:
        if isinstance(outcome, ApiError):
            self._back_off(each, outcome)
        elif each.is_current:
            self._take_offsets(each, result)
            self._ready(each)

    return appended


def _truncate_to_high_watermark(follow: Callable[..., None]) -> Callable[..., None]:
    def follow_truncated(self: ReplicaFetcher, partition: Partition, role: Any) -> None:
        follow(self, partition, role)
        if partition.high_watermark < partition.log.end_offset:
            self._truncate_to(self.followed[partition.key], partition.high_watermark)

    return follow_truncated


def _admit_at_high_watermark(admit: Callable[..., Any]) -> Callable[..., Any]:
    def with_follower(self: InSyncReplicas, *given: Any) -> Any:
        start, self.epoch_start = self.epoch_start, lambda: 0
        try:
            return admit(self, *given)
        finally:
            self.epoch_start = start

    return with_follower


def _count_minimal_isr(_: Callable[..., None]) -> Callable[..., None]:
    def count(self: InSyncReplicas) -> None:
        minimal = {*self.isr} & {*(self.isr if self.proposed is None else self.proposed)}
        remotes = self.remotes.values()
        self._counted = tuple(each for each in remotes if each.broker_id in minimal)
        self._others = ()

    return count


def _begin_no_epoch(apply: Callable[..., None]) -> Callable[..., None]:
    def lead_or_follow(self: Partition, *given: Any) -> None:
        self.log.begin_epoch = lambda _epoch: None  # type: ignore[method-assign]
        try:
            apply(self, *given)
        finally:
            del self.log.begin_epoch

    return lead_or_follow


def _see_no_loss(*unseen: Loss) -> Make:
    def make(sound: Callable[..., Loss]) -> Callable[..., Loss]:
        def loss(self: ControllerContext, broker_id: int) -> Loss:
            found = sound(self, broker_id)
            return Loss.NOTHING if found in unseen else found

        return loss

    return make


def _note_before_reading(read: Callable[..., Any]) -> Callable[..., Any]:
    def read_noted(self: Any, cached: Any) -> Any:
        partition = self._handler.replicas.partitions.get(cached.key)
        if self._follower_id >= 0 and partition is not None:
            self._note_follower(partition, cached.asked)
        return read(self, cached)

    return read_noted


def _take_offsets_of_divergence(take: Callable[..., bool]) -> Callable[..., bool]:
    def take_all(self: ReplicaFetcher, each: FollowedPartition, result: Any, round_: Any) -> bool:
        if result.diverging_epoch is not None and result.diverging_epoch.epoch >= 0:
            self._take_offsets(each, result)
        return take(self, each, result, round_)

    return take_all


def _retain_nothing_above(_: Callable[..., int]) -> Callable[..., int]:
    return lambda _self, log: log.end_offset


def _answer_duplicates(of_duplicate: Any) -> Any:
    def answered(*given: Any) -> Any:
        append = of_duplicate(*given)
        append.end_offset = 0
        return append

    return staticmethod(answered)


def _give_up_proposals(_: Callable[..., Any]) -> Callable[..., Any]:
    async def send_all(self: AlterPartitionManager) -> None:
        while sent := self._wanted():
            try:
                response = await self._ask(self._request(sent.values()))
            except ApiError:
                for key in sent:  # which their leaders wait for to be answered
                    self._waiting.pop(key, None)
            else:
                if not self._take_in(response, sent):
                    await asyncio.sleep(RETRY_MS / 1000)
        self._task = None

    return send_all


def _all_stay_eligible(_: Callable[..., Any]) -> Callable[..., Any]:
    def eligible_after(before: Any, isr: Any, assigned: Any, _min_isr: int) -> tuple[int, ...]:
        had = {*before.isr, *before.eligible}
        return tuple(each for each in assigned if each in had and each not in isr)

    return eligible_after


def _elect_anybody(elect: Callable[..., Election]) -> Callable[..., Election]:
    def elect_anybody(before: Election, candidates: Candidates) -> Election:
        found = elect(before, candidates)
        alive = [each for each in candidates.assigned if each in candidates.electable]
        if found.leader != NO_LEADER or not alive:
            return found
        return found._replace(leader=alive[0], isr=(alive[0],), eligible=())

    return elect_anybody


def _lead_at_once(wire: Callable[..., None]) -> Callable[..., None]:
    def wire_registered(self: Any, *given: Any) -> None:
        wire(self, *given)
        self.registered.set()

    return wire_registered


def _ready_at_once(_: Callable[..., None]) -> Callable[..., None]:
    return lambda self, each, _error: self._ready(each)


def _take_leaders_end(_: Callable[..., int]) -> Callable[..., int]:
    def truncation_offset(_epochs: Any, end: int, _mark: int, leader: Any) -> int:
        return min(leader.end_offset, end)

    return truncation_offset


PLANTED_IN_REPLICATION: Mapping[str, Planted] = {
    "acks=all is answered before the others have it": Bug(
        Partition, "await_committed", _answer_unreplicated
    ),
    "a leader counts what it has not flushed": Bug(
        Partition, "advance_high_watermark", _count_unflushed
    ),
    "a follower tells of what it has not flushed": (
        Bug(ReplicaFetcher, "_appended", _fetch_unflushed),
        Bug(fetcher, "_is_durable", _always(True)),
    ),
    "a follower truncates to its high watermark (KIP-101)": Bug(
        ReplicaFetcher, "follow", _truncate_to_high_watermark
    ),
    "a leader does not look for divergence": Bug(fetch, "find_divergence", _always(None)),
    "a follower takes the leader's end alone (KIP-279)": Bug(
        fetcher, "truncation_offset", _take_leaders_end
    ),
    "a follower joins at the high watermark (7128)": Bug(
        InSyncReplicas, "with_follower", _admit_at_high_watermark
    ),
    "a proposal's members are not counted before it is answered (KIP-497)": Bug(
        InSyncReplicas, "_count", _count_minimal_isr
    ),
    "a leader's epoch begins with its first record (7415)": Bug(
        Partition, "lead_or_follow", _begin_no_epoch
    ),
    "a new disk is not noticed (14139)": Bug(ControllerContext, "loss", _see_no_loss(Loss.ALL)),
    "a lost page cache is not noticed (KIP-966)": Bug(
        ControllerContext, "loss", _see_no_loss(Loss.UNFLUSHED)
    ),
    "a follower's position counts before it is compared (8400)": Bug(
        fetch._Fetch, "_read", _note_before_reading
    ),
    "the high watermark of a diverging answer is taken (14704)": Bug(
        ReplicaFetcher, "_take", _take_offsets_of_divergence
    ),
    "records are committed by too few (15583)": Bug(
        Partition, "is_under_min_isr", _property(value=False)
    ),
    "an answer about an earlier role is taken (7040)": Bug(
        FollowedPartition, "is_current", _property(value=True)
    ),
    "retention takes what is not committed (5634)": Bug(
        Replicas, "committed_end", _retain_nothing_above
    ),
    "a proposal is forgotten if its answer is lost (1382)": Bug(
        AlterPartitionManager, "_send_all", _give_up_proposals
    ),
    "a bounced broker is not noticed (KIP-380)": Bug(
        ControllerContext, "bounced", lambda _sound: lambda *_: set()
    ),
    "members that are gone may join (14140)": Bug(isr_proposals, "_is_eligible", _always(True)),
    "all who were in the ISR stay eligible": (
        Bug(elections, "eligible_after", _all_stay_eligible),
        Bug(isr_proposals, "eligible_after", _all_stay_eligible),
    ),
    "anybody is elected": Bug(elections, "elect", _elect_anybody),
    "an older state is taken": Bug(leadership, "_age", _always((0, 0))),
    "the broker epoch of requests is not compared (1120)": (
        Bug(control, "fence", _always(Error.NONE)),
        Bug(replicas, "fence", _always(Error.NONE)),
    ),
    "a broker leads before it has registered": Bug(service.Service, "wire", _lead_at_once),
    "a follower fetches during a truncation of an earlier role": Bug(
        ReplicaFetcher, "_ready_when_idle", _ready_at_once
    ),
    "ISRs are reviewed at fetches alone": Bug(Partition, "review_isr", _always(None)),
    "nobody leaves the ISR": Bug(InSyncReplicas, "without_laggards", _always(None)),
    "a produce is acknowledged in another role": Bug(delayed, "still_leads", _always(True)),
    "the end goes back after an election (KIP-207)": Bug(
        offset_lookups, "_may_go_back", _always(False)
    ),
    "epochs stay when their records are cut off (10706)": Bug(
        Log, "truncate_epochs", _always(None)
    ),
    "a coordinator goes on after its partition has moved (9235)": Bug(
        OffsetsLoader, "end", _always(None)
    ),
}
