"""Produce (key 0): append record batches to partitions, for producers.

    version  changed
    0        message sets of magic 0 or 1 (`kdist.records` converts them)
    1        response: throttle time (KIP-13)
    2        response: log append time; message sets of magic 1 (KIP-32)
    3        transactional id; only record batches of magic 2 from here on (KIP-98)
    4        response: KAFKA_STORAGE_ERROR may come (KIP-112)
    5        response: log start offset (KIP-192)
    6        throttling happens after the response is sent (KIP-219)
    7        zstd may be used; earlier it is UNSUPPORTED_COMPRESSION_TYPE (KIP-110)
    8        response: which records were refused, and why (KIP-467)
    9        flexible (KIP-482)
    10       response: the current leader where another broker was asked (KIP-951)
    11       response: TRANSACTION_ABORTABLE may come (KIP-890)

`acks` is 0 (no response at all), 1 (the leader has it) or -1 (every in-sync replica has it).
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.fetch import CurrentLeader, NodeEndpoint
from kdist.protocol.schema import (
    at,
    int16,
    int32,
    int64,
    message,
    nullable_string,
    record_set,
    string,
    struct,
)


@struct
class ProducePartition:
    """The record batches for one partition; exactly one batch since version 3."""

    index: int32
    records: record_set


@struct
class ProduceTopic:
    name: string
    partition_data: list[ProducePartition]


@message(flexible=9, entries_max=32_768)  # of a broker's partitions: 100 MiB hold 17 million
class ProduceRequest:
    """`timeout_ms` bounds the wait for the in-sync replicas."""

    transactional_id: nullable_string = at(since=3, default=None)
    acks: int16
    timeout_ms: int32
    topic_data: list[ProduceTopic]


@struct
class RecordError:
    """A record because of which its whole batch was refused, by its index in the batch."""

    batch_index: int32
    batch_index_error_message: nullable_string = None


@struct
class ProducePartitionResult:
    """`base_offset` is that of the first record; `log_append_time_ms` is -1 under CreateTime."""

    index: int32
    error_code: int16
    base_offset: int64
    log_append_time_ms: int64 = at(since=2, default=-1, ignorable=True)
    log_start_offset: int64 = at(since=5, default=-1, ignorable=True)
    record_errors: list[RecordError] = at(since=8, default=[], ignorable=True)
    error_message: nullable_string = at(since=8, default=None, ignorable=True)
    current_leader: CurrentLeader | None = at(since=10, tag=0, default=None)


@struct
class ProduceTopicResult:
    name: string
    partition_responses: list[ProducePartitionResult]


@message(flexible=9)
class ProduceResponse:
    responses: list[ProduceTopicResult]
    throttle_time_ms: int32 = at(since=1, default=0, ignorable=True)
    node_endpoints: list[NodeEndpoint] = at(since=10, tag=0, default=[], ignorable=True)


API = Api(0, ProduceRequest, ProduceResponse, newest=11)
