"""The settings of replication between brokers: when a replica is in sync, and how it fetches.

Kafka 3.9's names and defaults where the meaning is the same; a row that is kdist's own says so.
"""

from __future__ import annotations

from typing import Literal

from kdist.config.declare import Settings, setting, settings
from kdist.config.kinds import INT64_MAX, int32, int64

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
Selector = Literal[
    "org.apache.kafka.common.replica.LeaderSelector",
    "org.apache.kafka.common.replica.RackAwareReplicaSelector",
]


@settings
class ReplicationSettings(Settings):
    """What the package replication is given besides each topic's `TopicSettings`."""

    lag_time_max_ms: int64 = setting(
        "replica.lag.time.max.ms",
        default=30_000,
        minimum=1,
        subject="Replicas",
        doc="A follower leaves the in-sync replicas once it has not been at the end of its leader's"
        " log for this long.",
    )
    fetch_max_bytes: int32 = setting(
        "replica.fetch.max.bytes",
        default=1 << 20,
        minimum=0,
        doc="The most bytes that a follower fetches of one partition at a time; a larger batch is"
        " fetched all the same.",
    )
    fetch_response_max_bytes: int32 = setting(
        "replica.fetch.response.max.bytes",
        default=10 << 20,
        minimum=0,
        doc="The most bytes that a follower fetches of all partitions at a time.",
    )
    fetch_min_bytes: int32 = setting(
        "replica.fetch.min.bytes",
        default=1,
        minimum=0,
        doc="A follower's fetch waits at the leader for this many bytes.",
    )
    fetch_wait_max_ms: int32 = setting(
        "replica.fetch.wait.max.ms",
        default=500,
        minimum=0,
        doc="A follower's fetch waits at the leader for no longer than this.",
    )
    fetch_backoff_ms: int32 = setting(
        "replica.fetch.backoff.ms",
        default=1_000,
        minimum=0,
        doc="How long a follower leaves a partition alone after its leader has refused a fetch of"
        " it, and the longest pause between two attempts to connect to a leader.",
    )
    socket_timeout_ms: int32 = setting(
        "replica.socket.timeout.ms",
        default=30_000,
        minimum=1,
        doc="A follower takes its connection to a leader for dead when a fetch is unanswered for"
        " this long.",
    )
    selector_class: Selector | None = setting(
        "replica.selector.class",
        default=None,
        subject="Reading from followers",
        doc="Which replica consumers read from: the leader, or with Kafka's"
        " `RackAwareReplicaSelector` a follower in sync whose `broker.rack` is the consumer's"
        " `client.rack`, if the leader has another (KIP-392).",
    )
    leader_throttled_rate: int64 = setting(
        "leader.replication.throttled.rate",
        default=INT64_MAX,
        minimum=0,
        dynamic=True,
        subject="Moving partitions",
        doc="The most bytes a second that this broker sends, as leader, of replicas that are listed"
        " in their topics' `leader.replication.throttled.replicas`, to followers not in sync.",
    )
    follower_throttled_rate: int64 = setting(
        "follower.replication.throttled.rate",
        default=INT64_MAX,
        minimum=0,
        dynamic=True,
        doc="The most bytes a second that this broker fetches, as follower, for replicas that are"
        " listed in their topics' `follower.replication.throttled.replicas` and not in sync.",
    )
