"""What kdist_monitoring writes, rendered by Ansible: scrape targets and the agent's settings."""

from __future__ import annotations

import configparser
import random
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader  # type: ignore[import-untyped]
from ansible.template import Templar, trust_as_template  # type: ignore[import-untyped]
from deploy_plugins import PLACES, ROOT
from monitoring_files import ROLE, RULE_FILES, as_installed, role_variables

from kdist.agent.wanted import WantedBroker, read_wanted
from kdist.config.agent import load_agent
from kdist.testing.simulated_disk import SimulatedDisk

OWN = role_variables()
PORTS = {
    "zookeeper_client": 2181,
    "prometheus": 9090,
    "alertmanager": 9193,
    "alertmanager_cluster": 9194,
    "node_exporter": 9100,
}


def host(number: int, *disks: str, datacenter: str = "dc1") -> dict[str, Any]:
    ports = {disk: 9291 + int(disk[1:]) for disk in disks}
    return {
        "kdist_address": f"198.51.100.1{number}",
        "kdist_datacenter": datacenter,
        "kdist_rack": f"r{number}",
        "kdist_ports": PORTS,
        "kdist_brokers": [
            {"instance": disk, "id": number * 100 + int(disk[1:]), "metrics_port": port}
            for disk, port in ports.items()
        ],
    }


SITE: dict[str, Any] = {
    **PLACES,
    "inventory_hostname": "b1",
    "group_names": ["broker", "dc1"],
    "kdist_environment": "lab",
    "kdist_datacenter": "dc1",
    "kdist_bootstrap_servers": "198.51.100.11:9092,198.51.100.12:9092",
    "kdist_members": ["b1", "b2", "mon1"],
    "kdist_members_broker": ["b1", "b2"],
    "kdist_members_mirror": ["b2"],
    "kdist_monitors": ["mon1", "mon2"],
    "hostvars": {
        "b1": host(1, "d01", "d02"),
        "b2": host(2, "d01") | {"kdist_mirrors": [{"name": "dc2-to-dc1", "mirror_port": 9392}]},
        "mon1": host(3),
        "mon2": host(4, datacenter="dc2"),
    },
    "kdist_monitoring_release": "0.1.0",
    "kdist_monitoring_asks_disks": False,
    **host(1, "d01", "d02"),
}


def rendered(template: str, **given: object) -> str:
    """A template of the role with its defaults, the site above, and what is given."""
    templar = Templar(loader=DataLoader(), variables=OWN | SITE | given)
    return str(templar.template(trust_as_template((ROLE / "templates" / template).read_text())))


def targets(**given: object) -> dict[str, dict[str, dict[str, str]]]:
    """The labels of each job's targets, by address."""
    config = yaml.safe_load(rendered("prometheus.yml.j2", **given))
    return {
        job["job_name"]: {each["targets"][0]: each["labels"] for each in job["static_configs"]}
        for job in config["scrape_configs"]
    }


def service(**given: object) -> dict[str, list[str]]:
    """The settings of the unit's service, of which some stand twice."""
    text = rendered("kdist-agent.service.j2", **given)
    section = text.partition("[Service]")[2].partition("[Install]")[0]
    pairs = re.findall(r"^(\w+)=(.*)$", section, re.MULTILINE)
    return {name: [value for key, value in pairs if key == name] for name, _ in pairs}


def test_every_broker_is_scraped_with_its_host_and_disk_as_labels() -> None:
    assert targets()["kdist-broker"] == {
        "198.51.100.11:9292": {
            "dc": "dc1",
            "host": "b1",
            "rack": "r1",
            "broker": "101",
            "disk": "d01",
        },
        "198.51.100.11:9293": {
            "dc": "dc1",
            "host": "b1",
            "rack": "r1",
            "broker": "102",
            "disk": "d02",
        },
        "198.51.100.12:9292": {
            "dc": "dc1",
            "host": "b2",
            "rack": "r2",
            "broker": "201",
            "disk": "d01",
        },
    }


def test_every_host_of_the_datacenter_is_scraped() -> None:
    found = targets()["node"]
    assert list(found) == [f"198.51.100.1{n}:9100" for n in (1, 2, 3)]
    assert found["198.51.100.13:9100"] == {"dc": "dc1", "host": "mon1", "rack": "r3"}


