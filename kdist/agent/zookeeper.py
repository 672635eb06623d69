"""Asks this host's ZooKeeper server for its state, by the four-letter command `mntr`.

Source: ZooKeeper's administrator's guide. Not `ruok`, which answers imok before the server is
serving. A server that is not serving yet answers `mntr` with a sentence without tabs.
"""

from __future__ import annotations

import asyncio

from kdist.client.cluster import Address
from kdist.metrics.agent import UNKNOWN, ZooKeeperMetrics

_ANSWER_BYTES_MAX = 1 << 20


async def ask_mntr(address: Address, timeout_ms: float) -> str:
    """The server's answer; "" if it does not answer in time."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            reader, writer = await asyncio.open_connection(*address, limit=_ANSWER_BYTES_MAX)
            try:
                writer.write(b"mntr")
                answer = await reader.read(-1)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return ""
    return answer.decode(errors="replace")


def read_mntr(answer: str) -> ZooKeeperMetrics:
    """Parse the answer, lines of `name<TAB>value` (pure)."""
    said = dict(line.split("\t", 1) for line in answer.splitlines() if "\t" in line)
    state = said.get("zk_server_state", "")
    read = ZooKeeperMetrics()
    read.is_serving = 1 if state else 0
    read.is_leading = 1 if state in ("leader", "standalone") else 0
    read.synced_followers = _number(said, "zk_synced_followers")
    read.voting_servers = _number(said, "zk_quorum_size")
    read.outstanding_requests = _number(said, "zk_outstanding_requests")
    read.slow_fsyncs = _number(said, "zk_fsync_threshold_exceed_count")
    read.average_latency_seconds = _number(said, "zk_avg_latency") / 1000
    read.connections = _number(said, "zk_num_alive_connections")
    read.znodes = _number(said, "zk_znode_count")
    read.data_bytes = _number(said, "zk_approximate_data_size")
    read.watches = _number(said, "zk_watch_count")
    return read


def _number(said: dict[str, str], name: str) -> float:
    try:
        return float(said[name])
    except (KeyError, ValueError):
        return UNKNOWN
