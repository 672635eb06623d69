"""Maps keys to partitions: compiled where that was built, else `records._reference_keys`."""

from __future__ import annotations

from collections.abc import Callable

from kdist.records import _reference_keys
from kdist.wire.pure import IS_PURE

__all__ = ["Partitioner", "partition_for", "partitions_for"]

Partitioner = Callable[[bytes | None, int], int]
"""An application's own: takes the key (or None) and the partition count, returns a partition."""

partition_for = _reference_keys.partition_for
partitions_for = _reference_keys.partitions_for

if not IS_PURE:
    try:
        from kdist.records import _compiled_keys
    except ImportError:
        pass  # not built on this host: the reference is slower but equivalent
    else:
        partition_for = _compiled_keys.partition_for
        partitions_for = _compiled_keys.partitions_for
