"""Every broker: runs hardened and with its limits, listens where it should, runs what is wanted."""

from __future__ import annotations

import json

from tests.deploy.deployed import KDIST, Broker
from tests.deploy.listening import listeners


def settings(broker: Broker) -> dict[str, str]:
    lines = broker.host.says(f"cat {broker.file}").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_the_broker_runs_and_starts_at_boot(broker: Broker) -> None:
    shown = broker.host.unit(broker.unit, "ActiveState", "Type", "UnitFileState", "NotifyAccess")
    assert (shown["ActiveState"], shown["Type"]) == ("active", "notify")
    assert shown["UnitFileState"] == "enabled"


def test_ids_and_ports_follow_from_host_and_disk(broker: Broker) -> None:
    disk = int(broker.instance.removeprefix("d"))
    assert broker.id == broker.host["kdist_host_number"] * 100 + disk
    assert (broker.port, broker.metrics_port) == (9091 + disk, 9291 + disk)


def test_its_settings_are_the_inventorys(broker: Broker) -> None:
    found = settings(broker)
    assert found["broker.id"] == str(broker.id)
    assert found["broker.rack"] == broker.host["kdist_rack"]
    assert found["log.dir"] == broker.log_dir
    assert found["zookeeper.connect"] == broker.host["kdist_zookeeper_connect"]


def test_it_listens_on_the_private_address_alone(broker: Broker) -> None:
    address = broker.host["kdist_address"]
    wanted = {(address, broker.port), (address, broker.metrics_port)}
    assert listeners(broker.host, broker.pid()) == wanted


def test_it_says_that_it_is_well(broker: Broker) -> None:
    health = broker.health()
    assert (health["status"], health["broker"]) == ("ok", broker.id)
    assert health["version"] == broker.host["kdist_version"]


def test_its_process_runs_with_what_is_wanted(broker: Broker) -> None:
    health, host = broker.health(), broker.host
    wanted = f"/etc/kdist/wanted/broker-{broker.instance}.properties"
    checked = json.loads(host.says(f"{KDIST} config check --json {wanted}"))
    release = f"/etc/kdist/brokers/{broker.instance}/current/release"
    described = json.loads(host.says(f"cat {release}/RELEASE.json"))
    told = json.loads(host.says(f"cat {wanted.removesuffix('.properties')}.json"))
    assert told == {name: health[name] for name in ("release", "settings", "unit")}
    assert health["settings"] == checked["digest"]
    assert health["release"] == described["digest"]
    assert f"KDIST_UNIT={health['unit']}" in host.says(f"systemctl cat {broker.unit}")


def test_its_files_are_root_s_to_write_and_its_own_to_read(broker: Broker) -> None:
    assert broker.host.says(f"stat --dereference -c %U:%G:%a {broker.file}") == "root:kdist:640"
    accepts = f"/opt/kdist/current/bin/kdist config check {broker.file}"
    assert broker.host.works(accepts)


def test_the_process_has_its_limits(broker: Broker) -> None:
    wanted = broker.host["kdist_broker_open_files"]
    most = broker.host.facts["capabilities"]["nofile_max"]
    limits = broker.host.says(f"cat /proc/{broker.pid()}/limits").splitlines()
    (files,) = [line.split() for line in limits if line.startswith("Max open files")]
    assert int(files[3]) == min(wanted, most)
    assert most >= wanted or broker.host.could_not("nofile")
    (core,) = [line.split() for line in limits if line.startswith("Max core file size")]
    assert core[4] == "0"


def test_the_process_may_write_its_disk_alone(broker: Broker) -> None:
    names = ("ProtectSystem", "ReadWritePaths", "NoNewPrivileges", "PrivateTmp", "User")
    assert broker.host.unit(broker.unit, *names) == {
        "ProtectSystem": "strict",
        "ReadWritePaths": broker.mount,
        "NoNewPrivileges": "yes",
        "PrivateTmp": "yes",
        "User": "kdist",
    }
    status = broker.host.says(f"cat /proc/{broker.pid()}/status").splitlines()
    rights = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    assert int(rights["CapEff"], 16) == 0
    assert rights["Seccomp"] == "2"


def test_systemd_finds_it_well_enclosed(broker: Broker) -> None:
    said = broker.host.says(f"systemd-analyze security --no-pager {broker.unit} | tail -n 1")
    exposure = float(said.split(":")[1].split()[0])
    assert exposure < 4.0, said


def test_it_has_said_nothing_of_a_bug(broker: Broker) -> None:
    show = f"journalctl --boot --no-pager --output=cat --unit {broker.unit}"
    assert "Traceback" not in broker.host.says(show)


def test_it_writes_to_no_other_disk(broker: Broker) -> None:
    paths = broker.host.says(f"readlink /proc/{broker.pid()}/fd/*").splitlines()
    files = [path for path in paths if path.startswith("/") and "/dev/" not in path]
    data = [path for path in files if path.startswith("/data/")]
    assert data
    assert [path for path in data if not path.startswith(f"{broker.mount}/")] == []
