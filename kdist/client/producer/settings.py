"""A producer's settings: Kafka's names in snake case, and Kafka's defaults unless a row says why.

Each is declared once. Settings that are callables are listed separately, in `Callables`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, Literal, NamedTuple

from kdist.client import settings as shared
from kdist.client.coding import Coder, Encoder, checked_coder
from kdist.client.metrics import OnStatistics
from kdist.client.partitioner import Partitioner
from kdist.client.producer.interceptors import ProducerInterceptor
from kdist.client.producer.message import CallbackHandler
from kdist.client.security import SecurityKeywords
from kdist.config.client_security import SecuritySettings
from kdist.config.declare import setting, settings
from kdist.config.kinds import INT32_MAX, int32, int64
from kdist.errors import UserError

IDEMPOTENT_IN_FLIGHT_MAX = 5  # how many batches of each producer a broker remembers


@settings
class ProducerSettings(SecuritySettings):
    """The settings whose values are numbers or text."""

    bootstrap_servers: tuple[str, ...] = shared.bootstrap_servers()
    broker_list: tuple[str, ...] = setting(
        default=(), doc="The first producer's name for bootstrap.servers."
    )
    zk_connect: str = shared.zk_connect()
    client_id: str = setting(
        default="kdist-producer", doc="The name by which the producer identifies itself to brokers."
    )
    metadata_max_age_ms: int64 = setting(
        default=300_000,
        minimum=1,
        doc="How long metadata (leaders, partition counts) is used before it is refreshed, if no "
        "error calls for that sooner.",
    )
    metadata_max_idle_ms: int64 = setting(
        default=300_000,
        minimum=5_000,
        doc="How long a topic is remembered that nothing is sent to; seen as often as metadata is "
        "refreshed.",
    )
    reconnect_backoff_ms: int64 = setting(
        default=50,
        minimum=0,
        doc="How long to wait before connecting again to a broker that could not be reached; "
        "doubled after each failure.",
    )
    reconnect_backoff_max_ms: int64 = setting(
        default=1_000, minimum=0, doc="The limit of reconnect.backoff.ms as it doubles."
    )
    batch_size: int32 = setting(
        default=1_000_000,
        minimum=0,
        unit="bytes",
        subject="Batches",
        doc="A batch of this size is full, and is sent. (Kafka's default is 16384. It is larger "
        "here because a batch's fixed cost is far above that of a record.)",
    )
    linger_ms: float = setting(
        default=5.0,
        minimum=0,
        doc="How long a batch waits for more records before it is sent, unless it is full or a "
        "caller waits for it. After half that time it joins any request to the same broker.",
    )
    buffer_memory: int64 = setting(
        default=32 << 20,
        minimum=1,
        unit="bytes",
        doc="The memory for records not yet acknowledged; sending blocks while it is full.",
    )
    max_block_ms: int64 = setting(
        default=60_000,
        minimum=0,
        doc="How long sending blocks at most, for memory or for a topic's metadata.",
    )
    max_request_size: int32 = setting(
        default=1 << 20,
        minimum=1,
        unit="bytes",
        doc="A record larger than this is refused, and a request combines batches of several "
        "partitions up to this size.",
    )
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] = setting(
        default="none", doc="The codec to compress whole batches with."
    )
    acks: Literal["all", "-1", "1", "0"] = setting(
        default="all",
        subject="Delivery",
        doc="Which replicas must have a batch before it is acknowledged: all in sync (all, -1), "
        "the leader (1), or none (0: the broker does not answer, and offsets are not known).",
    )
    enable_idempotence: bool = setting(
        default=True,
        doc="Number batches, so that each is written once and in order even if it is sent twice. "
        "It needs acks=all, retries, and at most 5 requests in flight: where those are set "
        "otherwise it is off, and asking for it is an error.",
    )
    max_in_flight_requests_per_connection: int32 = setting(
        default=IDEMPOTENT_IN_FLIGHT_MAX,
        minimum=1,
        doc="How many requests to a broker may be unanswered at a time.",
    )
    retries: int32 = setting(
        default=INT32_MAX, minimum=0, doc="How often a batch is sent again after a retriable error."
    )
    retry_backoff_ms: int64 = setting(
        default=100,
        minimum=0,
        doc="How long to wait before a batch is sent again; doubled after each failure (KIP-580).",
    )
    retry_backoff_max_ms: int64 = setting(
        default=1_000, minimum=0, doc="The limit of retry.backoff.ms as it doubles."
    )
    request_timeout_ms: int32 = shared.request_timeout_ms()
    delivery_timeout_ms: int32 = setting(
        default=120_000,
        minimum=1,
        doc="How long delivery may take in all, retries included, counted from when the record's "
        "batch was opened. At least linger.ms and request.timeout.ms together: of the two "
        "timeouts, one that is not set gives way.",
    )
    statistics_interval_ms: int64 = shared.statistics_interval_ms()


class Callables(NamedTuple):
    """The settings whose values are the application's own callables and handlers."""

    partitioner: Partitioner | Literal["sticky", "round_robin"] = "sticky"
    key_encoder: Encoder | None = None
    value_encoder: Encoder | None = None
    callback_handler: CallbackHandler | None = None
    interceptors: Sequence[ProducerInterceptor] = ()
    on_statistics: OnStatistics | None = None


