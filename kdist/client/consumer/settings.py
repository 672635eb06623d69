"""The settings of a consumer: Kafka's names in snake case, each declared once (pure).

Defaults are those of Java's consumer unless a row says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from kdist.client import settings as shared
from kdist.client.coding import Coder, Decoder, checked_coder
from kdist.client.consumer.interceptors import ConsumerInterceptor
from kdist.client.metrics import OnStatistics
from kdist.client.security import SecurityKeywords
from kdist.config.client_security import SecuritySettings
from kdist.config.declare import setting, settings
from kdist.config.kinds import int32, int64
from kdist.errors import UserError

DECODERS = ("key_decoder", "value_decoder")
CALLABLES = (*DECODERS, "interceptors", "on_statistics")  # the application's own code
Strategy = Literal["range", "roundrobin", "sticky", "cooperative-sticky"]


@settings
class ConsumerSettings(SecuritySettings):
    """The settings of a consumer whose values are numbers or text."""

    SEPARATOR = "_"

    bootstrap_servers: tuple[str, ...] = shared.bootstrap_servers()
    zk_connect: str = shared.zk_connect()

    group_id: str | None = setting(
        default=None, subject="Group", doc="The group to join, and to commit offsets for."
    )
    group_instance_id: str | None = setting(
        default=None,
        doc="Makes the member static: if it restarts within session_timeout_ms, there is no "
        "rebalance (KIP-345).",
    )
    partition_assignment_strategy: tuple[Strategy, ...] = setting(
        default=("range", "cooperative-sticky"),
        doc="The assignors to offer, in order of preference; the group uses one that all its "
        "members offer.",
    )
    session_timeout_ms: int32 = setting(
        default=45_000,
        minimum=1,
        doc="A member that has sent no heartbeat for so long is removed from the group.",
    )
    heartbeat_interval_ms: int32 = setting(
        default=3_000,
        minimum=1,
        doc="How often a member sends a heartbeat, by whose answer it also learns of rebalances.",
    )
    max_poll_interval_ms: int32 = setting(
        default=300_000,
        minimum=1,
        doc="A member that does not poll for so long leaves its group (KIP-62).",
    )
    auto_offset_reset: Literal["earliest", "latest", "none"] = setting(
        default="latest",
        subject="Offsets",
        doc="Where to start if there is no committed offset, or it is out of range; none raises an "
        "error.",
    )
    enable_auto_commit: bool = setting(
        default=True,
        doc="Whether polling commits the offsets of the records polled before; only in a group.",
    )
    auto_commit_interval_ms: int32 = setting(
        default=5_000, minimum=0, doc="How often to commit, with enable_auto_commit."
    )
    isolation_level: Literal["read_uncommitted", "read_committed"] = setting(
        default="read_uncommitted",
        subject="Fetching",
        doc="With read_committed, records of open and aborted transactions are not returned.",
    )
    max_poll_records: int32 = setting(
        default=500,
        minimum=1,
        doc="The most records that one `poll` returns; `poll_batches` returns whole batches.",
    )
    fetch_min_bytes: int32 = shared.fetch_min_bytes()
    fetch_max_wait_ms: int32 = setting(
        default=500,
        minimum=0,
        doc="How long a broker waits for fetch_min_bytes before it answers with less.",
    )
    fetch_max_bytes: int32 = setting(
        default=50 << 20,
        minimum=1,
        doc="The most bytes that one fetch asks for. At most twice as much is held ready, not "
        "counting paused partitions.",
    )
    max_partition_fetch_bytes: int32 = setting(
        default=1 << 20,
        minimum=1,
        doc="The most bytes of one partition in a fetch; a larger batch is still fetched whole.",
    )
    check_crcs: bool = setting(default=True, doc="Whether to verify the checksum of every batch.")
    client_rack: str = setting(
        default="",
        doc="The consumer's rack: it fetches from a replica there, if there is one (KIP-392).",
    )
    client_id: str = setting(
        default="kdist",
        subject="Connections",
        doc="The name of this client in the brokers' logs and metrics.",
    )
    metadata_max_age_ms: int32 = setting(
        default=300_000, minimum=1, doc="How often to look for new topics and partitions."
    )
    request_timeout_ms: int32 = shared.request_timeout_ms()
    default_api_timeout_ms: int32 = setting(
        default=60_000,
        minimum=1,
        doc="How long calls without a timeout argument retry after retriable errors.",
    )
    retry_backoff_ms: int32 = setting(
        default=100,
        minimum=1,
        doc="How long to wait before a retry, with a random jitter of up to a fifth either way; "
        "doubled after each failure (KIP-580).",
    )
    retry_backoff_max_ms: int32 = setting(
        default=1_000, minimum=1, doc="The limit of retry_backoff_ms as it doubles."
    )
    statistics_interval_ms: int64 = shared.statistics_interval_ms()

    @property
    def is_committed_only(self) -> bool:
        """Whether only records of committed transactions are returned."""
        return self.isolation_level == "read_committed"


class ConsumerKeywords(shared.ClientKeywords, SecurityKeywords, total=False):
    """The type of a dict of settings for `Consumer`; what it takes by name."""

    group_id: str | None
    group_instance_id: str | None
    partition_assignment_strategy: Strategy | Sequence[Strategy]
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    auto_offset_reset: Literal["earliest", "latest", "none"]
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    isolation_level: Literal["read_uncommitted", "read_committed"]
    max_poll_records: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    check_crcs: bool
    client_rack: str
    metadata_max_age_ms: int
    default_api_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    statistics_interval_ms: int
    key_decoder: Decoder | None
    value_decoder: Decoder | None
    interceptors: Sequence[ConsumerInterceptor]
    on_statistics: OnStatistics | None


class Hooks(NamedTuple):
    """What of the application a consumer calls, beside decoders and listeners."""

    interceptors: Sequence[ConsumerInterceptor] = ()
    on_statistics: OnStatistics | None = None


NO_HOOKS = Hooks()


class ConsumerConfig(NamedTuple):
    """All settings of a consumer, checked, with its decoders for key and value."""

    plain: ConsumerSettings
    decoders: tuple[Coder | None, Coder | None]
    hooks: Hooks


def read_config(values: Mapping[str, Any]) -> ConsumerConfig:
    """An application's settings and decoders; `UserError` names the first that is wrong."""
    if values.get("group_id") == "":
        raise UserError("group_id is empty: give a name, or None for no group")
    found, own = shared.read_settings(ConsumerSettings, values, "a consumer", CALLABLES)
    _check_together(found)
    decoders = {name: own.pop(name) for name in DECODERS if name in own}
    hooks = Hooks(**own)
    shared.check_hooks(ConsumerInterceptor, *hooks)
    return ConsumerConfig(found, checked_decoders(**decoders), hooks)


def read_settings(values: Mapping[str, Any]) -> ConsumerSettings:
    """As `read_config`, of which these are the settings."""
    return read_config(values).plain


def checked_decoders(
    key_decoder: Decoder | None = None, value_decoder: Decoder | None = None
) -> tuple[Coder | None, Coder | None]:
    """The decoders for key and value; `UserError` unless each is callable or None."""
    return checked_coder("key_decoder", key_decoder), checked_coder("value_decoder", value_decoder)


def _check_together(found: ConsumerSettings) -> None:
    """Checks that involve several settings."""
    if not found.partition_assignment_strategy:
        raise UserError("partition_assignment_strategy is empty: name one or more")
    if found.group_instance_id is not None and found.group_id is None:
        raise UserError("group_instance_id needs a group_id")
    if found.heartbeat_interval_ms >= found.session_timeout_ms:
        raise UserError(
            f"heartbeat_interval_ms is {found.heartbeat_interval_ms}, and must be less than"
            f" session_timeout_ms, {found.session_timeout_ms}"
        )
