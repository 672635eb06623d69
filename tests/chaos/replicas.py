"""Compares the replicas' logs of stopped brokers, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def differences(directories: Sequence[Path]) -> list[str]:
    """Where replicas of a partition differ in what they both hold, or in where they end."""
    found = []
    names = sorted(
        {path.name for each in directories for path in each.glob("*-*") if path.is_dir()}
    )
    for name in names:
        logs = {each: _content(each / name) for each in directories if (each / name).is_dir()}
        if len(logs) < len(directories):
            found.append(f"{name} is in {len(logs)} of {len(directories)} log directories only")
        if len(set(logs.values())) > 1:
            sizes = ", ".join(str(len(content)) for content in logs.values())
            found.append(f"{name}: its replicas differ ({sizes} bytes)")
    return found


def _content(directory: Path) -> bytes:
    """The records of a log whose start was never moved: all segments, one after another."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
