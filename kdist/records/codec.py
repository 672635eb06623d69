"""The record codec of this process: the compiled one where it was built, else the reference.

`KDIST_PURE=1` forces the reference. `IMPLEMENTATION` is "compiled" or "reference". The functions
are documented in `_reference.py`. Whole batches, with header, CRC and compression: `build.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kdist.wire.pure import compiled_or

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

if TYPE_CHECKING:
    from kdist.records import _reference as _codec
else:
    _codec = compiled_or("kdist.records._reference", "kdist.records._compiled")

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
