"""What a roll has done so far: what each process runs, and who has the lock."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from tests.deploy.deployed import Broker, Cluster, Member, Site
from tests.deploy.drilling import await_that

OWNER = "a drill"
_SETTLES_S = 120.0


class Running(NamedTuple):
    """A broker by its unit's state and its release: the one that it is to start with, and those
    that its process has mapped and tells of, which are empty while it does not serve.
    """

    state: str
    configured: str
    mapped: str
    told: str

    @property
    def is_settled(self) -> bool:
        """Whether it is down, or serves with what it was started with, and says so."""
        if self.state == "active":
            return self.told == self.mapped == self.configured
        return self.state in ("inactive", "failed")


def running(broker: Broker) -> Running:
    """What the broker runs, as its process's maps and its /health have it."""
    link = broker.host.says(f"readlink /etc/kdist/brokers/{broker.instance}/current/release")
    unit = broker.host.unit(broker.unit, "ActiveState", "MainPID")
    health = broker.health()
    told = f"{health['version']}-{health['release'][:12]}" if health else ""
    process = mapped(broker.host, int(unit["MainPID"]))
    return Running(unit["ActiveState"], link.rpartition("/")[2], process, told)


def mapped(host: Member, pid: int) -> str:
    """The release whose files a process has mapped, as `0.1.0-1a2b3c4d5e6f`; "" of no process."""
    find = f"grep --only-matching --max-count=1 'releases/[^/]*' /proc/{pid}/maps"
    return str(host.shell.run(find).stdout).strip().removeprefix("releases/")


def versions(*clusters: Cluster) -> dict[Broker, str]:
    """The version that each broker's process runs, once all have settled; "" of those that are
    down.
    """
    found: dict[Broker, Running] = {}

    def have_settled() -> bool:
        found.update({b: running(b) for cluster in clusters for b in cluster.brokers})
        return all(each.is_settled for each in found.values())

    await_that(have_settled, "every broker to run what it says, or nothing", _SETTLES_S)
    return {broker: version_of(each.told) for broker, each in found.items()}


def version_of(release: str) -> str:
    """`0.1.0` of `0.1.0-1a2b3c4d5e6f` (pure)."""
    return release.rpartition("-")[0]


def current(site: Site) -> set[str]:
    """The versions of all hosts' own releases, including those of hosts without a broker."""
    links = [host.says("readlink /opt/kdist/current") for host in site.hosts]
    return {version_of(link.removeprefix("releases/")) for link in links}


def of_mirrors(site: Site) -> set[str]:
    """The versions that the mirror processes actually run."""
    return {
        version_of(mapped(host, int(pid)))
        for host in site.group("mirror")
        for flow in host["kdist_mirrors"]
        for pid in host.unit(f"kdist-mirror@{flow['name']}.service", "MainPID").values()
    }


def fingerprints(hosts: Iterable[Member]) -> dict[Member, str]:
    """A digest for each host of the names and times of what kdist's roles write there."""
    find = "find /etc/kdist /etc/systemd /opt/kdist -maxdepth 4 -printf '%p %T@ %l\n'"
    return {host: host.says(f"{find} | sort | sha256sum") for host in hosts}


def holder(cluster: Cluster) -> str | None:
    """The holder of the roll's lock; None if it is free."""
    said = json.loads(cluster.asks("gate", "holder", "--json", *zookeeper_of(cluster)))
    owner: str | None = said["owner"]
    return owner


def unlock(cluster: Cluster) -> None:
    """Abandon a refused roll, so that the next one starts afresh instead of resuming it."""
    cluster.asks("gate", "unlock", "--force", *zookeeper_of(cluster))


def zookeeper_of(cluster: Cluster) -> tuple[str, str]:
    return "--zookeeper", cluster.hosts[0]["kdist_zookeeper_connect"]
