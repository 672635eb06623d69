"""Texts that people write: lists between commas, and JSON."""

from __future__ import annotations

import re

import pytest

from kdist.client.classic.connector.subscription import Whitelist
from kdist.config.faults import ConfigError
from kdist.config.json_text import NameTwice, parse_json
from kdist.config.kinds import Kind, read_text, split_list
from kdist.config.mirror import load_mirror
from kdist.errors import UserError
from kdist.spark.options import read_options


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("", ()),
        ("a", ("a",)),
        (" a , b ", ("a", "b")),
        ("a,,b,", ("a", "", "b", "")),
        (r"re\d{1,2}", (r"re\d{1,2}",)),
        (r"re\d{1,},x{,3},y{,}", (r"re\d{1,}", "x{,3}", "y{,}")),
        ("a{1,2},b", ("a{1,2}", "b")),
        ("a{1,b},c", ("a{1", "b}", "c")),
        ("{a,b}", ("{a", "b}")),
    ],
)
def test_the_comma_of_a_repetition_separates_no_items(text: str, items: tuple[str, ...]) -> None:
    assert split_list(text) == read_text(Kind.LIST, text) == items


def mirror_of(topics: str) -> str:
    return f"flow.f.source=a:1\nflow.f.target=b:1\nflow.f.topics={topics}\n"


def test_a_pattern_of_a_mirror_has_repetitions() -> None:
    (flow,) = load_mirror(mirror_of(r"re\\d{1,2},b.*"), "m").flows
    assert [topic for topic in ("re1", "re12", "re123", "bx", "c") if flow.wants(topic)] == [
        "re1",
        "re12",
        "bx",
    ]
    assert flow.unmatched(["re12", "c"]) == ("b.*",)
    assert flow.unmatched([]) == (r"re\d{1,2}", "b.*")


@pytest.mark.parametrize("topics", ["(a,b)", "[a,b]", r"a\\,b"])
def test_any_other_comma_within_a_pattern_is_refused(topics: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_mirror(mirror_of(topics), "m")
    assert "a comma separates patterns, but for that in {1,2}" in str(refused.value)


def test_a_pattern_of_a_connector_has_repetitions() -> None:
    white = Whitelist(r"re\d{1,2}, views")
    assert [each for each in ("re12", "re123", "views", "x") if white.allows(each)] == [
        "re12",
        "views",
    ]


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '[{"b": {"a": 1, "c": 2, "a": 3}}]'])
def test_a_name_that_is_given_twice_is_refused(text: str) -> None:
    with pytest.raises(NameTwice, match="'a' is given twice"):
        parse_json(text)
    assert parse_json(re.sub('"a": [13](, )?', "", text.replace(', "a": 3', ""))) is not None


@pytest.mark.parametrize("text", ['{"t": {"0": 1, "0": 2}}', '{"t": {"0": 1}, "t": {"1": 2}}'])
def test_a_partition_or_topic_that_an_option_names_twice_is_refused(text: str) -> None:
    options = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "startingOffsets": text}
    with pytest.raises(UserError, match=r"startingOffsets: '[t0]' is given twice"):
        read_options(options)
