"""A running mirror flow: a member of a group in its source, with a stream for each partition.

It concurrently reads batches and passes them to their streams, commits the streams' positions, and
looks for new topics and partitions. Memory is bounded: a partition whose stream holds its share of
`mirror.buffer.bytes`, or 1 MiB if that is more, is paused until half of that is acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Mapping
from typing import NamedTuple

from kdist.client.cluster import REFUSALS, Cluster, NoBroker, parse_addresses
from kdist.client.consumer.aio import Consumer, call_back
from kdist.client.consumer.batch import Batch, CorruptFetch
from kdist.client.consumer.core import Core
from kdist.client.consumer.fetcher import OffsetOutOfRange
from kdist.client.consumer.rebalancing import Partitions, RebalanceListener
from kdist.client.consumer.settings import read_settings
from kdist.client.offsets import TIMESTAMPS, OffsetAndMetadata, list_offsets
from kdist.client.security import security_of
from kdist.config.mirror import Flow, MirrorSettings
from kdist.errors import ApiError, Error, KdistError, UserError
from kdist.metrics.declare import Family
from kdist.metrics.mirror import FlowMetrics, RefusedMetrics, StreamMetrics
from kdist.mirror.ends import security_of_ends
from kdist.mirror.flow_topics import FlowTopics, id_of
from kdist.mirror.joined import Joined
from kdist.mirror.lag import Lag, LagMeter, ask_ranges, held_lag
from kdist.mirror.position_marker import mark_of
from kdist.mirror.selection import Selection
from kdist.mirror.stream import Route, State, Stream
from kdist.mirror.target import RETRY_MS, Target
from kdist.mirror.topic_settings import TopicSettings
from kdist.mirror.trouble import Loss, Trouble, loss_of, position_lost
from kdist.model import TopicPartition
from kdist.network.client import ClientSettings
from kdist.network.network import Network
from kdist.runtime.clock import Clock

logger = logging.getLogger(__name__)

_STREAM_BYTES_MIN = 1 << 20
_POLL_S = 0.5
_BATCHES_MAX = 200  # per poll, so that answers of the target are handled in between
_PAUSE_S = 0.5
_COMMIT_S_MAX = 10.0
_FETCH_BYTES = 16 << 20
DRAIN_S = 10.0


class MirrorContext(NamedTuple):
    """The outside world of a mirror, passed in."""

    network: Network
    clock: Clock
    rng: random.Random


class MirrorMeasures:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.flows = Family(FlowMetrics, "flow")
        self.streams = Family(StreamMetrics, "flow", "topic", "partition")
        self.refused = Family(RefusedMetrics, "flow", "topic", "reason")


class MirrorFlow(RebalanceListener):
    """A flow while it runs, and the `Source` of its streams. Owner: the loop."""

    def __init__(
        self, flow: Flow, settings: MirrorSettings, context: MirrorContext, measures: MirrorMeasures
    ) -> None:
        self.flow = flow
        self.streams: dict[TopicPartition, Stream] = {}
        self.metrics = measures.flows[flow.name,]
        self.measures = measures
        self.topics: FlowTopics | None = None  # set once both clusters have answered
        self.loss: Loss | None = None
        self.trouble = Trouble(f"flow {flow.name}")
        self.reading = Trouble(f"flow {flow.name}, reading")
        self._settings = settings
        self._context = context
        client = ClientSettings(flow.group, request_timeout_ms=30_000, connect_timeout_ms=5_000)
        security = security_of_ends(flow)
        self.source = Cluster(
            context.network,
            parse_addresses(flow.settings.source),
            client._replace(security=security.source),
            RETRY_MS,
        )
        self.target = Target(
            context.network,
            parse_addresses(flow.settings.target),
            client._replace(security=security.target),
        )
        self.settings = TopicSettings(self.source, self.target.cluster)
        self._lag_meter = LagMeter(self.source)
        self._consumer = Consumer.over(core_of(flow, settings, context.network, context.rng))
        self._joined_commits: Joined[TopicPartition, OffsetAndMetadata, None] = Joined(
            lambda offsets: self._consumer.commit(offsets, _COMMIT_S_MAX)
        )
        self._joined_lookups: Joined[
            TopicPartition, None, dict[TopicPartition, OffsetAndMetadata | None]
        ] = Joined(self.commits)
        self._source_id = ""
        self._wanted: frozenset[str] | None = None  # the topics to subscribe to, by the last look
        self._subscribed: frozenset[str] | None = None
        self._committed: dict[TopicPartition, tuple[int | None, bool]] = {}  # position, is stopped
        self._refreshed_at_s = self._read_at_s = self._now_s()  # when each last succeeded
        self._measured_at_s = self._now_s()
        self.unmeasured: dict[TopicPartition, tuple[float, str]] = {}  # since when, and why
        self._paused: set[TopicPartition] = set()
        self._assigned: set[TopicPartition] = set()  # to the consumer

    # Its life

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop`. Raises a `Loss` that stops the mirror; `UserError` if misconfigured."""
        work = [
            asyncio.create_task(each)
            for each in (self._live(), self._keep_committing(), stop.wait())
        ]
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            await self._end()

    async def _live(self) -> None:
        await self._identify_clusters()
        refreshing = asyncio.create_task(self._keep_refreshing())
        try:
            while not refreshing.done():
                await self._read()
            refreshing.result()
        finally:
            refreshing.cancel()
            await asyncio.gather(refreshing, return_exceptions=True)

    async def _identify_clusters(self) -> None:
        """Wait until both clusters have answered.

        `UserError` for a mirror into itself, and for one that a cluster does not let in.
        """
        while True:
            try:
                source_id = id_of(await self.source.metadata(), "source")
                target_id = id_of(await self.target.cluster.metadata(), "target")
            except (ApiError, NoBroker) as error:
                if isinstance(error, ApiError) and error.error in REFUSALS:
                    raise UserError(f"flow {self.flow.name}: {error}") from None
                self.trouble.begin(error)
                await asyncio.sleep(_PAUSE_S)
            else:
                break
        if source_id == target_id and not self.flow.settings.prefix:
            raise UserError(
                f"flow {self.flow.name}: source and target are the same cluster, {source_id}:"
                " without a prefix each topic would be mirrored into itself"
            )
        self.trouble.end()
        self._source_id = source_id
        self.topics = FlowTopics(
            self.flow, self.source, self.target.cluster, (source_id, target_id), self._add_wanted
        )

    def _add_wanted(self, topics: Collection[str]) -> None:
        if topics:
            self._wanted = (self._wanted or frozenset()).union(topics)

    async def _keep_refreshing(self) -> None:
        """Periodically look for new topics and partitions, and measure the lag.

        The lag also while the other fails: it grows in the outage of either cluster.
        """
        while True:
            errors: list[ApiError | NoBroker] = []
            for work in (self._refresh, self._keep_measured):
                try:
                    await work(self._context.clock.now_ms())
                except (ApiError, NoBroker) as error:
                    errors.append(error)
            if errors:
                self.trouble.begin(errors[0])
            else:
                self.trouble.end()
            await asyncio.sleep(self._settings.refresh_interval_ms / 1000)

    async def _refresh(self, now_ms: int) -> None:
        assert self.topics is not None
        selection = await self.topics.refresh(now_ms)
        self.metrics.mirrored_topics = len(selection.mirrored)
        self.metrics.held_topics = len(selection.held.keys() - selection.mirrored.keys())
        self._wanted = frozenset(selection.mirrored)
        self._show_refused(selection)
        for partition, stream in self.streams.items():
            if (loss := self.topics.loss(partition.topic)) is not None:
                stream.fail(loss)
            if self.topics.is_copy_recreated(partition.topic):
                stream.doubt()
        self._refreshed_at_s = self._now_s()

    def _show_refused(self, selection: Selection) -> None:
        """Set the metrics of the topics that the target refuses, and of no others."""
        refused = {(self.flow.name, each, selection.held[each]) for each in selection.refused}
        family = self.measures.refused
        for labels in [each for each in family if each[0] == self.flow.name]:
            if labels not in refused:
                del family[labels]
        for labels in sorted(refused):
            family[labels].is_refused = 1

    async def _keep_measured(self, now_ms: int) -> None:
        try:
            await self._measure_lag(now_ms)
        except (ApiError, NoBroker) as error:
            self._note_unmeasured(dict.fromkeys(self.streams, str(error)))
            raise

    async def _measure_lag(self, now_ms: int) -> None:
        """Update the lag metrics of the partitions. `ApiError`.

        Where a leader does not answer, records that are behind only get older.
        """
        all_positions = await self._positions()
        ranges, unknown = await ask_ranges(self.source, all_positions)
        lags: dict[TopicPartition, Lag] = {}
        asked: dict[TopicPartition, int] = {}
        for partition, (start, end) in ranges.items():
            stream = self.streams.get(partition)
            position = stream.position if stream is not None else None
            if stream is None or position is None:
                asked[partition] = all_positions[partition]
            elif stream.oldest is None:
                asked[partition] = position  # which what was on its way has moved meanwhile
            else:
                records = max(0, end - max(position, start))
                lags[partition] = held_lag(stream.oldest, records, now_ms)
        measured = await self._lag_meter.measure(asked, ranges, now_ms)
        self._note_unmeasured({**unknown, **measured.unknown})
        lags |= measured.known
        topics = {each.topic for each in all_positions}
        await self.settings.look({each: self.flow.renamed(each) for each in topics}, now_ms)
        for partition, lag in lags.items():
            if partition not in self.streams:
                continue  # revoked meanwhile
            metrics = self.measures.streams[self.labels(partition)]
            metrics.lag_records = lag.records
            metrics.lag_bytes = lag.bytes_about
            metrics.lag_seconds = lag.seconds
            metrics.retention_seconds = self.settings.retention_s(partition.topic)

    def _note_unmeasured(self, unknown: Mapping[TopicPartition, str]) -> None:
        """Note the partitions whose lag is unknown; what is behind in them has only got older."""
        now_s, before = self._now_s(), self.unmeasured
        for partition in unknown.keys() & self.streams.keys():
            metrics = self.measures.streams[self.labels(partition)]
            if metrics.lag_records:
                metrics.lag_seconds += now_s - self._measured_at_s
        self._measured_at_s = now_s
        self.unmeasured = {
            each: (before[each][0] if each in before else now_s, why)
            for each, why in unknown.items()
        }

    async def _positions(self) -> dict[TopicPartition, int]:
        """The streams' positions; for a stream without one yet, the committed offset.

        Without that, 0 for a partition that is to be mirrored from the earliest record, and none
        for one from the latest.
        """
        known = {partition: stream.position for partition, stream in self.streams.items()}
        unknown = [partition for partition, position in known.items() if position is None]
        committed = await self.commits(unknown) if unknown else {}
        assert self.topics is not None, "looked at first"
        for partition in unknown:
            if (found := committed[partition]) is not None:
                known[partition] = found.offset
            elif self.topics.begin_at(partition) == "earliest":
                known[partition] = 0
        return {each: position for each, position in known.items() if position is not None}

    async def _subscribe(self) -> None:
        """Subscribe to the wanted topics. Called only between polls, never amid a rebalance."""
        name, topics = self.flow.name, self._wanted
        if topics == self._subscribed:
            return
        if topics:
            logger.info("flow %s: topics to mirror: %s", name, len(topics))
            self._consumer.subscribe(sorted(topics), self)
        else:
            logger.warning("flow %s: there is no topic to mirror in the source", name)
            await self._consumer.unsubscribe()
        self._subscribed = topics

    async def _read(self) -> None:
        """Poll once. An error of a partition stops its stream; other errors are retried."""
        if self.loss is not None:
            raise self.loss
        try:
            await self._subscribe()
            batches = await self._consumer.poll_batches(_POLL_S, _BATCHES_MAX)
        except OffsetOutOfRange as error:
            await self._handle_loss(error)
        except CorruptFetch as error:
            stream = self.streams.get(error.partition)
            if stream is not None:
                stream.fail(error)
        except (ApiError, NoBroker) as error:
            if isinstance(error, ApiError) and error.error is Error.INVALID_SESSION_TIMEOUT:
                raise UserError(f"the source refuses mirror.session.timeout.ms: {error}") from None
            self.reading.begin(error)
            await asyncio.sleep(_PAUSE_S)
        else:
            self.reading.end()
            self._read_at_s = self._now_s()
            self._put(batches)
            await asyncio.sleep(0)  # a poll with enough batches buffered never yields to the loop

    def _put(self, batches: list[Batch]) -> None:
        found: dict[TopicPartition, list[Batch]] = {}
        for batch in batches:
            found.setdefault(batch.partition, []).append(batch)
        for partition, each in found.items():
            stream = self.streams.get(partition)
            if stream is not None:
                stream.put(each)
                if stream.wants_more:
                    self._balance(stream)

    # Bounding memory

    def _balance(self, stream: Stream) -> None:
        """Pause or resume a partition, by how much its stream holds."""
        partition = stream.route.source
        share = max(_STREAM_BYTES_MIN, self._settings.buffer_bytes // max(len(self.streams), 1))
        if stream.held_bytes >= share and partition not in self._paused:
            self._paused.add(partition)
            self._consumer.pause(partition)
        elif stream.held_bytes < share // 2 and partition in self._paused:
            self._paused.discard(partition)
            self._consumer.resume(partition)

    def _stream_changed(self, stream: Stream) -> None:
        partition = stream.route.source
        if not self._is_read(partition):
            return  # the partition has been revoked
        if stream.wants_more:
            self._balance(stream)
        elif stream.state is State.STOPPED:
            self.measures.streams[self.labels(partition)].is_stopped = 1
            if self._settings.on_loss == "stop-mirror" and isinstance(stream.failure, Loss):
                self.loss = stream.failure

    @property
    def heard_at_s(self) -> float:
        """The older of the times of the last successful refresh and the last successful poll."""
        return min(self._refreshed_at_s, self._read_at_s)

    def _now_s(self) -> float:
        return self._context.network.loop.time()

    @property
    def buffered_bytes(self) -> int:
        """What all streams hold."""
        return sum(each.held_bytes for each in self.streams.values())

    # Errors of a partition

    async def _handle_loss(self, error: OffsetOutOfRange) -> None:
        stream = self.streams.get(error.partition)
        if stream is None or stream.state is not State.FLOWING:
            return
        try:
            ends = [await self._offset(error.partition, which) for which in ("earliest", "latest")]
        except (ApiError, NoBroker) as why:  # what is lost is unknown: a later poll raises again
            self.reading.begin(why)
            await asyncio.sleep(_PAUSE_S)
            return
        stream.fail(loss_of(error, *ends))

    # The source, as streams use it

    async def committed(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        return (await self._joined_lookups({partition: None}))[partition]

    async def commits(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The offsets that the flow's group has committed."""
        return await self._consumer.committed(partitions)

    async def begin(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        assert self.topics is not None, "subscribed with the first refresh"
        if self.topics.is_known(partition.topic) or self.topics.begin_at(partition) == "earliest":
            return None
        found = OffsetAndMetadata(await self._offset(partition, "latest"))
        await self.commit({partition: found})
        return found

    async def start_offset(self, partition: TopicPartition, *, is_emptied: bool) -> int:
        assert self.topics is not None, "subscribed with the first refresh"
        offset = await self._offset(partition, self.topics.begin_at(partition))
        if self.topics.is_position_lost(
            partition.topic,
            self._context.clock.now_ms(),
            is_emptied=is_emptied,
            would_skip=offset > 0,
        ):
            raise position_lost(partition)
        return offset

    def fault_of(self, partition: TopicPartition) -> Loss | None:
        return self.topics.loss(partition.topic) if self.topics is not None else None

    async def _offset(self, partition: TopicPartition, which: str) -> int:
        wanted = {partition: TIMESTAMPS[which]}
        found = (await list_offsets(self.source, wanted, is_committed_only=False))[partition]
        if found is None:
            raise ApiError(Error.OFFSET_NOT_AVAILABLE, str(partition))
        return found.offset

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        await self._joined_commits(offsets)

    def read_from(self, partition: TopicPartition, offset: int, leader_epoch: int) -> None:
        if self._is_read(partition):
            self._consumer.seek(partition, offset, leader_epoch)
            self._paused.discard(partition)
            self._consumer.resume(partition)

    def read_no_more(self, partition: TopicPartition) -> None:
        if self._is_read(partition):
            self._paused.add(partition)
            self._consumer.pause(partition)

    def _is_read(self, partition: TopicPartition) -> bool:
        return partition in self._assigned

    # The group

    def on_assigned(self, partitions: Partitions) -> None:
        """Start a stream for each partition, which is paused until its stream has a position."""
        assert self.topics is not None, "subscribed with the first refresh"
        self._assigned.update(partitions)
        for partition in sorted(partitions):
            self.read_no_more(partition)
            self._consumer.seek(partition, 0)  # keeps the consumer from asking for committed ones
            target = TopicPartition(self.flow.renamed(partition.topic), partition.partition)
            returning = self.topics.returning_mark(partition)
            route = Route(partition, target, mark_of(self._source_id, partition), returning)
            stream = Stream(route, self, self.target, self.metrics, self._stream_changed)
            self.streams[partition] = stream
            self.measures.streams[self.labels(partition)].is_stopped = 0
            stream.start()

    async def on_revoked(self, partitions: Partitions) -> None:
        """Wait for the answers to batches in flight, and commit."""
        try:
            await self._drain([self.streams[each] for each in partitions if each in self.streams])
        finally:
            self._assigned.difference_update(partitions)  # also if this is cancelled
        await self._drop(partitions)

    async def on_lost(self, partitions: Partitions) -> None:
        """Drop them without a commit: another member may have them, and the target deduplicates."""
        await self._drop(partitions)

    async def _drain(self, streams: list[Stream]) -> None:
        await asyncio.gather(*(each.drain(DRAIN_S) for each in streams))
        try:
            await self._commit(streams)
        except (ApiError, NoBroker) as error:
            logger.info("flow %s: positions were not committed: %s", self.flow.name, error)

    async def _drop(self, partitions: Partitions) -> None:
        for partition in partitions:
            stream = self.streams.pop(partition, None)
            self._assigned.discard(partition)
            self._paused.discard(partition)
            self._committed.pop(partition, None)
            self.measures.streams.pop(self.labels(partition), None)
            if stream is not None:
                await stream.stop()

    def labels(self, partition: TopicPartition) -> tuple[str, str, str]:
        return (self.flow.name, partition.topic, str(partition.partition))

    # Committing

    async def _keep_committing(self) -> None:
        while True:
            await asyncio.sleep(self._settings.commit_interval_ms / 1000)
            try:
                await self._commit(list(self.streams.values()))
            except (ApiError, NoBroker) as error:
                logger.debug("flow %s: positions were not committed: %s", self.flow.name, error)

    async def _commit(self, streams: list[Stream]) -> None:
        """Commit the positions of the streams that have moved or stopped since the last commit."""
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        noted: dict[TopicPartition, tuple[int | None, bool]] = {}
        for stream in streams:
            partition = stream.route.source
            if stream.is_idle and self._is_read(partition):
                await self._note_position(stream)
            position, is_stopped = stream.position, stream.state is State.STOPPED
            at = position, is_stopped
            if position is not None and at != self._committed.get(partition):
                offsets[partition] = OffsetAndMetadata(position, stream.note, stream.leader_epoch)
                noted[partition] = at
        if offsets:
            await self.commit(offsets)
            self._committed |= noted

    async def _note_position(self, stream: Stream) -> None:
        try:
            stream.note_position(await self._consumer.position(stream.route.source, 0))
        except (ApiError, NoBroker) as error:  # the others are committed all the same
            logger.debug("%s: its position is unknown: %s", stream.route.source, error)

    async def _end(self) -> None:
        """Wait for the answers to batches in flight, commit, and leave the group."""
        await self._drain(list(self.streams.values()))
        await self._drop(list(self.streams))
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._consumer.unsubscribe()
        except (KdistError, TimeoutError) as error:
            why = str(error) or "no answer in time"
            logger.warning("flow %s: could not leave the group: %s", self.flow.name, why)
        await self._consumer.close(DRAIN_S)
        self.source.close()
        self.target.close()


def core_of(flow: Flow, settings: MirrorSettings, network: Network, rng: random.Random) -> Core:
    """A member of the flow's group that commits nothing by itself."""
    values = {
        "group_id": flow.group,
        "client_id": flow.group,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "isolation_level": "read_committed",
        "partition_assignment_strategy": ("cooperative-sticky",),
        "fetch_max_bytes": _FETCH_BYTES,
        "session_timeout_ms": settings.session_timeout_ms,
        "heartbeat_interval_ms": max(settings.session_timeout_ms // 3, 1),
        "metadata_max_age_ms": settings.refresh_interval_ms,
        **security_of(flow.source_security),
    }
    addresses = parse_addresses(flow.settings.source)
    return Core(network, addresses, read_settings(values), rng, (None, None), call_back)
