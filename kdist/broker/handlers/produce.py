"""Produce (key 0): appends producers' batches to their partitions' logs.

Each partition has its own error. acks=1 is answered when the leader's log has the records, acks=all
when every in-sync replica has them. acks=0 is never answered, but an error closes the connection,
since the producer has no other way to learn of it (as in Kafka).

This is the general path, which handles every case. Nearly all requests for a single partition take
the fast path in front of it, `fast_path/produce.py`, to the same append.
"""

from __future__ import annotations

import logging
from functools import partial

from kdist.broker.handlers import Call
from kdist.broker.handlers.init_producer_id import NO_TRANSACTIONS
from kdist.broker.redirection import LeaderHints
from kdist.errors import ApiError, Error
from kdist.model import INTERNAL_TOPICS, NO_OFFSET, NO_TIMESTAMP, TopicPartition
from kdist.network.connection_state import CHANGE
from kdist.protocol.produce import (
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResult,
    RecordError,
)
from kdist.records.batch import HEADER_SIZE, Batch
from kdist.records.validate import InvalidRecords
from kdist.replication.leadership import Role, still_leads
from kdist.replication.partition import ACKS_ALL, Partition
from kdist.replication.replicas import Replicas
from kdist.runtime.clock import Clock
from kdist.runtime.steps import Steps, Work
from kdist.storage.append import Append
from kdist.wire.primitives import Buffer

logger = logging.getLogger(__name__)

_ACKS = (ACKS_ALL, 0, 1)
_FIRST_VERSION_OF_LEADER_HINTS = 10


