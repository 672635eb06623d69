"""Fetches ahead of the application, with one request in flight to each broker.

A partition is fetched while it has fewer bytes ready than two answers may bring, and all partitions
together have fewer than `fetch_max_bytes`: that bounds memory, and a consumer that keeps up never
waits for the network. An answer for a position that has changed meanwhile is dropped. After a
retriable error metadata is refreshed and the fetch retried; an offset out of range is reset as
`auto_offset_reset` says. Source: KIP-227 (sessions), KIP-320 (truncation), KIP-392 (fetching from
the closest replica).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from kdist.client.cluster import api_error, raise_for
from kdist.client.coding import Coder
from kdist.client.consumer.batch import RUN_BYTES_MAX, CorruptFetch
from kdist.client.consumer.context import ConsumerContext
from kdist.client.consumer.fetch_session import FetchSession, SessionRequest, Wanted
from kdist.client.consumer.metadata import Metadata
from kdist.client.consumer.opening import Opening, open_fetched
from kdist.client.consumer.partition import CompletedFetches, Partition
from kdist.errors import ApiError, Error
from kdist.model import NO_EPOCH, NO_LEADER, NO_OFFSET, TopicPartition
from kdist.network.client import Client
from kdist.protocol import fetch
from kdist.protocol.fetch import FetchPartition, FetchPartitionResult, FetchRequest, FetchResponse
from kdist.protocol.fetch_forms import OFFSET, difference, from_offset

_AHEAD = 2  # how many answers' worth of bytes to hold ready for one partition
_VERSION_OF_EPOCHS = 12
_READ_COMMITTED = 1
_REFUSED_AGAIN_S = 1.0  # how often to retry, and raise again, an error that needs the application


class OffsetOutOfRange(ApiError):
    """The position is outside the partition's offsets, and `auto_offset_reset` is none."""

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        super().__init__(Error.OFFSET_OUT_OF_RANGE, f"{partition} has no offset {offset}")
        self.partition = partition
        self.offset = offset


class LogTruncated(OffsetOutOfRange):
    """The log was truncated below the position, by an unclean election; `end` is its new end."""

    def __init__(self, partition: TopicPartition, offset: int, end: int) -> None:
        super().__init__(partition, offset)
        self.args = (
            f"{self.error.name}: {partition} was read up to offset {offset}, and then truncated to"
            f" {end}",
        )
        self.end = end


