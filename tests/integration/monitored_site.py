"""A small site for monitoring to look at: a broker, a mirror to it, an agent, and Prometheus.

What this machine may lack (data disks and their health, a load's file) is on a page beside the
agent's, as exporter, agent and load write it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from kdist.cli.standalone import zookeeper_server
from kdist.client.admin.clients import Admin
from kdist.metrics.agent import DataDiskMetrics, SmartMetrics
from kdist.metrics.declare import Family
from kdist.metrics.exposition import Exposition
from kdist.metrics.load import LoadedTopicMetrics, LoadMetrics, SuccessfulLoadMetrics
from tests.integration.broker_clients import consume, create, produce
from tests.integration.broker_processes import BrokerProcess
from tests.integration.live_prometheus import Prometheus, prometheus, running
from tests.integration.mirror_processes import MirrorProcess, ended, flow
from tests.integration.zookeeper_server import PATIENT_TICK_MS, free_port, zookeeper_host
from tests.unit.deploy.monitoring_files import program

HOST = "127.0.0.1"
TOPIC, CLIENT = "flights", "limited"
RECORDS = 200
DISK = "d01"

_configuration_text = zookeeper_server.configuration_text
# As the node exporter describes them: it shows these beside its own.
_FILESYSTEM = """\
# HELP node_filesystem_avail_bytes Filesystem space available to non-root users in bytes.
# TYPE node_filesystem_avail_bytes gauge
node_filesystem_avail_bytes{device="/dev/sdb1",fstype="xfs",mountpoint="/data/d01"} 4e+11
# HELP node_filesystem_size_bytes Filesystem size in bytes.
# TYPE node_filesystem_size_bytes gauge
node_filesystem_size_bytes{device="/dev/sdb1",fstype="xfs",mountpoint="/data/d01"} 5e+11
# HELP node_filesystem_readonly Filesystem read-only status.
# TYPE node_filesystem_readonly gauge
node_filesystem_readonly{device="/dev/sdb1",fstype="xfs",mountpoint="/data/d01"} 0
"""


class Monitored(NamedTuple):
    """The site, as its monitor and its clients see it."""

    prometheus: Prometheus
    broker: BrokerProcess

    def write(self) -> None:
        """A record, which is flushed at once."""
        produce(self.broker, "own", [b"v"])


class Ports:
    """Where everything listens."""

    def __init__(self) -> None:
        self.broker, self.mirror = free_port(), free_port()
        self.prometheus, self.alertmanager = free_port(), free_port()
        self.node_exporter = free_port()


@contextmanager
def monitored_site(directory: Path) -> Iterator[Monitored]:
    """Everything runs, and has had clients; the Alertmanager alone is down."""
    ports = Ports()
    pages = directory / "pages"
    pages.mkdir()
    with (
        mock.patch.object(zookeeper_server, "configuration_text", _with_mntr),
        zookeeper_host(_made(directory / "zookeeper"), PATIENT_TICK_MS) as host,
    ):
        source = BrokerProcess(1, _made(directory / "dc2"), f"{host.settings.address}/dc2")
        broker = BrokerProcess(
            1,
            _made(directory / "dc1"),
            f"{host.settings.address}/dc1",
            http_address=f"{HOST}:{ports.broker}",
        )
        mirror = _mirror(directory, source, broker, ports)
        try:
            source.start()
            broker.start()
            create(source, TOPIC)
            create(broker, "own", flush_messages="1")
            (pages / "others.prom").write_bytes(_other_page())
            with (
                ended(mirror),
                _agent(directory, broker, host.settings.address, pages),
                running(directory, "node-exporter", *_exporter(ports, pages)),
                prometheus(directory, _site(ports)) as server,
            ):
                mirror.start()
                _use(source, broker)
                yield Monitored(server, broker)
        finally:
            source.end()
            broker.end()


def _with_mntr(settings: zookeeper_server.ServerSettings) -> str:
    """As role kdist_zookeeper lets the agent ask; the last of two lines counts."""
    return f"{_configuration_text(settings)}4lw.commands.whitelist=conf,mntr\n"


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def _site(ports: Ports) -> dict[str, object]:
    """What playbooks know of this host."""
    host = "b1.dc1.example"
    own = {
        "kdist_address": HOST,
        "kdist_datacenter": "dc1",
        "kdist_ports": vars(ports),
        "kdist_rack": "r1",
        "kdist_brokers": [{"instance": DISK, "id": 1, "metrics_port": ports.broker}],
        "kdist_mirrors": [{"name": "dc2-to-dc1", "mirror_port": ports.mirror}],
    }
    groups = ("kdist_members", *(f"kdist_members_{g}" for g in ("broker", "mirror")))
    return {
        **own,
        "inventory_hostname": host,
        "kdist_environment": "test",
        "kdist_monitors": [host],
        "hostvars": {host: own},
        **{group: [host] for group in groups},
    }


def _exporter(ports: Ports, pages: Path) -> tuple[str, ...]:
    address = f"--web.listen-address={HOST}:{ports.node_exporter}"
    directory = f"--collector.textfile.directory={pages}"
    return program("prometheus-node-exporter"), address, directory


def _mirror(
    directory: Path, source: BrokerProcess, broker: BrokerProcess, ports: Ports
) -> MirrorProcess:
    given = flow(source.address, broker.address, "dc2-to-dc1", topics=TOPIC)
    given["mirror.http.address"] = f"{HOST}:{ports.mirror}"
    return MirrorProcess(directory, "mirror", given)


@contextmanager
def _agent(directory: Path, broker: BrokerProcess, zookeeper: str, pages: Path) -> Iterator[None]:
    """The agent of a host that has a ZooKeeper server and a monitor's canary."""
    wanted = _made(directory / "wanted")
    (wanted / f"broker-{DISK}.json").write_text('{"release": "r", "settings": "s", "unit": "u"}')
    settings = {
        "bootstrap.servers": broker.address,
        "agent.interval.ms": 1000,
        "agent.zookeeper": zookeeper,
        "agent.wanted.dir": wanted,
        "agent.not.applied.dir": _refused(directory),
        "agent.metrics.file": pages / "kdist.prom",
        "agent.canary.topic": "kdist.canary",
        "agent.canary.interval.ms": 500,
    }
    file = directory / "agent.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    command = [sys.executable, "-m", "kdist.cli", "agent", "--config", file]
    with running(directory, "agent", *command):
        yield