class ProduceHandler:
    """Owner: the broker."""

    def __init__(self, replicas: Replicas, hints: LeaderHints, clock: Clock) -> None:
        self.replicas = replicas
        self._hints = hints
        self._clock = clock

    def handle(self, request: ProduceRequest, call: Call) -> None:
        """Answer now or later.

        Offsets and leader epoch are written into the request's record sets in place if those are
        writable. Raises `DiskFailed`.
        """
        produce = _Produce(self, request, call)
        if request.acks not in _ACKS:
            produce.refuse_all(Error.INVALID_REQUIRED_ACKS)
        elif request.transactional_id is not None:  # see `init_producer_id.py`
            produce.refuse_all(Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
        else:
            produce.begin(self._clock.now_ms())

    def refuse(
        self, key: TopicPartition, result: ProducePartitionResult, error: ApiError, version: int
    ) -> None:
        """Make it the result of records that were refused, or that may not be on all replicas."""
        self.replicas.metrics.failed_produces += 1
        result.error_code = error.error
        result.base_offset = result.log_start_offset = NO_OFFSET
        result.log_append_time_ms = NO_TIMESTAMP
        result.error_message = error.detail
        if isinstance(error, InvalidRecords):
            result.record_errors = [
                RecordError(batch_index=fault.batch_index, batch_index_error_message=fault.reason)
                for fault in error.faults
            ]
        is_elsewhere = error.error is Error.NOT_LEADER_OR_FOLLOWER
        if is_elsewhere and version >= _FIRST_VERSION_OF_LEADER_HINTS:
            result.current_leader = self._hints.leader_of(key)

    def complete(self, response: ProduceResponse, listener: str) -> ProduceResponse:
        """Add where the leaders that its results name listen."""
        leaders = [
            each.current_leader
            for topic in response.responses
            for each in topic.partition_responses
            if each.current_leader is not None
        ]
        if leaders:
            response.node_endpoints = self._hints.endpoints(leaders, listener)
        return response


class _Produce:
    """One request; it is answered when no partition's result is undecided."""

    __slots__ = (
        "_call",
        "_checks",
        "_client",
        "_handler",
        "_replicas",
        "_request",
        "_response",
        "_undecided",
    )

    def __init__(self, handler: ProduceHandler, request: ProduceRequest, call: Call) -> None:
        self._handler = handler
        self._replicas = handler.replicas
        self._request = request
        self._call = call
        self._client = call.connection
        self._checks = 0  # that have gone on
        self._undecided = 1  # held by `begin`: no answer before every append has begun
        self._response = ProduceResponse(
            responses=[
                ProduceTopicResult(
                    name=topic.name,
                    partition_responses=[
                        ProducePartitionResult(
                            index=data.index, error_code=0, base_offset=NO_OFFSET
                        )
                        for data in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ]
        )

    def begin(self, now_ms: int) -> None:
        for topic, answer in zip(self._request.topic_data, self._response.responses, strict=True):
            name, results = topic.name, answer.partition_responses
            for data, result in zip(topic.partition_data, results, strict=True):
                self._append(name, data, result, now_ms)
        self._undecided -= 1
        if self._undecided:
            self._client.pending_produces += 1
        else:
            self._answer()

    def refuse_all(self, error: Error, sentence: str | None = None) -> None:
        for answer in self._response.responses:
            for result in answer.partition_responses:
                result.error_code = error
                result.error_message = sentence
        self._answer()

    def _append(
        self, topic: str, data: ProducePartition, result: ProducePartitionResult, now_ms: int
    ) -> None:
        key, records = TopicPartition(topic, data.index), data.records or b""
        try:
            if topic in INTERNAL_TOPICS:
                raise ApiError(Error.INVALID_TOPIC_EXCEPTION, f"{topic} is the broker's own")
            partition = self._replicas.get(key)
            checking = partition.check(records, self._call.version, self._request.acks, now_ms)
            work = next(checking)
        except StopIteration as checked:
            self._append_checked(partition, records, result, now_ms, checked.value)
        except ApiError as error:
            self._refuse_records(key, records, result, error)
        else:
            self._go_on_checking(
                partition, bytes(records[:HEADER_SIZE]), result, now_ms, checking, work
            )

    def _go_on_checking(
        self,
        partition: Partition,
        start: bytes,
        result: ProducePartitionResult,
        now_ms: int,
        checking: Steps[list[Batch]],
        work: Work | None,
    ) -> None:
        """Append once the check, which takes long, has ended; `start` is that of the records.

        Until then no later request of the connection is taken: so its produces keep their order,
        and no more than one waits here. What has changed meanwhile, such as who leads, is for the
        append to find out.
        """

        def end(batches: list[Batch]) -> None:
            self._append_checked(partition, start, result, now_ms, batches)
            self._end_check()

        def fail(error: BaseException) -> None:
            if isinstance(error, ApiError):
                self._refuse_records(partition.key, start, result, error)
                self._end_check()
            else:
                self._call.crash(error)

        self._undecided += 1
        self._checks += 1
        if self._checks == 1:
            self._client.hold(CHANGE)
        self._replicas.produce_checks.go_on(checking, work, end, fail)

    def _end_check(self) -> None:
        self._decide()
        self._checks -= 1
        if not self._checks:
            self._client.end_hold(CHANGE)

    def _append_checked(
        self,
        partition: Partition,
        records: Buffer,
        result: ProducePartitionResult,
        now_ms: int,
        batches: list[Batch],
    ) -> None:
        """Append checked batches; of `records` the start at least is still there."""
        if not batches:
            return
        try:
            append = partition.append(batches, now_ms)
        except ApiError as error:
            self._refuse_records(partition.key, records, result, error)
            return
        if append.is_published:
            self._note(partition, partition.role, result, now_ms, append)
        else:
            self._undecided += 1
            append.then(partial(self._end_append, partition, partition.role, result, now_ms))

    def _refuse_records(
        self,
        key: TopicPartition,
        records: Buffer,
        result: ProducePartitionResult,
        error: ApiError,
    ) -> None:
        self._replicas.refused.note(key, records)
        self._refuse(key, result, error)

    def _end_append(
        self,
        partition: Partition,
        role: Role,
        result: ProducePartitionResult,
        now_ms: int,
        outcome: Append | ApiError,
    ) -> None:
        if isinstance(outcome, ApiError):
            self._refuse(partition.key, result, outcome)
        else:
            self._note(partition, role, result, now_ms, outcome)
        self._decide()

    def _note(
        self,
        partition: Partition,
        role: Role,
        result: ProducePartitionResult,
        now_ms: int,
        append: Append,
    ) -> None:
        """Note what the log has; with acks=all, wait until all in-sync replicas have it."""
        result.base_offset = append.start_offset
        result.log_start_offset = partition.log.start_offset
        if partition.rules.is_append_time:
            duplicate = append.duplicate
            result.log_append_time_ms = now_ms if duplicate is None else duplicate.timestamp
        end_offset = append.end_offset
        if self._request.acks == ACKS_ALL and (
            partition.high_watermark < end_offset or not still_leads(role, partition.role)
        ):
            self._undecided += 1
            timeout_ms = max(0, self._request.timeout_ms)
            done = partial(self._end_wait, partition.key, result)
            partition.await_committed(role, end_offset, timeout_ms, self._client, done)

    def _end_wait(self, key: TopicPartition, result: ProducePartitionResult, error: Error) -> None:
        if error:
            self._refuse(key, result, ApiError(error))
        self._decide()

    def _refuse(self, key: TopicPartition, result: ProducePartitionResult, error: ApiError) -> None:
        self._handler.refuse(key, result, error, self._call.version)

    def _decide(self) -> None:
        self._undecided -= 1
        if not self._undecided:  # `begin` has returned, so the request was counted as pending
            self._answer()
            self._client.end_pending_produce()

    def _answer(self) -> None:
        if self._request.acks:
            self._call.answer(self._handler.complete(self._response, self._call.listener))
            return
        if any(r.error_code for t in self._response.responses for r in t.partition_responses):
            logger.info("closing a connection: a produce with acks=0 failed")
            self._client.finish_soon()
        self._call.answer(None)
