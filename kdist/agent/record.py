"""Makes the record to publish from a look at the host and the look before it (pure).

The record's fields and units are in docs/formats/ops-host.md. Counters are the kernel's, not
differences, so that nothing is missing if a record is lost. Only the two `busy_ratio` compare a
look with the one before; in an agent's first record they are None.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from kdist.agent.smart import DiskHealth
from kdist.runtime.host import Look

SCHEMA = 1


class Identity(NamedTuple):
    """The host that a record is from."""

    host: str
    datacenter: str
    rack: str


class Progress(NamedTuple):
    """The agent's own counters since its start: the record's number, and records dropped."""

    sequence: int
    dropped_records: int


def make_record(
    identity: Identity,
    progress: Progress,
    now: Look,
    before: Look | None,
    health: Iterable[DiskHealth],
) -> dict[str, Any]:
    """The record of the look `now`; `before` is the one before it, since the same boot."""
    if before is not None and not before.timestamp_ms < now.timestamp_ms:
        before = None  # the clock was set back, so the time between them is unknown
    return {
        "schema": SCHEMA,
        **identity._asdict(),
        "timestamp_ms": now.timestamp_ms,
        "boot_ms": now.boot_ms,
        **progress._asdict(),
        "cpu": _cpu(now, before),
        "load": dict(zip(("1m", "5m", "15m"), (round(n, 2) for n in now.load), strict=True)),
        "memory": _memory(now),
        "network": [_interface(name, of) for name, of in now.interfaces.items() if name != "lo"],
        "disks": [_disk(name, now, before) for name in now.disks if _is_used(now.disks[name])],
        "filesystems": [each._asdict() for each in now.spaces],
        "smart": [each._asdict() for each in health],
        "processes": [each._asdict() for each in now.processes],
    }


def encode_record(record: dict[str, Any]) -> bytes:
    """The record as one line of JSON."""
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()


def _cpu(now: Look, before: Look | None) -> dict[str, Any]:
    modes = now.cpu_seconds._asdict()
    return {
        "processors": now.processors,
        "busy_ratio": None if before is None else _busy_processors(now, before),
        "seconds_total": {
            mode: round(modes[mode], 2)
            for mode in ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
        },
    }


def _busy_processors(now: Look, before: Look) -> float | None:
    """The share of all processors' time that was neither idle nor iowait.

    `guest` and `guest_nice` are left out of the sum: the kernel includes them in `user` and `nice`.
    """
    deltas = {
        mode: max(0.0, seconds - getattr(before.cpu_seconds, mode))
        for mode, seconds in now.cpu_seconds._asdict().items()
        if not mode.startswith("guest")
    }
    total = sum(deltas.values())
    return round(1 - (deltas["idle"] + deltas["iowait"]) / total, 4) if total else None


def _memory(now: Look) -> dict[str, int]:
    return {
        "total_bytes": now.memory.total,
        "available_bytes": now.memory.available,
        "cached_bytes": now.memory.cached,
        "swap_total_bytes": now.swap.total,
        "swap_used_bytes": now.swap.used,
    }


def _interface(name: str, of: Any) -> dict[str, Any]:
    return {
        "interface": name,
        "received_bytes_total": of.bytes_recv,
        "sent_bytes_total": of.bytes_sent,
        "received_packets_total": of.packets_recv,
        "sent_packets_total": of.packets_sent,
        "receive_errors_total": of.errin,
        "send_errors_total": of.errout,
        "receive_drops_total": of.dropin,
        "send_drops_total": of.dropout,
    }


def _is_used(of: Any) -> bool:
    """Whether a device has ever been read or written; spare loop devices, for example, are not."""
    return bool(of.read_count or of.write_count)


def _disk(name: str, now: Look, before: Look | None) -> dict[str, Any]:
    of = now.disks[name]
    return {
        "device": name,
        "busy_ratio": _busy_disk(name, now, before),
        "reads_total": of.read_count,
        "writes_total": of.write_count,
        "read_bytes_total": of.read_bytes,
        "written_bytes_total": of.write_bytes,
        "read_ms_total": of.read_time,
        "write_ms_total": of.write_time,
        "busy_ms_total": of.busy_time,
    }


def _busy_disk(name: str, now: Look, before: Look | None) -> float | None:
    if before is None or name not in before.disks:
        return None
    busy_ms: float = now.disks[name].busy_time - before.disks[name].busy_time
    return round(min(max(busy_ms / (now.timestamp_ms - before.timestamp_ms), 0.0), 1.0), 4)
