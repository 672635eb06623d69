"""The record codec of this process: the compiled one where it was built, else the reference.

`KDIST_PURE=1` forces the reference. `IMPLEMENTATION` is "compiled" or "reference". The functions
are documented in `_reference.py`. Whole batches, with header, CRC and compression: `build.py`.
"""

from __future__ import annotations

from kdist.records import _reference
from kdist.wire.pure import IS_PURE

__all__ = [
    "IMPLEMENTATION",
    "decode_headers",
    "decode_keys",
    "decode_keys_into",
    "decode_numbers",
    "decode_records",
    "decode_values",
    "decode_values_into",
    "encode_records",
    "find_null_key",
    "pack_headers",
    "running_sizes",
]

IMPLEMENTATION = "reference"
encode_records = _reference.encode_records
decode_records = _reference.decode_records
decode_values = _reference.decode_values
decode_keys = _reference.decode_keys
decode_headers = _reference.decode_headers
decode_values_into = _reference.decode_values_into
decode_keys_into = _reference.decode_keys_into
decode_numbers = _reference.decode_numbers
find_null_key = _reference.find_null_key
pack_headers = _reference.pack_headers
running_sizes = _reference.running_sizes

if not IS_PURE:
    try:
        from kdist.records import _compiled
    except ImportError:
        pass  # not built on this host: the reference is slower, but correct
    else:
        IMPLEMENTATION = "compiled"
        encode_records = _compiled.encode_records
        decode_records = _compiled.decode_records
        decode_values = _compiled.decode_values
        decode_keys = _compiled.decode_keys
        decode_headers = _compiled.decode_headers
        decode_values_into = _compiled.decode_values_into
        decode_keys_into = _compiled.decode_keys_into
        decode_numbers = _compiled.decode_numbers
        find_null_key = _compiled.find_null_key
        pack_headers = _compiled.pack_headers
        running_sizes = _compiled.running_sizes
