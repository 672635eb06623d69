"""Scanning a log many batches at a time: compiled where it was built, else the reference.

The functions are documented in `_reference_stretch.py`.
"""

from __future__ import annotations

from kdist.records import _reference_stretch
from kdist.records._reference_stretch import Stretch
from kdist.wire.pure import IS_PURE

__all__ = ["Stretch", "find_stretch", "producer_headers"]

find_stretch = _reference_stretch.find_stretch
producer_headers = _reference_stretch.producer_headers

if not IS_PURE:
    try:
        from kdist.records import _compiled_stretch
    except ImportError:
        pass  # not built on this host: the reference is slower, but correct
    else:
        find_stretch = _compiled_stretch.find_stretch
        producer_headers = _compiled_stretch.producer_headers
