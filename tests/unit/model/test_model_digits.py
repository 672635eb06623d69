"""Numbers as people write them."""

from __future__ import annotations

import pytest

from kdist.model import read_digits


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("007", 7),
        (str((1 << 63) - 1), (1 << 63) - 1),
        ("", None),
        ("-1", None),
        ("+1", None),
        ("1_000", None),
        (" 1", None),
        ("²", None),
        ("\u0661", None),
        ("9" * 20, None),
        ("9" * 5_000, None),
    ],
)
def test_only_plain_digits_are_a_number(text: str, number: int | None) -> None:
    assert read_digits(text) == number
