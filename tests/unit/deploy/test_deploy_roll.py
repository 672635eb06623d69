"""What a roll does around the plan: it tells at the end, renews its lock, and stops nobody else."""

from __future__ import annotations

import configparser
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader  # type: ignore[import-untyped]
from ansible.template import Templar, trust_as_template  # type: ignore[import-untyped]
from deploy_plays import script
from deploy_plugins import ROOT, load

summary = load("playbooks/filter_plugins/kdist_summary.py")
roll = load("roles/kdist_roll/filter_plugins/kdist_roll.py")
waiting = load("roles/kdist_roll/action_plugins/kdist_roll_wait.py")

ROLL = yaml.safe_load((ROOT / "roles/kdist_roll/vars/main.yml").read_text())


def plays(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load((ROOT / f"playbooks/{name}.yml").read_text()))


def tasks(page: str) -> Iterator[dict[str, Any]]:
    def inside(found: Any) -> Iterator[dict[str, Any]]:
        for task in found or []:
            yield task
            for key in ("block", "rescue", "always"):
                yield from inside(task.get(key))

    yield from inside(yaml.safe_load((ROOT / "roles" / page).read_text()))


def named(page: str, name: str) -> dict[str, Any]:
    (found,) = [task for task in tasks(page) if task["name"] == name]
    return found


# What stops whom


@pytest.mark.parametrize("playbook", ["site", "brokers", "roll", "rollback"])
def test_one_host_that_fails_or_is_down_stops_no_other(playbook: str) -> None:
    found = plays(playbook)
    assert [
        p["name"] for p in found if p.get("any_errors_fatal") or "max_fail_percentage" in p
    ] == []


def test_a_host_that_dies_in_its_turn_does_not_end_the_roll() -> None:
    """Ansible ends a run if all hosts of a batch fail, and a batch of the roll is one host."""
    (restart,) = [play for play in plays("roll") if play.get("serial")]
    assert restart["serial"] == 1
    assert restart["ignore_unreachable"] is True
    block = named("kdist_roll/tasks/broker.yml", "Restart one broker")
    assert "fail" not in str(block["rescue"]).split("'ansible.builtin.")


@pytest.mark.parametrize("playbook", ["site", "upgrade", "rollback", "rolling-restart", "verify"])
def test_the_last_play_says_what_was_not_done(playbook: str) -> None:
    assert plays(playbook)[-1]["ansible.builtin.import_playbook"] == "summary.yml"


def undone(*kinds: str) -> list[dict[str, object]]:
    return [{"kind": kind, "broker": n, "why": f"{kind} {n}"} for n, kind in enumerate(kinds, 1)]


def outlook(
    mine: list[Any], others: list[Any], *gone: str, limit: str = "b1,b2,b3"
) -> dict[str, Any]:
    """For b1, which has brokers 1 and 2, beside b2 with 3, after these things went wrong."""
    hostvars = {
        "b1": {"kdist_roll_undone": mine, "kdist_roll_present": [1, 2]},
        "b2": {"kdist_roll_undone": others, "kdist_roll_present": [3]},
        "b3": {},  # it was down before the roll
    }
    for number, (host, values) in enumerate(hostvars.items()):
        brokers = ([1, 2], [3, 4], [5])[number]
        values["kdist_brokers"] = [{"id": each} for each in brokers]
        values["kdist_roll_is_gone"] = host in gone
        if host in limit:
            values["kdist_roll_run_id"] = "run"
    return dict(roll.kdist_roll_outlook(hostvars, ["b1", "b2", "b3"], "b1", failed_max=1))


