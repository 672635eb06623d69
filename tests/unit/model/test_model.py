"""Digits as applications write them, and unique ids."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.model import format_uuid, parse_uuid, read_digits


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


def test_ids_are_printed_as_kafka_prints_them():
    topic_id = uuid.UUID("491859c5-b2da-4ab2-aee8-5c70b416676e")
    assert format_uuid(topic_id) == "SRhZxbLaSrKu6FxwtBZnbg"
    assert format_uuid(uuid.UUID(int=1)) == "AAAAAAAAAAAAAAAAAAAAAQ"


@given(st.uuids(allow_nil=True))
def test_every_id_reads_back(value):
    assert parse_uuid(format_uuid(value)) == value


@pytest.mark.parametrize("text", ["", "A" * 21, "A" * 23, "A" * 21 + "=", "A" * 21 + "B", "é" * 22])
def test_other_text_is_no_id(text):
    assert parse_uuid(text) is None
