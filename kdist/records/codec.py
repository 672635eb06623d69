"""The record codec of this process: the compiled one where it was built, else the reference.

`KDIST_PURE=1` forces the reference. `IMPLEMENTATION` is "compiled" or "reference". The functions
are documented in `_reference.py` (the records in a batch's body), `_reference_produced.py` (a
batch's way to its log) and `_reference_spans.py` (scanning a log, many batches at a time). Whole
batches, with header, CRC and compression: `build.py`.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from kdist.records._reference_produced import TAGS_BYTES as TAGS_BYTES
from kdist.records._reference_produced import BatchTotals as BatchTotals
from kdist.records._reference_spans import BatchSpan as BatchSpan
from kdist.wire.crc32c import IS_PURE


def compiled_or(reference: str, compiled: str) -> ModuleType:
    """The compiled module, or the reference: that is slower, but correct, where none was built."""
    if not IS_PURE:
        try:
            return import_module(compiled)
        except ImportError:
            pass
    return import_module(reference)


if TYPE_CHECKING:
    from kdist.records import _reference as _codec
    from kdist.records import _reference_produced as _produced
    from kdist.records import _reference_spans as _spans
else:
    _codec = compiled_or("kdist.records._reference", "kdist.records._compiled")
    _produced = compiled_or("kdist.records._reference_produced", "kdist.records._compiled_produced")
    _spans = compiled_or("kdist.records._reference_spans", "kdist.records._compiled_spans")

IMPLEMENTATION = "compiled" if _codec.__name__.endswith("_compiled") else "reference"
encode_records = _codec.encode_records
decode_records = _codec.decode_records
decode_values = _codec.decode_values
decode_keys = _codec.decode_keys
decode_headers = _codec.decode_headers
decode_values_into = _codec.decode_values_into
decode_keys_into = _codec.decode_keys_into
decode_numbers = _codec.decode_numbers
pack_headers = _codec.pack_headers
running_sizes = _codec.running_sizes
find_batch = _produced.find_batch
check_batch = _produced.check_batch
body_summary = _produced.body_summary
batch_totals = _produced.batch_totals
assign = _produced.assign
find_span = _spans.find_span
find_plain_span = _spans.find_plain_span
producer_headers = _spans.producer_headers
