"""Texts that people write: lists, JSON, addresses, and Java's .properties."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.classic.connector.subscription import Whitelist
from kdist.config.addresses import ConnectString, HostPort, parse_host_port, unreachable
from kdist.config.faults import ConfigError
from kdist.config.kinds import Kind, read_text, split_list
from kdist.config.mirror import load_mirror
from kdist.config.texts import NameTwice, escape_properties, parse_json, parse_properties
from kdist.errors import UserError
from kdist.spark.options import read_options

# What Java reads from each text (java.util.Properties.load), one setting each.
READ_AS = {
    "a=1": ("a", "1"),
    "a:1": ("a", "1"),
    "a 1": ("a", "1"),
    "a\t1": ("a", "1"),
    "  a  =  1  ": ("a", "1  "),
    "a = = 1": ("a", "= 1"),
    "a": ("a", ""),
    "a=": ("a", ""),
    "=1": ("", "1"),
    "a==1": ("a", "=1"),
    r"a\=b=1": ("a=b", "1"),
    r"a\:b\ c:1": ("a:b c", "1"),
    r"a=x\ty\n\r\f": ("a", "x\ty\n\r\f"),
    r"a=C:\\dir\q": ("a", r"C:\dirq"),
    r"a=\u0041\u00e9": ("a", "Aé"),
    r"a=\\u0041": ("a", r"\u0041"),
    "a=1,\\\n   2,\\\n\t3": ("a", "1,2,3"),
    "a=1\\\\\n": ("a", "1\\"),
    "a=1\\": ("a", "1"),
    "a\\\n b=1": ("ab", "1"),
    "a=1\\\r\n2": ("a", "12"),
    "a=1 # no comment": ("a", "1 # no comment"),
    "a=#": ("a", "#"),
    "# x=1\n! y=2\n\n  # z\na=1": ("a", "1"),
    "a=1\\\n# goes on": ("a", "1# goes on"),
}


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


@pytest.mark.parametrize("text", READ_AS)
def test_a_line_is_read_as_java_reads_it(text: str) -> None:
    read = parse_properties(text, "f")
    assert not read.faults
    assert [(name, given.text) for name, given in read.given.items()] == [READ_AS[text]]


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_a_value_knows_the_line_that_it_starts_on(end: str) -> None:
    text = end.join(["# first", "a=1\\", "  2", "", "b=3"])
    where = {name: given.where for name, given in parse_properties(text, "f").given.items()}
    assert where == {"a": "f, line 2", "b": "f, line 5"}


def test_a_name_given_twice_is_a_fault_that_names_both_lines() -> None:
    read = parse_properties("a=1\nb=2\n\na=3\n", "server.properties")
    assert read.faults == ("a is given twice: keep one (server.properties, lines 1 and 4).",)
    assert read.given["b"].text == "2"


@pytest.mark.parametrize("text", [r"a=\u12", r"a=\uxyzw", r"a=\\\u1"])
def test_half_a_unicode_escape_is_a_fault(text: str) -> None:
    read = parse_properties(f"b=1\n{text}", "f")
    assert read.faults == ("\\u needs four hexadecimal digits (f, line 2).",)
    assert list(read.given) == ["b"]


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=5))
def test_written_properties_are_read_back(settings: dict[str, str]) -> None:
    text = "\n".join(escape_properties(name, value) for name, value in settings.items())
    read = parse_properties(text, "f")
    assert not read.faults
    assert {name: given.text for name, given in read.given.items()} == settings


@given(st.text(alphabet="ab=: \t\\#!\r\nu0"))
def test_any_text_gives_settings_or_faults(text: str) -> None:
    read = parse_properties(text, "f")
    for given_ in read.given.values():
        assert given_.where.startswith("f, line ")
    for fault in read.faults:
        assert fault.endswith(").")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("b1:9092", HostPort("b1", 9092)),
        ("[::1]:9092", HostPort("::1", 9092)),
        (":9292", HostPort("", 9292)),
        ("b1", None),
        ("b1:", None),
        ("b1:http", None),
        ("b1:65536", None),
        ("::1:9092", None),
        ("b1:9092,b2:9092", None),
        ("", None),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: HostPort | None) -> None:
    assert parse_host_port(text) == address


def test_to_connect_one_needs_a_host_and_a_port_above_0() -> None:
    assert unreachable("b1:9092, b2:9092,[::1]:1") == []
    assert unreachable("b1:9092,b2,:9092, b3:0,") == ["b2", ":9092", "b3:0", ""]


@pytest.mark.parametrize(
    ("text", "servers", "chroot"),
    [
        ("host1", ("host1:2181",), ""),
        ("host1:2182/", ("host1:2182",), ""),
        ("host1, host2:2182/kdist", ("host1:2181", "host2:2182"), "/kdist"),
        ("[::1]:2181,[::2]/a/b/", ("[::1]:2181", "[::2]:2181"), "/a/b"),
    ],
)
def test_servers_and_chroot_are_found(text: str, servers: tuple[str, ...], chroot: str) -> None:
    assert ConnectString.parse(text) == ConnectString(servers, chroot)


@pytest.mark.parametrize(
    "text",
    ["", "/kdist", "host1,", "host1:", "host1:0", "host1:65536", "host1:x", "host1//a", "::1:2181",
     "a..b:1", "host1/a/../b", "host1/.", "zk1:2181/kafka,zk2:2181/kafka", "zk1/a,zk2"],
)  # fmt: skip
def test_an_invalid_connect_string_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"zookeeper\.connect"):
        ConnectString.parse(text)


@pytest.mark.parametrize(
    ("chroot", "own", "full"),
    [
        ("", "/", "/"),
        ("", "/a/b", "/a/b"),
        ("/kdist", "/", "/kdist"),
        ("/kdist", "/a/b", "/kdist/a/b"),
    ],
)
def test_paths_go_through_the_chroot_and_back(chroot: str, own: str, full: str) -> None:
    connect = ConnectString(("host1:2181",), chroot)
    assert connect.full(own) == full
    assert connect.own(full) == own
    assert connect.shown(full) == own


def test_a_path_above_the_chroot_is_shown_in_full() -> None:
    assert ConnectString(("host1:2181",), "/a/b").shown("/a") == "/a"
    assert ConnectString(("host1:2181",), "/a").shown("/ab") == "/ab"


def test_the_text_of_a_connect_string_can_be_parsed_again() -> None:
    text = "host1:2181,host2:2182/kdist"
    assert str(ConnectString.parse(text)) == text
