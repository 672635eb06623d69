"""Java's .properties text is read as `java.util.Properties` reads it, but a name counts once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.config.properties import escape_properties, parse_properties

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
