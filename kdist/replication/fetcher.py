"""Fetches what one broker leads: one connection, one fetch session, in rounds.

    send a fetch -> it waits at the leader -> append what came -> send the next -> note the rest

The next fetch tells the leader how far this log reaches, so it goes out before all else. A round
costs what changed, however many partitions are followed. A partition's failure is its own: it alone
is left out for a while (KAFKA-1461). Answers about an earlier role of it are dropped (KAFKA-7040).
Source: Apache Kafka's `AbstractFetcherThread` and `ReplicaFetcherThread`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import cast

from kdist.errors import ApiError, DiskFailed, DiskFull, Error, KdistError
from kdist.model import NO_EPOCH, TopicPartition
from kdist.network.client import Client
from kdist.protocol import fetch
from kdist.protocol.fetch import FetchPartitionResult, FetchResponse
from kdist.replication.follower_session import (
    BACKED_OFF,
    BUSY,
    FENCED,
    READY,
    FollowedPartition,
    FollowerSession,
    divergence_in,
    end_of_epoch,
    find_bounds,
    lies_before,
    truncation_offset,
)
from kdist.replication.leadership import Following
from kdist.replication.partition import Partition
from kdist.replication.peers import FetcherContext
from kdist.replication.throttles import is_listed
from kdist.runtime.tasks import raise_bug
from kdist.storage.append import Append
from kdist.storage.epochs import EpochEnd
from kdist.storage.log import Log
from kdist.wire.primitives import Buffer

logger = logging.getLogger(__name__)

_RECONNECT_MS_MIN = 20
_BACKOFF_MS_MIN = 20
# A leader may just not have heard what this broker has. With the pauses between them, so many
# refusals in succession take half a second.
_REFUSALS_UNLOGGED = 5
_IN_FLIGHT_MAX = 2  # one that waits, and one that overtakes it
_SESSION_ERRORS = (
    Error.FETCH_SESSION_ID_NOT_FOUND,
    Error.INVALID_FETCH_SESSION_EPOCH,
    Error.FETCH_SESSION_TOPIC_ID_ERROR,
)

_Find = Callable[[Client, FollowedPartition], Awaitable[None]]
"""Asks a leader about a partition, and begins what follows from its answer."""


class _Round:
    """One fetch in flight: what receives its answer, in place of a future.

    `number`: how many the fetcher had sent before. `session_number`: that of its session.
    """

    __slots__ = ("_ended", "_fetcher", "number", "session_number")

    def __init__(self, fetcher: ReplicaFetcher, number: int, session_number: int) -> None:
        self._fetcher = fetcher
        self._ended = False
        self.number = number
        self.session_number = session_number

    def done(self) -> bool:
        return self._ended

    def set_result(self, response: FetchResponse, /) -> None:
        self._ended = True
        self._fetcher.answered(self, response)

    def set_exception(self, error: ApiError, /) -> None:
        self._ended = True
        self._fetcher.failed(error)


class ReplicaFetcher:
    """Owner: the `Fetchers`."""

    def __init__(self, context: FetcherContext, leader_id: int) -> None:
        self.leader_id = leader_id
        self.followed: dict[TopicPartition, FollowedPartition] = {}
        self._context = context
        peers = context.peers
        self._session = FollowerSession(context.broker_id, peers.broker_epoch, peers.settings)
        self._dirty: dict[TopicPartition, None] = {}
        self._client: Client | None = None
        self._rounds: list[_Round] = []
        self._sent = 0  # rounds, over all connections
        self._is_closed = False
        self._is_kicked = False
        self._lost = asyncio.Event()
        self._task = asyncio.create_task(self._stay_connected(), name=f"fetcher of {leader_id}")
        self._task.add_done_callback(raise_bug)

    def follow(self, partition: Partition, role: Following) -> None:
        """Fetch the partition from here on, beginning with the end of its log."""
        each = self.followed[partition.key] = FollowedPartition(partition, role, self._sent)
        each.state = BUSY
        self.touch(partition.key)
        self._ready_when_idle(each, None)

    def _ready_when_idle(self, each: FollowedPartition, error: BaseException | None) -> None:
        """Fetch once what was begun before has ended: an append, a truncation.

        Until then the end of the log is not what the leader may count on. Nor is it before it is
        flushed, with `flush.before.expose`. `error`: of a flush that was asked for here.
        """
        if isinstance(error, DiskFull):
            again = partial(self._ready_when_idle, each, None)
            self._context.tasks.call_later(self._context.peers.settings.fetch_backoff_ms, again)
        elif error is None or isinstance(error, ApiError):  # it was to flush what is cut off now
            each.partition.when_idle(partial(self._ready_if_durable, each))

    def _ready_if_durable(self, each: FollowedPartition) -> None:
        log = each.partition.log
        if self.followed.get(each.partition.key) is not each or self._is_closed:
            return
        if log.is_truncating or not _is_durable(log):
            self._context.directory.flusher.request(log, partial(self._ready_when_idle, each))
            return
        self._ready(each)

    def leave(self, key: TopicPartition) -> None:
        """Fetch the partition no longer."""
        if self.followed.pop(key, None) is not None:
            self.touch(key)

    def reconnect(self) -> None:
        """Begin another connection and session, whose first fetch names all partitions."""
        if self._client is not None:
            self._hang_up()
            self._lost.set()

    def close(self) -> None:
        """Fetch nothing any more."""
        self._is_closed = True
        self._task.cancel()
        self._hang_up()

    # The connection

    async def _stay_connected(self) -> None:
        backoff_ms = _RECONNECT_MS_MIN
        while True:
            try:
                self._client = client = await self._connect()
            except ApiError as error:
                if backoff_ms == _RECONNECT_MS_MIN:
                    logger.warning("cannot fetch from broker %d: %s", self.leader_id, error)
            else:
                backoff_ms = _RECONNECT_MS_MIN
                logger.info("fetching from broker %d", self.leader_id)
                self._begin(client)
                await self._lost.wait()
            await asyncio.sleep(backoff_ms / 1000)
            backoff_ms = min(2 * backoff_ms, max(1, self._context.peers.settings.fetch_backoff_ms))

    async def _connect(self) -> Client:
        address = self._context.peers.find(self.leader_id)
        if address is None:
            raise ApiError(Error.NETWORK_EXCEPTION, "it is not known where it is")
        client = await self._context.peers.connect(address.host, address.port)
        try:
            await client.negotiate()
        except BaseException:
            client.close()
            raise
        return client

    def _begin(self, client: Client) -> None:
        self._lost.clear()
        self._session.begin(client.version_of(fetch.API))
        self._dirty.clear()
        for each in self.followed.values():
            if each.state is READY:
                self._ready(each)
        self._send()

    def _hang_up(self) -> None:
        client, self._client = self._client, None
        self._rounds.clear()
        if client is not None:
            client.close()

    def failed(self, error: ApiError) -> None:
        """The connection ended, or a fetch was not answered in time."""
        if self._client is not None and not self._is_closed:
            logger.warning("lost broker %d, which is fetched from: %s", self.leader_id, error)
            self._hang_up()
            self._lost.set()

    # Rounds

    def touch(self, key: TopicPartition) -> None:
        """What is asked for the partition has changed: tell it when this tick ends."""
        self._dirty[key] = None
        if not self._is_kicked and self._client is not None:
            self._is_kicked = True
            self._context.tasks.call_soon(self._kicked)

    def _kicked(self) -> None:
        self._is_kicked = False
        if self._dirty and (not self._rounds or self._session.is_open):
            self._send()

    def _send(self) -> None:
        """Send a fetch, unless there is nothing to fetch or too much is in flight.

        While one waits at the leader, partitions may become ready: they are followed anew, or their
        flush has ended. Another fetch overtakes it then. A leader of kdist ends the first one, with
        INVALID_FETCH_SESSION_EPOCH; Apache Kafka answers one after the other, from what it was told
        until then. So it may send records twice, or refuse an epoch that it was since told of.
        """
        client = self._client
        if client is None or self._is_closed or len(self._rounds) >= _IN_FLIGHT_MAX:
            return
        self._hold_throttled()
        dirty, self._dirty = self._dirty, {}
        is_first = not self._rounds
        request = self._session.request(self.followed, dirty, self._sent, is_first=is_first)
        if request is None:
            return
        settings = self._context.peers.settings
        timeout_ms = settings.socket_timeout_ms + settings.fetch_wait_max_ms
        round_ = _Round(self, self._sent, self._session.number)
        self._sent += 1
        self._rounds.append(round_)
        try:
            client.ask_for(round_, request, self._session.version, timeout_ms)
        except ApiError as error:
            self.failed(error)

    def answered(self, round_: _Round, response: FetchResponse) -> None:
        """Append what came, send the next fetch, and then take the rest of the answer."""
        if round_ not in self._rounds:
            return  # of an earlier connection
        self._rounds.remove(round_)
        if round_.session_number != self._session.number:
            return  # of a session that was given up
        is_overtaken = bool(self._rounds)
        error = Error.of(response.error_code)
        if error is not Error.NONE:
            if not (is_overtaken and error in _SESSION_ERRORS):
                self._refused_whole(error)
            return
        self._session.opened(response.session_id)
        try:
            results = self._results_in(response, round_)
            taken = [each for each in results if self._take(*each, round_)]
            if self._dirty or not self._rounds:
                self._send()
            for each, result in taken:
                self._take_offsets(each, result)
        except DiskFailed as failure:
            self._context.directory.context.on_failure(failure)

    def _results_in(
        self, response: FetchResponse, round_: _Round
    ) -> Iterator[tuple[FollowedPartition, FetchPartitionResult]]:
        """Those of partitions that are still followed in the role of then, and ready."""
        for topic in response.responses:
            name = self._session.name_of(topic)
            for result in topic.partitions:
                each = self.followed.get(TopicPartition(name, result.partition_index))
                if each is None or not each.is_current or each.state is not READY:
                    continue
                if round_.number >= each.first_round:
                    yield each, result

    def _refused_whole(self, error: Error) -> None:
        """A session was evicted, say: begin another. Any other error is not to be expected."""
        self._session.reset()
        if error in _SESSION_ERRORS:
            self._send()
        else:
            logger.warning("broker %d refuses to be fetched from: %s", self.leader_id, error.name)
            backoff_ms = self._context.peers.settings.fetch_backoff_ms
            self._context.tasks.call_later(backoff_ms, self._send)

    # One partition's result

    def _take(self, each: FollowedPartition, result: FetchPartitionResult, round_: _Round) -> bool:
        """Append its records, or begin what else it asks for; whether its offsets are to be taken.

        Those of an answer that tells to truncate are not (KAFKA-14704). Of one to a fetch before
        the partition's newest only the offsets are: they are not told twice.
        """
        diverging = divergence_in(result)
        if round_.number < each.asked_round:
            return not result.error_code and diverging is None
        position = self._session.positions.get(each.partition.key)
        if position is None or not each.still_wants(position):  # another role, or end of the log
            self._dirty[each.partition.key] = None
            return False
        if result.error_code:
            self._refused(each, Error.of(result.error_code))
            return False
        if diverging is not None:
            self._truncate(each, diverging)
            return False
        each.errors = 0
        if not result.records:
            return True
        if lies_before(each.partition.log, result):
            self._truncate_fully(each, result.log_start_offset)
            return False
        return self._append(each, result)

    def _append(self, each: FollowedPartition, result: FetchPartitionResult) -> bool:
        partition, context = each.partition, self._context.directory.context
        try:
            append = partition.append_fetched(
                [cast(Buffer, result.records)], each.role, context.clock.now_ms()
            )
        except DiskFull as error:
            self._back_off(each, error)
            return False
        except ApiError as error:  # corrupt on its way, or bytes of another epoch (KAFKA-18723)
            logger.warning(
                "what broker %d sent of %s is dropped: %s", self.leader_id, partition.key, error
            )
            self._context.metrics.failed_replications += 1
            self._back_off(each, None)
            return False
        self._context.metrics.replicated_bytes += append.totals.size
        if self._context.broker_id in partition.adding:
            self._context.metrics.reassigned_bytes += append.totals.size
        each.pause_ms = self._pause_ms(each, append.totals.size, result.high_watermark)
        needs_flush = partition.log.is_flushed_first
        if append.is_published and not needs_flush:
            self._dirty[partition.key] = None
            if each.pause_ms:
                self._pause(each, each.pause_ms)
            return True
        each.state = BUSY
        self._dirty[partition.key] = None
        append.then(partial(self._appended, each, result))
        return False

    def _appended(
        self, each: FollowedPartition, result: FetchPartitionResult, outcome: Append | ApiError
    ) -> None:
        """A thread has written it, or it is to be flushed before the leader may count on it."""
        if isinstance(outcome, ApiError):
            self._back_off(each, outcome)
            return
        if not each.is_current:
            return
        self._take_offsets(each, result)
        log = each.partition.log
        if log.is_flushed_first:
            self._context.directory.flusher.request(log, partial(self._flushed, each))
        else:
            self._go_on(each)

    def _pause_ms(self, each: FollowedPartition, size: int, high_watermark: int) -> float:
        """How long to leave a throttled partition out, of which so much has come; 0 if it lacks
        nothing that is committed, as if it is in the ISR, or not all that may come has."""
        partition, throttle = each.partition, self._context.throttle
        log, number = partition.log, partition.key.partition
        listed = log.settings.follower_replication_throttled_replicas
        if not (listed and is_listed(listed, number, self._context.broker_id)):
            return 0.0
        throttle.record(size)
        is_behind = high_watermark > log.reserved_offset
        return throttle.pause_ms if is_behind and throttle.is_exceeded else 0.0

    def _hold_throttled(self) -> None:
        """Leave out of the next fetch what is throttled, if enough has come for now: of those that
        were asked for together all may come, but not again.
        """
        throttle = self._context.throttle
        if throttle.is_exceeded:
            broker_id, asked = self._context.broker_id, self._session.positions
            for key, each in self.followed.items():
                if each.state is READY and each.may_wait(broker_id, was_asked=key in asked):
                    self._pause(each, throttle.pause_ms)

    def _pause(self, each: FollowedPartition, pause_ms: float) -> None:
        each.state, each.pause_ms = BACKED_OFF, 0.0
        self.touch(each.partition.key)
        self._context.tasks.call_later(pause_ms, partial(self._ready, each))

    def _go_on(self, each: FollowedPartition) -> None:
        """What was fetched is written: fetch what follows, now or after a pause."""
        if each.pause_ms:
            self._pause(each, each.pause_ms)
        else:
            self._ready(each)

    def _flushed(self, each: FollowedPartition, error: BaseException | None) -> None:
        if error is None:
            self._go_on(each)
        elif isinstance(error, ApiError):  # else the broker ends
            self._back_off(each, error)

    def _take_offsets(self, each: FollowedPartition, result: FetchPartitionResult) -> None:
        if each.is_current:
            each.partition.take_leader_offsets(
                result.high_watermark, result.log_start_offset, self._trim
            )

    def _trim(self, partition: Partition, offset: int) -> None:
        """The leader has deleted records: so does this replica."""
        self._context.directory.trimmer.delete_records(partition.log, offset, _ignore)

    # What may be wrong with a partition

    def _refused(self, each: FollowedPartition, error: Error) -> None:
        key = each.partition.key
        if error is Error.OFFSET_OUT_OF_RANGE:
            self._dirty[key] = None
            self._find(self._find_place, each)
        elif error is Error.FENCED_LEADER_EPOCH:
            logger.info("%s: the leader knows a newer epoch than %d", key, each.role.epoch)
            each.state = FENCED
            self._dirty[key] = None
        else:
            if each.errors == _REFUSALS_UNLOGGED:
                logger.warning(
                    "broker %d refuses a fetch of %s: %s", self.leader_id, key, error.name
                )
            self._back_off(each, None)

    def _back_off(self, each: FollowedPartition, error: KdistError | None) -> None:
        """Leave the partition out for a while, a short one at first."""
        if error is not None and not each.errors:
            logger.warning("%s cannot be followed, for now: %s", each.partition.key, error)
        longest_ms = self._context.peers.settings.fetch_backoff_ms
        backoff_ms = min(_BACKOFF_MS_MIN << min(each.errors, 10), longest_ms)
        each.errors += 1
        self._pause(each, backoff_ms)

    def _ready(self, each: FollowedPartition) -> None:
        key = each.partition.key
        if self.followed.get(key) is not each or self._is_closed:
            return
        if not _is_durable(each.partition.log):  # whatever it was that failed for lack of room
            each.state = BUSY
            self._ready_when_idle(each, None)
            return
        context, throttle = self._context, self._context.throttle
        if throttle.is_exceeded and each.may_wait(
            context.broker_id, was_asked=key in self._session.positions
        ):  # others have used up what came meanwhile
            each.state = BACKED_OFF
            context.tasks.call_later(throttle.pause_ms, partial(self._ready, each))
            return
        each.state = READY
        if self._client is not None and not self._session.finds_divergence:
            self._maybe_align(each)
        self.touch(key)

    def _truncate(self, each: FollowedPartition, leader: EpochEnd) -> None:
        """Cut the log off where it diverges, then go on from there."""
        partition = each.partition
        log = partition.log
        offset = truncation_offset(log.epochs, log.end_offset, partition.high_watermark, leader)
        self._truncate_to(each, offset)

    def _truncate_to(self, each: FollowedPartition, offset: int) -> None:
        partition = each.partition
        each.state = BUSY
        self._dirty[partition.key] = None
        partition.note_truncation(offset)
        trimmer = self._context.directory.trimmer
        # Left empty at its start, a log that begins behind would lack what the leader has before.
        cut = trimmer.truncate if offset >= partition.log.start_offset else trimmer.truncate_fully
        cut(partition.log, offset, partial(self._truncated, each), lambda: each.is_current)

    def _truncated(self, each: FollowedPartition, error: BaseException | None) -> None:
        if error is None:
            self._ready(each)
        elif isinstance(error, ApiError):
            self._back_off(each, error)

    # Leaders that do not find the divergence, and logs that lie outside the leader's

    def _maybe_align(self, each: FollowedPartition) -> None:
        """Ask an old leader where the logs diverge, until they do not, before the first fetch."""
        if not each.is_aligned and each.partition.log.epochs.latest >= 0:
            self._find(self._find_divergence, each)

    def _find(self, find: _Find, each: FollowedPartition) -> None:
        """Leave the partition out of fetches until its place in the leader's log is found."""
        each.state = BUSY
        name = f"{each.partition.key}'s place"
        task = asyncio.create_task(self._found(find, each), name=name)
        task.add_done_callback(raise_bug)

    async def _found(self, find: _Find, each: FollowedPartition) -> None:
        client = self._client
        try:
            if client is None:
                raise ApiError(Error.NETWORK_EXCEPTION, "the connection is gone")
            await find(client, each)
        except ApiError as error:
            self._back_off(each, error)

    def _is_followed(self, each: FollowedPartition) -> bool:
        return each.is_current and self.followed.get(each.partition.key) is each

    async def _find_divergence(self, client: Client, each: FollowedPartition) -> None:
        epoch = each.partition.log.epochs.latest
        found = await end_of_epoch(client, self._context.broker_id, each)
        if self._is_followed(each):
            each.is_aligned = found.epoch in (epoch, NO_EPOCH)  # else it is to be asked again
            self._truncate(each, found)

    async def _find_place(self, client: Client, each: FollowedPartition) -> None:
        """The log ends beyond the leader's, or before its start.

        Beyond: the leader was elected uncleanly. Before: its records were deleted while this broker
        was away; none of this log's are of use then.
        """
        start, end = await find_bounds(client, self._context.broker_id, each)
        if not self._is_followed(each):
            return
        log = each.partition.log
        if end < log.end_offset:
            self._truncate_to(each, end)
        elif start > log.end_offset:
            self._truncate_fully(each, start)
        else:
            self._back_off(each, None)

    def _truncate_fully(self, each: FollowedPartition, start: int) -> None:
        """The leader has deleted all that this log has."""
        each.state = BUSY
        self._dirty[each.partition.key] = None
        logger.warning(
            "%s: the leader's log starts at %d, not before this one's end: begun anew",
            *(each.partition.key, start),
        )
        self._context.directory.trimmer.truncate_fully(
            each.partition.log, start, partial(self._truncated, each), lambda: each.is_current
        )


def _is_durable(log: Log) -> bool:
    """Whether the leader may count on what the log has, so far as it is to be flushed for that."""
    return not log.is_flushed_first or log.recovery_point == log.end_offset


def _ignore(_: BaseException | None) -> None:
    """A start offset that could not be saved is told again by the leader."""