class Fetcher:
    """Fetches `partitions` and hands over their batches as completed fetches. Owner: the loop."""

    def __init__(
        self,
        context: ConsumerContext,
        metadata: Metadata,
        partitions: Mapping[TopicPartition, Partition],
        completed: CompletedFetches,
        decoders: tuple[Coder | None, Coder | None],
        on_reset: Callable[[], None],
    ) -> None:
        self._context = context
        self._settings = context.settings
        self._metadata = metadata
        self._partitions = partitions
        self._completed = completed
        self._decoders = decoders
        self._on_reset = on_reset
        self._sessions: dict[int, FetchSession] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._repeated: RepeatedFetch | None = None
        self._has_completed = False
        settings = context.settings
        self._enough_bytes = _AHEAD * settings.max_partition_fetch_bytes
        self._answer_timeout_ms = settings.request_timeout_ms + settings.fetch_max_wait_ms

    def kick(self) -> None:
        """Fetch where there is something to fetch, and no fetch under way."""
        for broker in self._plan():
            under_way = self._tasks.get(broker)
            if under_way is None or under_way.done():
                task = self._context.loop.create_task(self._fetch_from(broker))
                self._tasks[broker] = task
                task.add_done_callback(partial(self._ended, broker))

    def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    # What to fetch

    def _plan(self) -> dict[int, list[Partition]]:
        """The partitions to fetch now, by broker."""
        now_s, settings = self._context.now_s(), self._settings
        found: dict[int, list[Partition]] = {}
        # Paused partitions do not count: what they hold would keep the others from being fetched.
        ready_bytes = sum(each.ready_bytes for each in self._partitions.values() if each.may_give)
        is_full = ready_bytes >= settings.fetch_max_bytes
        for partition in self._partitions.values():
            partition.starved_above_bytes = 0
            if partition.is_former and partition.retry_at_s <= now_s:
                self._begin_anew(partition)
            if not partition.may_be_fetched:
                continue
            if is_full:
                # Half, not all: otherwise each batch that is taken would cause another look here.
                partition.starved_above_bytes = partition.ready_bytes // 2
            elif partition.ready_bytes >= self._enough_bytes:
                partition.starved_above_bytes = self._enough_bytes
            elif partition.retry_at_s <= now_s:
                broker = self._source(partition, now_s)
                if broker == NO_LEADER:
                    self._put_off(partition)
                else:
                    found.setdefault(broker, []).append(partition)
        return found

    def _source(self, partition: Partition, now_s: float) -> int:
        """The leader, or for as long as metadata is valid the replica that it has named."""
        if partition.preferred_replica is not None:
            if now_s < partition.preferred_until_s:
                return partition.preferred_replica
            partition.preferred_replica = None
        return self._metadata.leader(partition.key).id

    def _asked(self, partition: Partition, version: int) -> FetchPartition:
        epoch = self._metadata.leader(partition.key).epoch
        is_changed = epoch != partition.checked_epoch and version >= _VERSION_OF_EPOCHS
        return FetchPartition(
            partition=partition.key.partition,
            current_leader_epoch=epoch,
            fetch_offset=partition.fetch_position,
            # Checked once per leader epoch: a log is only truncated after an election.
            last_fetched_epoch=partition.fetch_epoch if is_changed else NO_EPOCH,
            partition_max_bytes=self._settings.max_partition_fetch_bytes,
        )

    # Fetching

    def _ended(self, broker: int, task: asyncio.Task[None]) -> None:
        if self._tasks.get(broker) is task:
            del self._tasks[broker]
        if not task.cancelled() and task.exception() is not None:
            task.result()  # a bug: raised, it reaches the loop's exception handler

    async def _fetch_from(self, broker: int) -> None:
        """Fetch from a broker, one request at a time, while there are partitions to fetch."""
        session = self._sessions.setdefault(broker, FetchSession())
        while partitions := self._plan().get(broker):
            try:
                await self._fetch(broker, session, partitions)
            except ApiError as error:
                session.failed(error.error)
                if not error.error.retriable:
                    self._context.report(error)
                if error.error not in (
                    Error.FETCH_SESSION_ID_NOT_FOUND,
                    Error.INVALID_FETCH_SESSION_EPOCH,
                ):
                    for partition in partitions:
                        self._put_off(partition)
                    return
        self.kick()  # what is left may be fetched from elsewhere now

    async def _fetch(self, broker: int, session: FetchSession, partitions: list[Partition]) -> None:
        client = await self._context.fetching.client(broker)
        version = client.version_of(fetch.API, fetch.NEWEST_BY_NAME)
        # Checked again, as a partition may have been reset, revoked or led elsewhere while we
        # connected: to say the new leader's epoch to the old one would have that answer as a
        # follower.
        now_s = self._context.now_s()
        wanted = {
            each.key: self._asked(each, version)
            for each in partitions
            if each.may_be_fetched and self._source(each, now_s) == broker
        }
        if not wanted:
            return
        to_send = session.next_request(wanted)
        if len(self._partitions) == 1 and not session.is_open:
            ((key, asked),) = wanted.items()
            if asked.last_fetched_epoch == NO_EPOCH:
                await self._fetch_repeatedly(broker, client, to_send, key, asked)
                return
        answer: FetchResponse = await client.send(
            self._request(to_send), version, self._answer_timeout_ms
        )
        raise_for(answer.error_code)
        session.answered(answer.session_id, to_send)
        self._note(broker, answer, wanted)
        self._tell()

    def _request(self, to_send: SessionRequest) -> FetchRequest:
        settings = self._settings
        return FetchRequest(
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            isolation_level=_READ_COMMITTED if settings.is_committed_only else 0,
            session_id=to_send.session_id,
            session_epoch=to_send.session_epoch,
            topics=to_send.topics,
            forgotten_topics_data=to_send.forgotten,
            rack_id=settings.client_rack,
        )

    async def _fetch_repeatedly(
        self,
        broker: int,
        client: Client,
        to_send: SessionRequest,
        key: TopicPartition,
        asked: FetchPartition,
    ) -> None:
        """Fetch the only partition, until the next request would differ by more than its offset."""
        epoch, wanted = asked.current_leader_epoch, {key: asked}
        if self._repeated is None or not self._repeated.is_of(client, key, epoch):
            request = self._request(to_send)
            self._repeated = RepeatedFetch(client, request, key, epoch, self._answer_timeout_ms)
        version = client.version_of(fetch.API, fetch.NEWEST_BY_NAME)

        def take(answer: FetchResponse) -> int | None:
            raise_for(answer.error_code)
            self._note(broker, answer, wanted)
            planned = self._plan().get(broker, [])
            if len(self._partitions) > 1 or [each.key for each in planned] != [key]:
                return None
            again = self._asked(planned[0], version)
            asked.fetch_offset = again.fetch_offset
            return again.fetch_offset if again == asked else None

        await self._repeated.run(asked.fetch_offset, take, self._tell)

    # Answers

    def _note(self, broker: int, answer: FetchResponse, wanted: Wanted) -> None:
        for topic in answer.responses:
            for result in topic.partitions:
                key = TopicPartition(topic.topic, result.partition_index)
                if key in wanted:
                    self._note_one(broker, key, wanted[key], result)

    def _note_one(
        self,
        broker: int,
        key: TopicPartition,
        asked: FetchPartition,
        result: FetchPartitionResult,
    ) -> None:
        partition = self._partitions.get(key)
        if partition is None or partition.fetch_position != asked.fetch_offset:
            return  # revoked, or sought elsewhere, since the request was sent
        if partition.is_former:
            return  # there may be another record at that offset
        if result.error_code:
            self._refused(broker, partition, Error.of(result.error_code))
            return
        if result.diverging_epoch is not None:
            self._truncated(partition, result.diverging_epoch.end_offset)
            return
        partition.failures = 0
        partition.checked_epoch = asked.current_leader_epoch
        partition.high_watermark = result.high_watermark
        partition.last_stable_offset = result.last_stable_offset
        partition.log_start_offset = result.log_start_offset
        if result.records:
            self._complete(partition, result)
        elif result.preferred_read_replica != NO_LEADER:
            partition.preferred_replica = result.preferred_read_replica
            valid_s = self._settings.metadata_max_age_ms / 1000
            partition.preferred_until_s = self._context.now_s() + valid_s

    def _complete(self, partition: Partition, result: FetchPartitionResult) -> None:
        assert not hasattr(result.records, "chunks"), "decoded records are one buffer"
        opening = Opening(
            partition.key,
            partition.fetch_position,
            result.aborted_transactions if self._settings.is_committed_only else None,
            self._settings.check_crcs,
            self._decoders,
            RUN_BYTES_MAX,
        )
        self._completed.put(partition, open_fetched(result.records, opening))  # type: ignore[arg-type]
        if partition.fetch_position == opening.position and not partition.is_faulty:
            self._hold(partition, _REFUSED_AGAIN_S)  # else the same would be fetched again at once
            fault = "the fetched data has no complete batch"
            self._context.report(CorruptFetch(partition.key, opening.position, fault))
        self._has_completed = True

    def _tell(self) -> None:
        """Wake a waiting poll if a fetch has brought anything."""
        if self._has_completed:
            self._has_completed = False
            self._context.wakeup.set()

    def _refused(self, broker: int, partition: Partition, error: Error) -> None:
        if error is Error.OFFSET_OUT_OF_RANGE:
            # By who has answered: whom to ask may have changed since.
            if broker != self._metadata.leader(partition.key).id:
                partition.preferred_replica = None  # this follower may just lag: ask the leader
            else:
                self._out_of_range(partition)
        elif error.retriable and error is not Error.CORRUPT_MESSAGE:
            if error is Error.UNKNOWN_TOPIC_OR_PARTITION:
                # Else it might be asked again before we hear that the topic was recreated.
                self._metadata.forget_leader(partition.key)
            self._put_off(partition)
        else:
            self._hold(partition, _REFUSED_AGAIN_S)
            self._context.report(api_error(error, str(partition.key)))

    def _put_off(self, partition: Partition) -> None:
        """Try again after the backoff, with fresh metadata."""
        partition.preferred_replica = None
        self._hold(partition, self._context.backoff_s(partition.failures))
        partition.failures += 1
        self._metadata.refresh()

    def _hold(self, partition: Partition, delay_s: float) -> None:
        """Do not fetch the partition for so long, unless it is sought elsewhere."""
        partition.retry_at_s = self._context.now_s() + delay_s
        self._context.loop.call_later(delay_s, self.kick)

    def _out_of_range(self, partition: Partition) -> None:
        """Reset the position, or report it; records that are ready are returned first."""
        if self._settings.auto_offset_reset == "none":
            self._hold(partition, _REFUSED_AGAIN_S)
            self._context.report(OffsetOutOfRange(partition.key, partition.fetch_position))
        elif partition.has_ready:
            self._hold(partition, self._context.backoff_s())
        elif partition.fetch_position == partition.reset_offset:
            partition.reset_offset = NO_OFFSET  # the broker contradicts itself: look it up later
            self._put_off(partition)
        else:
            partition.reset(self._settings.auto_offset_reset)
            self._on_reset()

    def _begin_anew(self, partition: Partition) -> None:
        """The topic was recreated: as if the position were out of range, though it may not be."""
        if self._settings.auto_offset_reset == "none":
            self._hold(partition, _REFUSED_AGAIN_S)
            self._context.report(OffsetOutOfRange(partition.key, partition.fetch_position))
        elif not partition.has_ready:
            partition.reset(self._settings.auto_offset_reset)
            self._context.loop.call_soon(self._on_reset)

    def _truncated(self, partition: Partition, end: int) -> None:
        if self._settings.auto_offset_reset == "none":
            self._hold(partition, _REFUSED_AGAIN_S)
            self._context.report(LogTruncated(partition.key, partition.fetch_position, end))
        elif partition.has_ready:  # part of it may precede the truncated log's end
            self._hold(partition, self._context.backoff_s())
        elif end == NO_OFFSET:
            partition.reset(self._settings.auto_offset_reset)
            self._on_reset()
        else:
            partition.seek(end)