def test_the_monitors_of_all_datacenters_are_scraped_each_with_its_own_as_label() -> None:
    found = targets()
    centers = {address: labels["dc"] for address, labels in found["prometheus"].items()}
    assert centers == {"198.51.100.13:9090": "dc1", "198.51.100.14:9090": "dc2"}
    assert list(found["alertmanager"]) == ["198.51.100.13:9193", "198.51.100.14:9193"]


def test_every_mirror_is_scraped_with_its_name_as_label() -> None:
    assert targets()["kdist-mirror"] == {
        "198.51.100.12:9392": {"dc": "dc1", "host": "b2", "rack": "r2", "mirror": "dc2-to-dc1"}
    }


def test_a_datacenter_without_brokers_has_a_valid_configuration() -> None:
    assert targets(kdist_members_broker=[])["kdist-broker"] == {}


def test_alerts_go_to_the_alertmanagers_of_all_datacenters() -> None:
    (manager,) = yaml.safe_load(rendered("prometheus.yml.j2"))["alerting"]["alertmanagers"]
    assert manager["static_configs"][0]["targets"] == ["198.51.100.13:9193", "198.51.100.14:9193"]


def test_two_monitors_of_one_datacenter_send_the_same_alerts() -> None:
    """So that an Alertmanager tells of them once: all that differs is dropped."""
    config = yaml.safe_load(rendered("prometheus.yml.j2"))
    assert config["global"]["external_labels"].keys() == {"environment", "prometheus"}
    assert config["alerting"]["alert_relabel_configs"] == [
        {"action": "labeldrop", "regex": "prometheus"}
    ]


def test_alertmanagers_are_one_cluster_unless_there_is_one_alone() -> None:
    def cluster(**given: object) -> list[str]:
        return re.findall(r"--cluster\.(\S*?)[ \"]", rendered("alertmanager.default.j2", **given))

    mon1 = {"inventory_hostname": "mon1", **host(3)}
    assert cluster(**mon1) == ["listen-address=198.51.100.13:9194", "peer=198.51.100.14:9194"]
    assert cluster(**mon1, kdist_monitors=["mon1"]) == ["listen-address="]


def test_the_labels_that_rules_use_are_the_labels_that_targets_have() -> None:
    found = targets()
    asked = {name for job in found.values() for labels in job.values() for name in labels}
    text = "".join(p.read_text() for p in (ROOT / "monitoring/prometheus/rules").glob("*.yml"))
    of_metrics = {
        "flow",
        "group",
        "client",
        "listener",
        "user",
        "quota",
        "job_name",
        "topic",
        "partition",
        "api",
        "device",
        "instance",
        "master",
        "mountpoint",
        "name",
        "reason",
        "rule_group",
        "release",
        "role",
        "serial",
        "settings",
        "slo",
        "unit",
        "version",
        "le",
        "place",  # made by a rule, of rack or host
    }
    used = set(re.findall(r"\$labels\.(\w+)", text))
    for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", text):
        used |= set(re.split(r", *", group))
    assert used - of_metrics <= asked
    assert set(re.findall(r'job="([\w-]+)"', text)) <= set(found)


def routed(**given: object) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The Alertmanager's routes below the first, and its receivers by name."""
    config = yaml.safe_load(rendered("alertmanager.yml.j2", **given))
    return config["route"]["routes"], {each["name"]: each for each in config["receivers"]}


def test_no_alert_is_sent_until_a_receiver_is_named() -> None:
    config = yaml.safe_load(rendered("alertmanager.yml.j2"))
    assert config["receivers"] == [{"name": "kdist-nobody"}, {"name": "null"}]
    assert config["route"]["receiver"] == "null"


def test_people_are_not_told_of_the_watchdog_by_the_sites_own_routes() -> None:
    own = {"matchers": ['severity="critical"'], "receiver": "people"}
    routes, _ = routed(kdist_monitoring_route={"receiver": "people", "routes": [own]})
    assert routes == [{"matchers": ['alertname="Watchdog"'], "receiver": "kdist-nobody"}, own]


