"""The settings of a broker's connections, and of the fetches they carry.

Kafka 3.9's names and defaults where the meaning is the same; a row that differs says so.
"""

from __future__ import annotations

from kdist.config.declare import Settings, setting, settings
from kdist.config.kinds import INT32_MAX, int32, int64


@settings
class NetworkSettings(Settings):
    """What the package network, and the broker's fetch handler, are given."""

    socket_request_max_bytes: int32 = setting(
        default=100 << 20,
        minimum=1,
        subject="Connections",
        doc="A request larger than this closes its connection.",
    )
    max_connections: int32 = setting(
        default=INT32_MAX,
        minimum=0,
        dynamic=True,
        doc="How many connections may be open, over all listeners; further ones are closed at "
        "once, except on a listener that brokers have to themselves; without such a listener, "
        "at least 2.",
    )
    max_connections_per_ip: int32 = setting(
        default=INT32_MAX,
        minimum=1,
        dynamic=True,
        doc="How many connections may be open from one address; further ones are closed at once.",
    )
    max_connections_per_ip_overrides: tuple[str, ...] = setting(
        default=(),
        dynamic=True,
        doc="That number for some addresses, as `address:number`.",
    )
    max_connection_creation_rate: int32 = setting(
        default=INT32_MAX,
        minimum=1,
        dynamic=True,
        doc="How many connections are accepted in a second, over all listeners; further ones wait.",
    )
    connections_max_idle_ms: int64 = setting(
        default=600_000,
        minimum=-1,
        doc="A connection that was idle for this long is closed; -1 keeps idle connections.",
    )
    socket_listen_backlog_size: int32 = setting(
        default=50, minimum=1, doc="How many connections may wait to be accepted."
    )
    socket_send_buffer_bytes: int32 = setting(
        default=-1,
        minimum=-1,
        doc="The size of a socket's send buffer; -1 lets the kernel tune it (Kafka's "
        "default is 102400).",
    )
    socket_receive_buffer_bytes: int32 = setting(
        default=-1,
        minimum=-1,
        doc="The size of a socket's receive buffer; -1 lets the kernel tune it (Kafka's "
        "default is 102400).",
    )
    fetch_max_bytes: int32 = setting(
        default=55 << 20,
        minimum=1024,
        subject="Fetches",
        doc="The most bytes in a fetch response, whatever the request asks for; the first batch "
        "may exceed it.",
    )
    fetch_session_slots: int32 = setting(
        "max.incremental.fetch.session.cache.slots",
        default=1000,
        minimum=0,
        doc="How many fetch sessions are kept.",
    )
    quota_window_size_seconds: int32 = setting(
        default=1,
        minimum=1,
        subject="Quotas",
        doc="How many seconds' worth of its quota a client may use at once before it has to pause "
        "(Kafka averages over quota.window.num windows of this size instead).",
    )
