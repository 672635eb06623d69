"""Times and durations: what is read, and what could be in another unit and is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from kdist.config.times import check_time, parse_duration, parse_time
from kdist.errors import UserError

NOON = "2026-11-18T12:00:00"
NOON_MS = 1_795_003_200_000


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("0", 0),
        (str(NOON_MS), NOON_MS),
        ("9999999999999", 9_999_999_999_999),
        ("2026-11-18", NOON_MS - 43_200_000),
        ("2026-11-18 12:00", NOON_MS),
        (NOON, NOON_MS),
        (f"{NOON}Z", NOON_MS),
        (f"{NOON}+01:00", NOON_MS - 3_600_000),
        (f"{NOON}.1231", NOON_MS + 124),
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01.337", 1337),
        ("9999-12-31", 253_402_214_400_000),
    ],
)
def test_a_time_is_13_digits_of_milliseconds_or_iso_8601(text: str, time_ms: int) -> None:
    assert parse_time(text) == time_ms
    said = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    assert parse_time(said) == time_ms


@pytest.mark.parametrize(
    "text",
    [
        *("20261118", "202611181200", "20261118120000", "2026", "00", "1"),
        *(str(NOON_MS // 1000), f"{NOON_MS}000", f"{NOON_MS}000000", "0000000000000"),
        *("0" + str(NOON_MS), f"-{NOON_MS}", f"+{NOON_MS}", f"{NOON_MS}.0", "1795003200.5"),
        *("1_795_003_200_000", "\u0661" * 13, f"{NOON_MS} ", "1e12", "0x1a1f3a0c000"),
        *("", "now", "yesterday", "18.11.2026", "11/18/2026", "2026-11", "2026-02-30"),
        *("2026-11-18T25:00", "2026-11-18-11:40", "2026-11-18T12:00+99:99", "12:00"),
        *("1969-12-31T23:59:59.999", "1970-01-01T00:00+01:00", "0001-01-01T00:00+14:00"),
        *("20261118T120000", "P7D", "7d", "\x00", "2026-11-18\n"),
    ],
)
def test_what_may_be_a_date_or_another_unit_is_no_time(text: str) -> None:
    with pytest.raises(UserError):
        parse_time(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("90s", 90), ("5m", 300), ("2h", 7200), ("1h30m", 5400), ("7d", 604_800), ("0s", 0)),
        *(("1d1s", 86_401), ("2w", 1_209_600)),
        *(("PT90S", 90), ("PT5M", 300), ("P7D", 604_800), ("P7DT3H", 615_600), ("P1W", 604_800)),
    ],
)
def test_a_duration_has_units(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds * 1000


@pytest.mark.parametrize(
    "text",
    [
        *("P1M", "P1Y", "p1m", "PM", "P", "PT", "P1DT", "T5M", "7dt3h", "P5", "pt5m"),
        *("", "90", "5M", "1M", "1y", "1mo", "5ms", "5us", "1.5h", "-5m", "5 m", "30m1h", "soon"),
        *("\u0665m", "5m\n", "1" * 16 + "d"),
    ],
)
def test_what_is_of_no_certain_length_is_no_duration(text: str) -> None:
    with pytest.raises(UserError):
        parse_duration(text)


@pytest.mark.parametrize("time", [0, 1337, 20_000_000, NOON_MS, 10**10, 10**14 - 1])
def test_a_program_may_look_up_any_time_in_milliseconds(time: int) -> None:
    check_time(time)


@pytest.mark.parametrize(
    "time",
    [
        *(NOON_MS // 1000, NOON_MS * 1000, NOON_MS * 10**6, 1 << 63, 10**9, 10**10 - 1),
        *(-1, -2, 1.5, "1", None, True, NOON_MS / 1000),
    ],
)
def test_a_program_may_not_look_up_seconds_or_microseconds(time: Any) -> None:
    with pytest.raises(UserError, match="is no time"):
        check_time(time)
