"""The settings of a connector: the names of Kafka 0.8's old consumer, each declared once (pure).

Defaults are 0.8.2's unless a row says why. A configuration is a mapping from these names, written
with dots or underscores, to Python values, or to text as in a properties file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from kdist.client import settings as shared
from kdist.config.client_security import SecuritySettings
from kdist.config.declare import setting, settings
from kdist.config.kinds import int32
from kdist.errors import UserError
from kdist.model import topic_name_fault


@settings
class ConnectorSettings(SecuritySettings):
    """All settings of a connector."""

    group_id: str = setting(subject="Group", doc="The group to join, and to commit offsets for.")
    consumer_id: str | None = setting(
        default=None,
        doc="The consumer's id, to which the group's name is prefixed; unset, it is made of host, "
        "time and a random number.",
    )
    assignment_strategy: Literal["range", "roundrobin"] = setting(
        "partition.assignment.strategy",
        default="range",
        doc="How partitions are assigned to streams; must be the same for all members.",
    )
    rebalance_retries_max: int32 = setting(
        "rebalance.max.retries",
        default=4,
        minimum=0,
        doc="After so many tries that found a partition still owned, a warning names its owner. "
        "0.8 gave up then; this consumer goes on trying.",
    )
    rebalance_backoff_ms: int32 = setting(
        default=2_000,
        minimum=1,
        doc="How long to wait at most before trying again to claim a partition that is still "
        "owned; a release is noticed at once.",
    )
    auto_offset_reset: Literal["smallest", "largest"] = setting(
        default="largest",
        subject="Offsets",
        doc="Where to start if there is no committed offset, or it is out of range.",
    )
    auto_commit_enable: bool = setting(
        default=True,
        doc="Whether offsets of processed messages are committed to ZooKeeper automatically.",
    )
    auto_commit_interval_ms: int32 = setting(
        default=60_000, minimum=1, doc="How often to commit, with auto.commit.enable."
    )
    offsets_storage: Literal["zookeeper"] = setting(
        default="zookeeper",
        doc="Where offsets are stored. (`kdist.Consumer` stores them in the brokers.)",
    )
    queued_chunks_max: int32 = setting(
        "queued.max.message.chunks",
        default=2,
        minimum=1,
        subject="Streams",
        doc="How many chunks, each a fetch's batches of one partition, may wait in a stream; its "
        "partitions are not fetched while it holds so many.",
    )
    fetch_message_max_bytes: int32 = setting(
        default=1 << 20,
        minimum=1,
        doc="The most bytes to fetch of a partition at a time; a larger batch is fetched whole.",
    )
    fetch_min_bytes: int32 = shared.fetch_min_bytes()
    fetch_wait_max_ms: int32 = setting(
        default=100,
        minimum=0,
        doc="How long a broker waits for fetch.min.bytes before it answers with less.",
    )
    consumer_timeout_ms: int32 = setting(
        default=-1,
        minimum=-1,
        doc="A stream without a message for so long raises `ConsumerTimeout`; -1 waits for ever.",
    )
    exclude_internal_topics: bool = setting(
        default=True, doc="Whether topic filters skip the brokers' internal topics."
    )
    socket_timeout_ms: int32 = shared.request_timeout_ms()
    client_id: str | None = setting(
        default=None,
        doc="The name of this client in the brokers' logs and metrics; unset, its group's name.",
    )
    zookeeper_connect: str = setting(
        subject="ZooKeeper",
        doc="The ensemble's servers and the cluster's root there: `host1:2181,host2:2181/kdist`.",
    )
    session_timeout_ms: int32 = setting(
        "zookeeper.session.timeout.ms",
        default=6_000,
        minimum=1,
        doc="A consumer that ZooKeeper has not heard from for so long loses its partitions. The "
        "servers clamp this to between 2 and 20 of their ticks.",
    )
    connection_timeout_ms: int32 = setting(
        "zookeeper.connection.timeout.ms",
        default=6_000,
        minimum=1,
        doc="How long to wait for a connection to a ZooKeeper server.",
    )
    sync_time_ms: int32 = setting(
        "zookeeper.sync.time.ms",
        default=2_000,
        minimum=1,
        doc="How far a ZooKeeper server may be behind: a rebalance that could not finish is tried "
        "again after so long, even without a notice of a change.",
    )

    @property
    def reset_to(self) -> Literal["earliest", "latest"]:
        """`auto.offset.reset` in the terms of newer consumers."""
        return "earliest" if self.auto_offset_reset == "smallest" else "latest"

    @property
    def retry_s(self) -> float:
        """How long to wait before a rebalance is retried."""
        return min(self.rebalance_backoff_ms, self.sync_time_ms) / 1000


# Settings of 0.8 that have no effect here, accepted so that old configurations work unchanged.
IGNORED = frozenset(
    {
        "dual.commit.enabled",
        "num.consumer.fetchers",
        "offsets.channel.backoff.ms",
        "offsets.channel.socket.timeout.ms",
        "offsets.commit.max.retries",
        "refresh.leader.backoff.ms",
        "socket.receive.buffer.bytes",
    }
)


def read_settings(config: Mapping[str, Any]) -> ConnectorSettings:
    """The settings of a configuration; `UserError` names the first that is wrong or missing."""
    if not isinstance(config, Mapping):
        raise UserError(f"a connector's configuration must be a dict of settings, not {config!r}")
    values = {
        name: each.strip() if isinstance(each, str) else each
        for name, each in config.items()
        if name not in IGNORED
    }
    found, _ = shared.read_settings(ConnectorSettings, values, "a connector")
    for name, part in (("group.id", found.group_id), ("consumer.id", found.consumer_id)):
        fault = part is not None and topic_name_fault(part)
        if fault:
            raise UserError(f"{name} {part!r} {fault}, and it becomes part of a path")
    return found
