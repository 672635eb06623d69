"""What kdist_mirror writes, rendered by Ansible: a flow's settings and its unit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader  # type: ignore[import-untyped]
from ansible.template import Templar, trust_as_template  # type: ignore[import-untyped]
from deploy_plugins import PLACES, ROOT, load

from kdist.config.mirror import load_mirror

ROLE = ROOT / "roles/kdist_mirror"
PORTS = {"mirror_metrics": 9392}
MIRRORS = load("playbooks/filter_plugins/kdist_mirrors.py")
FIREWALL = load("roles/kdist_firewall/filter_plugins/kdist_firewall.py")
BACK = {"name": "back", "source": "dc2", "target": "dc1", "topics": ["x"]}
THERE = {
    "name": "there",
    "source": "dc1",
    "target": "dc2",
    "topics": ["flights", r"ops\..*"],
    "policy": "prefix",
}


def rendered(template: str, **given: object) -> str:
    """A template of the role for the flow `there`, as host b3 of dc2 has it."""
    (flow,) = MIRRORS.kdist_mirrors([THERE, BACK], "dc2", PORTS)
    site: dict[str, Any] = {
        **PLACES,
        "kdist_datacenter": "dc2",
        "kdist_address": "198.51.100.13",
        "kdist_bootstrap_servers": "198.51.100.13:9092",
        "kdist_mirror_flow": flow,
        "kdist_mirror_release": "0.1.0",
        "groups": {"broker": ["b1", "b3"], "dc1": ["b1"], "dc2": ["b3"]},
        "hostvars": {"b1": {"kdist_address": "198.51.100.11", "kdist_brokers": [{"port": 9092}]}},
        **yaml.safe_load((ROLE / "defaults/main.yml").read_text()),
        **given,
    }
    text = (ROLE / "templates" / template).read_text()
    # The filter is of the playbooks, which a template alone does not find.
    text = text.replace("hostvars | kdist_bootstrap_servers", "'198.51.100.11:9092' | string or ")
    templar = Templar(loader=DataLoader(), variables=site)
    return str(templar.template(trust_as_template(text)))


def test_a_datacenter_has_the_flows_that_lead_to_it() -> None:
    assert MIRRORS.kdist_mirrors([THERE, BACK], "dc2", PORTS) == [
        {
            "name": "there",
            "source": "dc1",
            "topics": r"flights,ops\\..*",
            "prefix": "dc1.",
            "mirror_port": 9822,
        }
    ]
    (back,) = MIRRORS.kdist_mirrors([THERE, BACK], "dc1", PORTS)
    assert (back["prefix"], back["mirror_port"]) == ("", 9815)


def test_a_flow_keeps_its_port_whatever_flows_come_and_go() -> None:
    new = THERE | {"name": "a-new-one"}
    before = MIRRORS.kdist_mirrors([THERE], "dc2", PORTS)
    _, after = MIRRORS.kdist_mirrors([THERE, new], "dc2", PORTS)
    assert [after] == before


def test_a_flow_can_have_a_port_of_its_own() -> None:
    (own,) = MIRRORS.kdist_mirrors([THERE | {"port": 9999}], "dc2", PORTS)
    assert own["mirror_port"] == 9999


def test_a_flows_file_is_one_that_the_mirror_takes() -> None:
    config = load_mirror(rendered("mirror.properties.j2"), "mirror-there.properties")
    (flow,) = config.flows
    assert (flow.name, flow.settings.prefix, flow.group) == ("there", "dc1.", "kdist-mirror-there")
    assert flow.settings.topics == ("flights", r"ops\..*")
    assert flow.settings.target == "198.51.100.13:9092"
    assert config.mirror.http_address == "198.51.100.13:9822"


def test_more_settings_of_a_flow_come_from_the_inventory() -> None:
    given = {
        "kdist_mirror_config": {"mirror.buffer.bytes": 1 << 27},
        "kdist_mirror_flow_config": {"there": {"start": "latest", "topics.exclude": r"ops\\.test"}},
    }
    config = load_mirror(rendered("mirror.properties.j2", **given), "x")
    assert config.mirror.buffer_bytes == 1 << 27
    assert config.flows[0].settings.start == "latest"
    assert config.flows[0].settings.topics_exclude == (r"ops\.test",)


def test_the_unit_changes_with_the_release_so_that_the_mirror_restarts() -> None:
    unit = rendered("kdist-mirror@.service.j2")
    assert "Environment=KDIST_RELEASE=0.1.0\n" in unit
    assert "mirror run --config /etc/kdist/mirror-%i.properties --log-level INFO\n" in unit
    assert "Type=notify\n" in unit


@pytest.mark.parametrize("host", ["b3", "mon1"])
def test_only_monitors_of_the_datacenter_reach_a_mirrors_metrics(host: str) -> None:
    ports = {"node_exporter": 9100, "prometheus": 9090, "alertmanager": 9193}
    bare: dict[str, Any] = {"kdist_ports": ports, "kdist_brokers": [], "kdist_datacenter": "dc2"}
    hostvars = {
        "b3": {**bare, "kdist_address": "198.51.100.13", "kdist_mirrors": [{"mirror_port": 9393}]},
        "mon1": {**bare, "kdist_address": "198.51.100.14"},
    }
    groups = {
        "all": ["b3", "mon1"],
        "dc2": ["b3", "mon1"],
        "mirror": ["b3"],
        "monitor": ["mon1"],
    }
    rules = FIREWALL.kdist_firewall_rules(hostvars, groups, host, [], [])
    found = {rule["name"]: rule for rule in rules}
    assert ("mirrors' metrics" in found) is (host == "b3")
    if host == "b3":
        assert found["mirrors' metrics"]["ports"] == [9393]
        assert found["mirrors' metrics"]["ipv4"] == ["198.51.100.14"]


@pytest.mark.parametrize("playbook", ["upgrade", "rollback"])
def test_mirrors_follow_the_brokers_to_another_release(playbook: str) -> None:
    text = (ROOT / f"playbooks/{playbook}.yml").read_text()
    assert text.index("import_playbook: roll.yml") < text.index("import_playbook: mirror.yml")


def test_the_playbook_of_the_site_brings_mirrors_before_monitoring() -> None:
    site = Path(ROOT / "playbooks/site.yml").read_text()
    assert site.index("import_playbook: mirror.yml") < site.index("import_playbook: monitoring.yml")
