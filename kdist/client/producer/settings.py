"""A producer's settings: Kafka's names in snake case, and its defaults where not said otherwise.

Each is declared once, and read by `read_settings`, which takes values as Python has them, or text
as in a properties file. Callables have a table of their own below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from kdist.client import shared_settings
from kdist.client.cluster import did_you_mean
from kdist.client.partitioner import Partitioner
from kdist.client.producer.callbacks import CallbackHandler
from kdist.client.shared_settings import FINDING
from kdist.config.declare import Setting, Settings, setting, settings
from kdist.config.kinds import INT32_MAX, int32, int64, show_text
from kdist.errors import UserError

Encoder = Callable[[Any], bytes | None]

BATCHES, DELIVERY = "Batches", "Delivery"
IDEMPOTENT_IN_FLIGHT_MAX = 5  # so many batches back a broker remembers


@settings
class ProducerSettings(Settings):
    """The settings that are numbers and words."""

    bootstrap_servers: tuple[str, ...] = shared_settings.bootstrap_servers("bootstrap.servers")
    broker_list: tuple[str, ...] = setting(
        "broker.list",
        default=(),
        subject=FINDING,
        doc="The first producer's name for bootstrap.servers.",
    )
    zk_connect: str = shared_settings.zk_connect("zk.connect")
    client_id: str = setting(
        "client.id",
        default="kdist-producer",
        subject=FINDING,
        doc="How the producer calls itself to brokers.",
    )
    metadata_max_age_ms: int64 = setting(
        "metadata.max.age.ms",
        default=300_000,
        minimum=1,
        unit="ms",
        subject=FINDING,
        doc="How long leaders and partition counts are believed when nothing speaks against them.",
    )
    reconnect_backoff_ms: int64 = setting(
        "reconnect.backoff.ms",
        default=50,
        minimum=0,
        unit="ms",
        subject=FINDING,
        doc="How long a broker that could not be reached is left alone, doubled each time.",
    )
    reconnect_backoff_max_ms: int64 = setting(
        "reconnect.backoff.max.ms",
        default=1_000,
        minimum=0,
        unit="ms",
        subject=FINDING,
        doc="What that doubles up to.",
    )
    batch_size: int32 = setting(
        "batch.size",
        default=1_000_000,
        minimum=0,
        unit="bytes",
        subject=BATCHES,
        doc="A batch is sent when it has so many bytes. (Kafka's default is 16384: what a batch "
        "costs is the same for all sizes, and here more than a record's own cost by far.)",
    )
    linger_ms: float = setting(
        "linger.ms",
        default=5.0,
        minimum=0,
        unit="ms",
        subject=BATCHES,
        doc="How long a batch that is not full waits for more, unless somebody waits for it. Once "
        "it has waited half as long, it goes along with another to the same broker.",
    )
    buffer_memory: int64 = setting(
        "buffer.memory",
        default=32 << 20,
        minimum=1,
        unit="bytes",
        subject=BATCHES,
        doc="What records that are not acknowledged yet take at most; then sending blocks.",
    )
    max_block_ms: int64 = setting(
        "max.block.ms",
        default=60_000,
        minimum=0,
        unit="ms",
        subject=BATCHES,
        doc="How long sending blocks for memory or for a topic's leaders.",
    )
    max_request_size: int32 = setting(
        "max.request.size",
        default=1 << 20,
        minimum=1,
        unit="bytes",
        subject=BATCHES,
        doc="A record larger than this is refused; batches of several partitions go together up "
        "to it.",
    )
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] = setting(
        "compression.type",
        default="none",
        subject=BATCHES,
        doc="The codec of whole batches.",
    )
    acks: Literal["all", "-1", "1", "0"] = setting(
        "acks",
        default="all",
        subject=DELIVERY,
        doc="Who must have a batch before it counts: every in-sync replica (all, -1), the leader "
        "(1), nobody (0: no answer, no offset).",
    )
    enable_idempotence: bool = setting(
        "enable.idempotence",
        default=True,
        subject=DELIVERY,
        doc="Number batches, so that what is sent twice is written once, in order. It takes "
        "acks=all: where acks or the in-flight limit say otherwise, and this nothing, it is off.",
    )
    max_in_flight_requests_per_connection: int32 = setting(
        "max.in.flight.requests.per.connection",
        default=IDEMPOTENT_IN_FLIGHT_MAX,
        minimum=1,
        subject=DELIVERY,
        doc="How many requests a broker may owe an answer to.",
    )
    retries: int32 = setting(
        "retries",
        default=INT32_MAX,
        minimum=0,
        subject=DELIVERY,
        doc="How often a batch is tried again after an error that may pass.",
    )
    retry_backoff_ms: int64 = setting(
        "retry.backoff.ms",
        default=100,
        minimum=0,
        unit="ms",
        subject=DELIVERY,
        doc="The pause before a batch is tried again, doubled each time (KIP-580).",
    )
    retry_backoff_max_ms: int64 = setting(
        "retry.backoff.max.ms",
        default=1_000,
        minimum=0,
        unit="ms",
        subject=DELIVERY,
        doc="What that doubles up to.",
    )
    request_timeout_ms: int32 = shared_settings.request_timeout_ms("request.timeout.ms", DELIVERY)
    delivery_timeout_ms: int32 = setting(
        "delivery.timeout.ms",
        default=120_000,
        minimum=1,
        unit="ms",
        subject=DELIVERY,
        doc="How long delivering a record may take in all, from `send` on.",
    )


class Callables(NamedTuple):
    """The settings that are an application's code."""

    partitioner: Partitioner | str = "sticky"
    key_encoder: Encoder | None = None
    value_encoder: Encoder | None = None
    callback_handler: CallbackHandler | None = None


