"""A produced batch's way to its log: compiled where it was built, else the reference.

The functions are documented in `_reference_produced.py`.
"""

from __future__ import annotations

from kdist.records import _reference_produced
from kdist.records._reference_produced import TAGS_BYTES, BatchTotals
from kdist.wire.pure import IS_PURE

__all__ = [
    "TAGS_BYTES",
    "BatchTotals",
    "assign",
    "batch_totals",
    "check_batch",
    "find_batch",
    "find_plain_span",
]

find_batch = _reference_produced.find_batch
check_batch = _reference_produced.check_batch
find_plain_span = _reference_produced.find_plain_span
batch_totals = _reference_produced.batch_totals
assign = _reference_produced.assign

if not IS_PURE:
    try:
        from kdist.records import _compiled_produced
    except ImportError:
        pass  # not built on this host: the reference is slower, but correct
    else:
        find_batch = _compiled_produced.find_batch
        check_batch = _compiled_produced.check_batch
        find_plain_span = _compiled_produced.find_plain_span
        batch_totals = _compiled_produced.batch_totals
        assign = _compiled_produced.assign
