"""What the firewall lets in, what preflight says of a host, and how kernel values are set."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from ansible.parsing.dataloader import DataLoader  # type: ignore[import-untyped]
from ansible.template import Templar, trust_as_template  # type: ignore[import-untyped]
from deploy_plugins import ROOT, load

firewall = load("roles/kdist_firewall/filter_plugins/kdist_firewall.py")
report = load("roles/kdist_preflight/module_utils/kdist_report.py")
TUNE = runpy.run_path(str(ROOT / "roles/kdist_tuning/files/kdist-tune"))

PORTS = {
    "ssh": 22,
    "zookeeper_client": 2181,
    "zookeeper_quorum": 2888,
    "zookeeper_election": 3888,
    "prometheus": 9090,
    "node_exporter": 9100,
    "alertmanager": 9193,
    "alertmanager_cluster": 9194,
}
BROKER = {"port": 9092, "metrics_port": 9292}
GROUPS = {
    "all": ["k1", "k2", "k3", "far"],
    "dc1": ["k1", "k2", "k3"],
    "dc2": ["far"],
    "zookeeper": ["k1", "k2", "far"],
    "broker": ["k2", "far"],
    "monitor": ["k3", "far"],
}


def around() -> dict[str, dict[str, Any]]:
    return {
        host: {
            "kdist_address": f"198.18.0.{number}",
            "kdist_datacenter": "dc2" if host == "far" else "dc1",
            "kdist_ports": PORTS,
            "kdist_brokers": [BROKER] if host in GROUPS["broker"] else [],
        }
        for number, host in enumerate(GROUPS["all"], 1)
    }


def rules(host: str, clients: tuple[str, ...] = (), admins: tuple[str, ...] = ()) -> dict[str, Any]:
    found = firewall.kdist_firewall_rules(around(), GROUPS, host, list(clients), list(admins))
    return {rule["name"]: rule for rule in found}


def reached_by(rule: dict[str, Any]) -> list[str]:
    return ["anyone"] if rule["anyone"] else [*rule["ipv4"], *rule["ipv6"]]


def test_a_host_filters_what_its_groups_listen_on() -> None:
    ports = {name: rule["ports"] for name, rule in rules("k2").items()}
    assert ports == {
        "ZooKeeper for its cluster": [2181],
        "ZooKeeper's ensemble": [2888, 3888],
        "brokers": [9092],
        "brokers' metrics": [9292],
        "node exporter": [9100],
    }
    assert set(rules("k3")) == {"node exporter", "monitoring", "Alertmanagers' cluster"}


def test_ssh_is_in_no_rule() -> None:
    assert all(22 not in rule["ports"] for host in GROUPS["all"] for rule in rules(host).values())


def test_zookeeper_is_reached_by_its_own_datacenter_alone() -> None:
    found = rules("k1")
    mine = ["198.18.0.1", "198.18.0.2/31"]
    assert reached_by(found["ZooKeeper for its cluster"]) == mine
    assert reached_by(found["ZooKeeper's ensemble"]) == ["198.18.0.1", "198.18.0.2"]


def test_metrics_are_reached_by_the_monitors_and_the_admins() -> None:
    assert reached_by(rules("k2")["brokers' metrics"]) == ["198.18.0.3"]
    found = rules("k2", admins=("203.0.113.9", "2001:db8::/64"))["brokers' metrics"]
    assert reached_by(found) == ["198.18.0.3", "203.0.113.9", "2001:db8::/64"]


def test_monitors_of_all_datacenters_reach_each_other() -> None:
    found = rules("k3")
    for name, ports in (("monitoring", [9090, 9193]), ("Alertmanagers' cluster", [9194])):
        assert found[name]["ports"] == ports
        assert reached_by(found[name]) == ["198.18.0.3", "198.18.0.4"]


def test_alertmanagers_gossip_is_filtered_by_udp_too() -> None:
    """Without that anybody could silence alerts: the gossip is not signed."""
    found = rules("k3")
    environment = jinja2.Environment(trim_blocks=True, autoescape=False)
    template = environment.from_string(
        (ROOT / "roles/kdist_firewall/templates/firewall.nft.j2").read_text()
    )
    former = {"name": "former", "ports": [1], "anyone": True}
    text = template.render(
        kdist_ports={"ssh": 22}, kdist_firewall_kept={"rules": [*found.values(), former]}
    )
    dropped = [line.strip() for line in text.splitlines() if line.endswith("drop")]
    assert dropped == [
        "tcp dport { 9100 } counter drop",
        "tcp dport { 9090, 9193 } counter drop",
        "meta l4proto { tcp, udp } th dport { 9194 } counter drop",
    ]
    assert "        tcp dport { 1 } accept\n" in text


def test_loading_the_rules_records_which_they_are() -> None:
    """So the role need not be told that they changed: a run that failed later cannot forget it."""
    role = ROOT / "roles/kdist_firewall"
    unit = (role / "templates/kdist-firewall.service.j2").read_text()
    rules, copy = "/etc/kdist/firewall.nft", "/run/kdist.firewall.nft"
    for key in ("ExecStart", "ExecReload"):
        commands = [line for line in unit.splitlines() if line.startswith(f"{key}=")]
        assert commands == [
            f"{key}=/usr/sbin/nft --file {rules}",
            f"{key}=/usr/bin/cp {rules} {copy}",
        ]
    tasks = (role / "tasks/service.yml").read_text()
    assert f"cmp {rules} {copy}" in tasks
    assert "notify" not in tasks + (role / "tasks/configure.yml").read_text()


@pytest.mark.parametrize(
    ("unit", "is_left_alone"),
    [
        ("kdist-broker@d01.service", True),
        ("kdist-zookeeper.service", True),
        ("kdist-load@nightly.service", True),
        ("kdist-agent.service", False),
        ("prometheus.service", False),
    ],
)
def test_an_upgrade_of_libraries_restarts_no_broker(unit: str, is_left_alone: bool) -> None:
    text = (ROOT / "roles/kdist_base/files/needrestart.conf").read_text()
    (pattern,) = re.findall(r"^\$nrconf\{override_rc\}->\{qr\((.*)\)\} = 0;$", text, re.MULTILINE)
    assert bool(re.search(pattern, unit)) is is_left_alone


def test_brokers_are_reached_by_anyone_until_clients_are_named() -> None:
    assert reached_by(rules("k2")["brokers"]) == ["anyone"]
    named = reached_by(rules("k2", clients=("198.18.0.0/24", "10.0.0.0/8"))["brokers"])
    assert named == ["10.0.0.0/8", "198.18.0.0/24"]


# Hosts that have left


def kept(host: str, gone: str, *sockets: str) -> dict[str, Any]:
    """A host's rules after a run without the host `gone`, with these lines of `ss`."""
    old, new = around(), {name: values for name, values in around().items() if name != gone}
    groups = {name: [each for each in hosts if each != gone] for name, hosts in GROUPS.items()}
    former = {
        "rules": firewall.kdist_firewall_rules(old, GROUPS, host, [], []),
        "hosts": {name: values["kdist_address"] for name, values in old.items()},
    }
    found = firewall.kdist_firewall_rules(new, groups, host, [], [])
    addresses = {name: values["kdist_address"] for name, values in new.items()}
    return dict(firewall.kdist_firewall_kept(found, addresses, former, sockets))


