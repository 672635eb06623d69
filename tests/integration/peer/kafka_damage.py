"""The damage of crashes and failing disks, inflicted on partitions of a broker that was killed.

Kafka's recovery repairs each of these by itself; kdist's must keep whatever Kafka's keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from peer.kafka_workload import read_checkpoint

RECOVERY_POINTS = "recovery-point-offset-checkpoint"


def segments(partition: Path) -> list[Path]:
    """The `.log` files, oldest first."""
    return sorted(partition.glob("*.log"))


def tear_tail(partition: Path) -> None:
    """The last write reached the disk only in part."""
    active = segments(partition)[-1]
    with open(active, "r+b") as file:
        file.truncate(active.stat().st_size - 17)


def append_zeros(partition: Path) -> None:
    """The file's size reached the disk before its last pages did."""
    with open(segments(partition)[-1], "ab") as file:
        file.write(bytes(4096))


def flip_bit(partition: Path, segment_number: int = -1) -> None:
    """A bit rotted halfway through a segment."""
    segment = segments(partition)[segment_number]
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0x10
    segment.write_bytes(content)


def flip_bit_in_second_segment(partition: Path) -> None:
    """As `flip_bit`, with segments behind it, none of them known to be synced."""
    flip_bit(partition, 1)
    forget_recovery_point(partition)


def lose_indexes(partition: Path) -> None:
    """The index files of all segments but the active one are gone."""
    for segment in segments(partition)[:-1]:
        segment.with_suffix(".index").unlink()
        segment.with_suffix(".timeindex").unlink()


def garble_active_index(partition: Path) -> None:
    """The active segment's offset index holds noise."""
    index = segments(partition)[-1].with_suffix(".index")
    index.write_bytes(b"\x7f\x01\x55" * 400)


def lose_snapshots(partition: Path) -> None:
    """All producer snapshots are gone."""
    for snapshot in partition.glob("*.snapshot"):
        snapshot.unlink()


def forget_recovery_point(partition: Path) -> None:
    """Nothing of the partition is known to be synced."""
    path = partition.parent / RECOVERY_POINTS
    points = read_checkpoint(path) | {partition.name: 0}
    rows = [
        f"{name.rpartition('-')[0]} {name.rpartition('-')[2]} {o}" for name, o in points.items()
    ]
    path.write_text("\n".join(["0", str(len(rows)), *rows, ""]))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "codec-none-0": tear_tail,
    "codec-gzip-0": append_zeros,
    "codec-snappy-0": flip_bit,
    "codec-lz4-0": lose_indexes,
    "codec-zstd-0": garble_active_index,
    "codec-mixed-0": forget_recovery_point,
    "idempotent-0": lose_snapshots,
    "idempotent-1": flip_bit_in_second_segment,
    "transactions-0": tear_tail,
    "compacted-tombstones-0": forget_recovery_point,
    "kdist-torn-0": tear_tail,
}
