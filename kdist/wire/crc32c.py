"""CRC-32C (Castagnoli), the checksum of record batches: `crc32c(data)`, `crc32c(more, value)`.

`hardware` is the package `crc32c`, over 20 GB/s with the processor's own instruction; `software` is
crcmod, 0.4 GB/s, for hosts without a wheel of the former and for `KDIST_PURE=1`. They are tested
against each other. Both read a memoryview without copying it, which google-crc32c cannot.
"""

from __future__ import annotations

from collections.abc import Callable

import crcmod.predefined

from kdist.wire.pure import IS_PURE
from kdist.wire.varint import Buffer

Checksum = Callable[..., int]
"""(data, CRC of the bytes before it = 0) -> the CRC of both, 0 to 2**32 - 1."""

_crcmod: Checksum = crcmod.predefined.mkPredefinedCrcFun("crc-32c")


def software(data: Buffer, value: int = 0) -> int:
    """CRC-32C, by table, of `data` after bytes whose CRC was `value`."""
    return _crcmod(data, value)


def _load_hardware() -> Checksum | None:
    try:
        from crc32c import crc32c as hardware
    except ImportError:
        return None
    return hardware


hardware: Checksum | None = _load_hardware()
crc32c: Checksum = software if hardware is None or IS_PURE else hardware
IMPLEMENTATION = "software" if crc32c is software else "hardware"