def test_a_sites_own_route_for_the_watchdog_is_used() -> None:
    own = {"matchers": ['alertname="Watchdog"'], "receiver": "switch"}
    routes, _ = routed(kdist_monitoring_route={"receiver": "people", "routes": [own]})
    assert routes == [own]


def test_the_watchdog_of_each_monitor_goes_to_its_own_dead_mans_switch() -> None:
    watched = {
        name: values | {"kdist_monitoring_watchdog_url": f"https://hc.example/{name}"}
        for name, values in SITE["hostvars"].items()
    }
    routes, receivers = routed(hostvars=watched)
    assert [route["receiver"] for route in routes] == [
        "kdist-watchdog-mon1",
        "kdist-watchdog-mon2",
        "kdist-nobody",
    ]
    assert routes[0]["matchers"] == ['alertname="Watchdog"', 'monitor="mon1"']
    # Less than the interval, or every second turn would find that the time is not yet up.
    assert (routes[0]["group_interval"], routes[0]["repeat_interval"]) == ("1m", "50s")
    assert receivers["kdist-watchdog-mon2"]["webhook_configs"] == [
        {"url": "https://hc.example/mon2", "send_resolved": False}
    ]


def test_a_site_adds_settings_of_its_own_to_the_alertmanagers() -> None:
    own = {"source_matchers": ["a=b"], "target_matchers": ["c=d"]}
    more = {"global": {"resolve_timeout": "9m"}, "inhibit_rules": [own], "templates": ["/x/*"]}
    config = yaml.safe_load(rendered("alertmanager.yml.j2", kdist_monitoring_alertmanager=more))
    assert (config["global"], config["templates"]) == (more["global"], more["templates"])
    assert config["inhibit_rules"] == [*OWN["kdist_monitoring_inhibited"], own]
    assert config["receivers"][-1] == {"name": "null"}


def test_inhibiting_rules_name_alerts_that_exist() -> None:
    known = {
        alert for path in RULE_FILES for alert in re.findall(r"alert: (\w+)", path.read_text())
    }
    named = re.findall(r'"([\w|]+)"', str(OWN["kdist_monitoring_inhibited"]))
    assert {each for names in named for each in names.split("|")} - known == set()


def test_of_a_host_that_is_down_nobody_is_told_that_its_brokers_are_and_of_others_one_is() -> None:
    """The rules as an Alertmanager understands them."""
    inhibiting = yaml.safe_load(rendered("alertmanager.yml.j2"))["inhibit_rules"]

    def matches(matchers: list[str], name: str) -> bool:
        names = [re.fullmatch(r'alertname=~?"(.+)"', each) for each in matchers]
        return all(each and re.fullmatch(each[1], name) for each in names)

    def is_told(alert: tuple[str, str, str, str]) -> bool:
        """An alert is its name, dc, host and disk."""
        return not any(
            matches(rule["target_matchers"], alert[0])
            and matches(rule["source_matchers"], other[0])
            and all(other[AT[each]] == alert[AT[each]] for each in rule["equal"])
            for rule in inhibiting
            for other in alerts
        )

    names = ("BrokerDown", "DiskNotMounted", "AgentSilent", "DiskLosesSectors", "HostDown")
    alerts = [(name, "dc1", "b1", "d01") for name in names]
    alerts += [("BrokerDown", "dc1", "b2", "d01"), ("DiskNotMounted", "dc1", "b2", "d01")]
    alerts += [("BrokerDown", "dc2", "b1", "d01"), ("DiskNotMounted", "dc2", "b1", "d02")]
    assert sorted(each for each in alerts if is_told(each)) == [
        ("BrokerDown", "dc1", "b2", "d01"),
        ("BrokerDown", "dc2", "b1", "d01"),
        ("DiskLosesSectors", "dc1", "b1", "d01"),
        ("DiskNotMounted", "dc2", "b1", "d02"),
        ("HostDown", "dc1", "b1", "d01"),
    ]


AT = {"dc": 1, "host": 2, "disk": 3}


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.stem)
def test_an_alert_links_its_runbook_where_whoever_gets_it_finds_it(path: Path) -> None:
    for base in (None, "https://docs.example/runbooks"):
        given = {} if base is None else {"kdist_monitoring_runbooks_url": base}
        installed = yaml.safe_load(as_installed(path, OWN | SITE | given))
        rules = [rule for group in installed["groups"] for rule in group["rules"]]
        for rule in rules:
            if "alert" in rule:
                assert rule["annotations"]["runbook_url"] == (
                    f"{base or 'http://198.51.100.11:9090/consoles/kdist'}/{rule['alert']}.md"
                )


