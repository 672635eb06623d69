"""Commands that destroy something: they say what, and do it only if somebody agrees."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.cli_cluster import CliCluster

ROOT = Path(__file__).parents[3]
FIRST_MS = 1_700_000_000_000
LAST_MS = FIRST_MS + 60_000
CHANGES = (
    "topics delete doomed",
    "topics delete-records doomed --all",
    "topics delete-records doomed:1 --before-offset 1",
    "groups reset doomed --to-earliest",
    "groups delete doomed",
    "groups delete-offsets doomed --topic doomed",
)


@pytest.fixture
def doomed(cluster: CliCluster) -> Iterator[None]:
    """A topic of two partitions, of which one is empty, and a group that has read it."""
    cluster.done("topics", "create", "doomed", "--partitions", 2)
    for time in (FIRST_MS, LAST_MS):
        words = ("--partition", 1, "--timestamp", time)
        cluster.done("produce", "doomed", *words, text="a\n")
    cluster.done("consume", "doomed", "--group", "doomed", "--from-beginning", "--until-end")
    yield
    cluster.done("topics", "delete", "doomed", "--if-exists", "--yes")
    if "doomed" in cluster.done("groups", "list"):
        cluster.done("groups", "delete", "doomed", "--yes")


def state(cluster: CliCluster) -> tuple[str, str]:
    return (
        cluster.done("consume", "doomed", "--from-beginning", "--until-end"),
        cluster.done("groups", "describe", "doomed", "--json"),
    )


def at_terminal(cluster: CliCluster, words: str, typed: bytes | None) -> tuple[int, str]:
    """Exit status and question of a command whose standard input is a terminal; None: Ctrl-C."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kdist.cli", *words.split(), "--broker", cluster.address]
    with subprocess.Popen(command, stdin=theirs, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stderr is not None
        question = b""
        while not question.endswith(b"go on: "):
            question += process.stderr.read(1)
        if typed is None:
            process.send_signal(signal.SIGINT)
        else:
            os.write(ours, typed)
        status = process.wait(30)
    os.close(ours)
    os.close(theirs)
    return status, question.decode()


@pytest.mark.usefixtures("doomed")
def test_without_a_terminal_nothing_is_destroyed_unless_yes_is_given(cluster: CliCluster) -> None:
    before = state(cluster)
    for words in CHANGES:
        for text in ("", "yes\n"):
            result = cluster.run(*words.split(), text=text)
            assert result.exit_code == 1, words
            assert "--yes" in result.stderr, words
        assert cluster.run(*words.split(), "--json").exit_code == 1
        assert state(cluster) == before, words


@pytest.mark.usefixtures("doomed")
def test_at_a_terminal_only_yes_destroys(cluster: CliCluster) -> None:
    before = state(cluster)
    for typed, expected in ((b"no\n", 1), (b"y\n", 1), (b"\x04", 1), (None, 130)):
        status, question = at_terminal(cluster, "topics delete doomed", typed)
        assert status == expected
        assert "topic doomed (2 partitions) will be deleted" in question
        assert state(cluster) == before
    assert at_terminal(cluster, "topics delete doomed", b"yes\n")[0] == 0
    assert cluster.run("topics", "describe", "doomed").exit_code == 1


@pytest.mark.usefixtures("doomed")
def test_yes_is_enough_for_each(cluster: CliCluster) -> None:
    for words in reversed(CHANGES):
        if "groups delete " in words:
            cluster.done("groups", "reset", "doomed", "--to-latest", "--topic", "doomed", "--yes")
        if "groups reset" in words:
            words += " --topic doomed"
        cluster.done(*words.split(), "--yes")


@pytest.mark.usefixtures("doomed")
@pytest.mark.parametrize(
    ("words", "is_within"),
    [
        (f"topics delete-records doomed --before-time {LAST_MS + 1}", False),
        (f"topics delete-records doomed --before-time {LAST_MS}", True),
        ("topics delete-records doomed --before-time 2001-01-01", True),  # deletes nothing
        ("topics delete-records doomed --before-time 2100-01-01", False),
        (f"groups reset doomed --to-datetime {FIRST_MS - 1}", False),
        (f"groups reset doomed --to-datetime {FIRST_MS}", True),
        (f"groups reset doomed --to-datetime {LAST_MS}", True),
        (f"groups reset doomed --to-datetime {LAST_MS + 1}", False),
        ("groups reset doomed --to-datetime 0", False),
        ("groups reset doomed --by-duration 1s", False),
        ("topics delete-records doomed:0 --before-time 2100-01-01", True),  # it is empty
    ],
)
def test_a_time_out_of_the_topics_range_is_to_be_meant(
    cluster: CliCluster, words: str, is_within: bool
) -> None:
    before = state(cluster)
    result = cluster.run(*words.split(), "--yes")
    assert result.exit_code == (0 if is_within else 1)
    if not is_within:
        assert "--out-of-range" in result.stderr
        assert state(cluster) == before
        assert cluster.run(*words.split(), "--out-of-range").exit_code == 1
        assert state(cluster) == before
        cluster.done(*words.split(), "--out-of-range", "--yes")


@pytest.mark.usefixtures("doomed")
def test_a_duration_longer_than_since_1970_is_a_wrong_flag(cluster: CliCluster) -> None:
    words = ("groups", "reset", "doomed", "--by-duration", "99999d", "--out-of-range", "--yes")
    assert cluster.run(*words).exit_code == 2
