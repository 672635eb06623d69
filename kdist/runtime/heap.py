"""What becomes of freed memory: kept for the next use if megabytes come and go.

By default glibc gives a megabyte back to the kernel when it is freed, and takes a new one of empty
pages when it is asked for: 250 page faults, which take longer than to receive a megabyte, or to
decompress one. It learns from the first large block that is freed to keep blocks of that size, and
as much again at the end of its heap (mallopt(3), M_MMAP_THRESHOLD).
"""

from __future__ import annotations

_BLOCK_BYTES = 8 << 20  # larger ones are rare here; the kernel still gets those back


def keep_freed_blocks() -> None:
    """From now on, in this process. Elsewhere than with glibc it does nothing."""
    bytes(_BLOCK_BYTES)  # zeros that nobody looks at: no page is touched
