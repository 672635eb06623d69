"""The packet filter on every host: loaded at boot, and each port open only to those who need it."""

from __future__ import annotations

import socket

from tests.deploy.deployed import Broker, Member, Site


def reaches(host: Member, other: Member, port: int) -> bool:
    """Whether one host can connect to a port of another."""
    return host.works(f"nc -z -w 2 {other['kdist_address']} {port}")


def is_reached_from_here(other: Member, port: int) -> bool:
    """Whether this machine, which the inventory does not have, can connect to a port of a host."""
    try:
        socket.create_connection((other["kdist_address"], port), timeout=2).close()
    except OSError:
        return False
    return True


def of_other_datacenters(site: Site, host: Member) -> list[Member]:
    center = host["kdist_datacenter"]
    return [other for other in site.hosts if other["kdist_datacenter"] != center]


def test_the_rules_are_loaded_and_come_back_at_boot(host: Member) -> None:
    assert host.shell.service("kdist-firewall").is_enabled == host["kdist_firewall_enabled"]
    assert host.works("nft list table inet kdist") == host["kdist_firewall_enabled"]


def test_the_rules_loaded_are_the_rules_written(host: Member) -> None:
    written = host.says("grep --count 'counter drop' /etc/kdist/firewall.nft")
    assert host.says("nft list table inet kdist | grep --count 'drop$'") == written


def test_brokers_are_open_to_clients_of_every_host(site: Site, broker: Broker) -> None:
    assert not broker.host["kdist_firewall_clients"]
    assert all(reaches(host, broker.host, broker.port) for host in site.hosts)


def test_a_brokers_metrics_are_for_its_own_datacenters_monitor(site: Site, broker: Broker) -> None:
    center = broker.host["kdist_datacenter"]
    monitors = [host for host in site.group("monitor") if host["kdist_datacenter"] == center]
    assert all(reaches(host, broker.host, broker.metrics_port) for host in monitors)
    strangers = of_other_datacenters(site, broker.host)
    assert not any(reaches(host, broker.host, broker.metrics_port) for host in strangers)


def test_a_machine_that_is_not_of_the_site_reaches_only_what_clients_need(broker: Broker) -> None:
    assert not broker.host["kdist_firewall_admins"]
    assert is_reached_from_here(broker.host, broker.port)
    assert not is_reached_from_here(broker.host, broker.metrics_port)


def test_zookeeper_is_for_its_own_cluster(site: Site, zookeeper: Member) -> None:
    port = zookeeper["kdist_ports"]["zookeeper_client"]
    members = zookeeper["kdist_members"]
    assert all(reaches(site.host(name), zookeeper, port) for name in members)
    strangers = of_other_datacenters(site, zookeeper)
    assert not any(reaches(host, zookeeper, port) for host in strangers)
    assert not is_reached_from_here(zookeeper, port)
