"""Scanning a log many batches at a time: compiled where it was built, else the reference.

The functions are documented in `_reference_spans.py`.
"""

from __future__ import annotations

from kdist.records import _reference_spans
from kdist.records._reference_spans import BatchSpan
from kdist.wire.pure import IS_PURE

__all__ = ["BatchSpan", "find_span", "producer_headers"]

find_span = _reference_spans.find_span
producer_headers = _reference_spans.producer_headers

if not IS_PURE:
    try:
        from kdist.records import _compiled_spans
    except ImportError:
        pass  # not built on this host: the reference is slower, but correct
    else:
        find_span = _compiled_spans.find_span
        producer_headers = _compiled_spans.producer_headers
