"""Each ZooKeeper server: runs hardened, listens where it should, and its ensemble is complete."""

from __future__ import annotations

from tests.deploy.deployed import Cluster, Member
from tests.deploy.listening import listeners
from tests.deploy.zookeepers import UNIT, ask, states


def settings(host: Member) -> dict[str, str]:
    lines = host.says("cat /etc/kdist/zookeeper/zoo.cfg").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_the_server_runs_and_starts_at_boot(zookeeper: Member) -> None:
    assert zookeeper.shell.service(UNIT).is_running
    assert zookeeper.shell.service(UNIT).is_enabled


def test_it_listens_on_the_private_address_alone(zookeeper: Member) -> None:
    pid = zookeeper.unit(UNIT, "MainPID")["MainPID"]
    found = listeners(zookeeper, int(pid))
    assert {address for address, _ in found} == {zookeeper["kdist_address"]}
    assert zookeeper["kdist_ports"]["zookeeper_client"] in {port for _, port in found}


def test_each_server_has_the_identity_of_the_inventory(zookeeper: Member) -> None:
    number = str(zookeeper["kdist_host_number"])
    assert zookeeper.says(f"cat {zookeeper['kdist_zookeeper_data_dir']}/myid") == number


def test_the_ensemble_is_whole(cluster: Cluster) -> None:
    others = len(cluster.zookeepers) - 1
    wanted = ["standalone"] if others == 0 else [*["follower"] * others, "leader"]
    assert sorted(states(cluster).values()) == wanted


def test_the_servers_know_each_other(cluster: Cluster) -> None:
    wanted = {f"server.{host['kdist_host_number']}" for host in cluster.zookeepers}
    for host in cluster.zookeepers:
        assert {name for name in settings(host) if name.startswith("server.")} == wanted


def test_old_snapshots_are_removed(zookeeper: Member) -> None:
    found = settings(zookeeper)
    hours = zookeeper["kdist_zookeeper_purge_hours"]
    assert found["autopurge.purgeInterval"] == str(hours) != "0"


def test_commands_beyond_the_few_are_refused(zookeeper: Member) -> None:
    assert "not in the whitelist" in ask(zookeeper, "stat")
    assert ask(zookeeper, "ruok") == "imok"


def test_the_heap_is_what_the_inventory_says(zookeeper: Member) -> None:
    pid = zookeeper.unit(UNIT, "MainPID")["MainPID"]
    words = zookeeper.says(f"tr '\\0' '\\n' </proc/{pid}/cmdline").splitlines()
    assert f"-Xmx{zookeeper['kdist_zookeeper_heap_mb']}m" in words


def test_the_process_may_write_its_data_alone(zookeeper: Member) -> None:
    shown = zookeeper.unit(UNIT, "ProtectSystem", "NoNewPrivileges", "PrivateTmp", "User")
    assert shown == {
        "ProtectSystem": "strict",
        "NoNewPrivileges": "yes",
        "PrivateTmp": "yes",
        "User": "zookeeper",
    }


def test_it_runs_with_what_is_wanted(zookeeper: Member) -> None:
    pid = zookeeper.unit(UNIT, "MainPID")["MainPID"]
    running = zookeeper.says(f"tr '\\0' '\\n' </proc/{pid}/environ | grep ^KDIST_FINGERPRINT=")
    assert running == zookeeper.says("cat /etc/kdist/zookeeper/wanted/zookeeper.env")
