"""The consumer with which a mirror flow reads."""

from __future__ import annotations

import random

from kdist.client.cluster import parse_addresses
from kdist.client.consumer.aio import call_back
from kdist.client.consumer.core import Core
from kdist.client.consumer.settings import read_settings
from kdist.config.mirror import Flow, MirrorSettings
from kdist.network.network import Network

_FETCH_BYTES = 16 << 20


def core_of(flow: Flow, settings: MirrorSettings, network: Network, rng: random.Random) -> Core:
    """A member of the flow's group that commits nothing by itself."""
    values = {
        "group_id": flow.group,
        "client_id": flow.group,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "isolation_level": "read_committed",
        "partition_assignment_strategy": ("cooperative-sticky",),
        "fetch_max_bytes": _FETCH_BYTES,
        "session_timeout_ms": settings.session_timeout_ms,
        "heartbeat_interval_ms": max(settings.session_timeout_ms // 3, 1),
        "metadata_max_age_ms": settings.refresh_interval_ms,
    }
    addresses = parse_addresses(flow.settings.source)
    return Core(network, addresses, read_settings(values), rng, (None, None), call_back)
