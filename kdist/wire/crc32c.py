"""CRC-32C (Castagnoli), the checksum of record batches: `crc32c(data)`, `crc32c(more, value)`.

`hardware` is the package `crc32c`, over 20 GB/s with the processor's own instruction; `software` is
crcmod, 0.4 GB/s, for hosts without a wheel of the former and for `KDIST_PURE=1`. They are tested
against each other. Both read a memoryview without copying it, which google-crc32c cannot.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

from kdist.wire.primitives import Buffer

IS_PURE = os.environ.get("KDIST_PURE", "") not in ("", "0")
"""Whether this process must not use compiled code, for the CRC and the record codec."""

_EXTENSION = "crc32c._crc32c"

Checksum = Callable[..., int]
"""(data, CRC of the bytes before it = 0) -> the CRC of both, 0 to 2**32 - 1."""


def software(data: Buffer, value: int = 0) -> int:
    """CRC-32C, by table, of `data` after bytes whose CRC was `value`."""
    return _by_table()(data, value)


@functools.cache
def _by_table() -> Checksum:
    import crcmod.predefined  # where it is needed

    found: Checksum = crcmod.predefined.mkPredefinedCrcFun("crc-32c")
    return found


def _load_hardware() -> Checksum | None:
    """The function of the package's extension.

    Importing the package would take 30 ms, for a command line and a version that nobody here asks
    for: a tenth of what a broker's imports take in all.
    """
    package = PathFinder.find_spec("crc32c")
    if package is None:
        return None
    found = PathFinder.find_spec(_EXTENSION, package.submodule_search_locations)
    if found is None or found.loader is None:
        return None
    module = sys.modules[_EXTENSION] = module_from_spec(found)
    found.loader.exec_module(module)
    hardware: Checksum = module.crc32c
    return hardware


hardware: Checksum | None = _load_hardware()
crc32c: Checksum = software if hardware is None or IS_PURE else hardware
IMPLEMENTATION = "software" if crc32c is software else "hardware"
