"""Brokers as the controller sees them: they take its requests, obey, and keep a transcript.

A `FakeBroker` has a disk that outlives its restarts (which replicas it holds, by topic id) and a
memory that does not (what it leads, what it was told of the cluster). It judges epochs as a broker
must. Requests and answers travel through the protocol's real bytes.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from typing import Any, NamedTuple

from kdist.errors import ApiError, Error
from kdist.model import TopicPartition
from kdist.protocol.compiler import codec_for
from kdist.protocol.leader_and_isr import (
    LeaderAndIsrPartitionResult,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicResult,
)
from kdist.protocol.stop_replica import (
    StoppedPartitionResult,
    StopReplicaRequest,
    StopReplicaResponse,
)
from kdist.protocol.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse

FULL = 2


class StateUpdate(NamedTuple):
    """What a broker was last sent about a partition."""

    topic_id: uuid.UUID
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]


class FakeBroker:
    """One broker's end of the controller's connections."""

    def __init__(self, broker_id: int) -> None:
        self.id = broker_id
        self.epoch = -1  # of its registration
        self.is_up = True
        self.refusals: list[Error] = []  # answers to the next partitions of LeaderAndIsr
        self.logs: dict[TopicPartition, uuid.UUID] = {}
        self.transcript: list[str] = []
        self.requests: list[Any] = []
        self.connections: list[FakePeer] = []
        self.forget()

    def forget(self) -> None:
        """Lose the memory, as a restart does."""
        self.controller_epoch = -1
        self.led: dict[TopicPartition, StateUpdate] = {}
        self.stopped: set[TopicPartition] = set()  # without deletion
        self.metadata: dict[TopicPartition, StateUpdate] = {}
        self.brokers: set[int] = set()

    def answer(self, request: Any) -> Any:
        """Carry out a request, or answer with its error."""
        error = self._judge(request)
        match request:
            case LeaderAndIsrRequest():
                return self._lead(request, error)
            case UpdateMetadataRequest():
                return self._learn(request, error)
            case StopReplicaRequest():
                return self._stop(request, error)
        raise AssertionError(f"an unexpected {type(request).__name__}")

    def _judge(self, request: Any) -> Error:
        if request.controller_epoch < self.controller_epoch:
            return Error.STALE_CONTROLLER_EPOCH
        if request.broker_epoch < self.epoch:
            return Error.STALE_BROKER_EPOCH
        self.controller_epoch = request.controller_epoch
        self.requests.append(request)
        return Error.NONE

    def _lead(self, request: LeaderAndIsrRequest, error: Error) -> LeaderAndIsrResponse:
        answer = LeaderAndIsrResponse(error_code=error.code, topics=[])
        if error is not Error.NONE:
            return answer
        if request.type == FULL:
            self.led.clear()
        for topic in request.topic_states:
            results = [self._lead_one(topic, state) for state in topic.partition_states]
            answer.topics.append(
                LeaderAndIsrTopicResult(topic_id=topic.topic_id, partition_errors=results)
            )
        self._write(f"LeaderAndIsr{_kind(request)}", self._states(request, "topic_states"))
        return answer

    def _lead_one(self, topic: Any, state: Any) -> LeaderAndIsrPartitionResult:
        partition = TopicPartition(topic.topic_name, state.partition_index)
        error = self.refusals.pop(0) if self.refusals else Error.NONE
        if error is Error.NONE:
            # A name is not reused before all replicas of the deleted topic are gone.
            assert self.logs.get(partition, topic.topic_id) == topic.topic_id
            assert self.id in state.replicas
            before = self.led.get(partition)
            assert before is None or before.leader_epoch <= state.leader_epoch
            # As Kafka: who does not know the leader does not follow it, and says nothing. One that
            # has just died is no harm, as a state with another one follows.
            if state.leader in {*self.brokers, -1}:
                self.led[partition] = _state_update(topic.topic_id, state)
            self.logs[partition] = topic.topic_id
        return LeaderAndIsrPartitionResult(
            partition_index=state.partition_index, error_code=error.code
        )

    def _learn(self, request: UpdateMetadataRequest, error: Error) -> UpdateMetadataResponse:
        if error is Error.NONE:
            if request.type == FULL:
                self.metadata.clear()
            for topic in request.topic_states:
                for state in topic.partition_states:
                    partition = TopicPartition(topic.topic_name, state.partition_index)
                    if state.leader == -2:
                        self.metadata.pop(partition, None)
                    else:
                        self.metadata[partition] = _state_update(topic.topic_id, state)
            self.brokers = {broker.id for broker in request.live_brokers}
            alive = ",".join(str(each) for each in sorted(self.brokers))
            states = self._states(request, "topic_states")
            self._write(f"UpdateMetadata{_kind(request)} brokers {alive}", states)
        return UpdateMetadataResponse(error_code=error.code)

    def _stop(self, request: StopReplicaRequest, error: Error) -> StopReplicaResponse:
        answer = StopReplicaResponse(error_code=error.code, partition_errors=[])
        if error is not Error.NONE:
            return answer
        for topic in request.topic_states:
            for state in topic.partition_states:
                partition = TopicPartition(topic.topic_name, state.partition_index)
                if state.delete_partition:
                    self.logs.pop(partition, None)
                    self.led.pop(partition, None)
                else:
                    assert state.leader_epoch >= self.led[partition].leader_epoch
                    self.stopped.add(partition)
                self._write("StopReplica", [f"{partition}"])
                answer.partition_errors.append(
                    StoppedPartitionResult(
                        topic_name=partition.topic,
                        partition_index=partition.partition,
                        error_code=Error.NONE.code,
                    )
                )
        return answer

    def _states(self, request: Any, field: str) -> list[str]:
        return [
            f"{topic.topic_name}-{state.partition_index} leader {state.leader}"
            + (f" epoch {state.leader_epoch}" if state.leader != -2 else "")
            for topic in getattr(request, field)
            for state in topic.partition_states
        ]

    def _write(self, what: str, details: list[str]) -> None:
        self.transcript.append(f"{self.id}: {what}" + "".join(f", {each}" for each in details))


class FakeNetwork:
    """The network to the brokers: random delays, and links that can be cut."""

    def __init__(self, rng: random.Random, delay_ms_max: float = 2.0) -> None:
        self.brokers: dict[str, FakeBroker] = {}  # by host
        self._rng = rng
        self._delay_ms_max = delay_ms_max

    def add(self, broker_id: int) -> FakeBroker:
        """A broker on a host of its own."""
        broker = self.brokers[f"host-{broker_id}"] = FakeBroker(broker_id)
        return broker

    async def connect(self, host: str, port: int) -> FakePeer:
        """What a channel connects with."""
        await self.pass_by()
        if not self.brokers[host].is_up:
            raise ApiError(Error.NETWORK_EXCEPTION, f"nobody answers at {host}:{port}")
        peer = FakePeer(self, self.brokers[host])
        peer.broker.connections = [peer]
        return peer

    async def pass_by(self) -> None:
        """Delay a message, as the network does."""
        await asyncio.sleep(self._rng.uniform(0, self._delay_ms_max) / 1000)


class FakePeer:
    """A connection to a `FakeBroker`: what `kdist.controller.channels.Peer` asks for."""

    def __init__(self, network: FakeNetwork, broker: FakeBroker) -> None:
        self.is_closed = False
        self._network = network
        self.broker = broker

    async def send(self, request: Any, version: int) -> Any:
        """There and back, unless the broker is down at either end."""
        arrived = _through_bytes(request, version)
        await self._network.pass_by()
        self._check()
        answer = _through_bytes(self.broker.answer(arrived), version)
        await self._network.pass_by()
        self._check()
        return answer

    def close(self) -> None:
        self.is_closed = True

    def _check(self) -> None:
        if self.is_closed or not self.broker.is_up:
            self.is_closed = True
            raise ApiError(Error.NETWORK_EXCEPTION, "the connection is gone")


def _through_bytes(message: Any, version: int) -> Any:
    out = bytearray()
    codec = codec_for(type(message), version)
    codec.encode(message, out)
    return codec.decode(bytes(out), 0)[0]


def _state_update(topic_id: uuid.UUID, state: Any) -> StateUpdate:
    return StateUpdate(
        topic_id, state.leader, state.leader_epoch, tuple(state.isr), tuple(state.replicas)
    )


def _kind(request: Any) -> str:
    return " full" if request.type == FULL else ""
