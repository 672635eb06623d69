"""Every declared setting: its default survives the way through text, its bounds hold."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.config.broker_config import BROKER_CLASSES, BROKER_TABLE
from kdist.config.declare import Setting, Settings, Synonym, setting, settings
from kdist.config.human import show_human
from kdist.config.kinds import INT64_MAX, Kind, int32, int64, secret, show_text
from kdist.config.topic import TopicSettings

EVERY = (*BROKER_TABLE, *TopicSettings.TABLE)
WITH_DEFAULT = [row for row in EVERY if not row.is_required]
NUMBERS = [row for row in EVERY if row.shape.kind in (Kind.INT, Kind.LONG, Kind.DOUBLE)]
CHOICES = [row for row in EVERY if row.shape.choices]


def name_of(row: Setting) -> str:
    return row.name


def row_named(name: str) -> Setting:
    return next(row for row in EVERY if row.name == name)


@pytest.mark.parametrize("row", WITH_DEFAULT, ids=name_of)
def test_a_default_survives_a_round_trip_through_text(row: Setting) -> None:
    assert row.read(show_text(row.default)) == row.default


@pytest.mark.parametrize("row", NUMBERS, ids=name_of)
def test_a_number_may_be_its_bound_and_nothing_beyond(row: Setting) -> None:
    assert row.minimum is not None
    assert row.maximum is not None
    for bound in (row.minimum, row.maximum):
        assert row.read(str(bound)) == bound
    for beyond in (row.minimum - 1, row.maximum + 1):
        with pytest.raises(ValueError, match=f"from {row.minimum} to {row.maximum}"):
            row.read(str(beyond))


@pytest.mark.parametrize("row", CHOICES, ids=name_of)
def test_a_choice_is_one_of_the_words_and_no_other(row: Setting) -> None:
    for choice in row.shape.choices:
        assert show_text(row.read(f" {choice} ")) == choice
    nothing = "," if row.shape.kind is Kind.LIST else ""  # a list may be empty
    for wrong in (nothing, "shred", row.shape.choices[0].swapcase()):
        if row.shape.nullable and not wrong:
            continue
        with pytest.raises(ValueError, match=", ".join(row.shape.choices)):
            row.read(wrong)


@pytest.mark.parametrize("row", EVERY, ids=name_of)
def test_a_setting_says_what_it_is_in_one_sentence(row: Setting) -> None:
    assert row.doc.endswith(".")
    assert ". " not in row.doc
    assert row.doc[0].isupper() or row.doc.startswith(("kdist's own: ", "`"))
    assert row.subject


def test_no_name_is_given_to_two_settings() -> None:
    for table in (BROKER_TABLE, TopicSettings.TABLE):
        names = [row.name for row in table]
        assert len(set(names)) == len(names)


def test_a_unit_is_the_last_word_of_the_name() -> None:
    for row in EVERY:
        if row.unit:
            assert row.name.endswith(("." + row.unit, ".before.max.ms", ".after.max.ms"))


@pytest.mark.parametrize("cls", [*BROKER_CLASSES, TopicSettings])
def test_settings_are_frozen_and_have_slots(cls: type[Settings]) -> None:
    required = {row.attribute: "1" for row in cls.TABLE if row.is_required}
    made = cls(**required)
    assert not hasattr(made, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, cls.TABLE[0].attribute, 1)


@pytest.mark.parametrize("text", ["1_000", "0x10", "1.0", "1k", "", "\u0661"])
def test_an_integer_is_decimal_digits_as_in_java(text: str) -> None:
    with pytest.raises(ValueError, match="an integer"):
        row_named("num.partitions").read(text)


@pytest.mark.parametrize("text", ["nan", "inf", "1e999", "half", "1_0"])
def test_a_number_is_finite(text: str) -> None:
    with pytest.raises(ValueError, match="a number from 0 to 1"):
        row_named("min.cleanable.dirty.ratio").read(text)


@pytest.mark.parametrize("text", ["yes", "1", "", "tru"])
def test_a_boolean_is_true_or_false(text: str) -> None:
    with pytest.raises(ValueError, match="'true' or 'false'"):
        row_named("preallocate").read(text)
    assert row_named("preallocate").read("TRUE") is True


def test_nothing_means_none_where_none_is_allowed() -> None:
    assert row_named("broker.rack").read(" ") is None
    assert row_named("advertised.listeners").read("") == ()


def test_a_list_is_split_at_commas() -> None:
    assert row_named("cleanup.policy").read("compact, delete") == ("compact", "delete")
    assert row_named("cleanup.policy").read("") == ()


@given(st.integers(-1, 10**12))
def test_hours_count_in_milliseconds_but_minus_one_stays_a_word(hours: int) -> None:
    expected = hours if hours <= 0 else hours * 3_600_000
    assert row_named("retention.ms").read(str(hours), factor=3_600_000) == expected


def test_bounds_are_said_in_the_unit_of_the_name_that_was_used() -> None:
    most = INT64_MAX // 3_600_000
    for text in ("0", str(most + 1)):
        with pytest.raises(ValueError, match=f"from 1 to {most}$"):
            row_named("segment.ms").read(text, factor=3_600_000)
    with pytest.raises(ValueError, match=f"from -1 to {most}$"):
        row_named("retention.ms").read("-2", factor=3_600_000)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("segment.bytes", "1 GiB"),
        ("retention.ms", "7 days"),
        ("file.delete.delay.ms", "1 minute"),
        ("offsets.retention.minutes", "7 days"),
        ("flush.ms", "no limit"),
        ("retention.bytes", "-1"),
        ("max.message.bytes", "1048588 bytes"),
        ("zookeeper.session.timeout.ms", "18 seconds"),
        ("broker.rack", "not set"),
        ("broker.id", "must be given"),
        ("preallocate", "false"),
    ],
)
def test_a_default_is_said_as_people_say_it(name: str, said: str) -> None:
    row = row_named(name)
    assert show_human(row, row.default) == said


@settings
class KeySettings(Settings):
    """Settings as a package with a secret would declare them."""

    password: secret = setting("key.password", subject="Keys", default="", doc="A password.")
    size: int32 = setting("key.size", subject="Keys", default=1, doc="A size.")
    life_ms: int64 = setting(
        "key.life.ms",
        subject="Keys",
        synonyms=(Synonym("key.life.hours", 3_600_000),),
        doc="A life.",
    )


def test_a_secret_is_not_in_the_text_of_its_settings() -> None:
    assert "hunter2" not in repr(KeySettings(password="hunter2", life_ms=1))
    assert KeySettings.TABLE[0].is_secret


def test_a_setting_without_default_must_be_passed() -> None:
    with pytest.raises(TypeError, match="life_ms"):
        KeySettings()  # type: ignore[call-arg]


def test_an_integer_is_bounded_by_its_width() -> None:
    with pytest.raises(ValueError, match="from -2147483648 to 2147483647"):
        KeySettings.TABLE[1].read("2147483648")