def _refused(directory: Path) -> Path:
    made = _made(directory / "not_applied")
    (made / "kdist_tuning.json").write_text('["vm.swappiness = 1: Permission denied"]')
    return made


def _other_page() -> bytes:
    disk = Family(DataDiskMetrics, "device", "disk")
    disk["sdb", DISK].info = 1
    health = Family(SmartMetrics, "device", "serial", "disk")
    health["sdb", "Z1", DISK].is_healthy = 1
    job, successful = Family(LoadMetrics, "job_name"), Family(SuccessfulLoadMetrics, "job_name")
    loaded = Family(LoadedTopicMetrics, "job_name", "topic")
    job["nightly",].expected_every_s = 86400
    successful["nightly",].succeeded_s = loaded["nightly", TOPIC].succeeded_s = time.time()
    page = Exposition()
    for family in (disk, health, job, successful, loaded):
        page.add_family(family)
    return page.render() + _FILESYSTEM.encode()


def _use(source: BrokerProcess, broker: BrokerProcess) -> None:
    """What clients do: write to both, read as a group, and use a quota."""
    with Admin(broker.address) as admin:
        admin.alter_client_quotas(CLIENT, {"producer_byte_rate": 1e6})
    values = [b"v" * 100] * RECORDS
    produce(source, TOPIC, values)
    produce(broker, "own", values, **{"client.id": CLIENT})
    consume(broker, "own", RECORDS, "readers")
