"""What stays of a compacted log: the compiled functions where they were built, else the reference.

They are documented in `_reference_cleaning.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kdist.records._reference_cleaning import OUT_TIMES as OUT_TIMES
from kdist.records._reference_cleaning import SLOT_BYTES as SLOT_BYTES
from kdist.records._reference_cleaning import SiftedBody as SiftedBody
from kdist.records.codec import compiled_or

if TYPE_CHECKING:
    from kdist.records._reference_cleaning import KeyMap as KeyMap
    from kdist.records._reference_cleaning import Sieve as Sieve
    from kdist.records._reference_cleaning import map_batches as map_batches
    from kdist.records._reference_cleaning import map_body as map_body
else:
    _code = compiled_or("kdist.records._reference_cleaning", "kdist.records._compiled_cleaning")
    _maps = compiled_or("kdist.records._reference_cleaning", "kdist.records._compiled_key_map")
    KeyMap = _maps.KeyMap
    Sieve = _code.Sieve
    map_batches = _code.map_batches
    map_body = _code.map_body
