"""The canary: writes a record to a partition of each broker and reads it back, as a client would.

It has a topic of its own, in which every broker is the preferred leader of a partition, with as
many replicas as topics have by default. A broker that joins gets a partition. While a broker is
down, another replica leads its partition, if there is one: the canary measures what clients get.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from kdist.client.admin.asking import TIMEOUT_MS, ask_controller
from kdist.client.admin.topics import NewTopic, create_topics
from kdist.client.cluster import Cluster, raise_for
from kdist.config.agent import AgentSettings
from kdist.controller.placement import interleave, place
from kdist.errors import ApiError, Error, UserError
from kdist.metrics.agent import CanaryMetrics
from kdist.metrics.declare import Family
from kdist.model import Broker, TopicPartition
from kdist.ops.probe import write_and_read
from kdist.protocol.create_partitions import (
    CreatePartitionsRequest,
    GrownTopic,
    NewPartitionAssignment,
)
from kdist.protocol.metadata import MetadataResponse
from kdist.runtime.clock import Clock

logger = logging.getLogger(__name__)

_SETTINGS = {"retention.ms": "3600000", "segment.bytes": "1048576"}
_FAILURES = (ApiError, UserError, TimeoutError)


class Canary:
    """Owner: the agent. `cluster` retries for as long as a probe may take."""

    def __init__(self, cluster: Cluster, settings: AgentSettings, clock: Clock) -> None:
        assert settings.canary_topic is not None
        self.metrics = Family(CanaryMetrics, "broker")
        self._cluster = cluster
        self._topic = settings.canary_topic
        self._interval_s = settings.canary_interval_ms / 1000
        self._timeout_s = settings.canary_timeout_ms / 1000
        self._clock = clock
        self._partitions: dict[int, TopicPartition] = {}  # by preferred leader
        self._probes: dict[int, asyncio.Task[None]] = {}
        self._told: dict[str, str] = {}

    async def run(self) -> None:
        """Probe every broker once an interval, spread over it, until cancelled."""
        try:
            while True:
                await self._look_up()
                pause_s = self._interval_s / max(1, len(self._partitions))
                for broker, partition in sorted(self._partitions.items()):
                    self._begin(broker, partition)
                    await asyncio.sleep(pause_s)
                if not self._partitions:
                    await asyncio.sleep(pause_s)
        finally:
            probes, self._probes = list(self._probes.values()), {}
            for probe in probes:
                probe.cancel()
            await asyncio.gather(*probes, return_exceptions=True)

    # The topic

    async def _look_up(self) -> None:
        """Find each broker's partition, and make what is missing. The last known stay otherwise."""
        try:
            async with asyncio.timeout(self._timeout_s):
                self._partitions = await self._kept_partitions()
        except _FAILURES as error:
            self._tell("the topic", error)
        else:
            self._tell("the topic", None)
            names = {str(broker) for broker in self._partitions}
            for key in [key for key in self.metrics if key[0] not in names]:
                del self.metrics[key]

    async def _kept_partitions(self) -> dict[int, TopicPartition]:
        known = await self._cluster.metadata([self._topic])
        (topic,) = known.topics
        if topic.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION:
            # Of as many partitions as there are brokers, each is the first replica of one.
            new = NewTopic(self._topic, partitions=len(known.brokers), settings=_SETTINGS)
            await create_topics(self._cluster, [new])
            return {}
        raise_for(topic.error_code, f"topic {self._topic}")
        found: dict[int, TopicPartition] = {}
        for each in sorted(topic.partitions, key=lambda each: each.partition_index):
            found.setdefault(
                each.replica_nodes[0], TopicPartition(self._topic, each.partition_index)
            )
        missing = sorted({each.node_id for each in known.brokers} - found.keys())
        # Moves of replicas may take a partition from its broker again and again: not without end.
        if missing and len(topic.partitions) < 2 * len(known.brokers):
            await self._grow(known, missing)
        return found

    async def _grow(self, known: MetadataResponse, missing: list[int]) -> None:
        (topic,) = known.topics
        assignments = [
            NewPartitionAssignment(broker_ids=list(replicas))
            for replicas in led_by(known, missing, len(topic.partitions[0].replica_nodes))
        ]
        count = len(topic.partitions) + len(missing)
        grown = GrownTopic(name=self._topic, count=count, assignments=assignments)
        request = CreatePartitionsRequest(
            topics=[grown], timeout_ms=TIMEOUT_MS, validate_only=False
        )
        answer = await ask_controller(self._cluster, request, lambda answer: answer)
        for result in answer.results:
            raise_for(result.error_code, f"topic {self._topic}", result.error_message)

    # A probe

    def _begin(self, broker: int, partition: TopicPartition) -> None:
        """Begin a probe, unless the last one is still under way."""
        last = self._probes.get(broker)
        if last is not None:
            if not last.done():
                return
            last.result()  # a bug ends the agent
        self._probes[broker] = asyncio.create_task(self._probe(str(broker), partition))

    async def _probe(self, broker: str, partition: TopicPartition) -> None:
        metrics = self.metrics[broker,]
        begun_ns = self._clock.monotonic_ns()
        try:
            async with asyncio.timeout(self._timeout_s):
                await write_and_read(self._cluster, partition, self._clock.now_ms())
        except _FAILURES as error:
            metrics.failed_probes += 1
            self._tell(f"broker {broker}", error)
        else:
            metrics.seconds.observe((self._clock.monotonic_ns() - begun_ns) / 1e9)
            self._tell(f"broker {broker}", None)
        metrics.probes += 1

    def _tell(self, whose: str, error: BaseException | None) -> None:
        """Log when trouble begins and when it ends, but not each time."""
        if error is not None and whose not in self._told:
            self._told[whose] = str(error) or "no answer in time"
            logger.warning("the canary of %s fails: %s", whose, self._told[whose])
        elif error is None and self._told.pop(whose, None) is not None:
            logger.info("the canary of %s succeeds again", whose)


def led_by(
    known: MetadataResponse, leaders: list[int], replication_factor: int
) -> list[tuple[int, ...]]:
    """Replicas for a partition of each of these brokers, itself the first (pure)."""
    brokers = (Broker(each.node_id, each.host, each.port, each.rack) for each in known.brokers)
    order = interleave(brokers)
    starts: Mapping[int, int] = {broker.id: at for at, broker in enumerate(order)}
    return [place(order, range(1), replication_factor, starts[each])[0] for each in leaders]
