"""A produced batch's way to its log: compiled where it was built, else the reference.

The functions are documented in `_reference_produced.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kdist.records._reference_produced import TAGS_BYTES, BatchTotals
from kdist.wire.pure import compiled_or

__all__ = [
    "TAGS_BYTES",
    "BatchTotals",
    "assign",
    "batch_totals",
    "check_batch",
    "find_batch",
    "find_plain_span",
]

if TYPE_CHECKING:
    from kdist.records import _reference_produced as _codec
else:
    _codec = compiled_or("kdist.records._reference_produced", "kdist.records._compiled_produced")

find_batch = _codec.find_batch
check_batch = _codec.check_batch
find_plain_span = _codec.find_plain_span
batch_totals = _codec.batch_totals
assign = _codec.assign
