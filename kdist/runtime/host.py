"""One host as the kernel counts it: processors, memory, interfaces, disks, kdist's processes.

`look` reads psutil once and returns plain values. Counters count since the host's boot (a process's
since its start); rates are left to the reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import psutil

_SPACE_TYPES = ("ext4", "xfs", "btrfs")  # where records, snapshots and journals lie
_ZOOKEEPER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_WANTED = ("pid", "create_time", "cpu_times", "memory_info", "num_threads", "num_fds")


class Space(NamedTuple):
    """A mounted filesystem; `free_bytes` is what users other than root may still write."""

    mount: str
    device: str
    type: str
    total_bytes: int
    free_bytes: int


class HostProcess(NamedTuple):
    """A process; `open_files` is None where the agent lacks the permission."""

    command: str
    pid: int
    started_ms: int
    cpu_seconds_total: float
    resident_bytes: int
    threads: int
    open_files: int | None


class Look(NamedTuple):
    """A host at one moment. Fields typed `Any` are psutil's own tuples."""

    timestamp_ms: int
    boot_ms: int
    processors: int
    cpu_seconds: Any
    load: tuple[float, float, float]
    memory: Any
    swap: Any
    interfaces: Mapping[str, Any]
    disks: Mapping[str, Any]
    spaces: tuple[Space, ...]
    processes: tuple[HostProcess, ...]


def look(timestamp_ms: int, source: Any = psutil) -> Look:
    """Look at this host. Blocks, and for long if a filesystem hangs."""
    return Look(
        timestamp_ms=timestamp_ms,
        boot_ms=int(source.boot_time() * 1000),
        processors=source.cpu_count() or 1,
        cpu_seconds=source.cpu_times(),
        load=source.getloadavg(),
        memory=source.virtual_memory(),
        swap=source.swap_memory(),
        interfaces=source.net_io_counters(pernic=True),
        disks=source.disk_io_counters(perdisk=True) or {},  # None where there is no disk
        spaces=tuple(_spaces(source)),
        processes=tuple(_processes(source)),
    )


def command_of(argv: Sequence[str]) -> str:
    """The name of a kdist process: `broker d01`, `agent`, `zookeeper`; "" for others (pure).

    A broker's instance is taken from its settings file, as units name it: broker-d01.properties.
    """
    if _ZOOKEEPER in argv:
        return "zookeeper"
    place = next((n for n, word in enumerate(argv[:3]) if _is_kdist(word)), None)
    if place is None or len(argv) < place + 2:
        return ""
    command = argv[place + 1]
    stem = next((w.rpartition("/")[2] for w in argv if w.endswith(".properties")), "")
    instance = stem.removesuffix(".properties").removeprefix(f"{command}-")
    return f"{command} {instance}" if instance and instance != command else command


def _is_kdist(word: str) -> bool:
    return word.endswith(("/bin/kdist", "kdist.cli")) or word == "kdist"


def _spaces(source: Any) -> Iterator[Space]:
    """Each device once, at its first mount point; without those that cannot be read."""
    seen = set()
    for part in source.disk_partitions(all=False):
        if part.device in seen or part.fstype not in _SPACE_TYPES:
            continue
        seen.add(part.device)
        try:
            usage = source.disk_usage(part.mountpoint)
        except OSError:
            continue  # unmounted meanwhile, or a dead disk: its absence is the report
        yield Space(part.mountpoint, part.device, part.fstype, usage.total, usage.free)


def _processes(source: Any) -> Iterator[HostProcess]:
    for process in source.process_iter(["cmdline"]):
        command = command_of(process.info["cmdline"] or ())
        if not command:
            continue
        try:
            of = process.as_dict(_WANTED)
        except psutil.NoSuchProcess:
            continue  # it ended meanwhile
        yield HostProcess(
            command=command,
            pid=of["pid"],
            started_ms=int(of["create_time"] * 1000),
            cpu_seconds_total=round(of["cpu_times"].user + of["cpu_times"].system, 2),
            resident_bytes=of["memory_info"].rss,
            threads=of["num_threads"],
            open_files=of["num_fds"],
        )
