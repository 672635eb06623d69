"""The record codec of this process: the compiled one where it was built, else the reference.

`KDIST_PURE=1` forces the reference. `IMPLEMENTATION` is "compiled" or "reference". The functions
are documented in `_reference.py` (the records in a batch's body), `_reference_produced.py` (a
batch's way to its log), `_reference_walk.py` (whether its records can be read) and
`_reference_spans.py` (scanning a log, many batches at a time). Whole batches, with header, CRC and
compression: `build.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kdist.records._reference_produced import TAGS_BYTES, BatchTotals
from kdist.records._reference_spans import BatchSpan
from kdist.wire.pure import compiled_or

__all__ = [
    "IMPLEMENTATION",
    "TAGS_BYTES",
    "BatchSpan",
    "BatchTotals",
    "are_whole",
    "assign",
    "batch_totals",
    "body_summary",
    "check_batch",
    "decode_headers",
    "decode_keys",
    "decode_keys_into",
    "decode_numbers",
    "decode_records",
    "decode_values",
    "decode_values_into",
    "encode_records",
    "find_batch",
    "find_null_key",
    "find_plain_span",
    "find_span",
    "pack_headers",
    "producer_headers",
    "running_sizes",
]

if TYPE_CHECKING:
    from kdist.records import _reference as _codec
    from kdist.records import _reference_produced as _produced
    from kdist.records import _reference_spans as _spans
    from kdist.records import _reference_walk as _walk
else:
    _codec = compiled_or("kdist.records._reference", "kdist.records._compiled")
    _produced = compiled_or("kdist.records._reference_produced", "kdist.records._compiled_produced")
    _spans = compiled_or("kdist.records._reference_spans", "kdist.records._compiled_spans")
    _walk = compiled_or("kdist.records._reference_walk", "kdist.records._compiled_walk")

IMPLEMENTATION = "compiled" if _codec.__name__.endswith("_compiled") else "reference"
encode_records = _codec.encode_records
decode_records = _codec.decode_records
decode_values = _codec.decode_values
decode_keys = _codec.decode_keys
decode_headers = _codec.decode_headers
decode_values_into = _codec.decode_values_into
decode_keys_into = _codec.decode_keys_into
decode_numbers = _codec.decode_numbers
find_null_key = _codec.find_null_key
pack_headers = _codec.pack_headers
running_sizes = _codec.running_sizes
find_batch = _produced.find_batch
check_batch = _produced.check_batch
find_plain_span = _produced.find_plain_span
batch_totals = _produced.batch_totals
assign = _produced.assign
are_whole = _walk.are_whole
body_summary = _walk.body_summary
find_span = _spans.find_span
producer_headers = _spans.producer_headers