@pytest.mark.parametrize(
    ("mine", "others", "gone", "goes_on"),
    [
        ([], [], [], True),
        (["gate"], ["gate"], [], True),
        (["failed"], [], [], True),
        (["failed"], ["failed"], [], False),
        ([], ["lock"], [], False),
        (["gone"], [], ["b1"], False),
        ([], ["gone", "skipped"], ["b2"], True),
        ([], [], ["b2"], True),
        ([], ["failed"], ["b2"], False),
        ([], [], ["b2", "b3"], False),
        (["return", "failed"], [], [], False),
        (["stop"], [], [], True),
        (["stop"], ["stop"], [], False),
    ],
)
def test_a_roll_goes_on_beside_one_broker_or_host_that_fails_and_not_beside_two(
    mine: list[str], others: list[str], gone: list[str], goes_on: bool
) -> None:
    found = outlook(undone(*mine), undone(*others), *gone)
    assert found["goes_on"] is goes_on


def test_a_broker_that_failed_to_start_does_not_keep_the_gate_shut() -> None:
    """The gate would say of each other one that this one is not registered."""
    assert outlook([], [])["expected"] == [1, 2, 3]
    found = outlook(undone("failed"), [])
    assert (found["expected"], found["down"]) == ([2, 3], [1, 4, 5])


def test_all_brokers_of_a_host_that_is_gone_are_down_whether_they_had_their_turn_or_not() -> None:
    """Those that had none were still expected, so that the gate refused everybody else."""
    found = outlook([], undone("gone", "skipped"), "b2")
    assert (found["expected"], found["down"]) == ([1, 2], [3, 4, 5])


def test_brokers_of_hosts_that_a_limit_leaves_out_are_not_known_to_be_down() -> None:
    assert outlook([], [], limit="b1,b2")["down"] == [4]


def test_hosts_are_looked_for_whose_brokers_have_left() -> None:
    hosts = {"b1": {"kdist_brokers": [{"id": 1}, {"id": 2}]}, "b2": {"kdist_brokers": [{"id": 3}]}}
    assert roll.kdist_roll_silent(hosts, ["b1", "b2"], [1, 2, 3], [1, 2]) == ["b2"]
    assert roll.kdist_roll_silent(hosts, ["b1", "b2"], [1, 2], [1, 2]) == []


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"stdout": '{"reasons": ["a", "b"]}', "msg": "non-zero"}, "a; b"),
        ({"stdout": '{"reasons": ["a", "b", "c", "d", "e"]}'}, "a; b; c; and 2 more"),
        ({"stdout": "ActiveState=active", "stderr": "e", "msg": "m"}, "ActiveState=active e m"),
        ({"stdout": "3", "msg": "m"}, "3 m"),
        ({"stderr": "kdist: no", "stdout": "", "msg": "non-zero return code"}, "kdist: no"),
        ({"stderr": "", "stdout": "", "msg": "non-zero return code"}, "non-zero return code"),
        ({"msg": "m"}, "m"),
    ],
)
def test_a_gates_refusal_is_told_by_its_first_reasons(result: dict[str, str], said: str) -> None:
    assert roll.kdist_roll_said(result) == said


def test_the_gates_refusal_is_waited_for_once() -> None:
    assert outlook([], [])["was_refused"] is False
    assert outlook([], undone("gate"))["was_refused"] is True


def test_moves_are_no_refusal_of_the_gate_and_are_waited_for_to_the_end_once() -> None:
    assert outlook([], undone("gate"))["waits_for_moves"] is True
    for kind, waits in (("moves", False), ("moving", True)):
        found = outlook(undone(kind), [])
        assert (found["was_refused"], found["waits_for_moves"]) == (False, waits)


# Waits


