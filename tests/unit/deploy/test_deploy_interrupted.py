"""After an interrupted run, the next one applies its finished changes, and no half-done ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader  # type: ignore[import-untyped]
from ansible.template import Templar, trust_as_template  # type: ignore[import-untyped]
from deploy_plays import script
from deploy_plugins import ROOT


def tasks_in(found: Any) -> Iterator[dict[str, Any]]:
    """Every task of a file, also within blocks."""
    for task in found or []:
        yield task
        yield from tasks_in(task.get("block"))


def tasks(page: str) -> list[dict[str, Any]]:
    return list(tasks_in(yaml.safe_load((ROOT / "roles" / page).read_text())))


def named(page: str, words: str) -> dict[str, Any]:
    (found,) = [task for task in tasks(page) if words in task["name"]]
    return found


def test_no_restart_depends_on_a_notification_that_an_interrupted_run_would_lose() -> None:
    """udev takes changed rules by itself, and kdist-tune runs at boot."""
    pages = [page for page in ROOT.glob("roles/*/tasks/*.yml") if "notify:" in page.read_text()]
    assert {page.parents[1].name for page in pages} == {"kdist_tuning"}


def test_systemd_reads_its_units_whenever_it_starts_one_that_a_role_has_written() -> None:
    pages = sorted(page.relative_to(ROOT / "roles") for page in ROOT.glob("roles/*/tasks/*.yml"))
    started = [
        (str(page), service)
        for page in pages
        for task in tasks(str(page))
        if (service := task.get("ansible.builtin.systemd_service"))
        and "start" in str(service.get("state"))
        and service["name"] != "chrony"
    ]
    assert len(started) > 5
    assert [page for page, service in started if service.get("daemon_reload") is not True] == []


SINCE = "Mon 2026-11-23 12:00:00.500000 UTC"
BEFORE, AFTER = 1795435200.25, 1795435200.75  # within that second


@pytest.mark.parametrize(
    ("since", "written", "is_told"),
    [(SINCE, BEFORE, False), (SINCE, AFTER, True), ("", AFTER, False)],
    ids=["read since", "not read yet", "never ran"],
)
@pytest.mark.parametrize("state", ["restarted", "reloaded"])
def test_a_service_that_has_not_read_its_changed_files_is_found(
    tmp_path: Path, state: str, since: str, written: float, is_told: bool
) -> None:
    (tmp_path / "systemctl").write_text(
        f'#!/bin/sh\necho "$*" > {tmp_path}/asked; echo "{since}"\n'
    )
    (tmp_path / "systemctl").chmod(0o755)
    page = tmp_path / "settings"
    page.touch()
    os.utime(page, (written, written))
    shell = named("kdist_base/tasks/reread.yml", "Look for what was written")
    row = {"unit": "one.service", "reads": [str(tmp_path / "absent"), str(page)], "state": state}
    templar = Templar(loader=DataLoader(), variables={"item": row})
    command = templar.template(trust_as_template(shell["ansible.builtin.shell"]["cmd"]))
    found = subprocess.run(
        ["/bin/sh", "-c", str(command)],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == (f"{page}\n" if is_told else "")
    # A reload is a change of state and no new start.
    asked = "ActiveEnterTimestamp" if state == "restarted" else "StateChangeTimestamp"
    assert f"--property={asked}" in (tmp_path / "asked").read_text()


@pytest.mark.parametrize("role", ["kdist_release", "kdist_spark"])
def test_a_release_is_on_the_disk_before_it_is_called_whole(role: str) -> None:
    steps = [task["name"] for task in tasks(f"{role}/tasks/unpack.yml")]
    (whole,) = [number for number, name in enumerate(steps) if name.endswith(" complete")]
    assert steps[whole - 1] == "Sync it to disk"


# ZooKeeper


@pytest.mark.parametrize(
    ("files", "knows"),
    [
        ("myid version-2/snapshot.0 version-2/currentEpoch", False),
        ("version-2/log.1 version-2/snapshot.0", True),
        ("version-2/snapshot.0 version-2/snapshot.100000002", True),
        ("version-2/snapshot.a", True),
        ("", False),
    ],
)
def test_a_server_that_has_never_been_in_an_ensemble_knows_nothing(
    tmp_path: Path, files: str, knows: bool
) -> None:
    (tmp_path / "version-2").mkdir()
    for name in files.split():
        (tmp_path / name).touch()
    task = named("kdist_zookeeper/tasks/kept.yml", "Look for what the server knows")
    find, _, _, *condition = task["ansible.builtin.command"]["argv"]
    found = subprocess.run([find, str(tmp_path), *condition], capture_output=True, check=True)
    assert bool(found.stdout) is knows


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Path]:
    """A process in the place of a server, with a jar open; `usr` below what it returns is /usr."""
    jar, java = tmp_path / "usr/share/java/zookeeper.jar", tmp_path / "usr/bin/java"
    for path in (jar, java):
        path.parent.mkdir(parents=True)
    jar.touch()
    java.symlink_to(os.path.realpath(sys.executable))
    hold = "import sys; kept = open(sys.argv[1]); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", hold, str(jar)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, env={"KDIST_FINGERPRINT": "f1"}
    ) as running:
        assert running.stdout is not None
        running.stdout.readline()
        script(tmp_path / "systemctl", f"echo {running.pid}\n")
        yield tmp_path
        running.communicate()


def runs_with(server: Path) -> list[str]:
    """What the role's look says of the server."""
    look = named("kdist_zookeeper/tasks/service.yml", "Check whether it runs")
    command = look["ansible.builtin.shell"]["cmd"].replace("/usr/", f"{server}/usr/")
    done = subprocess.run(
        ["/bin/bash", "-c", command],
        env={"PATH": f"{server}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_server_says_its_fingerprint_while_its_files_are_there(server: Path) -> None:
    assert runs_with(server) == ["running f1"]
    script(server / "systemctl", "echo 0\n")
    assert runs_with(server) == []


@pytest.mark.parametrize("what", ["its jar", "java"])
def test_a_server_whose_package_or_java_was_upgraded_is_outdated(server: Path, what: str) -> None:
    path = server / ("usr/share/java/zookeeper.jar" if what == "its jar" else "usr/bin/java")
    fresh = path.with_name("fresh")
    fresh.touch()
    fresh.replace(path)
    said = runs_with(server)
    assert said[0] == "running f1"
    assert len(said) == 2
    assert is_outdated(said)
    assert not is_outdated(said[:1])


def is_outdated(said: list[str]) -> bool:
    """As the role judges it, when that fingerprint is wanted."""
    role = yaml.safe_load((ROOT / "roles/kdist_zookeeper/vars/main.yml").read_text())
    running = {"stdout": "\n".join(said)}
    given = {"kdist_zookeeper_running": running, "kdist_zookeeper_fingerprint": "f1"}
    templar = Templar(loader=DataLoader(), variables=given)
    return bool(templar.template(trust_as_template(role["kdist_zookeeper_differs"])))


@pytest.mark.parametrize(
    ("running", "differs", "forced", "serves", "restarts"),
    [
        ("running f1", False, "false", True, False),
        ("running f1", True, "false", True, True),
        ("running f1", False, "true", True, True),
        ("running f1", True, "true", False, False),  # it was started anew already
        ("", False, "true", True, False),
    ],
)
def test_a_server_gets_its_turn_if_it_is_outdated_or_all_are_to_restart(
    running: str, differs: bool, forced: str, serves: bool, restarts: bool
) -> None:
    task = named("kdist_zookeeper/tasks/service.yml", "Record whether it is to be restarted")
    given = {
        "kdist_zookeeper_running": {"stdout": running},
        "kdist_zookeeper_differs": differs,
        "kdist_zookeeper_force": forced,
        "kdist_zookeeper_may_wait": serves,
    }
    templar = Templar(loader=DataLoader(), variables=given)
    is_forced = templar.template(trust_as_template(task["vars"]["kdist_zookeeper_is_forced"]))
    templar.available_variables = given | {"kdist_zookeeper_is_forced": is_forced}
    is_stale = task["ansible.builtin.set_fact"]["kdist_zookeeper_is_stale"]
    assert templar.template(trust_as_template(is_stale)) is restarts


@pytest.mark.parametrize(
    ("active", "enabled", "goes_on"),
    [
        ("inactive", "", False),
        ("inactive", "disabled", False),
        ("failed", "disabled", False),
        ("active", "enabled", True),
        ("inactive", "enabled", True),
        ("activating", "disabled", True),
    ],
)
def test_a_server_counts_as_active_if_it_runs_or_would_after_a_boot(
    active: str, enabled: str, goes_on: bool
) -> None:
    shown = [f"ActiveState={active}", f"UnitFileState={enabled}"]
    task = named("kdist_zookeeper/tasks/kept.yml", "Record whether it goes on")
    said = task["vars"]["kdist_zookeeper_does"]
    templar = Templar(
        loader=DataLoader(), variables={"kdist_zookeeper_unit": {"stdout_lines": shown}}
    )
    assert templar.template(trust_as_template(said)) is goes_on


def test_an_active_server_that_has_left_its_group_is_refused() -> None:
    look, refuse = tasks("kdist_zookeeper/tasks/leave.yml")
    assert look["ansible.builtin.import_tasks"] == "kept.yml"
    assert refuse["ansible.builtin.assert"]["that"] == "not kdist_zookeeper_goes_on"


def test_servers_that_have_left_are_checked_before_an_ensemble_is_changed() -> None:
    _, first, *_ = yaml.safe_load((ROOT / "playbooks/zookeeper.yml").read_text())
    assert first["hosts"] == "all:!zookeeper"
    *_, task = first["tasks"]
    assert task["ansible.builtin.include_role"]["tasks_from"] == "leave"
    assert first["any_errors_fatal"] is True


def test_the_readme_changes_an_ensembles_members_by_a_playbook_that_tells_the_firewalls() -> None:
    """Those of the others drop what comes from a member that they have not heard of."""
    readme = (ROOT / "roles/kdist_zookeeper/README.md").read_text()
    (recipe,) = re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)
    playbooks = re.findall(r"playbooks/\w+\.yml", recipe)
    assert playbooks
    assert [page for page in playbooks if "kdist_firewall" not in (ROOT / page).read_text()] == []