ZOOKEEPER = "LISTEN 0 50 [::ffff:198.18.0.1]:2181 *:*"
CONNECTED = "ESTAB 0 0 [::ffff:198.18.0.1]:2181 [::ffff:198.18.0.2]:40312"


def test_a_host_that_left_is_let_in_and_told_of_while_its_services_go_on() -> None:
    found = kept("k1", "k2", ZOOKEEPER, CONNECTED)
    by_name = {rule["name"]: rule for rule in found["rules"]}
    assert "198.18.0.2" in by_name["ZooKeeper for its cluster"]["ipv4"]
    assert "198.18.0.2" not in by_name["ZooKeeper's ensemble"]["ipv4"]
    (notice,) = found["notices"]
    assert notice.startswith("k2 (198.18.0.2) has left the inventory, and its services go on")
    assert found["hosts"]["k2"] == "198.18.0.2"  # so the next run still knows it


def test_a_host_that_left_and_is_silent_is_forgotten() -> None:
    found = kept("k1", "k2", ZOOKEEPER)
    assert found["notices"] == []
    assert "k2" not in found["hosts"]
    assert all("198.18.0.2" not in rule["ipv4"] for rule in found["rules"])


def test_a_port_that_is_still_listened_on_stays_filtered() -> None:
    """After its host has left the group: without a rule it would be open to everybody."""
    former = {"rules": firewall.kdist_firewall_rules(around(), GROUPS, "k2", [], []), "hosts": {}}
    groups = GROUPS | {"zookeeper": ["k1", "far"]}
    rules = firewall.kdist_firewall_rules(around(), groups, "k2", [], [])
    sockets = ["LISTEN 0 50 198.18.0.2:2181 0.0.0.0:*"]
    found = firewall.kdist_firewall_kept(rules, {}, former, sockets)
    last = found["rules"][-1]
    assert (last["name"], last["ports"]) == ("ZooKeeper for its cluster", [2181])
    assert "something listens on port 2181" in found["notices"][0]
    silent = firewall.kdist_firewall_kept(rules, {}, former, [])
    assert [rule["name"] for rule in silent["rules"]] == [rule["name"] for rule in rules]


