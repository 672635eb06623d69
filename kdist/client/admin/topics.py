"""Topics: list, describe, create, delete, add partitions."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kdist.client.admin.asking import TIMEOUT_MS, ask_controller
from kdist.client.admin.outcomes import fault_of, listed, settled
from kdist.client.cluster import Cluster, did_you_mean, raise_for
from kdist.errors import ApiError, Error
from kdist.model import NO_LEADER, ZERO_UUID, TopicPartition
from kdist.protocol import create_topics as wire
from kdist.protocol import metadata
from kdist.protocol.create_partitions import CreatePartitionsRequest, GrownTopic
from kdist.protocol.delete_topics import DeleteTopicsRequest, TopicToDelete

_DEFAULT = -1  # as a number of partitions or replicas


class Partition(NamedTuple):
    """A partition; `leader` is None if it has none.

    `replicas` are broker ids, the preferred leader first. While the partition moves, those that it
    is to lose are among them, and so are those that it is to get, which need not be in sync yet.
    Which ones these are is known after `with_moves`.
    """

    number: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def wanted(self) -> tuple[int, ...]:
        """The replicas that it is to have, once it has moved."""
        return tuple(each for each in self.replicas if each not in self.removing)

    @property
    def settled(self) -> tuple[int, ...]:
        """The replicas that are to be in sync by now."""
        return tuple(each for each in self.replicas if each not in self.adding)


class Topic(NamedTuple):
    """A topic as the brokers know it, its partitions in order."""

    name: str
    id: uuid.UUID | None
    is_internal: bool
    partitions: tuple[Partition, ...]

    @property
    def replication_factor(self) -> int:
        """The number of replicas that are wanted; the largest of any partition."""
        return max((len(each.wanted) for each in self.partitions), default=0)


class NewTopic(NamedTuple):
    """A topic to create; None means the broker's default.

    `replicas` places the partitions: for each, its broker ids, the preferred leader first.
    """

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    settings: Mapping[str, str | None] = {}
    replicas: Sequence[Sequence[int]] = ()


class CreatedTopic(NamedTuple):
    """A created topic; a field is None if the broker is too old to report it."""

    name: str
    id: uuid.UUID | None
    partitions: int | None
    replication_factor: int | None


async def list_topics(cluster: Cluster) -> list[Topic]:
    """Every topic, internal ones included, sorted by name."""
    answer = await cluster.retried(lambda: cluster.metadata(None))
    return sorted(_topic(each) for each in answer.topics if each.name)


async def describe_topics(cluster: Cluster, names: Iterable[str]) -> dict[str, Topic]:
    """Topics by name; UNKNOWN_TOPIC_OR_PARTITION, with the nearest name, for one that is missing.

    Requests the metadata of all topics: naming a missing topic to a broker older than Kafka 0.11
    could create it.
    """
    wanted = listed(names)
    known = {topic.name: topic for topic in await list_topics(cluster)}
    return settled({name: known.get(name) or _unknown(name, known) for name in wanted})


def _unknown(name: str, known: Iterable[str]) -> ApiError:
    sentence = f"there is no topic {name}{did_you_mean(name, known)}"
    return ApiError(Error.UNKNOWN_TOPIC_OR_PARTITION, sentence)


async def require_partitions(cluster: Cluster, partitions: Iterable[TopicPartition]) -> None:
    """Raise UNKNOWN_TOPIC_OR_PARTITION for the first partition that does not exist.

    Call it before a request to leaders, which would wait for a missing partition to get a leader.
    """
    wanted = sorted(set(partitions))
    topics = await describe_topics(cluster, [topic for topic, _ in wanted])
    for topic, number in wanted:
        count = len(topics[topic].partitions)
        if not 0 <= number < count:
            raise ApiError(
                Error.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic} has no partition {number}: it has {count}, from 0",
            )


def _topic(found: metadata.MetadataTopicResult) -> Topic:
    parts = sorted(found.partitions, key=lambda each: each.partition_index)
    return Topic(
        found.name or "", _id(found.topic_id), found.is_internal, tuple(map(_partition, parts))
    )


def _partition(found: metadata.MetadataPartitionResult) -> Partition:
    return Partition(
        found.partition_index,
        None if found.leader_id == NO_LEADER else found.leader_id,
        found.leader_epoch,
        tuple(found.replica_nodes),
        tuple(found.isr_nodes),
    )


def _id(found: uuid.UUID) -> uuid.UUID | None:
    return None if found == ZERO_UUID else found


async def create_topics(
    cluster: Cluster, topics: Iterable[NewTopic | str], *, validate_only: bool = False
) -> dict[str, CreatedTopic]:
    """Create topics; a plain name takes all defaults. `validate_only` checks without creating."""
    wanted = [NewTopic(each) if isinstance(each, str) else each for each in topics]
    request = wire.CreateTopicsRequest(
        topics=[_new(each) for each in wanted], timeout_ms=TIMEOUT_MS, validate_only=validate_only
    )

    def read(answer: Any) -> dict[str, CreatedTopic | ApiError]:
        faults = _faults(answer.topics)
        return {each.name: faults[each.name] or _created(each) for each in answer.topics}

    return settled(await ask_controller(cluster, request, read))


async def create_topic(
    cluster: Cluster,
    name: str,
    partitions: int | None = None,
    replication_factor: int | None = None,
    settings: Mapping[str, str | None] | None = None,
) -> CreatedTopic:
    """Create one topic."""
    new = NewTopic(name, partitions, replication_factor, settings or {})
    return (await create_topics(cluster, [new]))[name]


def _new(topic: NewTopic) -> wire.NewTopic:
    return wire.NewTopic(
        name=topic.name,
        num_partitions=_DEFAULT if topic.partitions is None else topic.partitions,
        replication_factor=(
            _DEFAULT if topic.replication_factor is None else topic.replication_factor
        ),
        assignments=[
            wire.ReplicaAssignment(partition_index=number, broker_ids=list(brokers))
            for number, brokers in enumerate(topic.replicas)
        ],
        configs=[wire.TopicSetting(name=key, value=value) for key, value in topic.settings.items()],
    )


def _created(made: wire.NewTopicResult) -> CreatedTopic:
    count, factor = (
        None if number == _DEFAULT else number
        for number in (made.num_partitions, made.replication_factor)
    )
    return CreatedTopic(made.name, _id(made.topic_id), count, factor)


async def delete_topics(cluster: Cluster, names: Iterable[str]) -> None:
    """Delete topics with all their records."""
    deleted = listed(names)
    request = DeleteTopicsRequest(
        topics=[TopicToDelete(name=name) for name in deleted],
        topic_names=deleted,
        timeout_ms=TIMEOUT_MS,
    )
    settled(await ask_controller(cluster, request, lambda answer: _faults(answer.responses)))


async def delete_topic(cluster: Cluster, name: str) -> None:
    """Delete one topic with all its records."""
    await delete_topics(cluster, [name])


async def create_partitions(
    cluster: Cluster, partitions: Mapping[str, int], *, validate_only: bool = False
) -> None:
    """Add partitions up to the given total for each topic. `validate_only` checks without adding.

    Existing records stay where they are, but from then on keys map to other partitions.
    """
    request = CreatePartitionsRequest(
        topics=[
            GrownTopic(name=name, count=count, assignments=None)
            for name, count in partitions.items()
        ],
        timeout_ms=TIMEOUT_MS,
        validate_only=validate_only,
    )
    settled(await ask_controller(cluster, request, lambda answer: _faults(answer.results)))


def _faults(results: Sequence[Any]) -> dict[str, ApiError | None]:
    """Each topic's error, if any; NOT_CONTROLLER, which a broker returns for all, is raised."""
    for each in results:
        if each.error_code == Error.NOT_CONTROLLER:
            raise_for(each.error_code)
    return {
        each.name: fault_of(each.error_code, f"topic {each.name}", each.error_message)
        for each in results
    }