def test_a_lease_that_cannot_be_renewed_stops_no_broker_that_is_starting(tmp_path: Path) -> None:
    """ZooKeeper may be away for a moment, and a recovery take an hour."""
    script(tmp_path / "systemctl", "echo ActiveState=activating; echo SubState=start\n")
    tasks = yaml.safe_load((ROOT / "roles/kdist_broker/tasks/start.yml").read_text())
    (wait,) = [task for task in tasks if task["name"] == "Wait until it serves"]
    variables: dict[str, Any] = {
        "kdist_broker_meanwhile": "false",
        "kdist_broker_instance": {"instance": "d01"},
    }
    templar = Templar(loader=DataLoader(), variables=variables)
    command = templar.template(trust_as_template(wait["ansible.builtin.shell"]["cmd"]))
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["/bin/sh", "-c", str(command)], env=environment, capture_output=True, check=False
    )
    state = {"rc": done.returncode, "stdout": done.stdout.decode().strip()}
    role = yaml.safe_load((ROOT / "roles/kdist_broker/vars/main.yml").read_text())
    templar = Templar(loader=DataLoader(), variables={**role, "kdist_broker_state": state})
    is_over = templar.template(trust_as_template(f"{{{{ {wait['until']} }}}}"))
    assert (state["rc"], is_over) == (0, False)


def approached(*looks: tuple[float, int | None, int | None]) -> Any:
    found = waiting.Approach(0.0)
    for look in looks:
        found.see(waiting.Look(*look))
    return found


@pytest.mark.parametrize(
    ("looks", "nearer_s"),
    [
        ([], 0),
        ([(10, 5, 900), (20, 5, 900)], 10),
        ([(10, 5, 900), (20, 5, 800), (30, 5, 850)], 20),
        ([(10, 5, 900), (20, 4, 900)], 20),
        ([(10, 5, 900), (20, 6, 950), (30, 5, 900)], 10),
        ([(10, 5, 900), (20, None, None), (30, 5, None), (40, 5, 899)], 40),
        ([(10, None, None)], 0),
    ],
    ids=["unseen", "same", "bytes", "partitions", "there and back", "silent", "never seen"],
)
def test_a_broker_gets_nearer_with_fewer_bytes_or_partitions_than_ever(
    looks: list[tuple[float, int | None, int | None]], nearer_s: float
) -> None:
    assert approached(*looks).nearer_s == nearer_s


@pytest.mark.parametrize(
    ("looks", "sentence"),
    [
        ([(0, 2, 9_000_000_000)], "9.0 GB of 2 partitions to go"),
        (
            [(0, 2, 36 * 10**11), (60, 2, 36 * 10**11 - 6 * 10**9)],
            "3594.0 GB of 2 partitions to go, 100 MB/s, 9 h 59 min",
        ),
        ([(0, 2, 9_000), (60, 1, 9_500)], "0.0 GB of 1 partition to go"),
        ([(0, 2, None)], "2 partitions to go"),
        ([(0, 2, 5), (9, None, None)], "it does not answer"),
        ([(0, 2, 5), (9, 0, 0)], "in sync with all its partitions"),
        # Its rate is that of the last minutes.
        (
            [(0, 2, 10**12), (3600, 2, 10**11), (3660, 2, 10**11 - 6 * 10**8)],
            "99.4 GB of 2 partitions to go, 10 MB/s, 2 h 46 min",
        ),
    ],
)
def test_a_wait_says_what_is_left_how_fast_it_shrinks_and_for_how_long(
    looks: list[tuple[float, int | None, int | None]], sentence: str
) -> None:
    assert approached(*looks).sentence() == sentence


def test_an_answer_that_cannot_be_read_says_why_it_cannot() -> None:
    unread = waiting.Look(1.0, None, None)
    assert waiting.read({"stdout": "", "stderr": "kdist: no such option"}, 1.0) == (
        unread,
        ["kdist: no such option"],
    )
    assert waiting.read({"msg": "gone"}, 1.0) == (unread, ["gone"])
    told = '{"reasons": ["r"], "lack": {"partitions": 3, "bytes": null}}'
    assert waiting.read({"stdout": told}, 1.0) == (waiting.Look(1.0, 3, None), ["r"])


# The lock


