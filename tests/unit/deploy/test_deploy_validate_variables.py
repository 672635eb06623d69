"""Misspelt variables and wrong values are reported before any host is contacted."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy_plugins import ROOT, load
from jinja2 import Undefined

validate = load("roles/kdist_validate/filter_plugins/kdist_validate_variables.py")

DISKS = [{"id": "d01", "device": "/dev/disk/by-id/one"}]
WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"kdist_firewall_client": []},
        "nothing reads kdist_firewall_client; is it kdist_firewall_clients?",
    ),
    ({"kdist_elephants": 1}, "nothing reads kdist_elephants."),
    (
        {"kdist_zookeeper_heap_mb": "lots"},
        "kdist_zookeeper_heap_mb is 'lots'; it is a whole number.",
    ),
    (
        {"kdist_tuning_huge_pages": "some"},
        "kdist_tuning_huge_pages is 'some'; it is one of always, madvise, never.",
    ),
    ({"kdist_firewall_enabled": "si"}, "kdist_firewall_enabled is 'si'; it is true or false."),
    (
        {"kdist_version": 1.1},
        "kdist_version is the number 1.1, and 1.10 would be the number 1.1; put it in quotes.",
    ),
    ({"kdist_version": "../1"}, "kdist_version is '../1', which is no release's name."),
    (
        {"kdist_firewall_clients": ["198.51.100.7/24"]},
        "kdist_firewall_clients has '198.51.100.7/24': 198.51.100.7/24 has host bits set.",
    ),
    (
        {"kdist_firewall_admins": ["desk"]},
        "kdist_firewall_admins has 'desk': 'desk' does not appear to be an IPv4 or IPv6 network.",
    ),
    (
        {"kdist_zookeeper_log_device": "/dev/sdb"},
        "kdist_zookeeper_log_device is /dev/sdb, which may change with a boot; "
        "use its name under /dev/disk/by-id.",
    ),
    (
        {"kdist_zookeeper_log_device": "/dev/disk/by-id/one", "kdist_disks": DISKS},
        "kdist_zookeeper_log_device is /dev/disk/by-id/one, which kdist_disks has for records.",
    ),
]


# What people write without quotes, and what YAML makes of it.
UNQUOTED = ["no", "on", "Yes", "12", "0123", "1_000", "12:30", "1.0e+3", "1.10", "2013-01-01"]
TEXTS = [
    "kdist_rack: {}",
    "kdist_environment: {}",
    "kdist_datacenter: {}",
    "kdist_zookeeper_chroot: {}",
    "kdist_zookeeper_log_device: {}",
    "kdist_spark_master: {}",
    "kdist_broker_config_host: {{broker.rack: {}}}",
    "kdist_broker_config_defaults: {{log.cleanup.policy: {}}}",
    "kdist_mirror_flow_config: {{f: {{prefix: {}}}}}",
    "kdist_spark_config: {{topic.flights.event.time.format: {}}}",
    "kdist_topics_wanted: [{{name: {}}}]",
    "kdist_topics_wanted: [{{name: t, config: {{cleanup.policy: {}}}}}]",
    "kdist_spark_jobs: [{{name: {}, on_calendar: daily, settings: {{topics: [a]}}}}]",
    "kdist_spark_jobs: [{{name: a, on_calendar: {}, settings: {{topics: [a]}}}}]",
    "kdist_spark_jobs: [{{name: a, on_calendar: daily, settings: {{topics: [{}]}}}}]",
]


def told(**hosts: dict[str, Any]) -> list[str]:
    return list(validate.kdist_validate_variables(hosts, {"all": list(hosts)}))


@pytest.mark.parametrize(("variables", "sentence"), WRONG, ids=[s for _, s in WRONG])
def test_a_wrong_variable_is_reported_in_a_sentence(
    variables: dict[str, Any], sentence: str
) -> None:
    assert told(b1=variables) == [f"b1: {sentence}"]


@pytest.mark.parametrize("line", TEXTS)
def test_a_text_that_yaml_takes_for_something_else_is_refused(line: str) -> None:
    known, names = validate.options(), validate.mentioned()
    for word in UNQUOTED:
        assert not isinstance(yaml.safe_load(word), str)
        sentences = list(validate.wrong(yaml.safe_load(line.format(word)), known, names))
        assert len(sentences) == 1, word
        assert sentences[0].startswith(line.partition(":")[0])
        assert sentences[0].endswith("; put quotes around it."), sentences
        if "log_device" not in line:
            quoted = yaml.safe_load(line.format(f"'{word}'"))
            assert list(validate.wrong(quoted, known, names)) == []


def test_a_setting_that_is_no_text_is_refused() -> None:
    sentences = told(
        b1={
            "kdist_broker_config_host": {"a.b": None, "c.d": True, "e.f": 1, "g.h": "x"},
            "kdist_mirror_config": {"mirror.buffer.bytes": 1048576},
            "kdist_topics_wanted": [{"name": "t", "config": {"preallocate": True}}],
            "kdist_spark_jobs": [
                {"name": "j", "on_calendar": "daily", "settings": {"topics": ["a,b"]}}
            ],
        }
    )
    assert sentences == [
        "b1: kdist_broker_config_host: a.b is None, which YAML has made of an unquoted word; put"
        " quotes around it.",
        "b1: kdist_spark_jobs: settings: topics has an item with a comma; commas separate items.",
    ]


def test_a_mistake_of_all_hosts_is_reported_once() -> None:
    assert told(b1={"kdist_elephants": 1}, b2={"kdist_elephants": 1}) == [
        "b1, b2: nothing reads kdist_elephants."
    ]


def test_a_value_that_should_be_a_list_is_not_shown_as_it_may_hold_a_password() -> None:
    (sentence,) = told(b1={"kdist_monitoring_receivers": {"smtp_auth_password": "hush"}})
    assert sentence.startswith("b1: kdist_monitoring_receivers: ")
    assert "hush" not in sentence


def test_a_job_without_a_name_is_reported() -> None:
    (sentence,) = told(b1={"kdist_spark_jobs": [{"on_calendar": "daily", "settings": {}}]})
    assert (
        sentence
        == "b1: kdist_spark_jobs: missing required arguments: name found in kdist_spark_jobs."
    )


def test_defaults_facts_and_what_is_derived_are_no_mistakes() -> None:
    pages = [
        *ROOT.glob("roles/*/defaults/main.yml"),
        *ROOT.glob("roles/*/vars/main.yml"),
        ROOT / "playbooks/group_vars/all.yml",
    ]
    for page in pages:
        variables = yaml.safe_load(page.read_text()) or {}
        plain = {n: v for n, v in variables.items() if "{{" not in str(v)}
        templated = dict.fromkeys(variables.keys() - plain.keys(), Undefined())
        assert told(b1=plain | templated) == [], page


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kdist_roll_run", "kdist_roll_run_id"])
def test_an_inventory_is_checked_whatever_name_its_run_was_given(name: str, tmp_path: Path) -> None:
    """Whoever resumes a run may give its id under the name of the fact that holds it."""
    place = Path(shutil.copytree(ROOT / "inventory/example", tmp_path / "site"))
    page = place / "host_vars/b2.dc1.example.yml"
    page.write_text(page.read_text().replace("kdist_rack:", "kdist_base_rack:"))
    program = Path(sys.executable).with_name("ansible-playbook")
    words = [str(program), "-i", str(place), "-e", f"{name}=x", "playbooks/validate.yml"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "b2.dc1.example: kdist_rack is not set" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("inventory", ["example", "lab", "vagrant", "vagrant-pair"])
def test_the_inventories_of_the_tree_have_no_such_mistakes(inventory: str, tmp_path: Path) -> None:
    """And one of theirs that has is refused by the playbook."""
    place = Path(shutil.copytree(ROOT / "inventory" / inventory, tmp_path / "site"))
    program = Path(sys.executable).with_name("ansible-playbook")
    words = [str(program), "-i", str(place), "playbooks/validate.yml"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    if inventory == "example":
        page = place / "group_vars/all/site.yml"
        page.write_text(page.read_text().replace("kdist_base_ntp_servers", "kdist_base_ntp_server"))
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "nothing reads kdist_base_ntp_server; is it kdist_base_ntp_servers?" in " ".join(
            done.stdout.split()
        )
