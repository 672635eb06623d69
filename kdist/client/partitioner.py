"""Maps keys to partitions: compiled where that was built, else `records._reference_keys`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kdist.records.codec import compiled_or

__all__ = ["Partitioner", "partition_for", "partitions_for"]

Partitioner = Callable[[bytes | None, int], int]
"""An application's own: takes the key (or None) and the partition count, returns a partition."""

if TYPE_CHECKING:
    from kdist.records import _reference_keys as _keys
else:
    _keys = compiled_or("kdist.records._reference_keys", "kdist.records._compiled_keys")

partition_for = _keys.partition_for
partitions_for = _keys.partitions_for
