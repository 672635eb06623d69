"""Sends the ISRs that this broker's leaders propose to the controller, by AlterPartition.

One request is in flight; what is proposed meanwhile goes with the next, but for what would be too
much. A request that gets no answer, or is refused as a whole, is sent again until the controller,
whichever it is by then, has judged every partition. So a proposal may have been written although
its answer never came: until it is answered, the leader must reckon with either. What becomes of an
ISR is counted and logged here too.

Source: Apache Kafka's `DefaultAlterPartitionManager`; KIP-497.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import islice
from typing import NamedTuple

from kdist.errors import ApiError, Error
from kdist.metrics.replication import ReplicationMetrics
from kdist.model import ZERO_UUID, TopicPartition
from kdist.protocol.alter_partition import (
    AlteredPartition,
    AlteredTopic,
    AlterPartitionRequest,
    AlterPartitionResponse,
    IsrMember,
)
from kdist.runtime.tasks import Tasks, raise_bug
from kdist.storage.names import some_of

logger = logging.getLogger(__name__)

RETRY_MS = 50
RETRY_MS_MAX = 1_000
# In one request: each member of an ISR counts among the entries that a broker decodes of one.
PROPOSALS_MAX = 20_000

_LOGGED_EACH_MAX = 3  # as many changes in one tick are logged one by one

# Any other error of a partition means that the controller could not judge it: ask again.
_FINAL = frozenset(
    {
        *(Error.FENCED_LEADER_EPOCH, Error.INVALID_UPDATE_VERSION, Error.INELIGIBLE_REPLICA),
        *(Error.UNKNOWN_TOPIC_ID, Error.UNKNOWN_TOPIC_OR_PARTITION, Error.INVALID_REQUEST),
        Error.NEW_LEADER_ELECTED,
    }
)

Ask = Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]]
"""Have the controller answer the request. ApiError if there is none, or it does not answer."""


class Proposal(NamedTuple):
    """An ISR as broker epochs by broker id, for the epochs in which its leader decided on it."""

    partition: TopicPartition
    topic_id: uuid.UUID  # `ZERO_UUID` if a broker before Kafka 2.8 created the topic
    leader_epoch: int
    partition_epoch: int
    isr: Mapping[int, int]


class CommittedIsr(NamedTuple):
    """An ISR and the eligible replicas as written, and the partition's epoch with them."""

    isr: tuple[int, ...]
    partition_epoch: int
    eligible: tuple[int, ...] = ()


Answer = asyncio.Future[CommittedIsr]


class PendingProposal(NamedTuple):
    """A proposal, and where its answer goes."""

    proposal: Proposal
    answer: Answer


