"""Tuning glibc's allocator to keep freed blocks of megabytes for reuse.

By default glibc returns a megabyte to the kernel when it is freed, and maps fresh pages for the
next one: 250 page faults, which take longer than receiving or decompressing a megabyte. Once a
large mapped block is freed, glibc raises its threshold: it keeps blocks of up to that size, and
twice as much at the top of its heap (mallopt(3), M_MMAP_THRESHOLD).
"""

from __future__ import annotations

_BLOCK_BYTES = 8 << 20  # larger blocks are rare here, and still go back to the kernel


def keep_freed_blocks() -> None:
    """Keep freed blocks of up to 8 MiB in this process from now on. No effect without glibc."""
    bytes(_BLOCK_BYTES)  # allocated by calloc and freed at once: no page is touched