def test_prometheus_serves_the_runbooks_as_they_are() -> None:
    directory = OWN["kdist_monitoring_runbooks_dir"]
    assert directory == "/etc/prometheus/consoles/kdist"
    assert "--web.console.templates=/etc/prometheus/consoles " in rendered("prometheus.default.j2")
    pages = [path.read_text() for path in (ROOT / "docs/runbooks").glob("*.md")]
    assert not any("{{" in page for page in pages)  # which it would fill in


def test_diffs_of_the_alertmanagers_file_are_hidden_as_it_has_passwords() -> None:
    tasks = yaml.safe_load((ROLE / "tasks/server.yml").read_text())
    (task,) = [task for task in tasks if "alertmanager.yml.j2" in str(task)]
    assert task["diff"] is False


def test_monitoring_listens_on_the_hosts_address_and_beside_the_brokers_ports() -> None:
    assert "--web.listen-address=198.51.100.11:9193 " in rendered("alertmanager.default.j2")
    assert "--web.listen-address=198.51.100.11:9090 " in rendered("prometheus.default.j2")
    assert "--web.listen-address=198.51.100.11:9100 " in rendered("node-exporter.default.j2")


def test_the_agents_settings_are_what_the_inventory_says() -> None:
    settings = load_agent(rendered("agent.properties.j2"), "agent.properties")
    assert settings.bootstrap_servers == SITE["kdist_bootstrap_servers"]
    assert (settings.host, settings.datacenter, settings.rack) == ("b1", "dc1", "r1")
    assert settings.topic == "ops.host"
    assert (settings.zookeeper, settings.smartctl) == (None, None)


def test_a_host_that_lacks_a_rack_has_an_agent_too() -> None:
    site = {name: value for name, value in SITE.items() if name != "kdist_rack"}
    templar = Templar(
        loader=DataLoader(),
        variables=OWN | site,
    )
    text = (ROLE / "templates/agent.properties.j2").read_text()
    assert load_agent(str(templar.template(trust_as_template(text))), "x").rack is None


def test_the_agent_of_a_zookeeper_host_asks_its_server() -> None:
    text = rendered("agent.properties.j2", group_names=["zookeeper"])
    assert load_agent(text, "x").zookeeper == "198.51.100.11:2181"


def test_agents_of_monitoring_hosts_are_canaries_unless_they_shall_not() -> None:
    def canary_topic(**given: object) -> str | None:
        return load_agent(rendered("agent.properties.j2", **given), "x").canary_topic

    assert canary_topic() is None
    assert canary_topic(group_names=["monitor"]) == "kdist.canary"
    assert canary_topic(group_names=["monitor"], kdist_monitoring_canary_topic="") is None


def test_settings_of_the_agent_are_passed_through() -> None:
    text = rendered(
        "agent.properties.j2", kdist_monitoring_agent_config={"agent.interval.ms": 2000}
    )
    assert load_agent(text, "x").interval_ms == 2000


def test_the_agent_reaches_devices_only_to_ask_them_for_their_health() -> None:
    bare = service()
    assert bare["PrivateDevices"] == ["yes"]
    assert bare["CapabilityBoundingSet"] == [""]
    asking = service(kdist_monitoring_asks_disks=True)
    assert "PrivateDevices" not in asking
    assert asking["CapabilityBoundingSet"] == ["CAP_SYS_RAWIO"]
    assert asking["DeviceAllow"] == ["block-sd r", "block-blkext r"]
    text = rendered("agent.properties.j2", kdist_monitoring_asks_disks=True)
    assert load_agent(text, "x").smartctl == "/usr/sbin/smartctl"


