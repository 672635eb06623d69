"""Which ZooKeeper servers may begin beside others that have data."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from kdist.cli.main import kdist


def may_begin(members: int, known: str, blank: str, stopped: str = "") -> bool:
    """Whether servers of these numbers may begin, where those of `known` have data, and those of
    `stopped` have some of the day when they were stopped. A number above `members` has left."""
    names = [f"zk{number}" for number in range(1, members + 1)]
    found = [
        {"host": f"zk{n}", "has_data": has_data, "goes_on": goes_on}
        for numbers, has_data, goes_on in (
            (known, True, True),
            (stopped, True, False),
            (blank, False, False),
        )
        for n in numbers
    ]
    given = json.dumps({"members": names, "found": found})
    result = CliRunner().invoke(kdist, ["zookeeper", "review"], input=given)
    assert result.exit_code == bool(result.stdout)
    return result.exit_code == 0


@pytest.mark.parametrize(
    ("members", "known", "blank", "may"),
    [
        (1, "", "1", True),
        (3, "", "123", True),
        (3, "123", "", True),
        (3, "12", "3", True),
        (5, "123", "45", True),
        (3, "1", "23", False),
        (5, "12", "345", False),
        (3, "", "2", True),
        (3, "", "23", False),
        (1, "2", "1", False),
        (3, "45", "123", False),
        (3, "124", "3", True),
        (3, "", "12345", True),
    ],
    ids=[
        "first, alone",
        "first",
        "as it was",
        "one replaced",
        "three to five",
        "one to three",
        "two to five",
        "one new, by --limit",
        "two new, by --limit",
        "another one for the only one",
        "three others",
        "another one for one of three",
        "first, beside hosts without",
    ],
)
def test_zookeeper_servers_without_data_are_never_a_majority_beside_others(
    members: int, known: str, blank: str, may: bool
) -> None:
    assert may_begin(members, known, blank) is may


@pytest.mark.parametrize(
    ("members", "known", "blank", "stopped", "may"),
    [
        (3, "1", "", "23", False),
        (1, "2", "", "1", False),
        (3, "1", "2", "3", False),
        (3, "", "", "23", False),
        (3, "12", "", "3", True),
        (3, "", "", "2", True),
        (3, "", "", "123", True),
        (3, "", "23", "1", False),
    ],
    ids=[
        "two come back to the only one",
        "the one before comes back for the only one",
        "one comes back with one new",
        "two come back, by --limit",
        "one comes back to two",
        "one comes back, by --limit",
        "all were stopped",
        "data of a backup, beside hosts without",
    ],
)
def test_returning_zookeeper_servers_are_never_a_majority_beside_one_that_continued(
    members: int, known: str, blank: str, stopped: str, may: bool
) -> None:
    assert may_begin(members, known, blank, stopped) is may


def test_the_reason_names_those_who_would_win_and_those_who_would_lose() -> None:
    found = [
        {"host": "zk1", "has_data": True, "goes_on": True},
        {"host": "zk2", "has_data": False, "goes_on": False},
        {"host": "zk3", "has_data": True, "goes_on": False},
    ]
    given = json.dumps({"members": ["zk1", "zk2", "zk3"], "found": found})
    result = CliRunner().invoke(kdist, ["zookeeper", "review"], input=given)
    assert result.stdout.startswith("zk2, zk3 would begin without data, or with what they knew ")
    assert "a majority that zk1 would have to follow" in result.stdout


@pytest.mark.parametrize("text", ["", "[]", '{"members": 1}', '{"members": [], "found": [1]}'])
def test_what_describes_no_ensemble_is_refused_with_a_sentence(text: str) -> None:
    result = CliRunner().invoke(kdist, ["zookeeper", "review"], input=text)
    assert result.exit_code == 1
    assert result.stderr.startswith("kdist: ")
    assert result.stderr.count("\n") == 1
