"""Every role has the one shape, and says of each variable the same in its three places."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy_plays import play
from deploy_plugins import ROOT

from lab import image
from tools import roles

ROLES = sorted(p for p in (ROOT / "roles").iterdir() if (p / "tasks").is_dir())
EVERY_ROLE = pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)


def read(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text()) or {}) if path.exists() else {}


def entry_points(role: Path) -> dict[str, Any]:
    return dict(read(role / "meta/argument_specs.yml").get("argument_specs", {}))


def options(role: Path) -> dict[str, Any]:
    return dict(entry_points(role)["main"].get("options", {}))


SITE_VARIABLES = set(options(ROOT / "roles/kdist_validate"))


@EVERY_ROLE
def test_a_role_has_its_pages(role: Path) -> None:
    pages = ("README.md", "defaults/main.yml", "meta/main.yml", "tasks/main.yml")
    assert [page for page in pages if not (role / page).is_file()] == []


@EVERY_ROLE
def test_argument_specs_say_the_same_defaults_as_defaults(role: Path) -> None:
    specified = {name: o["default"] for name, o in options(role).items() if "default" in o}
    assert specified == read(role / "defaults/main.yml")


def test_a_default_that_is_assumed_outside_its_role_is_the_roles_own() -> None:
    """A role does not see the defaults of another one, nor does a playbook."""
    pages = [*ROOT.glob("roles/*/[tv]*/*.yml"), *ROOT.glob("playbooks/*.yml")]
    text = "".join(page.read_text() for page in pages)
    own = {
        name: value for role in ROLES for name, value in read(role / "defaults/main.yml").items()
    }
    assumed = re.findall(r"\b(kdist_\w+) \| default\((\d+)\)", text)
    assert len(assumed) > 1
    assert [(name, value) for name, value in assumed if own[name] != int(value)] == []


@EVERY_ROLE
def test_other_entry_points_repeat_what_main_says(role: Path) -> None:
    main = options(role)
    for name, entry in entry_points(role).items():
        other = {key: main.get(key, option) for key, option in entry.get("options", {}).items()}
        assert entry.get("options", {}) == other, name


@EVERY_ROLE
def test_variables_begin_with_the_name_of_their_role(role: Path) -> None:
    names = {*read(role / "defaults/main.yml"), *read(role / "vars/main.yml"), *options(role)}
    assert [n for n in names - SITE_VARIABLES if not n.startswith(f"{role.name}_")] == []


@EVERY_ROLE
def test_every_option_is_described(role: Path) -> None:
    assert [name for name, option in options(role).items() if not option.get("description")] == []


@EVERY_ROLE
def test_a_readme_names_only_variables_that_exist(role: Path) -> None:
    rows = re.findall(
        rf"^\| `({role.name}_\w+)` \|", (role / "README.md").read_text(), re.MULTILINE
    )
    assert [name for name in rows if name not in options(role)] == []


def test_each_default_is_written_once_and_generated_elsewhere() -> None:
    stale = [str(page) for page, text in roles.pages() if page.read_text() != text]
    assert stale == [], "run `make generate`"


def test_a_default_that_changes_changes_in_argument_specs_and_readme() -> None:
    specs = """\
options:
      one_list:
        type: list
        elements: str
        default: [a]
        description: A list.
      one_map:
        type: dict
        default:
          a: 1
        description: A map.
      one_must:
        type: str
        description: No default.
