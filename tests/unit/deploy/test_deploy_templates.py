"""What the roles write, rendered by Ansible itself, and whether kdist accepts it."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader  # type: ignore[import-untyped]
from ansible.template import Templar, trust_as_template  # type: ignore[import-untyped]

from kdist.config.faults import ConfigError
from kdist.config.load import load_broker
from kdist.ops.roll_plan import STAYS_DOWN
from tests.unit.deploy.deploy_plays import script
from tests.unit.deploy.deploy_plugins import PLACES, load

ROOT = Path(__file__).parents[3]
ROLES = ("kdist_broker", "kdist_zookeeper")

quorum = load("roles/kdist_zookeeper/files/quorum.py")

SITE: dict[str, Any] = {
    **PLACES,
    "kdist_broker_unit_seal": "a seal",
    "inventory_hostname": "b1",
    "kdist_address": "198.51.100.12",
    "kdist_host_number": 2,
    "kdist_rack": "r1",
    "kdist_cluster_name": "lab-dc1",
    "kdist_zookeeper_connect": "198.51.100.11:2181,198.51.100.12:2181/kdist",
    "kdist_ports": {"zookeeper_client": 2181, "zookeeper_quorum": 2888, "zookeeper_election": 3888},
    "kdist_members_zookeeper": ["zk1", "b1"],
    "hostvars": {
        "zk1": {"kdist_host_number": 1, "kdist_address": "198.51.100.11"},
        "b1": {"kdist_host_number": 2, "kdist_address": "198.51.100.12"},
    },
    "kdist_broker_instance": {
        "instance": "d02",
        "id": 202,
        "port": 9093,
        "metrics_port": 9293,
        "mount": "/data/d02",
        "log_dir": "/data/d02/kdist",
    },
}


def rendered(role: str, template: str, **given: object) -> str:
    """A role's template with its defaults, the site above, and what is given."""
    defaults = yaml.safe_load((ROOT / "roles" / role / "defaults/main.yml").read_text())
    text = (ROOT / "roles" / role / "templates" / template).read_text()
    templar = Templar(loader=DataLoader(), variables=defaults | SITE | given)
    return str(templar.template(trust_as_template(text)))


def unit(text: str) -> dict[str, dict[str, str]]:
    """A unit file's sections; no name stands twice in the ones here."""
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(text)
    return {name: dict(parser[name]) for name in parser.sections()}


def properties(**given: object) -> str:
    return rendered("kdist_broker", "broker.properties.j2", **given)


# A disk that appears


