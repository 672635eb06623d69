"""Each cluster as a whole: registrations, the controller, and that every broker serves records."""

from __future__ import annotations

import json
from typing import Any

from tests.deploy.client import Replicas, crowded, out_of_sync
from tests.deploy.deployed import KDIST, Broker, Cluster, Member, Site
from tests.deploy.drilling import await_that

TOPIC = "deploy-test"


def gate(cluster: Cluster) -> dict[str, Any]:
    """The report that gates a roll: brokers, controller, and problems."""
    ids = ",".join(str(broker.id) for broker in cluster.brokers)
    first = cluster.brokers[0]
    command = ["gate", "--json", "--allow-single-replica", "--config", first.file, "--expect", ids]
    answer: dict[str, Any] = json.loads(cluster.asks(*command))
    return answer


def kcat(host: Member, broker: Broker, *arguments: str) -> str:
    """The output of kcat, run on a host with this broker as its only bootstrap server."""
    return host.says(f"timeout 60 kcat -b {broker.address} -X log_level=3 {' '.join(arguments)}")


def metadata(host: Member, broker: Broker) -> dict[str, Any]:
    """The cluster as a foreign client sees it."""
    found: dict[str, Any] = json.loads(kcat(host, broker, "-L", "-J"))
    return found


def elsewhere(site: Site, broker: Broker) -> Member:
    """A host of the inventory that is not the broker's own."""
    return next(host for host in site.hosts if host is not broker.host)


def test_the_brokers_registered_are_those_of_the_inventory(cluster: Cluster) -> None:
    assert gate(cluster)["brokers"] == sorted(broker.id for broker in cluster.brokers)


def test_nothing_is_amiss(cluster: Cluster) -> None:
    assert gate(cluster)["reasons"] == []


def test_each_datacenter_has_one_controller(cluster: Cluster) -> None:
    leading = [broker.id for broker in cluster.brokers if broker.health()["controller"]]
    assert leading == [gate(cluster)["controller"]]


def test_clients_are_told_of_every_broker_and_of_no_other(site: Site, cluster: Cluster) -> None:
    wanted = {broker.id: broker.address for broker in cluster.brokers}
    for broker in cluster.brokers:
        found = metadata(elsewhere(site, broker), broker)["brokers"]
        assert {each["id"]: each["name"] for each in found} == wanted


def test_every_broker_takes_and_gives_records_to_other_hosts(site: Site, cluster: Cluster) -> None:
    count = len(cluster.brokers)
    create = ["topics", "create", TOPIC, "--partitions", str(count), "--broker", cluster.bootstrap]
    cluster.asks(*create)
    try:
        first = cluster.brokers[0]
        topics = metadata(elsewhere(site, first), first)["topics"]
        (topic,) = [each for each in topics if each["topic"] == TOPIC]
        led = {each["leader"]: each["partition"] for each in topic["partitions"]}
        assert sorted(led) == sorted(broker.id for broker in cluster.brokers)
        for broker in cluster.brokers:
            host, place = elsewhere(site, broker), f"-t {TOPIC} -p {led[broker.id]}"
            word = f"through {broker.id}"
            host.says(f"echo {word} | timeout 60 kcat -b {broker.address} -P {place} -X acks=all")
            assert kcat(host, broker, "-C", place, "-o beginning -e -q") == word
    finally:
        cluster.remove(TOPIC)


def replicas(cluster: Cluster) -> list[Replicas]:
    """Of all partitions, as a foreign client on one of the hosts sees them."""
    first = cluster.brokers[0]
    return [
        Replicas(
            f"{topic['topic']}-{each['partition']}",
            each["leader"],
            ids(each["replicas"]),
            ids(each["isrs"]),
        )
        for topic in metadata(first.host, first)["topics"]
        for each in topic["partitions"]
    ]


def ids(listed: list[dict[str, int]]) -> frozenset[int]:
    return frozenset(each["id"] for each in listed)


def test_all_replicas_are_in_sync_and_spread_over_the_racks(cluster: Cluster) -> None:
    host = cluster.hosts[0]
    # Whoever asks for a group has a coordinator found, and with that the topic of offsets made.
    host.shell.run(f"{KDIST} groups describe {TOPIC} --broker {cluster.bootstrap}")
    await_that(lambda: out_of_sync(replicas(cluster)) == [], "all replicas to be in sync")
    found = replicas(cluster)
    assert any(each.partition.startswith("__consumer_offsets-") for each in found)
    racks = {broker.id: broker.host["kdist_rack"] for broker in cluster.brokers}
    assert list(crowded(found, racks)) == []


def test_what_the_inventory_asks_for_has_the_replicas_of_the_inventory(cluster: Cluster) -> None:
    given = cluster.hosts[0].given
    settings = given["kdist_broker_config_defaults"] | given["kdist_broker_config_group"]
    factor = int(settings.get("default.replication.factor", 1))
    wanted = {
        topic["name"]: topic.get("replication_factor", factor)
        for topic in given["kdist_topics_wanted"]
        if topic.get("state", "present") == "present"
    }
    counts = {each.partition.rpartition("-")[0]: len(each.assigned) for each in replicas(cluster)}
    assert {name: counts[name] for name in wanted} == wanted


def test_a_client_of_one_datacenter_reaches_the_brokers_of_the_other(site: Site) -> None:
    for broker in site.brokers:
        others = [h for h in site.hosts if h["kdist_datacenter"] != broker.host["kdist_datacenter"]]
        for host in others[:1]:
            assert host.works(f"nc -z -w 5 {broker.host['kdist_address']} {broker.port}")