class RepeatedFetch:
    """Fetches of one partition that differ only in their offset; one `run` at a time.

    A consumer of one partition that keeps up sends the same request each time, but for the offset.
    So the frame is kept and only patched, and no task is woken for an answer. That halves the
    loop's work for a record, and the thread that waits for the record gets the interpreter lock
    that much sooner.
    """

    def __init__(
        self,
        client: Client,
        request: FetchRequest,
        key: TopicPartition,
        epoch: int,
        timeout_ms: float,
    ) -> None:
        self._kind = client, key, epoch
        self._client = client
        self._version = version = client.version_of(fetch.API, fetch.NEWEST_BY_NAME)
        self._timeout_ms = timeout_ms
        zeros, ones = (client.encode(from_offset(request, each), version, 0) for each in (0, -1))
        self._frame = zeros
        self._offset_at, _ = difference(zeros, ones)

    def is_of(self, client: Client, key: TopicPartition, epoch: int) -> bool:
        """Whether these fetch that partition, in that leader epoch, over that connection."""
        return self._kind == (client, key, epoch)

    async def run(
        self,
        offset: int,
        take: Callable[[FetchResponse], int | None],
        tell: Callable[[], None],
    ) -> None:
        """Fetch from `offset`, then from each offset that `take` returns for an answer, until None.

        `tell` is called once the next request is sent: a thread woken before would only wait for
        the interpreter lock. Raises what `take` raises, and `ApiError` if no answer comes.
        """
        self._take, self._tell = take, tell
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ask(offset)
        await self._ended

    def _ask(self, offset: int) -> None:
        OFFSET.pack_into(self._frame, self._offset_at, offset)
        self._client.repeat(self._frame, fetch.API, self._version, self, self._timeout_ms)

    # What `Client` calls, as of a future

    def done(self) -> bool:
        """Whether the run has ended, so that no answer is wanted any more."""
        return self._ended.done()

    def set_result(self, answer: FetchResponse) -> None:
        try:
            offset = self._take(answer)
            if offset is None:
                self._ended.set_result(None)
            else:
                self._ask(offset)
        except ApiError as error:
            self._ended.set_exception(error)
        except BaseException as error:
            self._ended.set_exception(error)  # a bug: the waiter must not wait for ever
            raise
        finally:
            self._tell()

    def set_exception(self, error: ApiError) -> None:
        self._ended.set_exception(error)