FOUND: dict[str, Any] = {
    "user": "root",
    "os": "debian 12",
    "kernel": "6.1.0-28-amd64",
    "python": "3.11.2",
    "memory_mb": 4096,
    "address": ("198.51.100.12", True),
    "synchronised": True,
    "clock": True,
    "sysctl": True,
    "sysfs": True,
    "immutable": True,
    "nofile_max": 1048576,
    "disks": [{"id": "d01", "device": "/dev/disk/by-id/one", "bytes": 8 * 10**12}],
    "ports": {9092: ("broker d01", ""), 9100: ("node_exporter", "prometheus-node-exporter")},
}
WANTED = {
    "os": ["debian"],
    "kernel": "5.10",
    "python": "3.11",
    "memory_mb": 2048,
    "nofile": 100000,
    "units": ["kdist-", "prometheus"],
}


def verdicts(**found: Any) -> dict[str, str]:
    """What is not ok about a host."""
    judged = {row.subject: row.verdict for row in report.rows(FOUND | found, WANTED)}
    return {subject: verdict for subject, verdict in judged.items() if verdict != report.OK}


def test_a_host_as_wanted_is_ok_in_every_row() -> None:
    assert verdicts() == {}


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        # Nobody but root is shown who listens on a port: nothing is said of the ports then.
        ({"user": "deploy", "ports": {9092: ("d01", "something unknown")}}, {"user": "refused"}),
        ({"os": "gentoo"}, {"system": "refused"}),
        ({"kernel": "5.4.0"}, {"kernel": "refused"}),
        ({"python": "3.9.2"}, {"python": "refused"}),
        ({"memory_mb": 1024}, {"memory": "mind"}),
        ({"address": ("198.51.100.21", False)}, {"address 198.51.100.21": "refused"}),
        ({"synchronised": False}, {"time": "mind"}),
        ({"clock": False, "sysctl": False}, {"clock": "mind", "kernel values": "mind"}),
        ({"nofile_max": 20000}, {"open files": "mind"}),
        (
            {"disks": [{"id": "d01", "device": "x", "bytes": 0}]},
            {"disk d01 (x)": "mind"},
        ),
        ({"ports": {9092: ("broker d01", "nginx")}}, {"port 9092 (broker d01)": "refused"}),
        ({"ports": {9092: ("broker d01", "kdist-broker@d01")}}, {}),
    ],
)
def test_a_deviation_is_a_warning_or_refused(
    found: dict[str, Any], verdict: dict[str, str]
) -> None:
    assert verdicts(**found) == verdict


