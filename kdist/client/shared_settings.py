"""Rows that several clients' tables of settings share, each under a name of its own (pure)."""

from __future__ import annotations

from typing import Any

from kdist.config.declare import setting

FINDING = "Finding the brokers"


def bootstrap_servers(name: str) -> Any:
    """`tuple[str, ...]`."""
    return setting(
        name, default=(), subject=FINDING, doc="Brokers to ask for the others: host:port."
    )


def zk_connect(name: str) -> Any:
    """`str`."""
    return setting(
        name,
        default="",
        subject=FINDING,
        doc="A ZooKeeper ensemble whose /brokers/ids names the brokers, instead of these.",
    )


def request_timeout_ms(name: str, subject: str) -> Any:
    """`int32`."""
    return setting(
        name,
        default=30_000,
        minimum=1,
        unit="ms",
        subject=subject,
        doc="How long a broker may take to answer before its connection is given up.",
    )


def fetch_min_bytes(name: str, subject: str) -> Any:
    """`int32`."""
    return setting(
        name,
        default=1,
        minimum=0,
        unit="bytes",
        subject=subject,
        doc="A broker waits for so much before it answers a fetch.",
    )