"""
    defaults = "---\n# A comment.\none_list: [b]\none_map:\n  b: 2\n  c: 3\n"
    assert roles.argument_specs(specs, defaults) == specs.replace("[a]", "[b]").replace(
        "          a: 1\n", "          b: 2\n          c: 3\n"
    )
    table = "| `one_list` | `[]` | A list. |\n| `one_must` |  | No default. |\n"
    said = roles.readme(table, {"one_list": ["b"]})
    assert said == table.replace("`[]`", '`["b"]`')


@EVERY_ROLE
def test_no_task_goes_on_after_an_error(role: Path) -> None:
    tasks = "".join(p.read_text() for p in role.rglob("*.yml"))
    assert "ignore_errors" not in tasks
    assert "noqa" not in tasks


# Variables that hold settings by name, which may be secret.
SETTINGS = re.compile(
    r"kdist_(broker_settings|broker_config\w*|mirror_config|mirror_flow_config|spark_config"
    r"|spark_jobs(?! \| map\(attribute='name'\)))\b"
)


@EVERY_ROLE
def test_settings_are_shown_in_no_diff_and_not_as_the_item_of_a_loop(role: Path) -> None:
    """A loop that fails shows its item, whatever its label."""
    for task in tasks_of(role):
        assert not SETTINGS.search(str(task.get("loop", ""))), task["name"]
        writes = task.get("ansible.builtin.template") or task.get("ansible.builtin.copy") or {}
        source = ROOT / role / "templates" / str(writes.get("src"))
        text = source.read_text() if source.is_file() else str(writes.get("content"))
        if SETTINGS.search(text) and "ReadWritePaths" not in text:
            assert (task.get("diff"), writes["mode"]) == (False, "0640"), task["name"]
        given = str(task.get("ansible.builtin.command", ""))
        assert not SETTINGS.search(given) or task.get("no_log") is True, task["name"]


# What tasks do in check mode, after a failure, and when they are run again


def tasks_in(found: Any) -> Iterator[dict[str, Any]]:
    """Every task of a file, also within blocks."""
    for task in found or []:
        yield task
        for key in ("block", "rescue", "always"):
            yield from tasks_in(task.get(key))


def tasks_of(role: Path, folder: str = "tasks") -> Iterator[dict[str, Any]]:
    for path in sorted(role.glob(f"{folder}/*.yml")):
        yield from tasks_in(yaml.safe_load(path.read_text()))


@EVERY_ROLE
def test_packages_install_without_an_index_and_are_predicted_in_check_mode(
    role: Path,
) -> None:
    for task in tasks_of(role):
        if apt := task.get("ansible.builtin.apt"):
            assert apt["update_cache"] is True
            assert "ansible_check_mode" in str(task["when"])


@EVERY_ROLE
def test_packages_are_in_the_labs_list_and_in_each_debian_that_the_role_is_for(role: Path) -> None:
    defaults = read(role / "defaults/main.yml").get(f"{role.name}_packages", [])
    assert set(defaults) <= set(image.packages("roles"))
    # Each Debian has a Java of its own, and none of the next one's name.
    assert [name for name in defaults if name.startswith("openjdk-")] == []


@EVERY_ROLE
def test_check_mode_restarts_no_unit_that_may_not_be_there_yet(role: Path) -> None:
    for handler in tasks_of(role, "handlers"):
        if "state" in handler.get("ansible.builtin.systemd_service", {}):
            assert "not ansible_check_mode" in str(handler["when"])


def test_a_broker_that_has_failed_often_is_started_once_its_cause_is_mended() -> None:
    role = ROOT / "roles/kdist_broker"
    assert "StartLimitBurst=" in (role / "templates/kdist-broker@.service.j2").read_text()
    tasks = tasks_in(yaml.safe_load((role / "tasks/start.yml").read_text()))
    commands = [each["argv"] for task in tasks if (each := task.get("ansible.builtin.command"))]
    assert [command[:2] for command in commands] == [["systemctl", "reset-failed"]]


def test_every_registered_or_derived_variable_is_used() -> None:
    files = [*ROOT.glob("roles/*/*/*"), *ROOT.glob("playbooks/**/*")]
    text = "".join(path.read_text() for path in files if path.is_file() and path.suffix != ".pyc")
    derived = yaml.safe_load((ROOT / "playbooks/group_vars/all.yml").read_text())
    names = {*re.findall(r"^ *register: (\w+)$", text, re.MULTILINE), *derived}
    unread = {
        name
        for name in names
        if len(re.findall(rf"\b{name}\b", text))
        == len(re.findall(rf"^(?: *register: {name}$|{name}:)", text, re.MULTILINE))
    }
    assert unread == set()


def test_a_host_runs_its_handlers_although_another_host_fails(tmp_path: Path) -> None:
    say = {"ansible.builtin.debug": {"msg": "changed"}, "changed_when": True, "notify": "Load"}
    fail = {"ansible.builtin.fail": {"msg": "no"}, "when": "inventory_hostname == 'b'"}
    load = {"name": "Load", "ansible.builtin.debug": {"msg": "{{ inventory_hostname }} has loaded"}}
    given = {"hosts": "all", "gather_facts": False, "any_errors_fatal": True}
    done = play(tmp_path, given | {"tasks": [say, fail], "handlers": [load]})
    assert done.returncode != 0
    assert "a has loaded" in done.stdout


@pytest.mark.slow
def test_a_purge_removes_what_zookeeper_keeps_in_both_places(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "log"
    for place in (data / "version-2", log / "version-2"):
        place.mkdir(parents=True)
    (data / "myid").write_text("1")
    role = {"name": "kdist_zookeeper", "tasks_from": "purge"}
    places = {"kdist_zookeeper_data_dir": str(data), "kdist_zookeeper_log_dir": str(log)}
    task = {"ansible.builtin.include_role": role, "vars": places}
    done = play(tmp_path, {"hosts": "a", "gather_facts": False, "tasks": [task]})
    assert done.returncode == 0, done.stdout
    assert [*data.iterdir(), *log.iterdir()] == []


def test_a_purge_leaves_the_names_of_the_disks_of_vagrants_machines() -> None:
    (found,) = re.findall(r"/etc/udev/rules\.d/(\S+\.rules)", (ROOT / "Vagrantfile").read_text())
    purge = yaml.safe_load((ROOT / "playbooks/purge.yml").read_text())
    tasks = [task for each in purge for task in tasks_in(each["tasks"])]
    (patterns,) = [
        t["ansible.builtin.find"]["patterns"]
        for t in tasks
        if len(t) > 2 and "ansible.builtin.find" in t
    ]
    assert not any(fnmatchcase(found, pattern) for pattern in patterns)


def test_disks_out_of_service_are_looked_at_before_anything_follows_from_the_inventory() -> None:
    """What does not name a broker any more is its monitoring, its firewall and its disk's mount."""
    _, first, second, *_ = yaml.safe_load((ROOT / "playbooks/site.yml").read_text())
    assert "'tasks_from': 'leave'" in str(first["tasks"])
    roles = [task["ansible.builtin.include_role"] for task in second["tasks"]]
    disks = [each.get("tasks_from", "main") for each in roles if each["name"] == "kdist_disks"]
    assert disks == ["retire", "main"]


def test_replacing_a_disk_orders_an_election_of_its_broker_once_that_was_confirmed() -> None:
    text = (ROOT / "playbooks/replace-disk.yml").read_text()
    order = text.index("- --unclean\n              - --yes\n              - --replaced\n")
    assert text.index("was not typed: nothing was done") < order
    assert text.index("Start its broker") < order


def test_replacing_a_disk_shows_the_gates_answer_before_the_confirmation() -> None:
    text = (ROOT / "playbooks/replace-disk.yml").read_text()
    asked, said = text.index("Ask what the cluster would miss"), text.index("`kdist gate` says now")
    assert asked < said < text.index("Ask whether that is meant")
    assert text.index("Refuse while the cluster needs the broker") < text.index("Stop the broker")


def test_replacing_a_disk_starts_the_broker_with_what_it_ran_before() -> None:
    """Whatever release the inventory wants: a broker on another one was left down, in green."""
    play = yaml.safe_load((ROOT / "playbooks/replace-disk.yml").read_text())[-1]
    (start,) = [task for task in tasks_in(play["tasks"]) if task["name"] == "Start its broker"]
    assert start["ansible.builtin.include_role"]["tasks_from"] == "start"
    assert "kdist_version" not in str(play)
