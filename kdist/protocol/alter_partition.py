"""AlterPartition (key 56): a leader proposes an ISR to the controller (KIP-497).

    version  changed
    0        flexible from the first
    1        leader recovery state (KIP-704)
    2        topics by id
    3        the ISR's members with their broker epochs (KIP-903)

Between brokers only.
"""

from __future__ import annotations

from kdist.model import ZERO_UUID
from kdist.protocol.api import Api
from kdist.protocol.schema import at, int8, int16, int32, int64, message, string, struct, uuid

# kdist's own tagged field, far from the numbers that Kafka counts up: its brokers pass it over.
ELIGIBLE_REPLICAS_TAG = 10_000
RECOVERED, RECOVERING = 0, 1  # leader recovery state; 1: elected unclean, and not yet recovered


LAST_BY_NAME = 1  # the newest version that names topics, and has no ids


@struct
class IsrMember:
    """A member of the proposed ISR; epoch -1: not checked."""

    broker_id: int32
    broker_epoch: int64 = -1


@struct
class AlteredPartition:
    """Up to version 2 `new_isr`, from 3 on `new_isr_with_epochs`."""

    partition_index: int32
    leader_epoch: int32
    new_isr: list[int32] = at(until=2, default=[])
    new_isr_with_epochs: list[IsrMember] = at(since=3, default=[])
    leader_recovery_state: int8 = at(since=1, default=0)
    partition_epoch: int32


@struct
class AlteredTopic:
    topic_name: string = at(until=1, default="", ignorable=True)
    topic_id: uuid = at(since=2, default=ZERO_UUID, ignorable=True)
    partitions: list[AlteredPartition]


@message(flexible=0)
class AlterPartitionRequest:
    """The proposals of one broker, for partitions that it leads."""

    broker_id: int32
    broker_epoch: int64 = -1
    topics: list[AlteredTopic]


@struct
class AlteredPartitionResult:
    """An error, or the state as it is now."""

    partition_index: int32
    error_code: int16
    leader_id: int32 = 0
    leader_epoch: int32 = 0
    isr: list[int32] = at(default=[])
    leader_recovery_state: int8 = at(since=1, default=0, ignorable=True)
    partition_epoch: int32 = 0
    eligible_replicas: list[int32] = at(tag=ELIGIBLE_REPLICAS_TAG, default=[], ignorable=True)


@struct
class AlteredTopicResult:
    topic_name: string = at(until=1, default="", ignorable=True)
    topic_id: uuid = at(since=2, default=ZERO_UUID, ignorable=True)
    partitions: list[AlteredPartitionResult]


@message(flexible=0)
class AlterPartitionResponse:
    """`error_code` is for the whole request; `topics` is empty then."""

    throttle_time_ms: int32 = 0
    error_code: int16
    topics: list[AlteredTopicResult] = at(default=[])


API = Api(56, AlterPartitionRequest, AlterPartitionResponse, newest=3, is_between_brokers=True)
