"""Formats values for people: sizes, times, counts, and bytes as text if they are text (pure).

JSON has the raw values instead: bytes, milliseconds, and for keys and values `json_bytes`.
"""

from __future__ import annotations

import errno
from datetime import UTC, datetime, timedelta

from kdist.errors import ApiError, KdistError
from kdist.model import NO_TIMESTAMP

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def show_plain(value: object) -> str:
    """The value as text; `-` for none and for empty text."""
    return "-" if value is None or value == "" else str(value)


def show_size(size_bytes: int | None) -> str:
    """`61 B`, `93.3 KiB`; `-` for none."""
    if size_bytes is None:
        return "-"
    if size_bytes < 1024:
        return f"{size_bytes} B"
    power = min((size_bytes.bit_length() - 1) // 10, len(_UNITS))
    return f"{size_bytes / 1024**power:.1f} {_UNITS[power - 1]}"


def show_time(timestamp_ms: int) -> str:
    """`2026-11-20T11:40:43.123Z`; `-` for none, the number if `datetime` cannot express it."""
    if timestamp_ms == NO_TIMESTAMP:
        return "-"
    try:
        at = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"{timestamp_ms} ms"
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"


def show_bytes(data: bytes | None) -> str:
    """`null`, `""`, `"text"` if it is printable UTF-8, else `0x` and hex."""
    if data is None:
        return "null"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    if not text.isprintable():
        return f"0x{data.hex()}"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def printable(text: str) -> str:
    """`text` with control and other unprintable characters escaped as in Python."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def json_bytes(data: bytes | None) -> str | dict[str, str] | None:
    """Text if it is UTF-8, else `{"hex": "00ff"}`; null for null."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def show_count(number: int, noun: str, plural: str = "") -> str:
    """`1 batch`, `2 batches`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def clip(text: str, width: int | None) -> str:
    """At most `width` characters, the last an ellipsis if something was cut."""
    if width is None or len(text) <= width:
        return text
    return text[: max(0, width - 1)] + "…"


def show_error(error: KdistError | OSError) -> str:
    """The error as a sentence, for an `ApiError` without the error's name in the protocol."""
    if isinstance(error, OSError):
        # ENOSPC without a file's name is from standard output: our own files raise `DiskFull`.
        nameless = "standard output" if error.errno == errno.ENOSPC else "the system"
        return f"{error.filename or nameless}: {error.strerror or error}"
    return error.detail if isinstance(error, ApiError) else str(error)