class ProducerKeywords(shared.ClientKeywords, SecurityKeywords, total=False):
    """The type of a dict of settings for `Producer`; what it takes by name."""

    broker_list: shared.Servers
    metadata_max_age_ms: int
    metadata_max_idle_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    batch_size: int
    linger_ms: float
    buffer_memory: int
    max_block_ms: int
    max_request_size: int
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    acks: Literal["all", "-1", "1", "0", -1, 1, 0]
    enable_idempotence: bool
    max_in_flight_requests_per_connection: int
    retries: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    delivery_timeout_ms: int
    statistics_interval_ms: int
    partitioner: Partitioner | Literal["sticky", "round_robin"]
    key_encoder: Encoder | None
    value_encoder: Encoder | None
    callback_handler: CallbackHandler | None
    interceptors: Sequence[ProducerInterceptor]
    on_statistics: OnStatistics | None


class ProducerConfig(NamedTuple):
    """All settings of a producer, checked, with its encoders for key and value."""

    plain: ProducerSettings
    callables: Callables
    key_encoder: Coder | None
    value_encoder: Coder | None
    is_idempotent: bool


def read_settings(values: Mapping[str, Any]) -> ProducerConfig:
    """The settings of a producer; `UserError` with one sentence for the first that is wrong."""
    names = Callables._fields
    plain, own = shared.read_settings(ProducerSettings, values, "a producer", names)
    partitioner, key_encoder, value_encoder, handler, *hooks = callables = Callables(**own)
    shared.check_hooks(ProducerInterceptor, *hooks)
    if not callable(partitioner) and partitioner not in ("sticky", "round_robin"):
        allowed = "one of sticky, round_robin, or a callable"
        raise UserError(f"partitioner is {partitioner!r}, and must be {allowed}")
    if handler is not None and not isinstance(handler, CallbackHandler):
        raise UserError(f"callback_handler is {handler!r}, and must be a CallbackHandler")
    if plain.linger_ms >= plain.delivery_timeout_ms:
        raise UserError(
            f"linger_ms is {plain.linger_ms:g}, and must be less than delivery_timeout_ms,"
            f" {plain.delivery_timeout_ms}: a batch would expire before it is sent"
        )
    plain = _fitted(plain, {name.replace(".", "_") for name in values})
    is_asked_for = bool({"enable_idempotence", "enable.idempotence"} & values.keys())
    return ProducerConfig(
        plain,
        callables,
        checked_coder("key_encoder", key_encoder),
        checked_coder("value_encoder", value_encoder),
        _is_idempotent(plain, is_asked_for=is_asked_for),
    )


def _fitted(settings: ProducerSettings, given: Collection[str]) -> ProducerSettings:
    """The settings with time for a request after the linger, as in Java: what was not given yields.

    `UserError` if both timeouts were given, and do not fit.
    """
    linger_ms, request_ms = settings.linger_ms, settings.request_timeout_ms
    delivery_ms = settings.delivery_timeout_ms
    if linger_ms + request_ms <= delivery_ms:
        return settings
    if "request_timeout_ms" not in given:
        return replace(settings, request_timeout_ms=max(1, int(delivery_ms - linger_ms)))
    if "delivery_timeout_ms" not in given:
        return replace(settings, delivery_timeout_ms=ceil(linger_ms + request_ms))
    raise UserError(
        f"delivery_timeout_ms is {delivery_ms}, and must be at least linger_ms and"
        f" request_timeout_ms together, {linger_ms + request_ms:g}: else no request has its time"
    )


def _is_idempotent(settings: ProducerSettings, *, is_asked_for: bool) -> bool:
    """Whether idempotence is on: by default unless another setting rules it out, as in Java's
    producer since 3.0. `UserError` if it was asked for and is ruled out.
    """
    in_flight = settings.max_in_flight_requests_per_connection
    can_be = settings.acks in ("all", "-1") and in_flight <= IDEMPOTENT_IN_FLIGHT_MAX
    can_be = can_be and settings.retries > 0
    if can_be or not (is_asked_for and settings.enable_idempotence):
        return can_be and settings.enable_idempotence
    raise UserError(
        "enable_idempotence needs acks=all, retries, and at most "
        f"{IDEMPOTENT_IN_FLIGHT_MAX} requests in flight"
    )