class ProducerConfig(NamedTuple):
    """All of it, checked."""

    plain: ProducerSettings
    callables: Callables
    is_idempotent: bool


_ROWS: Mapping[str, Setting] = {row.attribute: row for row in ProducerSettings.TABLE}


def read_settings(given: Mapping[str, Any]) -> ProducerConfig:
    """The settings of a producer; `UserError` with one sentence for the first that is wrong."""
    names = (*_ROWS, *Callables._fields)
    for name in given:
        if name not in names:
            raise UserError(f"a producer has no setting {name}{did_you_mean(name, names)}")
    plain = {name: _read(_ROWS[name], value) for name, value in given.items() if name in _ROWS}
    code = {name: value for name, value in given.items() if name in Callables._fields}
    _check_callables(code)
    settings = ProducerSettings(**plain)
    return ProducerConfig(settings, Callables(**code), _is_idempotent(settings, plain))


def _read(row: Setting, value: Any) -> Any:
    if row.attribute in shared_settings.SERVERS:
        return shared_settings.server_list(row.attribute, value)
    shared_settings.check_text(row.attribute, value)
    if isinstance(value, list | tuple):
        value = tuple(value)
    elif value is None and row.attribute == "compression_type":
        value = "none"
    try:
        return row.read(show_text(value))
    except (ValueError, TypeError):
        raise UserError(f"{row.attribute}={value!r}: it is {row.allowed()}") from None


def _check_callables(code: Mapping[str, Any]) -> None:
    for name, value in code.items():
        if name == "callback_handler":
            if value is not None and not isinstance(value, CallbackHandler):
                raise UserError(f"callback_handler={value!r}: it is a CallbackHandler")
        elif name == "partitioner":
            if not callable(value) and value not in ("sticky", "round_robin"):
                raise UserError(
                    f"partitioner={value!r}: it is one of sticky, round_robin, or a callable"
                )
        elif value is not None and not callable(value):
            raise UserError(f"{name}={value!r}: it is a callable that gives bytes")


def _is_idempotent(settings: ProducerSettings, given: Mapping[str, Any]) -> bool:
    """As asked for; where it is not, unless another setting rules it out (as Java's since 3.0)."""
    in_flight = settings.max_in_flight_requests_per_connection
    can_be = settings.acks in ("all", "-1") and in_flight <= IDEMPOTENT_IN_FLIGHT_MAX
    can_be = can_be and settings.retries > 0
    if can_be or not given.get("enable_idempotence"):
        return can_be and settings.enable_idempotence
    raise UserError(
        "enable_idempotence takes acks=all, retries, and at most "
        f"{IDEMPOTENT_IN_FLIGHT_MAX} requests in flight"
    )
