"""Answers for old consumers: what making one leaves behind for the next."""

from __future__ import annotations

import subprocess
import sys

ANSWERS = 20
_PROGRAM = f"""
import resource
from types import SimpleNamespace
from kdist.records.build import build_batch
from kdist.records.convert import Budget
from kdist.replication.old_formats import message_set_of

batch = bytes(build_batch([b"x" * 1024] * 1000, timestamp_ms=0))
part = SimpleNamespace(read=lambda: bytes(bytearray(batch)))
for answer in range(-3, {ANSWERS}):
    if not answer:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):  # partitions
        message_set_of(part, 0, 0, Budget())
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_a_megabyte_for_an_old_consumer_comes_from_memory_that_the_last_one_had() -> None:
    """A new one of empty pages is 250 page faults. With another libc than glibc: as that likes."""
    program = [sys.executable, "-c", _PROGRAM]
    faults = int(subprocess.run(program, capture_output=True, check=True, text=True).stdout)
    assert faults < 50 * ANSWERS
