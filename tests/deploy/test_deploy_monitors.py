"""Monitoring: exporter and agent on each host, Prometheus and its targets, records of each host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.deployed import ROOT, Cluster, Member, Site
from tests.deploy.drilling import await_that
from tests.deploy.listening import listeners

AGENT, EXPORTER = "kdist-agent.service", "prometheus-node-exporter.service"
SERVERS = {"prometheus": "prometheus.service", "alertmanager": "prometheus-alertmanager.service"}
FIGURES = "/run/kdist-agent/kdist.prom"
FRESH_S = 60


def ask(monitor: Member, path: str) -> Any:
    """The answer of Prometheus to a query of its HTTP API."""
    port = monitor["kdist_ports"]["prometheus"]
    url = f"http://{monitor['kdist_address']}:{port}/api/v1/{path}"
    return json.loads(monitor.says(f"curl -sS --globoff --max-time 10 '{url}'"))["data"]


def monitors(site: Site) -> list[Member]:
    """Of all datacenters."""
    return [host for host in site.hosts if "monitor" in host["group_names"]]


def pid(host: Member, unit: str) -> int:
    return int(host.unit(unit, "MainPID")["MainPID"])


def test_exporter_and_agent_run_and_start_at_boot(host: Member) -> None:
    for unit in (EXPORTER, AGENT):
        assert host.shell.service(unit).is_running, unit
        assert host.shell.service(unit).is_enabled, unit


def test_debians_units_wait_for_the_address_they_listen_on(host: Member) -> None:
    units = [EXPORTER, *(SERVERS.values() if "monitor" in host["group_names"] else ())]
    for unit in units:
        shown = host.unit(unit, "After", "Restart")
        assert "network-online.target" in shown["After"].split(), unit
        assert shown["Restart"] == "on-failure", unit


def test_the_exporter_listens_on_the_private_address_alone(host: Member) -> None:
    port = host["kdist_ports"]["node_exporter"]
    assert listeners(host, pid(host, EXPORTER)) == {(host["kdist_address"], port)}


def test_the_agent_listens_nowhere_and_may_write_nothing_of_the_hosts(host: Member) -> None:
    assert listeners(host, pid(host, AGENT)) == set()
    shown = host.unit(AGENT, "ProtectSystem", "NoNewPrivileges", "User", "RestrictSUIDSGID")
    assert shown == {
        "ProtectSystem": "strict",
        "NoNewPrivileges": "yes",
        "User": "kdist",
        "RestrictSUIDSGID": "yes",
    }


def test_the_exporter_passes_the_agents_figures_on(host: Member) -> None:
    names = set(host.says(f"grep -o '^kdist_[a-z_]*' {FIGURES}").split())
    assert names
    url = f"http://{host['kdist_address']}:{host['kdist_ports']['node_exporter']}/metrics"
    passed_on = set(host.says(f"curl -sS {url} | grep -o '^kdist_[a-z_]*'").split())
    assert names <= passed_on


def test_prometheus_and_alertmanager_run_on_the_private_address(
    site: Site, monitor: Member
) -> None:
    listens = {name: [name] for name in SERVERS}
    if len(monitors(site)) > 1:
        listens["alertmanager"].append("alertmanager_cluster")
    for name, unit in SERVERS.items():
        assert monitor.shell.service(unit).is_enabled, unit
        wanted = {
            (monitor["kdist_address"], monitor["kdist_ports"][port]) for port in listens[name]
        }
        assert listeners(monitor, pid(monitor, unit)) == wanted


def test_the_alertmanagers_of_all_datacenters_are_one_cluster(site: Site, monitor: Member) -> None:
    def members() -> int:
        url = f"http://{monitor['kdist_address']}:{monitor['kdist_ports']['alertmanager']}"
        status = json.loads(monitor.says(f"curl -sS --max-time 10 {url}/api/v2/status"))
        return len(status["cluster"].get("peers", ())) or 1  # one that is alone has no cluster

    await_that(lambda: members() == len(monitors(site)), "the Alertmanagers to find each other")


def test_prometheus_sends_its_alerts_to_the_alertmanagers_of_all_datacenters(
    site: Site, monitor: Member
) -> None:
    wanted = {
        f"http://{each['kdist_address']}:{each['kdist_ports']['alertmanager']}/api/v2/alerts"
        for each in monitors(site)
    }

    def sent_to() -> set[str]:
        return {each["url"] for each in ask(monitor, "alertmanagers")["activeAlertmanagers"]}

    await_that(lambda: sent_to() == wanted, "every Alertmanager to be known")


def test_an_alert_links_a_page_that_the_monitor_serves(monitor: Member) -> None:
    def links() -> dict[str, str]:
        alerts = ask(monitor, "alerts")["alerts"]
        return {a["labels"]["alertname"]: a["annotations"]["runbook_url"] for a in alerts}

    await_that(lambda: "Watchdog" in links(), "the Watchdog to fire")
    assert monitor.says(f"curl -sS --max-time 10 {links()['Watchdog']}").startswith("# Watchdog")


def test_every_broker_and_host_of_the_datacenter_is_a_target_and_up(
    site: Site, monitor: Member
) -> None:
    center = monitor["kdist_datacenter"]
    brokers = {
        f"{b.host['kdist_address']}:{b.metrics_port}"
        for b in site.brokers
        if b.host["kdist_datacenter"] == center
    }
    members = [host for host in site.hosts if host["kdist_datacenter"] == center]
    exporters = {f"{h['kdist_address']}:{h['kdist_ports']['node_exporter']}" for h in members}

    def states() -> dict[str, str]:
        targets = ask(monitor, "targets?state=active")["activeTargets"]
        return {each["labels"]["instance"]: each["health"] for each in targets}

    await_that(lambda: set(states().values()) == {"up"}, "all targets to be up")
    assert brokers | exporters <= set(states())


def test_all_rules_are_loaded_and_can_be_worked_out(monitor: Member) -> None:
    files = sorted(Path(ROOT, "monitoring/prometheus/rules").glob("*.yml"))
    groups = [yaml.safe_load(file.read_text(encoding="utf-8"))["groups"] for file in files]
    wanted = {group["name"] for of_file in groups for group in of_file}

    def found() -> list[dict[str, Any]]:
        return list(ask(monitor, "rules")["groups"])

    assert {group["name"] for group in found()} == wanted != set()

    def healths() -> set[str]:
        return {rule["health"] for group in found() for rule in group["rules"]}

    await_that(lambda: healths() == {"ok"}, "every rule to be worked out")


def test_the_canary_gets_records_through_every_broker(site: Site, monitor: Member) -> None:
    center = monitor["kdist_datacenter"]
    wanted = {str(b.id) for b in site.brokers if b.host["kdist_datacenter"] == center}
    query = "query?query=sum+by+(broker)+(increase(kdist_canary_seconds_count[2m]))+%3E+0"

    def passed() -> set[str]:
        return {each["metric"]["broker"] for each in ask(monitor, query)["result"]}

    await_that(lambda: passed() >= wanted, f"a canary's record through {', '.join(sorted(wanted))}")


def test_dashboards_are_there_for_a_grafana_to_read(monitor: Member) -> None:
    wanted = {file.name for file in Path(ROOT, "monitoring/dashboards").glob("*.json")}
    listed = set(monitor.says(f"ls {monitor['kdist_monitoring_dashboards_dir']}").split())
    assert wanted <= listed
    assert wanted


def test_the_records_of_every_host_arrive_in_its_cluster(site: Site, cluster: Cluster) -> None:
    reader, broker = cluster.hosts[0], cluster.brokers[0]
    topic = reader["kdist_monitoring_topic"]["name"]
    consume = f"timeout 60 kcat -b {broker.address} -C -t {topic} -o -40 -e -q"

    def fresh() -> dict[str, dict[str, Any]]:
        now_s = float(reader.says("date +%s"))
        records = [json.loads(line) for line in reader.says(consume).splitlines()]
        return {r["host"]: r for r in records if r["timestamp_ms"] / 1000 > now_s - FRESH_S}

    members = set(reader["kdist_members"])
    await_that(lambda: set(fresh()) == members, f"records of {', '.join(sorted(members))}")
    for name, record in fresh().items():
        host = site.host(name)
        given = (host["kdist_datacenter"], host["kdist_rack"])
        assert (record["datacenter"], record["rack"]) == given
        assert record["memory"]["total_bytes"] > 0
        assert record["cpu"]["processors"] > 0
