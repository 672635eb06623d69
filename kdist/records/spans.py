"""Scanning a log many batches at a time: compiled where it was built, else the reference.

The functions are documented in `_reference_spans.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kdist.records._reference_spans import BatchSpan
from kdist.wire.pure import compiled_or

__all__ = ["BatchSpan", "find_span", "producer_headers"]

if TYPE_CHECKING:
    from kdist.records import _reference_spans as _codec
else:
    _codec = compiled_or("kdist.records._reference_spans", "kdist.records._compiled_spans")

find_span = _codec.find_span
producer_headers = _codec.producer_headers
