"""CRC-32C: the hardware's and the table's agree with the published vectors and with each other."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.wire import crc32c as module
from kdist.wire.crc32c import Checksum, software

assert module.hardware is not None, "the development host has the crc32c package"
hardware: Checksum = module.hardware

BOTH = pytest.mark.parametrize("checksum", [hardware, software], ids=["hardware", "software"])

# RFC 3720, appendix B.4, and the check value of the catalogue of parametrised CRCs.
VECTORS = [
    (b"", 0x00000000),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]


@BOTH
@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_the_published_vectors_hold(checksum: Checksum, data: bytes, expected: int) -> None:
    assert checksum(data) == expected


@given(st.binary(max_size=5000), st.integers(0, 0xFFFF_FFFF))
def test_both_implementations_agree_from_any_start(data: bytes, value: int) -> None:
    assert hardware(data, value) == software(data, value)


@BOTH
@given(data=st.binary(max_size=300), cut=st.integers(0, 300))
def test_a_checksum_goes_on_where_another_ended(checksum: Checksum, data: bytes, cut: int) -> None:
    assert checksum(data[cut:], checksum(data[:cut])) == checksum(data)


@BOTH
def test_views_into_larger_buffers_are_read_as_they_are(checksum: Checksum) -> None:
    buffer = bytearray(b"..123456789..")
    assert checksum(memoryview(buffer)[2:11]) == 0xE3069283
    assert checksum(buffer[2:11]) == 0xE3069283


def implementation(code: str = "", **environment: str) -> str:
    """What a fresh interpreter chooses, after running `code`."""
    report = "from kdist.wire import crc32c as c; print(c.IMPLEMENTATION, c.crc32c(b'123456789'))"
    command = [sys.executable, "-c", f"{code}\n{report}"]
    path = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, env=environment | path, capture_output=True, check=True)
    return done.stdout.decode().strip()


def test_the_hardware_serves_unless_pure_is_forced_or_its_package_is_missing() -> None:
    answer = str(0xE3069283)
    assert implementation() == f"hardware {answer}"
    assert implementation(KDIST_PURE="0") == f"hardware {answer}"
    assert implementation(KDIST_PURE="1") == f"software {answer}"
    hidden = "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]"
    needed = "import crcmod.predefined"  # which the software needs
    assert implementation(f"{needed}; {hidden}") == f"software {answer}"
