"""A broker's digest changes with what it would do, and with nothing else of its file."""

from __future__ import annotations

import pytest

from kdist.config.layers import Source, layer_of
from kdist.config.load import load_broker, with_dynamic

FILE = "broker.id=1\nlog.dir=/data\nzookeeper.connect=zk:2181\nlog.retention.hours=2\n"


def digest(text: str) -> str:
    return load_broker(text, "x").digest()


@pytest.mark.parametrize(
    "text",
    [
        "# Written by Ansible.\n\n" + FILE,
        "".join(reversed(FILE.splitlines(keepends=True))),
        FILE.replace("=", " = "),
        FILE.replace("log.retention.hours=2", "log.retention.ms=7200000"),
        FILE + "num.partitions=1\n",
    ],
    ids=["comments", "order", "spaces", "a synonym", "a default"],
)
def test_comments_order_and_spelling_do_not_change_it(text: str) -> None:
    assert digest(text) == digest(FILE)


@pytest.mark.parametrize(
    "line",
    ["num.partitions=2", "log.retention.hours=3", "broker.rack=r1", "zookeeper.connect=zk:2182"],
)
def test_another_value_changes_it(line: str) -> None:
    name = line.partition("=")[0]
    rest = [each for each in FILE.splitlines() if not each.startswith(f"{name}=")]
    assert digest("\n".join([*rest, line])) != digest(FILE)


def test_what_was_changed_while_the_broker_runs_does_not_count() -> None:
    loaded = load_broker(FILE, "x")
    changed = layer_of(Source.DYNAMIC_BROKER_CONFIG, {"log.retention.ms": "1"})
    assert with_dynamic(loaded, [changed]).digest() == loaded.digest()