def test_every_wait_of_the_roll_renews_its_lease() -> None:
    pages = (
        "kdist_roll/tasks/restart.yml",
        "kdist_roll/tasks/gate.yml",
        "kdist_roll/tasks/moves.yml",
        "kdist_broker/tasks/start.yml",
    )
    waits = [task for page in pages for task in tasks(page) if "until" in task]
    assert len(waits) == 5
    renewing = ("kdist_broker_meanwhile", "kdist_roll_ask", "kdist_roll_may_stop")
    assert [t["name"] for t in waits if not any(word in str(t) for word in renewing)] == []
    block = named("kdist_roll/tasks/broker.yml", "Restart one broker")
    assert "--renew" in block["vars"]["kdist_roll_ask"]
    assert "kdist_roll_take" in block["vars"]["kdist_broker_meanwhile"]


def test_the_lease_is_longer_than_a_stop() -> None:
    templar = Templar(loader=DataLoader(), variables={"kdist_broker_stop_timeout_s": 1000})
    assert int(templar.template(trust_as_template(ROLL["kdist_roll_lease_s"]))) > 1000


def test_whatever_stops_something_holds_the_one_lock_first() -> None:
    broker = [task["name"] for task in tasks("kdist_roll/tasks/restart.yml")]
    assert broker.index("Renew the lease") < broker.index("Stop the broker")
    server = [task["name"] for task in tasks("kdist_zookeeper/tasks/restart.yml")]
    assert server.index("Take the lock, or keep it") < server.index("Stop the server")
    text = (ROOT / "playbooks/replace-disk.yml").read_text()
    assert text.index("Take the lock") < text.index("Stop the broker")


@pytest.mark.parametrize("playbook", ["roll", "zookeeper"])
def test_the_lock_is_released_by_the_end_of_the_run(playbook: str) -> None:
    last = plays(playbook)[-1]
    assert "'tasks_from': 'finish'" in str(last["tasks"])


def test_all_tasks_of_a_run_have_one_run_id() -> None:
    naming = named("kdist_roll/tasks/run.yml", "Name this run")
    assert naming["run_once"] is True
    assert naming["when"] == "kdist_roll_run_id is not defined"
    for playbook in ("site", "upgrade", "rollback", "rolling-restart", "replace-disk", "zookeeper"):
        assert plays(playbook)[0]["ansible.builtin.import_playbook"] == "validate.yml"
    assert "'tasks_from': 'run'" in str(plays("validate"))


def test_a_connection_to_a_host_that_died_ends() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "ansible.cfg")
    words = settings["ssh_connection"]["ssh_args"]
    assert "ServerAliveInterval=10" in words
    assert "ServerAliveCountMax=6" in words


# Check mode


def test_settings_are_judged_in_check_mode_and_before_they_are_written() -> None:
    steps = list(tasks("kdist_broker/tasks/configure.yml"))
    checks = [task for task in steps if task["name"].startswith("Check ")]
    assert len(checks) == 2
    assert [task["check_mode"] for task in checks] == [False, False]
    names = [task["name"] for task in steps]
    refused = names.index("Refuse settings that the release does not accept")
    assert refused < names.index("Write each broker's wanted configuration")


@pytest.mark.parametrize("role", ["kdist_mirror", "kdist_monitoring"])
@pytest.mark.parametrize(
    ("is_check", "wanted", "release"),
    [(True, "2.0-b", "2.0-b"), (False, "2.0-b", "1.0-a"), (True, None, "1.0-a")],
)
def test_an_upgrade_in_check_mode_shows_that_units_change_which_follow_the_release(
    role: str, is_check: bool, wanted: str | None, release: str
) -> None:
    """The link that they follow is switched by the roll, and so not in check mode."""
    task = named(f"{role}/tasks/preflight.yml", "Record what was found")
    expression = task["ansible.builtin.set_fact"][f"{role}_release"]
    paths = {"results": [{"stat": {"lnk_source": "/opt/kdist/releases/1.0-a"}}]}
    variables = {f"{role}_paths": paths, "ansible_check_mode": is_check}
    variables |= {} if wanted is None else {"kdist_release_name": wanted}
    templar = Templar(loader=DataLoader(), variables=variables)
    assert templar.template(trust_as_template(expression)) == release


