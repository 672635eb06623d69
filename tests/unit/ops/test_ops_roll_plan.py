"""What a roll does to each broker follows from its process, and from nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kdist.cli.main import kdist

WANTED = {"release": "r2", "settings": "s2", "unit": "u2"}
UNIT = {
    "ActiveState": "active",
    "SubState": "running",
    "ExecMainStatus": "0",
    "ActiveEnterTimestamp": "@1000",
}


def row(number: int = 101, host: str = "b1", **given: Any) -> dict[str, Any]:
    """A broker that runs what is wanted; `unit` and `said` change parts of what was found."""
    unit = UNIT | given.pop("unit", {})
    said = given.pop("said", {})
    return {
        "id": number,
        "host": host,
        "instance": f"d{number % 100:02}",
        "wanted": WANTED,
        "said": None if said is None else WANTED | {"controller": False} | said,
        "unit": "".join(f"{name}={value}\n" for name, value in unit.items()),
        "has_disk": True,
        **given,
    }


def run(rows: Any, *words: str) -> Result:
    return CliRunner().invoke(kdist, ["gate", "plan", *words], input=json.dumps(rows))


def planned(*rows: dict[str, Any], since_ms: int | None = None) -> list[dict[str, Any]]:
    words = [] if since_ms is None else ["--since", str(since_ms)]
    result = run(list(rows), "--json", *words)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def act(**given: Any) -> str:
    (step,) = planned(row(**given))
    return f"{step['act']}: {step['why']}"


def test_a_broker_that_runs_what_is_wanted_is_kept() -> None:
    assert act() == "keep: it runs what is wanted"


@pytest.mark.parametrize("name", ["release", "settings", "unit"])
def test_a_broker_whose_process_runs_something_else_is_restarted(name: str) -> None:
    assert act(said={name: "old"}) == f"restart: it runs another {name} than is wanted"


def test_new_code_under_old_settings_is_not_what_is_wanted() -> None:
    """A broker that crashed in the middle of an upgrade, once the release had been switched."""
    assert act(said={"release": "r1"}).startswith("restart: it runs another release")


def test_a_broker_of_an_older_release_does_not_say_its_digests() -> None:
    (step,) = planned(row() | {"said": {"version": "0.0.9", "fingerprint": "f"}})
    assert step["act"] == "restart"


def test_a_broker_that_runs_but_says_nothing_is_restarted() -> None:
    assert act(said=None) == "restart: it does not say what it runs"


@pytest.mark.parametrize(
    ("status", "cause"), [(74, "its disk failed"), (78, "its disk is missing")]
)
@pytest.mark.parametrize("state", ["failed", "inactive"])
def test_a_broker_that_ended_with_a_disks_status_stays_down(
    status: int, cause: str, state: str
) -> None:
    found = act(unit={"ActiveState": state, "SubState": "failed", "ExecMainStatus": status})
    assert found.startswith(f"leave: it ended with status {status}: {cause}")


def test_a_broker_without_its_disk_is_left() -> None:
    assert act(has_disk=False, said=None).startswith("leave: its disk is not mounted")


def test_a_broker_whose_disk_hangs_is_left_whatever_it_says() -> None:
    """Neither can it be stopped, nor does one that is stopped come up."""
    assert act(disk_hangs=True, has_disk=False, said=None) == "leave: its disk does not answer"
    assert act(disk_hangs=True) == "leave: its disk does not answer"


@pytest.mark.parametrize(
    "unit",
    [
        {"ActiveState": "inactive", "SubState": "dead", "ActiveEnterTimestamp": ""},
        {"ActiveState": "failed", "SubState": "failed", "ExecMainStatus": 1},
        {"ActiveState": "activating", "SubState": "auto-restart", "ExecMainStatus": 70},
    ],
    ids=["never ran", "failed", "crashes again and again"],
)
def test_a_broker_that_does_not_serve_is_started(unit: dict[str, object]) -> None:
    assert act(unit=unit, said=None).startswith("start: it is ")


def test_a_recovering_broker_is_no_stopped_one() -> None:
    """It would be stopped in the middle of its recovery, without the gate's consent."""
    recovering = {"ActiveState": "activating", "SubState": "start"}
    assert act(unit=recovering).startswith("keep")
    assert act(unit=recovering, said={"settings": "old"}).startswith("restart")


def test_all_restart_that_started_before_a_forced_roll() -> None:
    early, late = row(101), row(102, unit={"ActiveEnterTimestamp": "@2000"})
    acts = [step["act"] for step in planned(early, late, since_ms=1_500_000)]
    assert acts == ["restart", "keep"]


def test_a_broker_that_started_in_the_second_of_the_lock_is_not_restarted_again() -> None:
    (step,) = planned(row(unit={"ActiveEnterTimestamp": "@1000"}), since_ms=1_000_900)
    assert step["act"] == "keep"


def test_hosts_keep_their_order_and_the_controller_comes_last() -> None:
    rows = [
        row(101, "b1"),
        row(201, "b2", said={"controller": True}),
        row(202, "b2"),
        row(301, "b3"),
    ]
    assert [step["id"] for step in planned(*rows)] == [101, 301, 202, 201]


def test_people_read_a_line_for_each_broker() -> None:
    assert run([row()]).stdout == "keep     broker 101 on b1: it runs what is wanted\n"


@pytest.mark.parametrize("text", ["", "{", '[{"id": 1}]', "[1]", '{"id": 1}'])
def test_what_describes_no_brokers_is_refused_with_a_sentence(text: str) -> None:
    result = CliRunner().invoke(kdist, ["gate", "plan"], input=text)
    assert result.exit_code == 1
    assert result.stderr.startswith("kdist: ")
    assert result.stderr.count("\n") == 1