def test_the_node_exporter_shows_what_the_agent_writes() -> None:
    settings = load_agent(rendered("agent.properties.j2"), "x")
    directory, _, name = str(settings.metrics_file).rpartition("/")
    exporter = "node-exporter.default.j2"
    found = re.search(r"--collector\.textfile\.directory=([^\" ]+)", rendered(exporter))
    assert found is not None
    assert fnmatchcase(directory, found[1])
    assert fnmatchcase("/run/kdist-load", found[1])  # role kdist_spark: what loads write
    assert service()["RuntimeDirectory"] == [directory.removeprefix("/run/")]
    rules = (ROOT / "monitoring/prometheus/rules/hosts.yml").read_text()
    assert f'file=~".*/{name}"' in rules


def test_the_agent_reads_what_brokers_shall_run_where_their_role_writes_it() -> None:
    role = ROOT / "roles/kdist_broker"
    (task,) = [
        each
        for each in yaml.safe_load((role / "tasks/configure.yml").read_text())
        if str(each.get("ansible.builtin.copy", {}).get("dest")).endswith(".json")
    ]
    known = {
        "kdist_release_digest": "r",
        "kdist_broker_unit_digest": "u",
        "kdist_broker_digests": {"d01": "s", "d02": "t"},
        "kdist_broker_instance": {"instance": "d02"},
    }
    made = trust_as_template(
        yaml.safe_load((role / "vars/main.yml").read_text())["kdist_broker_wanted"]
    )
    known["kdist_broker_wanted"] = Templar(loader=DataLoader(), variables=known).template(made)
    templar = Templar(loader=DataLoader(), variables=known)
    content, path = (
        str(templar.template(trust_as_template(task["ansible.builtin.copy"][name])))
        for name in ("content", "dest")
    )
    disk = SimulatedDisk(random.Random(1))
    directory = load_agent(rendered("agent.properties.j2"), "x").wanted_dir
    for each in ("/etc", "/etc/kdist", directory):
        disk.make_directory(each)
    disk.replace(path, content.encode(), durable=False)
    assert read_wanted(disk, directory) == [WantedBroker("d02", "r", "t", "u")]


def test_the_agent_counts_what_was_not_applied_where_roles_list_it() -> None:
    directory = load_agent(rendered("agent.properties.j2"), "x").not_applied_dir
    assert f"- {directory}\n" in (ROOT / "roles/kdist_base/tasks/configure.yml").read_text()


def test_the_unit_runs_the_current_release_hardened() -> None:
    unit = service()
    assert unit["ExecStart"] == [
        "/opt/kdist/current/bin/kdist agent --config /etc/kdist/agent.properties --log-level INFO"
    ]
    assert (unit["User"], unit["ProtectSystem"]) == (["kdist"], ["strict"])
    assert unit["NoNewPrivileges"] == ["yes"]
    assert unit["Environment"] == ["KDIST_RELEASE=0.1.0"]


@pytest.mark.parametrize("template", sorted(p.name for p in (ROLE / "templates").iterdir()))
def test_a_template_says_who_wrote_it(template: str) -> None:
    assert "Written by Ansible, role kdist_monitoring" in rendered(template)


def test_the_unit_is_one_that_systemd_can_parse() -> None:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.read_string(rendered("kdist-agent.service.j2", kdist_monitoring_asks_disks=True))
    assert parser.sections() == ["Unit", "Service", "Install"]


def test_a_host_that_has_left_the_group_runs_neither_prometheus_nor_alertmanager() -> None:
    main = yaml.safe_load((ROLE / "tasks/main.yml").read_text())
    (page,) = [task for task in main if task.get("ansible.builtin.import_tasks") == "leave.yml"]
    assert page["when"] == "'monitor' not in group_names"
    _, keep, stop, remove = yaml.safe_load((ROLE / "tasks/leave.yml").read_text())
    added = ("prometheus", "prometheus-alertmanager", "prometheus-node-exporter", "another")
    files = [{"path": f"/etc/systemd/system/{unit}.service.d/kdist.conf"} for unit in added]
    templar = Templar(
        loader=DataLoader(), variables={"kdist_monitoring_added": {"files": files, "matched": 4}}
    )
    (left,) = keep["ansible.builtin.set_fact"].values()
    assert set(templar.template(trust_as_template(left))) == set(added[:2])
    assert stop["ansible.builtin.systemd_service"]["state"] == "stopped"
    assert remove["ansible.builtin.file"]["state"] == "absent"
