"""CreateTopics (key 19): create topics, or only validate the request.

    version  changed
    1        validate_only; response: error message (KIP-4)
    2        response: throttle time (KIP-124)
    3        throttling happens after the response is sent (KIP-219)
    4        partitions and replication factor -1 take the broker's defaults (KIP-464)
    5        flexible (KIP-482); response: partitions, replication factor, settings (KIP-525)
    6        response: THROTTLING_QUOTA_EXCEEDED may come (KIP-599)
    7        response: topic id (KIP-516)

Topics succeed or fail individually. With `assignments`, `num_partitions` and `replication_factor`
must be -1.
"""

from __future__ import annotations

from kdist.model import ZERO_UUID
from kdist.protocol.api import Api
from kdist.protocol.schema import (
    at,
    int8,
    int16,
    int32,
    message,
    nullable_string,
    string,
    struct,
    uuid,
)


@struct
class ReplicaAssignment:
    """The brokers that hold one partition, preferred leader first."""

    partition_index: int32
    broker_ids: list[int32]


@struct
class TopicSetting:
    """A setting that the topic overrides; None takes the broker's."""

    name: string
    value: nullable_string


@struct
class NewTopic:
    name: string
    num_partitions: int32
    replication_factor: int16
    assignments: list[ReplicaAssignment]
    configs: list[TopicSetting]


@message(flexible=5)
class CreateTopicsRequest:
    """`timeout_ms` bounds the wait until the topics are on all brokers."""

    topics: list[NewTopic]
    timeout_ms: int32 = 60000
    validate_only: bool = at(since=1, default=False)


@struct
class TopicSettingResult:
    """A setting as it is in force; `config_source` says where its value comes from."""

    name: string
    value: nullable_string
    read_only: bool
    config_source: int8 = -1
    is_sensitive: bool


@struct
class NewTopicResult:
    """`topic_config_error_code` says why `configs` is None though the topic was created."""

    name: string
    topic_id: uuid = at(since=7, default=ZERO_UUID, ignorable=True)
    error_code: int16
    error_message: nullable_string = at(since=1, default=None, ignorable=True)
    topic_config_error_code: int16 = at(since=5, tag=0, default=0, ignorable=True)
    num_partitions: int32 = at(since=5, default=-1, ignorable=True)
    replication_factor: int16 = at(since=5, default=-1, ignorable=True)
    configs: list[TopicSettingResult] | None = at(since=5, default=[], ignorable=True)


@message(flexible=5)
class CreateTopicsResponse:
    throttle_time_ms: int32 = at(since=2, default=0, ignorable=True)
    topics: list[NewTopicResult]


API = Api(19, CreateTopicsRequest, CreateTopicsResponse, newest=7)
