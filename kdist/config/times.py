"""Times and durations that people write, and times as numbers that programs pass (pure).

A number in another unit than milliseconds, or a date without its hyphens, would be a moment too: of
1970, or of the year 55000. So only what cannot be meant otherwise is read.

| text                                  | means                                             |
|---------------------------------------|---------------------------------------------------|
| 13 digits                             | milliseconds since 1970, from 2001 to 2286        |
| `0`                                   | 1970, which is before everything                  |
| `2026-11-18`, `2026-11-18T11:40:43.5` | ISO 8601; in UTC unless it names a zone           |
| `90s`, `5m`, `1h30m`, `7d`            | a duration                                        |
| `PT90S`, `P7DT3H`, `P1W`              | one of ISO 8601, without years and months, which vary |
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, SupportsIndex

from kdist.errors import UserError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_DIGITS_OF_MS = 13
_SECONDS = range(10**9, 10**10)  # of 2001 to 2286
_FINER_MIN = 10**14  # microseconds are above it since 1973, nanoseconds since 1970's second day

_ISO = re.compile(r"[0-9]{4}-[0-9W-]+(?:[Tt ][0-9].*)?", re.ASCII)
_UNITS_MS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}
_SHORT = re.compile("".join(f"(?:([0-9]{{1,15}}){unit})?" for unit in _UNITS_MS))
_LONG = re.compile(
    "P(?:([0-9]{1,15})W)?(?:([0-9]{1,15})D)?"
    "(?:T(?=[0-9])(?:([0-9]{1,15})H)?(?:([0-9]{1,15})M)?(?:([0-9]{1,15})S)?)?"
)


def parse_time(text: str) -> int:
    """Milliseconds since 1970; `UserError` with the whole sentence."""
    if text.isascii() and text.isdigit():
        if text == "0" or (len(text) == _DIGITS_OF_MS and text[0] != "0"):
            return int(text)
        raise UserError(
            f"{text!r} may be a date or in another unit: a time is milliseconds since 1970, which "
            "have 13 digits, or ISO 8601, such as 2026-11-18T11:40"
        )
    try:
        if not _ISO.fullmatch(text):
            raise ValueError(text)
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"{text!r} is neither milliseconds nor ISO 8601") from None
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    if at < _EPOCH:
        raise UserError(f"{text!r} is before 1970")
    return -((_EPOCH - at) // _MS)  # rounded up, as what is looked for is not before the time


def parse_duration(text: str) -> int:
    """Milliseconds; `UserError` with the whole sentence."""
    found = _SHORT.fullmatch(text) or _LONG.fullmatch(text)
    if found is None or not any(found.groups()):
        raise UserError(
            f"{text!r} is not a duration like 90s, 5m, 1h30m or 7d, or in ISO 8601 PT90S or P7DT3H"
        )
    numbers = zip(found.groups(), _UNITS_MS.values(), strict=True)
    return sum(int(number or 0) * unit for number, unit in numbers)


def check_time(timestamp_ms: Any) -> None:
    """`UserError` unless it can be a time to look up.

    Numbers below 0 have special meanings to a leader. Records may have any time from 1970 on, but a
    number that seconds or microseconds of our days would be is taken for that.
    """
    number = timestamp_ms.__index__() if isinstance(timestamp_ms, SupportsIndex) else -1
    if isinstance(timestamp_ms, bool) or number < 0:
        raise UserError(f"{timestamp_ms!r} is no time: they are ms since 1970")
    if number in _SECONDS or number >= _FINER_MIN:
        unit = "seconds" if number in _SECONDS else "micro- or nanoseconds"
        raise UserError(f"{timestamp_ms!r} is no time: they are ms since 1970, not {unit}")
