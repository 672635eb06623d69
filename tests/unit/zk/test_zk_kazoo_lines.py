"""kazoo's log lines: each is logged at once, and repeated once a minute at most."""

from __future__ import annotations

import logging

from kdist.zk.kazoo_client import KazooZooKeeper, OncePerMinute

REFUSED = "Connection dropped: socket connection error: Connection refused"


def told(lines: OncePerMinute, at_s: float, text: str = REFUSED) -> bool:
    record = logging.LogRecord("kazoo.client", logging.WARNING, "", 0, "%s", (text,), None)
    record.created = at_s
    return bool(lines.filter(record))


def test_a_line_is_logged_once_a_minute() -> None:
    lines = OncePerMinute()
    assert [at_s for at_s in range(1000, 1180) if told(lines, at_s)] == [1000, 1060, 1120]


def test_a_different_line_is_logged_at_once() -> None:
    lines = OncePerMinute()
    assert told(lines, 1000)
    assert told(lines, 1001, "Zookeeper connection established, state: CONNECTED")
    assert not told(lines, 1002)


def test_a_clock_that_was_set_back_silences_nothing() -> None:
    lines = OncePerMinute()
    assert told(lines, 1000)
    assert told(lines, 10)
    assert not told(lines, 11)


def test_few_of_many_lines_are_remembered() -> None:
    lines = OncePerMinute()
    for number in range(1000):
        assert told(lines, 1000, f"Connecting to host-{number}")
    assert len(lines._logged_s) <= 100


def test_the_real_clients_lines_are_limited() -> None:
    assert KazooZooKeeper.__module__ == "kdist.zk.kazoo_client"  # which sees to it
    filters = logging.getLogger("kazoo.client").filters
    assert [type(each) for each in filters] == [OncePerMinute]
