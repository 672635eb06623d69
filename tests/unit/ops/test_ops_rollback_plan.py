"""A rollback goes back, never forward again, whatever state an interrupted run has left."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kdist.cli.main import kdist

# A host by its current release and the previous one: four builds of three versions.
OLDEST, OLD, NEW, NEWER = "1.0-0", "1.1-a", "1.2-c", "1.2-d"
BEFORE, UPGRADED, BACK = (OLD, OLDEST), (NEW, OLD), (OLD, OLD)


def run(*hosts: tuple[str, str], words: tuple[str, ...] = (), monitor: Any = None) -> Result:
    rows: list[dict[str, object]] = [
        {"host": f"b{number}", "current": current, "previous": previous, "has_brokers": True}
        for number, (current, previous) in enumerate(hosts)
    ]
    if monitor:
        current, previous = monitor
        rows.append({"host": "m", "current": current, "previous": previous, "has_brokers": False})
    return CliRunner().invoke(kdist, ["gate", "rollback", *words], input=json.dumps(rows))


def goes_to(*hosts: tuple[str, str], words: tuple[str, ...] = (), monitor: Any = None) -> Any:
    """The version, and the build of each host."""
    result = run(*hosts, words=(*words, "--json"), monitor=monitor)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    return found["version"], list(found["releases"].values())


@pytest.mark.parametrize(
    "hosts",
    [
        (UPGRADED, UPGRADED),
        (UPGRADED, BEFORE),
        (BEFORE, UPGRADED),
        (UPGRADED, BACK),
        (BACK, BACK),
        (UPGRADED, (OLD, "")),
    ],
    ids=["upgraded", "died", "died at first", "rollback died", "done", "first upgrade died"],
)
def test_a_rollback_finds_the_same_release_wherever_it_begins(
    hosts: tuple[tuple[str, str], ...],
) -> None:
    assert goes_to(*hosts) == ("1.1", [OLD, OLD])


@pytest.mark.parametrize("hosts", [(NEWER, NEW), (NEW, OLD), (NEW, NEW)])
def test_a_version_that_was_built_again_goes_back_to_the_build_before(
    hosts: tuple[str, str],
) -> None:
    """Same number, other contents: once upgraded, not yet, and back already."""
    assert goes_to((NEWER, NEW), hosts) == ("1.2", [NEW, NEW])


def test_a_host_that_was_not_upgraded_keeps_its_build_although_it_has_had_another() -> None:
    assert goes_to(UPGRADED, (OLD, "1.1-z")) == ("1.1", [OLD, OLD])


def test_each_host_goes_back_to_the_build_that_it_had() -> None:
    assert goes_to(UPGRADED, (NEW, "1.1-z")) == ("1.1", [OLD, "1.1-z"])


def test_of_two_upgrades_that_died_the_last_one_is_gone_back_from() -> None:
    assert goes_to(("1.3-e", NEW), UPGRADED, BEFORE)[0] == "1.2"


def test_a_host_without_brokers_follows_and_decides_nothing() -> None:
    assert goes_to(UPGRADED, BEFORE, monitor=("0.9-x", "0.8-y")) == ("1.1", [OLD, OLD, ""])
    assert goes_to(UPGRADED, BEFORE, monitor=UPGRADED) == ("1.1", [OLD, OLD, OLD])


def test_a_rollback_goes_to_the_named_version() -> None:
    assert goes_to(UPGRADED, BEFORE, words=("--to", "1.0")) == ("1.0", ["", OLDEST])
    assert goes_to(("1.2-d", "1.2-c"), words=("--to", "1.2")) == ("1.2", [NEW])


@pytest.mark.parametrize(
    ("hosts", "sentence"),
    [
        (((NEW, ""), (NEW, "")), "no host of the brokers has a previous release"),
        ((UPGRADED, (NEW, OLDEST)), "different previous releases, ['1.0', '1.1']"),
        ((), "no host of the brokers has a previous release"),
    ],
)
def test_where_it_is_not_one_release_a_name_is_asked_for(
    hosts: tuple[tuple[str, str], ...], sentence: str
) -> None:
    result = run(*hosts)
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert result.stderr.endswith("name one with -e kdist_rollback_to=VERSION\n")


@pytest.mark.parametrize("text", ["", "{", '[{"host": 1}]', "[1]", '{"host": 1}'])
def test_what_describes_no_hosts_is_refused_with_a_sentence(text: str) -> None:
    result = CliRunner().invoke(kdist, ["gate", "rollback"], input=text)
    assert result.exit_code == 1
    assert result.stderr.startswith("kdist: ")
    assert result.stderr.count("\n") == 1


def test_people_read_a_line_for_each_host() -> None:
    assert run(UPGRADED, BEFORE).stdout == f"b0: {OLD}\nb1: {OLD}\n"