@pytest.mark.parametrize(
    ("is_ours", "status", "enabled", "started"),
    [
        (True, "0", True, ["data-d02.mount", "--no-block kdist-broker@d02.service"]),
        (True, "1", True, ["data-d02.mount", "--no-block kdist-broker@d02.service"]),
        *((True, str(status), True, ["data-d02.mount"]) for status in STAYS_DOWN),
        (True, "0", False, ["data-d02.mount"]),
        (False, "0", True, []),
    ],
)
def test_a_disk_that_appears_is_mounted_and_its_broker_started_if_that_is_wanted(
    tmp_path: Path, is_ours: bool, status: str, enabled: bool, started: list[str]
) -> None:
    service = unit(rendered("kdist_broker", "kdist-revive@.service.j2"))["Service"]
    command = service["ExecStart"].replace("\\\n", "").replace("$$", "$").replace("%i", "d02")
    what = tmp_path if is_ours else tmp_path / "absent"
    script(
        tmp_path / "systemctl",
        f"""case "$*" in
*What*data-d02.mount) echo {what} ;;
*ExecMainStatus*kdist-broker@d02.service) echo {status} ;;
*is-enabled*kdist-broker@d02.service) {"true" if enabled else "false"} ;;
"start "*) shift; echo "$*" ;;
esac
""",
    )
    done = subprocess.run(
        shlex.split(command),
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == started


def test_udev_tells_systemd_when_a_data_disk_appears() -> None:
    broker = {"instance": "d02", "device": "/dev/disk/by-id/one"}
    text = rendered("kdist_tuning", "udev.rules.j2", kdist_brokers=[broker], ansible_managed="x")
    (rule,) = [line for line in text.splitlines() if not line.startswith("#")]
    assert 'SYMLINK=="disk/by-id/one"' in rule
    assert 'TAG+="systemd", ENV{SYSTEMD_WANTS}+="kdist-revive@d02.service"' in rule
    assert (ROOT / "roles/kdist_broker/templates/kdist-revive@.service.j2").exists()


def test_a_disk_that_starts_up_slowly_is_waited_for() -> None:
    """Twelve of a shelf, ten seconds each; with nofail the boot waits for none of them."""
    defaults = yaml.safe_load((ROOT / "roles/kdist_disks/defaults/main.yml").read_text())
    options = defaults["kdist_disks_mount_options"].split(",")
    (waits,) = [each.partition("=")[2] for each in options if "device-timeout" in each]
    assert int(waits.removesuffix("s")) >= 300
    assert "nofail" in options


# The broker


def test_a_brokers_properties_are_what_the_inventory_says() -> None:
    config = load_broker(properties(), "broker-d02.properties")
    assert config.warnings == ()
    assert (config.broker.id, config.broker.rack, config.broker.host) == (202, "r1", "b1")
    assert config.broker.directory == "/data/d02/kdist"
    assert config.broker.listeners == ("PLAINTEXT://198.51.100.12:9093",)
    assert config.broker.http_address == "198.51.100.12:9293"
    assert config.zookeeper.connect == SITE["kdist_zookeeper_connect"]
    assert config.disk.marker == "/data/d02/disk.json"
    assert (config.disk.cluster, config.disk.id) == ("lab-dc1", "d02")


def test_settings_are_passed_through_and_the_most_specific_wins() -> None:
    text = properties(
        kdist_broker_config_defaults={"num.partitions": 3, "auto.create.topics.enable": False},
        kdist_broker_config_group={"num.partitions": 6, "log.retention.ms": 1000},
        kdist_broker_config_host={"log.retention.ms": 2000},
    )
    config = load_broker(text, "x")
    assert config.broker.num_partitions == 6
    assert config.broker.auto_create_topics_enable is False
    assert "log.retention.ms=2000\n" in text


def test_the_order_of_settings_does_not_change_the_file() -> None:
    one = {"num.partitions": 3, "log.retention.ms": 1000}
    other = dict(reversed(one.items()))
    assert properties(kdist_broker_config_host=one) == properties(kdist_broker_config_host=other)


def test_a_setting_that_does_not_exist_is_refused_by_the_check_and_not_by_the_role() -> None:
    with pytest.raises(ConfigError, match=r"num\.partitoins"):
        load_broker(properties(kdist_broker_config_host={"num.partitoins": 3}), "x")


def test_the_role_knows_few_settings_by_name() -> None:
    text = (ROOT / "roles/kdist_broker/templates/broker.properties.j2").read_text()
    known = {line.split("=")[0] for line in text.splitlines() if line[:1].isalpha()}
    assert known == {
        "broker.host",
        "broker.id",
        "broker.rack",
        "disk.cluster",
        "disk.id",
        "disk.marker",
        "http.address",
        "listeners",
        "log.dir",
        "zookeeper.connect",
    }


def test_a_brokers_unit_lets_it_write_to_its_own_disk_alone() -> None:
    service = unit(rendered("kdist_broker", "kdist-broker@.service.j2"))["Service"]
    assert service["ProtectSystem"] == "strict"
    assert service["ReadWritePaths"] == "/data/%i"
    assert service["NoNewPrivileges"] == "yes"
    assert (service["User"], service["CapabilityBoundingSet"]) == ("kdist", "")


def test_systemd_does_not_restart_a_broker_whose_disk_is_gone() -> None:
    from kdist.broker.process import WrongDisk
    from kdist.errors import DiskFailed

    sections = unit(rendered("kdist_broker", "kdist-broker@.service.j2"))
    prevented = {int(status) for status in sections["Service"]["RestartPreventExitStatus"].split()}
    assert prevented == {DiskFailed.EXIT_STATUS, WrongDisk.EXIT_STATUS}
    assert sections["Unit"]["RequiresMountsFor"] == "/data/%i"


def test_no_broker_starts_on_a_disk_that_is_not_tuned() -> None:
    """XFS's values are gone after each mount. What cannot be set keeps no broker from starting."""
    service = unit(rendered("kdist_broker", "kdist-broker@.service.j2"))["Service"]
    program = "/usr/local/sbin/kdist-tune --only %i /etc/kdist/tuning.json"
    assert service["ExecStartPre"] == f"-+{program}"
    installed = (ROOT / "roles/kdist_tuning/tasks/configure.yml").read_text()
    assert "dest: /usr/local/sbin/kdist-tune" in installed


def test_a_broker_survives_the_process_that_compacts_for_it() -> None:
    """When memory ends, the kernel kills that one first; a unit that stops would take it along."""
    service = unit(rendered("kdist_broker", "kdist-broker@.service.j2"))["Service"]
    assert service["OOMPolicy"] == "continue"


def test_no_unit_asks_for_what_the_disks_scheduler_does_not_give() -> None:
    """Weights need bfq or io.cost; the role for tuning sets mq-deadline."""
    units = [*ROOT.glob("roles/*/templates/*.service.j2")]
    assert [path.name for path in units if "IOWeight" in path.read_text()] == []


def test_a_brokers_unit_has_the_variables_of_the_role() -> None:
    text = rendered(
        "kdist_broker",
        "kdist-broker@.service.j2",
        kdist_broker_open_files=1000,
        kdist_broker_watchdog_s=7,
        kdist_broker_stop_timeout_s=8,
        kdist_broker_oom_score=-9,
        kdist_broker_log_level="DEBUG",
    )
    service = unit(text)["Service"]
    assert service["LimitNOFILE"] == "1000"
    assert (service["WatchdogSec"], service["TimeoutStopSec"]) == ("7", "8")
    assert service["OOMScoreAdjust"] == "-9"
    # The release and the settings are its own: neither follows what other brokers of the host run.
    own = "/etc/kdist/brokers/%i/current"
    settings = f"--config {own}/broker.properties"
    assert service["ExecStart"] == f"{own}/release/bin/kdist broker {settings} --log-level DEBUG"
    # Whether ZooKeeper answers or not, the unit restarts.
    assert service["ExecStopPost"] == f"-{own}/release/bin/kdist end-session {settings}"
    assert service["Environment"] == "KDIST_UNIT=a seal"
    assert "EnvironmentFile" not in service


# ZooKeeper


def zoo_cfg(**given: object) -> dict[str, str]:
    lines = rendered("kdist_zookeeper", "zoo.cfg.j2", **given).splitlines()
    pairs = [line.partition("=")[::2] for line in lines if line and line[0] != "#"]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def test_every_server_of_the_ensemble_is_in_zoo_cfg_by_its_number() -> None:
    config = zoo_cfg()
    assert config["server.1"] == "198.51.100.11:2888:3888"
    assert config["server.2"] == "198.51.100.12:2888:3888"
    assert (config["clientPort"], config["clientPortAddress"]) == ("2181", "198.51.100.12")


def test_old_snapshots_are_purged_and_few_commands_answered() -> None:
    config = zoo_cfg()
    assert int(config["autopurge.purgeInterval"]) > 0
    assert config["4lw.commands.whitelist"] == "srvr,ruok,mntr,conf,isro"
    assert config["admin.enableServer"] == "false"


def test_the_transaction_log_has_a_place_of_its_own_where_it_has_a_device() -> None:
    assert "dataLogDir" not in zoo_cfg()
    device = "/dev/disk/by-id/nvme-txlog"
    assert zoo_cfg(kdist_zookeeper_log_device=device)["dataLogDir"] == "/var/lib/zookeeper-log"
    service = unit(
        rendered("kdist_zookeeper", "kdist-zookeeper.service.j2", kdist_zookeeper_log_device=device)
    )
    assert service["Service"]["ReadWritePaths"] == "/var/lib/zookeeper /var/lib/zookeeper-log"
    assert service["Unit"]["RequiresMountsFor"] == "/var/lib/zookeeper /var/lib/zookeeper-log"


def test_zookeepers_unit_treats_javas_exit_status_after_a_stop_as_success() -> None:
    service = unit(rendered("kdist_zookeeper", "kdist-zookeeper.service.j2"))["Service"]
    assert service["SuccessExitStatus"] == "143"
    assert "-Xmx512m" in service["ExecStart"]
    assert service["ExecStart"].endswith("QuorumPeerMain /etc/kdist/zookeeper/zoo.cfg")


# The ensemble's gate


def figures(state: str, **more: str) -> dict[str, str]:
    return {"zk_server_state": state} | more


def test_an_ensemble_is_whole_with_one_leader_that_all_follow() -> None:
    leader = figures("leader", zk_synced_followers="2")
    follower = figures("follower")
    assert quorum.review({"a": follower, "b": leader, "c": follower}) == []
    assert quorum.review({"a": figures("standalone")}) == []


def test_a_server_that_is_down_or_behind_is_named() -> None:
    leader = figures("leader", zk_synced_followers="1")
    assert quorum.review({"a": {}, "b": leader, "c": figures("follower")}) == [
        "a does not serve",
        "1 followers of 2 follow",
    ]
    assert quorum.review({"a": {}}) == ["a does not serve"]
    assert quorum.review({"a": figures("follower"), "b": figures("follower")}) == ["0 servers lead"]


def test_a_standalone_server_beside_a_majority_is_named() -> None:
    leader = figures("leader", zk_synced_followers="1")
    beside = {"a": figures("standalone"), "b": leader, "c": figures("follower")}
    assert quorum.review(beside) == ["a stands alone", "1 followers of 2 follow"]


def test_servers_are_polled_concurrently_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A host that is off takes seconds to say nothing: in turn they would add up."""
    together = threading.Barrier(3, timeout=10)
    asked: list[str] = []
    pauses: list[float] = []

    def ask(address: str) -> str:
        together.wait()
        asked.append(address)
        state = {"a": "leader", "b": "follower"}.get(address, "follower" if pauses else "")
        followers = f"zk_synced_followers\t{1 + len(pauses)}\n" if state == "leader" else ""
        return f"zk_server_state\t{state}\n{followers}" if state else ""

    monkeypatch.setattr(quorum, "ask", ask)
    monkeypatch.setattr(quorum.time, "sleep", pauses.append)
    assert quorum.main("60", "a", "b", "c") == 0
    assert (len(asked), len(pauses)) == (6, 1)
    pauses.clear()
    assert quorum.main("0", "a", "b", "c") == 1
    assert pauses == []
    assert [json.loads(line)["faults"] for line in capsys.readouterr().out.splitlines()] == [
        [],
        ["c does not serve", "1 followers of 2 follow"],
    ]


def test_a_server_that_does_not_serve_yet_has_no_statistics() -> None:
    assert quorum.parse("This ZooKeeper instance is not currently serving requests\n") == {}
    assert quorum.parse("zk_version\t3.8\nzk_server_state\tleader\n")["zk_server_state"] == "leader"


# The release


def test_a_release_is_described_by_its_wheels(tmp_path: Path) -> None:
    describe = load("tools/describe_release.py").describe
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/kdist-0.1.0+drill-cp311-cp311-linux_x86_64.whl").write_bytes(b"a")
    (tmp_path / "wheels/crc32c-2.9.post0-cp311-cp311-manylinux1_x86_64.whl").write_bytes(b"b")
    describe(tmp_path, "0.1.0+drill", "abc")
    lines = (tmp_path / "requirements.txt").read_text().splitlines()
    assert [line.split(" --hash=sha256:")[0] for line in lines] == [
        "crc32c==2.9.post0",
        "kdist==0.1.0+drill",
    ]
    first = json.loads((tmp_path / "RELEASE.json").read_text())
    (tmp_path / "wheels/crc32c-2.9.post0-cp311-cp311-manylinux1_x86_64.whl").write_bytes(b"c")
    describe(tmp_path, "0.1.0+drill", "abc")
    second = json.loads((tmp_path / "RELEASE.json").read_text())
    assert first["version"] == second["version"] == "0.1.0+drill"
    assert first["digest"] != second["digest"]
