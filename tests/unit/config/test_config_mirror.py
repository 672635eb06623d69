"""A mirror's file: what it says, and a sentence with line and key for everything that is wrong."""

from __future__ import annotations

import pytest

from kdist.config.faults import ConfigError
from kdist.config.mirror import load_mirror

GOOD = """\
# comment
mirror.http.address=[::1]:9392
mirror.buffer.bytes=1048576
flow.dc1-to-dc2.source=k2:9092, k3:9092
flow.dc1-to-dc2.target=k4:9092
flow.dc1-to-dc2.topics=flights,ops\\\\..*
flow.dc1-to-dc2.prefix=dc1.
flow.b.source=k2:9092
flow.b.target=k4:9092
flow.b.blacklist=x.*
flow.b.start=latest
"""


def test_a_file_has_settings_of_the_process_and_of_each_flow() -> None:
    config = load_mirror(GOOD, "m.properties")
    first, second = config.flows
    assert config.mirror.http_address == "[::1]:9392"
    assert (first.name, first.group) == ("dc1-to-dc2", "kdist-mirror-dc1-to-dc2")
    assert first.wants("ops.host")
    assert not first.wants("opsXhost")
    assert first.renamed("flights") == "dc1.flights"
    assert first.settings.start == "earliest"
    assert (second.settings.start, second.renamed("t")) == ("latest", "t")
    assert second.wants("anything")
    assert not second.wants("xylophone")
    assert config.flow("b") is second
    assert config.flow("c") is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            ("mirror.buffer.bytes=1048576", "mirror.bufer.bytes=1"),
            "mirror.bufer.bytes is not a setting: did you mean mirror.buffer.bytes"
            " (m.properties, line 3)?",
        ),
        (
            ("mirror.buffer.bytes=1048576", "mirror.buffer.bytes=12"),
            "mirror.buffer.bytes is '12', but must be an integer from 1048576"
            " to 9223372036854775807 (m.properties, line 3).",
        ),
        (
            ("[::1]:9392", "here"),
            "mirror.http.address is 'here', but must be host:port (m.properties, line 2).",
        ),
        (
            ("flow.b.source=k2:9092\n", ""),
            "flow.b.source must be given: brokers of the cluster that is read, as"
            " `host1:9092,host2:9092` (m.properties).",
        ),
        (
            ("flow.b.start=latest", "flow.b.start=middle"),
            "flow.b.start is 'middle', but must be one of earliest, latest"
            " (m.properties, line 11).",
        ),
        (
            ("flow.b.start", "flow.b.starts"),
            "flow.b.starts is not a setting: did you mean flow.b.start (m.properties, line 11)?",
        ),
        (
            ("flow.b.start", "flow.b b.start"),
            "flow.b is not a setting (m.properties, line 11).",
        ),
        (
            ("flow.b.start", "flow.b!.start"),
            "flow.b!.start: a flow's name has up to 100 letters, digits, '_' and '-'"
            " (m.properties, line 11).",
        ),
        (
            ("flow.b.blacklist=x.*", "flow.b.blacklist=x("),
            "flow.b.blacklist has 'x(', which is not a regular expression: missing ), unterminated"
            " subpattern at position 1 (m.properties, line 10).",
        ),
        (
            ("flow.b.blacklist=x.*", "flow.b.topics="),
            "flow.b.topics is empty: give at least one pattern (m.properties, line 10).",
        ),
        (
            ("flow.b.target=k4:9092", "flow.b.target=k4"),
            "flow.b.target has 'k4', but must have host:port (m.properties, line 9).",
        ),
        (
            ("flow.b.target=k4:9092", "flow.b.target=k2:9092"),
            "flow.b.target is the source too: without a prefix a topic would be mirrored into"
            " itself (m.properties, line 9).",
        ),
        (
            ("prefix=dc1.", "prefix=dc1/"),
            "flow.dc1-to-dc2.prefix is 'dc1/', which no topic's name can begin with"
            " (m.properties, line 7).",
        ),
    ],
)
def test_a_mistake_is_reported_with_its_key_and_line(
    change: tuple[str, str], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_mirror(GOOD.replace(*change, 1), "m.properties")
    assert caught.value.faults == (sentence,)


def test_a_setting_that_is_given_by_both_of_its_names_is_refused() -> None:
    text = "flow.b.source=a:1\nflow.b.target=b:1\nflow.b.whitelist=x\nflow.b.topics=y\n"
    with pytest.raises(ConfigError) as raised:
        load_mirror(text, "m.properties")
    assert str(raised.value) == (
        "flow.b.whitelist is another name for flow.b.topics: give only one (m.properties, line 3)."
    )


def test_all_mistakes_are_reported_at_once() -> None:
    text = GOOD.replace("start=latest", "start=middle").replace("bytes=1048576", "bytes=x")
    with pytest.raises(ConfigError) as caught:
        load_mirror(text, "m.properties")
    assert len(caught.value.faults) == 2


def test_a_file_without_a_flow_is_refused() -> None:
    with pytest.raises(ConfigError, match="a mirror needs a flow"):
        load_mirror("mirror.buffer.bytes=1048576\n", "m.properties")
