"""Mirrors: each flow into a datacenter runs on its mirror hosts, hardened, near its target."""

from __future__ import annotations

import json

from tests.deploy.deployed import KDIST, Member
from tests.deploy.listening import listeners


def flows(host: Member) -> list[tuple[str, str, int]]:
    """Name, unit and port of each mirror that the host must run."""
    return [
        (flow["name"], f"kdist-mirror@{flow['name']}.service", flow["mirror_port"])
        for flow in host["kdist_mirrors"]
    ]


def test_each_flow_into_the_datacenter_has_its_mirror(mirror_host: Member) -> None:
    assert flows(mirror_host)
    for _, unit, _ in flows(mirror_host):
        assert mirror_host.shell.service(unit).is_running, unit
        assert mirror_host.shell.service(unit).is_enabled, unit


def test_a_mirror_listens_on_the_private_address_alone(mirror_host: Member) -> None:
    for _, unit, port in flows(mirror_host):
        pid = int(mirror_host.unit(unit, "MainPID")["MainPID"])
        assert listeners(mirror_host, pid) == {(mirror_host["kdist_address"], port)}


def test_a_mirror_may_write_nothing_of_the_hosts(mirror_host: Member) -> None:
    for _, unit, _ in flows(mirror_host):
        shown = mirror_host.unit(unit, "ProtectSystem", "NoNewPrivileges", "User")
        assert shown == {"ProtectSystem": "strict", "NoNewPrivileges": "yes", "User": "kdist"}


def test_a_mirrors_settings_are_the_inventorys_and_for_kdist_alone(mirror_host: Member) -> None:
    for name, _, _ in flows(mirror_host):
        path = f"/etc/kdist/mirror-{name}.properties"
        file = mirror_host.shell.file(path)
        assert (file.user, file.group, file.mode) == ("root", "kdist", 0o640)
        assert mirror_host.works(f"{KDIST} mirror check --config {path}")


def test_a_mirror_says_that_it_is_well(mirror_host: Member) -> None:
    for _, unit, port in flows(mirror_host):
        url = f"http://{mirror_host['kdist_address']}:{port}"
        health = json.loads(mirror_host.says(f"curl -sS --max-time 10 {url}/health"))
        assert health["status"] == "ok", (unit, health)
        assert "kdist_mirror_" in mirror_host.says(f"curl -sS --max-time 10 {url}/metrics"), unit