class AlterPartitionManager:
    """Owner: the broker. A partition has one proposal at a time."""

    def __init__(self, broker_id: int, broker_epoch: Callable[[], int], ask: Ask) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._ask = ask
        self._waiting: dict[TopicPartition, PendingProposal] = {}
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Future[AlterPartitionResponse] | None = None
        self._is_over = False

    def propose(self, proposal: Proposal) -> Answer:
        """Done once the ISR is written; ApiError if the controller refuses it.

        FENCED_LEADER_EPOCH and INVALID_UPDATE_VERSION: a LeaderAndIsr is on its way, which ends the
        proposal. INELIGIBLE_REPLICA: the ISR stays as it was. Whoever no longer wants an answer, as
        its leader epoch has ended, cancels it, and may propose anew at once.
        """
        key = proposal.partition
        earlier = self._waiting.get(key)
        assert earlier is None or earlier.answer.done(), "one proposal at a time"
        answer: Answer = asyncio.get_running_loop().create_future()
        self._waiting[key] = PendingProposal(proposal, answer)
        if self._task is None:
            self._task = asyncio.create_task(self._send_all(), name="AlterPartition")
            self._task.add_done_callback(raise_bug)
        return answer

    def ask_anew(self) -> None:
        """Another broker is the controller: the last one may never answer, as its host is lost."""
        if self._asking is not None:
            self._asking.cancel()

    def cancel(self) -> None:
        """Send nothing more; what is under way may still be written."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
        for each in self._waiting.values():
            each.answer.cancel()

    async def _send_all(self) -> None:
        retry_ms = RETRY_MS
        while sent := self._wanted():
            self._asking = asyncio.ensure_future(self._ask(self._request(sent.values())))
            try:
                response = await self._asking
                if response.error_code != Error.NONE:
                    raise ApiError(Error.of(response.error_code))
                if self._take_in(response, sent):
                    retry_ms = RETRY_MS
                    continue
            except ApiError as error:
                if retry_ms == RETRY_MS:
                    logger.warning("AlterPartition failed, will retry: %s", error)
            except asyncio.CancelledError:
                if self._is_over:
                    raise
                retry_ms = RETRY_MS
            await asyncio.sleep(retry_ms / 1000)
            retry_ms = min(2 * retry_ms, RETRY_MS_MAX)
        self._task = None

    def _wanted(self) -> dict[TopicPartition, PendingProposal]:
        """The longest waiting whose answer is still wanted; those of others are forgotten."""
        for key in [key for key, each in self._waiting.items() if each.answer.done()]:
            del self._waiting[key]
        return dict(islice(self._waiting.items(), PROPOSALS_MAX))

    def _request(self, sent: Iterable[PendingProposal]) -> AlterPartitionRequest:
        proposals = [proposal for proposal, _ in sent]
        # Without ids a request can only be sent in a version that has names, and no broker epochs.
        has_ids = all(each.topic_id != ZERO_UUID for each in proposals)
        topics: dict[str, AlteredTopic] = {}
        for each in proposals:
            name = each.partition.topic
            if name not in topics:
                topic_id = each.topic_id if has_ids else ZERO_UUID
                topics[name] = AlteredTopic(topic_name=name, topic_id=topic_id, partitions=[])
            topics[name].partitions.append(_altered(each, has_epochs=has_ids))
        return AlterPartitionRequest(
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch(),
            topics=list(topics.values()),
        )

    def _take_in(
        self, response: AlterPartitionResponse, sent: Mapping[TopicPartition, PendingProposal]
    ) -> bool:
        """Answer the proposals that the response judges; others go with the next.

        Returns whether it judged all that were sent, and are still wanted.
        """
        names = {each.proposal.topic_id: key.topic for key, each in sent.items()}
        for topic in response.topics:
            for result in topic.partitions:
                name = topic.topic_name or names.get(topic.topic_id, "")
                key = TopicPartition(name, result.partition_index)
                pending = sent.get(key)
                if pending is None or self._waiting.get(key) is not pending:
                    continue  # replaced meanwhile: the answer is not for the one that waits now
                error = Error.of(result.error_code)
                if error is not Error.NONE and error not in _FINAL:
                    continue
                del self._waiting[key]
                if pending.answer.done():
                    continue
                if error is not Error.NONE:
                    pending.answer.set_exception(ApiError(error))
                else:
                    isr, eligible = tuple(result.isr), tuple(result.eligible_replicas)
                    committed = CommittedIsr(isr, result.partition_epoch, eligible)
                    pending.answer.set_result(committed)
        return not any(
            self._waiting.get(key) is each and not each.answer.done() for key, each in sent.items()
        )


def _altered(proposal: Proposal, *, has_epochs: bool) -> AlteredPartition:
    members = [
        IsrMember(broker_id=member, broker_epoch=epoch) for member, epoch in proposal.isr.items()
    ]
    return AlteredPartition(
        partition_index=proposal.partition.partition,
        leader_epoch=proposal.leader_epoch,
        new_isr=[] if has_epochs else list(proposal.isr),
        new_isr_with_epochs=members if has_epochs else [],
        partition_epoch=proposal.partition_epoch,
    )


class IsrChange(NamedTuple):
    """A partition's ISR as it is, and as it was."""

    key: TopicPartition
    isr: tuple[int, ...]
    before: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.key} {list(self.isr)}"


class IsrChanges:
    """Counts and logs them: one by one, or all of a tick in a line. Owner: `Replicas`.

    A broker that comes back joins the ISRs of thousands of partitions, within a few answers.
    """

    def __init__(self, tasks: Tasks, metrics: ReplicationMetrics) -> None:
        self._tasks = tasks
        self._metrics = metrics
        self._changes: list[IsrChange] = []

    def note(self, change: IsrChange) -> None:
        """Have it logged when this tick ends, unless the ISR has as many members as before."""
        added = len(change.isr) - len(change.before)
        self._metrics.isr_shrinks += added < 0
        self._metrics.isr_expands += added > 0
        if added:
            if not self._changes:
                self._tasks.call_soon(self._log)
            self._changes.append(change)

    def _log(self) -> None:
        noted, self._changes = self._changes, []
        shrunk = [each for each in noted if len(each.isr) < len(each.before)]
        grown = [each for each in noted if len(each.isr) > len(each.before)]
        for level, what, changes in (
            (logging.WARNING, "smaller", shrunk),
            (logging.INFO, "larger", grown),
        ):
            if len(changes) > _LOGGED_EACH_MAX:
                logger.log(level, "%d ISRs are %s now: %s", len(changes), what, some_of(changes))
                continue
            for key, isr, before in changes:
                logger.log(level, "%s: the ISR is %s, was %s", key, list(isr), list(before))