def test_a_kernel_of_two_digits_is_newer_than_one_of_one() -> None:
    assert report.numbers("5.10") > report.numbers("5.9.1")


def test_the_table_has_equal_columns() -> None:
    lines = report.table([report.Row("a", "bb", "c", "ok"), report.Row("aaa", "b", "c", "ok")])
    assert lines[1:] == ["a    bb     c       ok", "aaa  b      c       ok"]


def test_a_value_is_written_once(tmp_path: Path) -> None:
    file = tmp_path / "swappiness"
    file.write_text("60\n")
    for changed in (["swappiness = 1"], []):
        tuner = TUNE["Tuner"](check=False)
        tuner.set("swappiness", file, 1)
        assert (tuner.changed, tuner.not_applied) == (changed, [])
    assert file.read_text() == "1\n"


def test_check_mode_says_what_it_would_write(tmp_path: Path) -> None:
    file = tmp_path / "scheduler"
    file.write_text("none [bfq] mq-deadline\n")
    tuner = TUNE["Tuner"](check=True)
    tuner.set("scheduler", file, "mq-deadline")
    assert tuner.changed == ["scheduler = mq-deadline"]
    assert file.read_text() == "none [bfq] mq-deadline\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [("[none] bfq\n", "none"), ("4096\t131072\t6291456\n", "4096 131072 6291456"), ("1\n", "1")],
)
def test_kernel_files_say_their_value_in_several_ways(text: str, said: str) -> None:
    assert TUNE["chosen"](text) == said


def test_a_value_that_the_kernel_lacks_is_noted(tmp_path: Path) -> None:
    tuner = TUNE["Tuner"](check=False)
    tuner.set("new", tmp_path / "new", 1)
    assert tuner.not_applied == ["new = 1: No such file or directory"]


def test_a_disk_that_is_absent_has_no_values_to_set() -> None:
    assert (
        list(TUNE["targets"]({"device": "/dev/disk/by-id/none", "mount": "/none", "queue": {}}))
        == []
    )


def disk(mount: Path) -> dict[str, Any]:
    return {
        "instance": mount.name,
        "device": "/dev/disk/by-id/gone",
        "mount": str(mount),
        "queue": {"read_ahead_kb": 4096},
        "xfs": {"error/metadata/EIO/max_retries": 1},
    }


def test_the_values_are_those_of_what_is_mounted_whatever_its_name_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk was replaced by hand, and the file has the old one's name."""
    number = tmp_path.stat().st_dev
    (tmp_path / f"{os.major(number)}:{os.minor(number)}").symlink_to(tmp_path / "sdb")
    (tmp_path / "sdb").mkdir()
    monkeypatch.setitem(TUNE["targets"].__globals__, "BLOCKS", str(tmp_path))
    monkeypatch.setattr(os.path, "ismount", lambda path: path == str(tmp_path))
    paths = [path for _, path, _ in TUNE["targets"](disk(tmp_path))]
    assert paths == [
        tmp_path / "sdb/queue/read_ahead_kb",
        Path("/sys/fs/xfs/sdb/error/metadata/EIO/max_retries"),
    ]
    assert list(TUNE["targets"](disk(tmp_path / "absent"))) == []


@pytest.mark.parametrize(("words", "tuned"), [([], ["d01", "d02"]), (["--only", "d02"], ["d02"])])
def test_a_broker_that_starts_has_its_own_disk_tuned_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    tuned: list[str],
) -> None:
    def targets(each: dict[str, Any]) -> Iterator[tuple[str, Path, object]]:
        yield each["instance"], tmp_path / each["instance"], 1

    monkeypatch.setitem(TUNE["main"].__globals__, "targets", targets)
    file = tmp_path / "tuning.json"
    file.write_text(json.dumps({"disks": [disk(tmp_path / name) for name in ("d01", "d02")]}))
    for name in ("d01", "d02"):
        (tmp_path / name).write_text("0")
    TUNE["main"]([*words, str(file)])
    assert json.loads(capsys.readouterr().out)["changed"] == [f"{name} = 1" for name in tuned]
    assert [name for name in ("d01", "d02") if (tmp_path / name).read_text() == "1\n"] == tuned