@pytest.mark.parametrize("page", ["kdist_broker/tasks/plan.yml", "kdist_roll/tasks/plan.yml"])
def test_a_plan_is_made_in_check_mode_too(page: str) -> None:
    """A forced roll said there that every broker runs with what is wanted."""
    commands = [task for task in tasks(page) if "ansible.builtin.command" in task]
    assert [task["check_mode"] for task in commands] == [False]


# The end of a run


def test_the_summary_tells_of_hosts_brokers_and_disks() -> None:
    hostvars: dict[str, dict[str, Any]] = {
        "b1": {
            "kdist_roll_undone": [{"kind": "gate", "broker": 101, "why": "b1: broker 101 may not"}],
            "kdist_disks_problems": ["d03 (/dev/disk/by-id/x) is absent"],
        },
        "b2": {},
        "b4": {"kdist_roll_is_gone": True},
        "b3": {
            "kdist_broker_undone": ["b3: broker 301 did not start"],
            "kdist_roll_left": [{"act": "leave", "id": 302, "why": "it ended with status 74"}],
            "kdist_firewall_notices": ["b9 has left"],
            "kdist_roll_deaf": ["mon2"],
        },
    }
    assert summary.kdist_summary(hostvars, ["b1", "b2", "b3", "b4"], ["b1", "b3", "b4"]) == {
        "undone": [
            "b1: broker 101 may not",
            "b2: it failed or could not be reached, and the rest was not done",
            "b3: broker 301 did not start",
            "b4: it stopped answering during the roll",
        ],
        "notices": [
            "b1: d03 (/dev/disk/by-id/x) is absent",
            "b3: the Alertmanager of mon2 has not taken the silence of planned work",
            "b3: broker 302 is left down: it ended with status 74",
            "b3: b9 has left",
        ],
    }


@pytest.mark.parametrize(
    ("values", "undone", "notices"),
    [
        # A disk of twelve has died.
        ({"usable": ["d01"], "problems": ["d02 is absent"]}, [], ["b1: d02 is absent"]),
        # All of them, or what they hang on.
        (
            {"usable": [], "problems": ["d01 is absent", "d02 is absent"]},
            ["b1: none of its disks can be used"],
            ["b1: d01 is absent", "b1: d02 is absent"],
        ),
        # A disk was added under a wrong name.
        (
            {"usable": ["d01"], "problems": ["d02 is absent"], "never_used": ["d02 is absent"]},
            ["b1: d02 is absent, and has never had a broker"],
            [],
        ),
        # A host was, with all its disks.
        (
            {"usable": [], "problems": ["d01 is absent"], "never_used": ["d01 is absent"]},
            [
                "b1: d01 is absent, and has never had a broker",
                "b1: none of its disks can be used",
            ],
            [],
        ),
        # A disk was taken out of the inventory, and its broker is there.
        (
            {"unknown": ["d07"]},
            ["b1: there is a broker of d07, which kdist_disks does not have: set it to retired"],
            [],
        ),
        # It has no disks, or they were not looked at.
        ({"usable": [], "problems": []}, [], []),
        ({}, [], []),
    ],
)
def test_a_disk_that_never_worked_or_a_host_without_any_is_undone(
    values: dict[str, list[str]], undone: list[str], notices: list[str]
) -> None:
    found: dict[str, Any] = {f"kdist_disks_{name}": value for name, value in values.items()}
    found["kdist_brokers"] = [{"id": 101}] if values.get("problems") else []
    told = summary.kdist_summary({"b1": found}, ["b1"], ["b1"])
    assert told == {"undone": undone, "notices": notices}
