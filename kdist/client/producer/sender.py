"""Sends due batches to the leaders of their partitions: the event loop's half of the producer.

Every change (a batch opened or full, an answer, a connection, fresh metadata) kicks the sender,
which then looks over all partitions that have batches, once for any number of kicks. A timer wakes
it for batches that are not due yet or whose broker is resting.

A batch is due when it is full, has lingered, is waited for, or memory is short. It stays open until
a request takes it, so batches grow while earlier requests are in flight. A request also takes the
batches for the same broker that have lingered half their time: otherwise each of hundreds of
partitions would come due on its own, and cost its own request and answer.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from kdist.client.producer.accumulator import Accumulator
from kdist.client.producer.batch import PartitionQueue, ProducerBatch
from kdist.client.producer.encoding import RequestEncoder, stamp
from kdist.client.producer.identity import NOBODY, Identities
from kdist.client.producer.link import Link, LinkSettings, Outcome
from kdist.client.producer.metadata import Metadata
from kdist.client.producer.settings import ProducerSettings
from kdist.client.producer.settling import Settling
from kdist.client.producer.topic import LEADERLESS
from kdist.errors import ApiError, Error
from kdist.model import NO_LEADER
from kdist.network.network import Network
from kdist.runtime.tick_loop import ringing

# A batch of at least this size is sent alone and uncopied: its request's own cost is negligible.
_ALONE_BYTES = 32 << 10
_DRAIN_PAUSE_S = 0.01
# A broker reads nothing from a connection while its client is over a quota, and goes on at once if
# the quota is raised or taken away, which it cannot tell. So what waits for it there is in time.
_THROTTLE_MS_MAX = 1_000
_STAMP_S = 0.005  # how far behind a record's time may be, and the age from which a batch notes it


class _Found(NamedTuple):
    """What one look found."""

    ready: dict[int, list[PartitionQueue]]  # by leader, what the next request may take
    soonest: dict[int, float]  # by leader, when the first of these is due
    wake_s: float  # when to look again for the others
    overdue: list[PartitionQueue]  # with an open batch, and records past their linger


class Sender:
    """Owner: the loop, except for `kick` and `kick_by`."""

    def __init__(  # noqa: PLR0913 - the parts that it drives, which `Core` makes
        self,
        network: Network,
        settings: ProducerSettings,
        links: LinkSettings,
        accumulator: Accumulator,
        metadata: Metadata,
        encoder: RequestEncoder,
        identities: Identities | None,
        settling: Settling,
        on_dequeue: Callable[[ProducerBatch], None] | None,
    ) -> None:
        self._loop = network.loop
        self._network = network
        self._accumulator = accumulator
        self._metadata = metadata
        self._encoder = encoder
        self._identities = identities
        self._settling = settling
        self._on_dequeue = on_dequeue
        self._link_settings = links
        self._linger_s = settings.linger_ms / 1000
        self._delivery_s = settings.delivery_timeout_ms / 1000
        self._request_bytes_max = settings.max_request_size
        self._is_answered = settings.acks != "0"
        self._links: dict[int, Link] = {}
        self._looks = 0  # that have begun
        self._kicked_after = -1  # how many had begun before the last kick: it is unheard if equal
        # When the timer is set to look: a kick by a later time is not needed.
        self._looks_by_s = math.inf
        self._expires_s = math.inf  # when the oldest batch that the last look saw expires
        self._ring = ringing(network.loop, self.look)
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        # Set for the oldest batch, and never for an earlier time, as later batches are younger.
        self._expiring: asyncio.TimerHandle | None = None
        self._stamping: asyncio.TimerHandle | None = None  # None: whoever opens a batch kicks

    def kick(self) -> None:
        """Look soon; from any thread."""
        looks = self._looks
        if self._kicked_after != looks and not self._is_closed:
            self._ring()
            # Only now: what interrupts this thread before it has rung has to ring itself.
            self._kicked_after = looks

    def kick_by(self, when_s: float) -> None:
        """Look by then at the latest; from any thread."""
        if when_s < self._looks_by_s or self._stamping is None:
            self.kick()

    async def drain(self) -> None:
        """Wait until the sockets have taken all requests, for up to the request timeout.

        Only needed with acks=0: otherwise the answers prove that the requests were sent.
        """
        if self._is_answered:
            return
        limit_s = self._link_settings.client.request_timeout_ms / 1000
        end_s = self._loop.time() + limit_s
        while any(link.has_unsent for link in self._links.values()) and self._loop.time() < end_s:
            await asyncio.sleep(_DRAIN_PAUSE_S)

    def close(self) -> None:
        self._is_closed = True
        for timer in (self._timer, self._expiring, self._stamping):
            if timer is not None:
                timer.cancel()
        for link in self._links.values():
            link.close()

    def give_up(self, error: BaseException) -> None:
        """Fail every batch that is not done. Nothing may be in flight."""
        for queue in tuple(self._accumulator.active):
            self.fail_all(queue, error)

    def fail_all(self, queue: PartitionQueue, error: BaseException) -> None:
        """Fail what is not in flight of a partition."""
        self._seal(queue)
        while queue.waiting:
            self._settling.fail(queue.waiting.popleft(), error)

    # Looking

    def look(self) -> None:
        """Send what is due and may be sent."""
        self._looks += 1
        if self._is_closed:
            return
        if self._stamping is None and self._accumulator.active:
            self._stamping = self._loop.call_later(_STAMP_S, self._stamp)
        self._looks_by_s = math.inf  # first, so that whatever changes from here on kicks
        now_s = self._loop.time()
        if now_s >= self._expires_s:
            for queue in tuple(self._accumulator.active):
                self._expire(queue, now_s)
        ready, soonest, wake_s, overdue = self._find_ready(now_s)
        due = [leader for leader, due_s in soonest.items() if due_s <= now_s]
        for leader in due:  # whatever delays the rest of them will kick when it changes
            self._send_to(leader, deque(ready[leader]), now_s)
        self._accumulator.shut = LEADERLESS.union(
            leader for leader in due if not self._may_send_to(leader, now_s)
        )
        for queue in overdue:
            if queue.open is not None:
                self._accumulator.move_on(queue)
        self._wake_at(min([wake_s, *(due_s for due_s in soonest.values() if due_s > now_s)]))

    def _find_ready(self, now_s: float) -> _Found:
        soon_s, late_s = now_s + self._linger_s / 2, now_s - self._linger_s
        wake_s = oldest_s = math.inf
        ready: dict[int, list[PartitionQueue]] = {}
        soonest: dict[int, float] = {}
        idle, overdue = [], []
        for queue in tuple(self._accumulator.active):
            first = queue.waiting[0] if queue.waiting else queue.open
            oldest_s = min(oldest_s, queue.in_flight_since_s)
            if first is None:
                if not queue.in_flight:
                    idle.append(queue)
                continue
            oldest_s = min(oldest_s, first.created_s)
            if queue.open is not None and first.created_s <= late_s:
                overdue.append(queue)
            due_s = self._due_s(queue, first)
            if due_s <= soon_s and queue.retry_at_s <= now_s:
                leader = queue.leader
                ready.setdefault(leader, []).append(queue)
                soonest[leader] = min(soonest.get(leader, due_s), due_s)
            else:
                wake_s = min(wake_s, due_s)
        self._forget(idle)
        self._expires_s = oldest_s + self._delivery_s
        if self._expiring is None and oldest_s < math.inf:
            self._expiring = self._loop.call_at(self._expires_s, self._expire_all)
        return _Found(ready, soonest, wake_s, overdue)

    def _wake_at(self, when_s: float) -> None:
        """Look again by then. An earlier timer is kept, as replacing it would cost more."""
        timer = self._timer
        if when_s < math.inf and (timer is None or timer.when() > when_s):
            if timer is not None:
                timer.cancel()
            self._timer = timer = self._loop.call_at(when_s, self._wake)
        if timer is not None:
            self._looks_by_s = timer.when()

    def _wake(self) -> None:
        self._timer = None
        self.look()

    def _stamp(self) -> None:
        """Tell open batches the time, again and again while there are any."""
        self._stamping = None
        if self._accumulator.mark_time(self._loop.time() - _STAMP_S):
            self._stamping = self._loop.call_later(_STAMP_S, self._stamp)

    def _expire_all(self) -> None:
        self._expiring = None
        self.look()

    def _expire(self, queue: PartitionQueue, now_s: float) -> None:
        """Fail the batches that have exceeded the delivery timeout."""
        for batch in queue.in_flight:
            if batch.created_s + self._delivery_s <= now_s and not batch.is_done:
                self._settling.expire(batch)
        while first := queue.waiting[0] if queue.waiting else queue.open:
            if first.created_s + self._delivery_s > now_s:
                return
            if not queue.waiting:
                self._seal(queue)
            batch = queue.waiting.popleft()
            batch.error = batch.error or self._why_unsent(queue)
            self._settling.expire(batch)

    def _why_unsent(self, queue: PartitionQueue) -> BaseException | None:
        """Why a batch has not been sent, so far as is known; it may never have been attempted."""
        leader = queue.leader
        if leader == NO_LEADER:
            return ApiError(Error.LEADER_NOT_AVAILABLE, "the partition has no leader")
        if leader not in self._metadata.cluster.brokers:
            return ApiError(Error.LEADER_NOT_AVAILABLE, f"its leader {leader} is no known broker")
        link = self._links.get(leader)
        return link.error if link is not None else None

    def _forget(self, queues: Sequence[PartitionQueue]) -> None:
        if queues:
            with self._accumulator.lock:
                for queue in queues:
                    if queue.is_empty:
                        self._accumulator.active.pop(queue, None)

    def _seal(self, queue: PartitionQueue) -> None:
        with self._accumulator.lock:
            if queue.open is not None:
                self._accumulator.seal(queue, is_known=True)

    def _due_s(self, queue: PartitionQueue, first: ProducerBatch) -> float:
        """When the queue's first batch that is not in flight may and should be sent."""
        if queue.in_flight and not queue.may_send:
            return math.inf  # an answer will kick
        if queue.waiting or first.is_hurried or self._accumulator.memory.is_wanted:
            return queue.retry_at_s
        return max(queue.retry_at_s, first.created_s + self._linger_s)

    # Sending

    def _send_to(self, leader: int, queues: deque[PartitionQueue], now_s: float) -> None:
        if leader == NO_LEADER or leader not in self._metadata.cluster.brokers:
            self._metadata.want({queue.topic for queue in queues})
            return
        link = self._links.get(leader)
        if link is None:
            link = Link(self._network, self._link_settings, self.kick)
            self._links[leader] = link
        if link.resting_until_s > now_s:
            return
        if not link.may_send():
            link.maybe_connect(self._metadata.cluster.brokers, leader, now_s)
            if link.is_down:
                self._metadata.want({queue.topic for queue in queues})  # it may lead no more
            return
        if self._identities is not None:
            queues = deque(queue for queue in queues if self._is_identified(queue))
        while queues and link.may_send():
            batches = self._take(queues, link.version)
            if batches:
                self._post(link, batches)

    def _may_send_to(self, leader: int, now_s: float) -> bool:
        link = self._links.get(leader)
        return link is not None and link.resting_until_s <= now_s and link.may_send()

    def _is_identified(self, queue: PartitionQueue) -> bool:
        """Whether the queue has an identity to number its batches with; maybe gives it a newer."""
        if queue.identity != NOBODY and not queue.is_stale:
            return True
        assert self._identities is not None, "only asked with idempotence"
        if self._identities.fatal is not None:
            self.fail_all(queue, self._identities.fatal)
            return False
        newer = self._identities.newer_than(queue.identity)
        if newer is None or queue.in_flight:
            return False
        queue.begin_anew(newer)
        return True

    def _take(self, queues: deque[PartitionQueue], version: int) -> list[ProducerBatch]:
        """One request's batches: one per partition, as many as fit, or a single large one."""
        taken: list[ProducerBatch] = []
        room_bytes = self._request_bytes_max
        for _ in range(len(queues)):
            if not queues[0].waiting:
                self._seal_some(queues, room_bytes)
            queue = queues.popleft()
            batch = self._first(queue, version)
            if batch is None:
                if queue.waiting:
                    queues.append(queue)
                continue
            size = len(batch.frame or b"")
            if taken and (size > room_bytes or size >= _ALONE_BYTES):
                queues.appendleft(queue)  # for the next request
                break
            room_bytes -= size
            queue.waiting.popleft()
            queue.mark_in_flight(batch)
            taken.append(batch)
            if queue.waiting and queue.may_send:
                queues.append(queue)
            if size >= _ALONE_BYTES:
                break
        return taken

    def _seal_some(self, queues: Iterable[PartitionQueue], room_bytes: int) -> None:
        """Seal the first open batch, and as many more as fit in a request; the rest may grow.

        All under one lock, because each time the loop takes it, it may wait for a sending thread.
        """
        accumulator = self._accumulator
        is_first = True
        with accumulator.lock:
            for queue in queues:
                batch = queue.open
                if batch is None or queue.waiting:
                    continue
                is_large = batch.size_bytes >= _ALONE_BYTES
                if not is_first and (is_large or batch.size_bytes > room_bytes):
                    return
                accumulator.seal(queue, is_known=True)
                if is_large:
                    return
                room_bytes -= batch.size_bytes
                is_first = False

    def _first(self, queue: PartitionQueue, version: int) -> ProducerBatch | None:
        """The next batch, encoded and numbered; None if encoding failed, and the batch with it."""
        batch = queue.waiting[0]
        is_new = batch.frame is None
        if is_new:
            try:
                if self._on_dequeue is not None and not batch.attempts:
                    self._on_dequeue(batch)
                self._encoder.encode(batch, version)
            except (TypeError, ValueError, RuntimeError, MemoryError) as error:  # only this batch's
                self._settling.fail(queue.waiting.popleft(), error)
                self.kick()  # for the batches behind it, as there may be no answer to wait for
                return None
        if (self._identities is not None and queue.number(batch)) or is_new:
            stamp(batch)
        return batch

    def _post(self, link: Link, batches: Sequence[ProducerBatch]) -> None:
        for batch in batches:
            batch.attempts += 1
        try:
            if len(batches) == 1:
                frame = self._encoder.frame(batches[0], link.version)
            else:
                frame = self._encoder.join(batches, link.version)
        except MemoryError as error:
            for batch in batches:
                batch.queue.mark_answered(batch)
                self._settling.fail(batch, error)
            self.kick()
            return
        assert link.pipe is not None, "`may_send` was true"
        link.in_flight += 1
        link.batches_in_flight += len(batches)
        outcome = Outcome(partial(self._answered, link, batches))
        link.pipe.post(frame, link.version, outcome, is_answered=self._is_answered)

    def _answered(
        self, link: Link, batches: Sequence[ProducerBatch], response: Any, error: ApiError | None
    ) -> None:
        link.in_flight -= 1
        link.batches_in_flight -= len(batches)
        if error is not None:
            self._settling.lose(batches, error)
        else:
            self._settling.answer(batches, response)
            if response is not None and response.throttle_time_ms:
                link.rest(min(response.throttle_time_ms, _THROTTLE_MS_MAX))  # KIP-219
        if self._kicked_after != self._looks:  # else it will look soon
            self.look()