def test_whoever_mounts_disks_writes_their_values_for_the_next_boot() -> None:
    """After a replacement they were the old disk's, until the whole site was set up again."""
    role = ROOT / "roles/kdist_tuning/tasks"
    at_boot = ("/etc/kdist/tuning.json", "/etc/udev/rules.d/61-kdist-disks.rules")
    text = (role / "disks.yml").read_text()
    assert [path for path in at_boot if path not in text] == []
    disks = (ROOT / "roles/kdist_disks/tasks/main.yml").read_text()
    assert disks.index("configure.yml") < disks.index("tasks_from: disks")


def test_one_disk_may_make_twice_its_share_of_memory_dirty(tmp_path: Path) -> None:
    """Else one that hangs takes up the limit of all, and holds their writers back."""
    values = yaml.safe_load((ROOT / "roles/kdist_tuning/vars/main.yml").read_text())
    text = trust_as_template(values["kdist_tuning_bdi"]["max_ratio"])
    for disks, ratio in ((0, "100"), (1, "100"), (3, "66"), (12, "16")):
        templar = Templar(loader=DataLoader(), variables={"kdist_brokers": [{}] * disks})
        assert str(templar.template(text)) == ratio
    disk = {"device": "/dev/null", "mount": str(tmp_path), "queue": {}, "bdi": {"max_ratio": 16}}
    ((_, file, value),) = TUNE["targets"](disk)
    assert (file.parts[-2:], value) == (("bdi", "max_ratio"), 16)


def test_the_host_s_facts_are_json_of_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "roles/kdist_base/files/kdist.fact"))
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"capabilities", "not_applied"}
    assert told["capabilities"]["nofile_max"] > 0


def test_a_list_of_sentences_that_a_power_cut_has_emptied_fails_no_run(tmp_path: Path) -> None:
    fact = runpy.run_path(str(ROOT / "roles/kdist_base/files/kdist.fact"))
    (tmp_path / "kdist_tuning.json").touch()
    assert fact["sentences"](tmp_path / "kdist_tuning.json") == [
        f"{tmp_path}/kdist_tuning.json cannot be read"
    ]


@pytest.mark.parametrize("file", ["kdist_base/files/kdist.fact", "kdist_tuning/files/kdist-tune"])
def test_programs_for_hosts_need_the_standard_library_alone(file: str) -> None:
    tree = ast.parse((ROOT / "roles" / file).read_text())
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {n.module if isinstance(n, ast.ImportFrom) else n.names[0].name for n in found}
    known = {"__future__", "argparse", "collections.abc", "dataclasses", "json", "os", "pathlib"}
    assert modules <= known | {"re", "sys", "typing"}


@pytest.mark.parametrize(
    ("known", "played", "told"),
    [(False, ["new"], 1), (False, ["new", "old"], 0), (True, ["new"], 0)],
)
def test_a_new_host_that_a_limit_deploys_alone_is_told_to_be_shut_out(
    known: bool, played: list[str], told: int
) -> None:
    """ZooKeeper's firewall dropped its brokers, and nothing said so."""
    tasks = yaml.safe_load((ROOT / "roles/kdist_firewall/tasks/configure.yml").read_text())
    (keep,) = [
        t for t in tasks if "kdist_firewall_notices" in str(t.get("ansible.builtin.set_fact"))
    ]
    variables = {
        name: trust_as_template(value)
        for name, value in keep["vars"].items()
        if name in ("kdist_firewall_strangers", "kdist_firewall_unknown")
    }
    variables |= {
        "kdist_firewall_known": {"stat": {"exists": known}},
        "kdist_firewall_found": {"notices": []},
        "kdist_members": ["new", "old"],
        "ansible_play_hosts_all": played,
    }
    text = trust_as_template(keep["ansible.builtin.set_fact"]["kdist_firewall_notices"])
    found = Templar(loader=DataLoader(), variables=variables).template(text)
    assert len(found) == told
    assert all("leaves out old" in each for each in found)
