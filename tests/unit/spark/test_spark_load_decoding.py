"""What a column holds of a JSON token, for every type; and which records keep their bytes."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow
import pytest
from pyspark.sql import types as t

from kdist.spark.load.decoding import EventTime, Filling, parse, unheld
from kdist.spark.load.rows import Decoding

NEW_YORK = "America/New_York"


def held(type_: t.DataType, *texts: str, zone: str = "UTC") -> list[tuple[Any, bool]]:
    """What a column holds of each JSON text, and whether that is all."""
    objects, inexact = parse(f'{{"a": {text}}}'.encode("utf-8", "surrogatepass") for text in texts)
    schema = t.StructType().add("a", type_)
    filling = Filling(ZoneInfo(zone), inexact)
    (column,) = filling.columns(schema, objects, range(len(texts)))
    if isinstance(type_, t.TimestampType | t.TimestampNTZType):
        column = column.cast(pyarrow.int64())
    return [(value, row not in inexact) for row, value in enumerate(column.to_pylist())]


def us(*args: int) -> int:
    return int(datetime(*args, tzinfo=UTC).timestamp()) * 1_000_000  # type: ignore[misc]


LONG_MAX = 2**63 - 1


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (t.BooleanType(), "true", True),
        (t.ByteType(), "-128", -128),
        (t.ShortType(), "32767", 32767),
        (t.IntegerType(), "-2147483648", -(2**31)),
        (t.LongType(), str(LONG_MAX), LONG_MAX),
        (t.FloatType(), "0.5", 0.5),
        (t.FloatType(), "16777216", 16777216.0),
        (t.FloatType(), "1.0e3", 1000.0),
        (t.DoubleType(), "0.1", 0.1),
        (t.DoubleType(), "1.50", 1.5),
        (t.DoubleType(), "9007199254740992", 2.0**53),
        (t.DoubleType(), "-1.5E18", -1.5e18),
        (t.DoubleType(), "1e300", 1e300),
        (t.DoubleType(), "5e-324", 5e-324),
        (t.DecimalType(10, 2), "1.23", Decimal("1.23")),
        (t.DecimalType(10, 2), "1.2300", Decimal("1.23")),
        (t.DecimalType(10, 2), "-7", Decimal("-7.00")),
        (t.DecimalType(10, 2), '"12.30"', Decimal("12.30")),
        (t.DecimalType(38, 0), "9" * 38, Decimal("9" * 38)),
        (t.StringType(), '"a\\n"', "a\n"),
        (t.StringType(), '"\\ud83d\\ude00"', "\U0001f600"),
        (t.StringType(), "1.10", "1.10"),
        (t.StringType(), "1e400", "1e400"),
        (t.StringType(), "12345678901234567890", "12345678901234567890"),
        (t.StringType(), "0.12345678901234567890", "0.12345678901234567890"),
        (t.StringType(), "true", "true"),
        (t.StringType(), '{"b": [1.0, null, "x"]}', '{"b":[1.0,null,"x"]}'),
        (t.BinaryType(), '"YWI="', b"ab"),
        (t.DateType(), '"2013-01-31"', date(2013, 1, 31)),
        (t.TimestampType(), '"2013-01-01T05:15:00.123456Z"', us(2013, 1, 1, 5, 15) + 123_456),
        (t.TimestampType(), '"2013-01-01T05:15:00-05:00"', us(2013, 1, 1, 10, 15)),
        (t.TimestampType(), '"2013-01-01 05:15"', us(2013, 1, 1, 5, 15)),
        (t.TimestampType(), '"1969-12-31T23:59:59.5000000Z"', -500_000),
        (t.TimestampType(), "1357017300", us(2013, 1, 1, 5, 15)),
        (t.TimestampNTZType(), '"2013-01-01T05:15:00"', us(2013, 1, 1, 5, 15)),
        (t.ArrayType(t.DoubleType()), "[1.5, null, 2]", [1.5, None, 2.0]),
        (t.MapType(t.StringType(), t.LongType()), '{"x": 1}', [("x", 1)]),
        (t.StructType().add("b", t.LongType()), '{"b": 1}', {"b": 1}),
        (
            t.StructType().add("b", t.LongType()).add("c", t.DateType()),
            "{}",
            {"b": None, "c": None},
        ),
        (t.LongType(), "null", None),
        (t.ArrayType(t.LongType()), "null", None),
    ],
)
def test_a_token_that_a_column_has_room_for_is_held(
    type_: t.DataType, text: str, value: object
) -> None:
    assert held(type_, text) == [(value, True)]


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (t.BooleanType(), "1", None),
        (t.BooleanType(), '"true"', None),
        (t.ByteType(), "128", None),
        (t.ShortType(), "-32769", None),
        (t.IntegerType(), "2147483648", None),
        (t.LongType(), str(LONG_MAX + 1), None),
        (t.LongType(), "1.0", None),
        (t.LongType(), "true", None),
        (t.LongType(), '"1"', None),
        (t.FloatType(), "1e39", None),
        (t.FloatType(), "16777217", 16777216.0),
        (t.FloatType(), "0.100000001", pytest.approx(0.1)),
        (t.DoubleType(), "9007199254740993", 2.0**53),
        (t.DoubleType(), "12345678901234.56789", 12345678901234.568),
        (t.DoubleType(), "0.1000000000000000055", 0.1),
        (t.DoubleType(), "1e-400", 0.0),
        (t.DoubleType(), "1e-99999999999999999999", 0.0),
        (t.DoubleType(), "1e400", None),
        (t.DoubleType(), '"NaN"', None),
        (t.DoubleType(), "1" * 400, None),
        (t.DecimalType(10, 2), "1.239", Decimal("1.24")),
        (t.DecimalType(10, 2), "1e-9", Decimal("0.00")),
        (t.DecimalType(10, 2), "123456789", None),
        (t.DecimalType(10, 2), '"1,000"', None),
        (t.DecimalType(10, 2), '"NaN"', None),
        (t.DecimalType(10, 2), "1e99999999999999999999", None),
        (t.StringType(), '"\\ud800"', "?"),
        (t.StringType(), '"\\ude00\\ud83d"', "??"),
        (t.StringType(), '{"b": 1, "b": 2}', '{"b":2}'),
        (t.StringType(), '[{"b": {"c": 1, "c": 2}}]', '[{"b":{"c":2}}]'),
        (t.BinaryType(), '"YWI"', None),
        (t.BinaryType(), '"YWJ="', b"ab"),
        (t.BinaryType(), "1", None),
        (t.DateType(), '"2013-01-31T12:00:00"', date(2013, 1, 31)),
        (t.DateType(), '"2013"', None),
        (t.DateType(), '"07:15"', None),
        (t.DateType(), '"2013-02-30"', None),
        (t.DateType(), "15000", None),
        (t.TimestampType(), '"07:15"', None),
        (t.TimestampType(), '"T07:15:00Z"', None),
        (t.TimestampType(), '"now"', None),
        (t.TimestampType(), '"2013-01-01T00:00:00.0000001Z"', us(2013, 1, 1)),
        (t.TimestampType(), "1357017300.5", None),
        (t.TimestampType(), "1" * 20, None),
        (t.TimestampNTZType(), '"2013-01-01T05:15:00Z"', None),
        (t.TimestampNTZType(), '"07:15"', None),
        (t.ArrayType(t.DecimalType(10, 2)), "[1.5, 1.239]", [Decimal("1.50"), Decimal("1.24")]),
        (t.ArrayType(t.LongType()), '{"0": 1}', None),
        (t.MapType(t.StringType(), t.LongType()), '{"x": 1, "y": 1.5}', [("x", 1), ("y", None)]),
        (t.MapType(t.StringType(), t.LongType()), '{"x": 1, "x": 2}', [("x", 2)]),
        (t.MapType(t.StringType(), t.LongType()), "[]", None),
        (t.StructType().add("b", t.LongType()), '{"b": 1, "c": 2}', {"b": 1}),
        (t.StructType().add("b", t.LongType()), '{"b": 1, "b": 2}', {"b": 2}),
        (t.StructType().add("b", t.FloatType()), '{"b": 1e39}', {"b": None}),
        (t.StructType().add("b", t.LongType()), "7", None),
    ],
)
def test_a_token_that_a_column_would_change_is_noted(
    type_: t.DataType, text: str, value: object
) -> None:
    assert held(type_, text) == [(value, False)]


def test_of_items_the_record_that_they_are_of_is_noted() -> None:
    type_ = t.ArrayType(t.StructType().add("b", t.ArrayType(t.ByteType())))
    texts = ('[{"b": [1]}, {"b": [2, 3]}]', "null", '[{}, {"b": [1, 300]}]', "[]")
    found = held(type_, *texts)
    assert [is_exact for _, is_exact in found] == [True, True, False, True]
    assert found[2][0] == [{"b": None}, {"b": [1, None]}]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"not JSON",
        b'[{"a": 1}]',
        b'{"a": 1}{"a": 2}',
        b"{'a': 1}",
        b'{"a": NaN}',
        b'{"a": 01}',
        b'{"a": ' + b"1" * 5_000 + b"}",
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_not_exactly_one_json_object_stays_bytes(value: bytes) -> None:
    found, inexact = parse([b"{}", value])
    assert (found, set(inexact)) == ([{}, None], {1})


def test_a_value_too_deep_for_text_stays_bytes() -> None:
    text = '{"b":' * 900 + "1" + "}" * 900
    for value, is_exact in held(t.StringType(), text):
        assert is_exact == (value == text)


def test_bytes_that_are_not_utf_8_are_noted() -> None:
    found, inexact = parse([b'{"a": "\xff"}', b'{"\xff'])
    assert (found, set(inexact)) == ([{"a": "\ufffd"}, None], {0, 1})


def test_times_without_a_zone_are_of_the_jobs() -> None:
    text = '"2013-01-01T05:15:00"'
    assert held(t.TimestampType(), text, zone=NEW_YORK) == [(us(2013, 1, 1, 10, 15), True)]


@pytest.mark.parametrize(
    ("text", "value", "is_exact"),
    [
        ('"2024-03-10T01:59:59"', us(2024, 3, 10, 6, 59, 59), True),
        ('"2024-03-10T02:30"', us(2024, 3, 10, 7, 30), False),  # clocks went from 2 to 3
        ('"2024-03-10T03:00"', us(2024, 3, 10, 7), True),
        ('"2024-11-03T01:30"', us(2024, 11, 3, 5, 30), True),  # the first of two
        ('"2024-01-01T00:00+18:00"', us(2023, 12, 31, 6), True),
        ('"2024-01-01T00:00-18:01"', None, False),
        ('"2024-01-01T00:00+99:99"', None, False),
        ('"2024-01-01T00:00+01:60"', None, False),
    ],
)
def test_a_time_that_cannot_be_made_back_is_noted(
    text: str, value: int | None, is_exact: bool
) -> None:
    assert held(t.TimestampType(), text, zone=NEW_YORK) == [(value, is_exact)]


@pytest.mark.parametrize(
    ("ddl", "type_"),
    [
        ("interval day to second", t.DayTimeIntervalType()),
        ("variant", t.ArrayType(t.VariantType())),
        ("map<int,int>", t.StructType().add("m", t.MapType(t.IntegerType(), t.IntegerType()))),
    ],
)
def test_a_type_that_no_column_can_have_is_named(ddl: str, type_: t.DataType) -> None:
    assert unheld(type_) == ddl


# Rows


def records(*values: bytes | None) -> pyarrow.RecordBatch:
    from kdist.spark.columns import SCHEMA_WITH_HEADERS

    count = len(values)
    header = {"key": "h", "value": b"v"}
    columns = [[b"k"] * count, list(values), ["t"] * count, [0] * count, list(range(count))]
    columns += [[datetime(2020, 1, 1, tzinfo=UTC)] * count, [0] * count, [[header]] * count]
    return pyarrow.RecordBatch.from_pydict(
        dict(zip(SCHEMA_WITH_HEADERS.names, columns, strict=True)), schema=SCHEMA_WITH_HEADERS
    )


def decoding(*names: str, keeps_all: bool = False) -> Decoding:
    fields = t.StructType([t.StructField(name, t.LongType()) for name in names])
    return Decoding(fields, names, EventTime("at", "auto"), "UTC", keeps_all)


def test_only_what_the_columns_do_not_hold_keeps_its_bytes() -> None:
    values = (b'{"a": 1}', b'{"a": 1, "b": 2}', b"x", None, b"{}", b'{"a": null, "a": 1}')
    found = decoding("a").rows(records(*values), Counter()).to_pydict()
    assert found["a"] == [1, 1, None, None, None, 1]
    assert found["record_value"] == [None, values[1], b"x", None, b"{}", values[5]]
    all_kept = decoding("a", keeps_all=True).rows(records(*values), Counter()).to_pydict()
    assert all_kept["record_value"] == list(values)
    assert found["record_headers"] == [[{"key": "h", "value": b"v"}]] * 6


@pytest.mark.parametrize("value", [b"{}", b'{"a": null}', b' {"a":null} ', b'{"b": null}', b""])
@pytest.mark.parametrize("keeps_all", [False, True])
def test_no_value_has_the_row_of_a_tombstone(value: bytes, keeps_all: bool) -> None:
    decoded = decoding("a", keeps_all=keeps_all)
    found = decoded.rows(records(None, value), Counter()).to_pydict()
    assert found["a"] == [None, None]
    assert found["record_value"] == [None, value]


@pytest.mark.parametrize("keeps_all", [False, True])
def test_only_what_columns_do_not_hold_is_counted_with_the_first_reason(keeps_all: bool) -> None:
    fields = (
        t.StructType()
        .add("a", t.LongType())
        .add("s", t.StructType().add("x", t.DateType()))
        .add("l", t.ArrayType(t.LongType()))
        .add("m", t.MapType(t.StringType(), t.LongType()))
    )
    decoded = Decoding(fields, tuple(fields.names), None, "UTC", keeps_all)
    values = (
        *(None, b"{}", b'{"a": null}', b'{"a": 1, "s": {"x": "2013-01-01"}, "l": [1]}'),
        *(b"x", b'{"a": "\xff"}', b'{"a": "1"}', b'{"b": 1}', b'{"b": 2, "a": "1"}', b'{"c": 1}'),
        *(b'{"a": 1, "a": 1}', b'{"s": 1}', b'{"s": {"x": "y"}}', b'{"s": {"z": 1}}'),
        *(b'{"l": 1}', b'{"l": ["1"]}', b'{"m": []}', b'{"m": {"k": 1.5}}'),
        b'{"m": {"k": 1, "k": 1}}',
    )
    undecoded: Counter[str] = Counter()
    decoded.rows(records(*values), undecoded)
    assert undecoded == {
        "no JSON object": 1,
        "not UTF-8": 1,
        "a: more than bigint holds": 1,
        "b: no column": 2,
        "c: no column": 1,
        "the value: a name twice": 1,
        "s: no object": 1,
        "s.x: more than date holds": 1,
        "s.z: no column": 1,
        "l: no list": 1,
        "l: more than bigint holds": 1,
        "m: no object": 1,
        "m: more than bigint holds": 1,
        "m: a name twice": 1,
    }


def test_the_bytes_of_a_topic_without_columns_are_not_undecoded() -> None:
    undecoded: Counter[str] = Counter()
    Decoding(None, (), None, "UTC", keeps_all=False).rows(records(b"x", None), undecoded)
    assert not undecoded


def test_without_columns_values_stay_bytes() -> None:
    plain = Decoding(None, (), None, "UTC", keeps_all=False)
    found = plain.rows(records(b'{"a": 1}', None), Counter()).to_pydict()
    assert found["record_value"] == [b'{"a": 1}', None]
    assert found["event_time"] == [None, None]


def test_five_thousand_columns_are_filled() -> None:
    names = [f"f{number}" for number in range(5_000)]
    values = [json.dumps(dict.fromkeys(names, number)).encode() for number in range(3)]
    found = decoding(*names).rows(records(*values), Counter())
    assert found.column("f4999").to_pylist() == [0, 1, 2]
    assert found.column("record_value").null_count == 3


# Event times


@pytest.mark.parametrize(
    ("form", "text", "time", "said"),
    [
        ("auto", '{"at": 1357017300000}', us(2013, 1, 1, 5, 15), None),
        ("auto", '{"at": 1357017300000.5}', us(2013, 1, 1, 5, 15) + 500, None),
        ("auto", '{"at": "2013-01-01T05:15"}', None, "2013-01-01T05:15"),
        ("auto", '{"at": "+55840-11-08T22:13:20"}', None, "+55840-11-08T22:13:20"),
        ("auto", '{"at": "2013-01-01"}', None, "2013-01-01"),
        ("auto", '{"at": "07:15"}', None, None),
        ("auto", '{"at": "T07:15:00Z"}', None, None),
        ("auto", '{"at": "now"}', None, None),
        ("auto", '{"at": "today"}', None, None),
        ("auto", '{"at": "2013"}', None, None),
        ("auto", '{"at": "1357017300000"}', None, None),
        ("auto", '{"at": true}', None, None),
        ("auto", '{"at": null}', None, None),
        ("auto", '{"at": {"x": 1}}', None, None),
        ("auto", '{"at": 1e30}', None, None),
        ("auto", '{"at": 1e999999999999999999999}', None, None),
        ("auto", "{}", None, None),
        ("auto", "[]", None, None),
        ("s", '{"at": 1357017300.25}', us(2013, 1, 1, 5, 15) + 250_000, None),
        ("s", '{"at": "1357017300"}', us(2013, 1, 1, 5, 15), None),
        ("ms", '{"at": "07:15"}', None, None),
        ("yyyyMMdd", '{"at": 20130101}', None, "20130101"),
        ("yyyyMMdd", '{"at": "20130101"}', None, "20130101"),
    ],
)
def test_an_event_time_needs_a_date(
    form: str, text: str, time: int | None, said: str | None
) -> None:
    assert EventTime("at", form).found(parse([text.encode()]).objects) == ([time], [said])


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ('{"meta": {"ts": 1000}}', 1_000_000),
        ('{"meta.ts": 2000, "meta": {"ts": 1000}}', 2_000_000),
        ('{"meta": null}', None),
        ('{"meta": "x"}', None),
        ('{"meta": [{"ts": 1000}]}', None),
        ("{}", None),
    ],
)
def test_a_path_to_nothing_is_no_event_time(text: str, time: int | None) -> None:
    assert EventTime("meta.ts", "auto").found(parse([text.encode()]).objects) == ([time], [None])
