"""The produce path of the usual batch: compiled where it was built, else the reference.

The functions are documented in `_reference_usual.py`.
"""

from __future__ import annotations

from kdist.records import _reference_usual
from kdist.records._reference_usual import TAGS_BYTES, Measured
from kdist.wire.pure import IS_PURE

__all__ = ["TAGS_BYTES", "Measured", "assign", "check_batch", "find_batch", "find_run", "measure"]

find_batch = _reference_usual.find_batch
check_batch = _reference_usual.check_batch
find_run = _reference_usual.find_run
measure = _reference_usual.measure
assign = _reference_usual.assign

if not IS_PURE:
    try:
        from kdist.records import _compiled_usual
    except ImportError:
        pass  # not built on this host: the reference is slower, but correct
    else:
        find_batch = _compiled_usual.find_batch
        check_batch = _compiled_usual.check_batch
        find_run = _compiled_usual.find_run
        measure = _compiled_usual.measure
        assign = _compiled_usual.assign
