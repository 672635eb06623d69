"""What stays of a compacted log: the compiled functions where they were built, else the reference.

They are documented in `_reference_cleaning.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kdist.records._reference_cleaning import (
    OUT_TIMES,
    SLOT_BYTES,
    SiftedBody,
    empty_batch,
    rebuilt_batch,
)
from kdist.wire.pure import compiled_or

__all__ = [
    "OUT_TIMES",
    "SLOT_BYTES",
    "KeyMap",
    "Sieve",
    "SiftedBody",
    "empty_batch",
    "map_batches",
    "map_body",
    "rebuilt_batch",
]

if TYPE_CHECKING:
    from kdist.records._reference_cleaning import KeyMap, Sieve, map_batches, map_body
else:
    _code = compiled_or("kdist.records._reference_cleaning", "kdist.records._compiled_cleaning")
    _maps = compiled_or("kdist.records._reference_cleaning", "kdist.records._compiled_key_map")
    KeyMap = _maps.KeyMap
    Sieve = _code.Sieve
    map_batches = _code.map_batches
    map_body = _code.map_body
