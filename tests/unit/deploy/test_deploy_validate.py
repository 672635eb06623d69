"""Wrong inventories are refused with a sentence for each mistake, naming host and variable."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy_plays import script
from deploy_plugins import ROOT, load

layout = load("playbooks/filter_plugins/kdist_layout.py")
validate = load("roles/kdist_validate/filter_plugins/kdist_validate.py")

mirrors = load("playbooks/filter_plugins/kdist_mirrors.py")


class Host(dict[str, Any]):
    """A host's variables; some are derived when they are read, as Ansible does."""

    def __init__(self, name: str, groups: dict[str, list[str]], **values: Any) -> None:
        super().__init__(values)
        self._name, self._groups = name, groups

    def __contains__(self, name: object) -> bool:
        return name in DERIVED or super().__contains__(name)

    def __getitem__(self, name: str) -> Any:
        return DERIVED[name](self) if name in DERIVED else super().__getitem__(name)

    @property
    def group_names(self) -> list[str]:
        return [group for group, hosts in self._groups.items() if self._name in hosts]

    @property
    def mirrors(self) -> list[dict[str, Any]]:
        flows = self.get("kdist_mirror_flows", []) if "mirror" in self.group_names else []
        found = mirrors.kdist_mirrors(flows, self["kdist_datacenter"], self["kdist_ports"])
        return list(found)


DERIVED: dict[object, Callable[[Host], Any]] = {
    "kdist_ports": lambda host: layout.kdist_ports(host.get("kdist_port_overrides", {})),
    "kdist_brokers": lambda host: layout.kdist_brokers(
        host.get("kdist_disks", []), host["kdist_host_number"], host["kdist_ports"]
    ),
    "kdist_listeners": lambda host: layout.kdist_listeners(
        host.group_names, host["kdist_ports"], host["kdist_brokers"], host.mirrors
    ),
}


class Inventory:
    """Two datacenters with nothing wrong: b1, b2 and zk1 to zk3 in dc1; b3, which coordinates too,
    in dc2."""

    def __init__(self) -> None:
        self.hosts: dict[str, Host] = {}
        self.groups: dict[str, list[str]] = {"all": []}
        for number, name in enumerate(("b1", "b2", "zk1", "zk2", "zk3", "b3"), 1):
            self.add(name, number, "dc2" if name == "b3" else "dc1")
        self.groups |= {"zookeeper": [*self.groups["zookeeper"], "b3"], "mirror": ["b1", "b3"]}

    def add(self, name: str, number: int, datacenter: str) -> None:
        kind = "broker" if name.startswith("b") else "zookeeper"
        self.hosts[name] = Host(
            name,
            self.groups,
            kdist_environment="lab",
            kdist_version="1.0",
            kdist_datacenter=datacenter,
            kdist_address=f"198.18.0.{number}",
            kdist_host_number=number,
            kdist_rack="r1",
        )
        if kind == "broker":
            self.hosts[name]["kdist_disks"] = [disk("d01", name), disk("d02", name)]
        for group in ("all", datacenter, kind):
            self.groups.setdefault(group, []).append(name)

    def problems(self) -> list[str]:
        return list(validate.kdist_validate_problems(self.hosts, self.groups))


def disk(name: str, host: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "device": f"/dev/disk/by-id/{host}-{name}", "serial": host + name} | more


def flow(source: str, target: str, **more: Any) -> dict[str, Any]:
    return {
        "name": f"{source}-{target}",
        "source": source,
        "target": target,
        "topics": [".*"],
    } | more


Change = Callable[[Inventory], object]


def put(host: str, **values: Any) -> Change:
    return lambda inventory: inventory.hosts[host].update(values)


def drop(host: str, name: str) -> Change:
    return lambda inventory: inventory.hosts[host].pop(name)


def disks(*changed: dict[str, Any]) -> Change:
    return put("b1", kdist_disks=list(changed))


def group(name: str, *hosts: str) -> Change:
    return lambda inventory: inventory.groups.update({name: list(hosts)})


def flows(*found: Any) -> Change:
    return put("b1", kdist_mirror_flows=list(found))


D01 = disk("d01", "b1")


WRONG: list[tuple[Change, str]] = [
    (
        drop("b1", "kdist_rack"),
        "b1: kdist_rack is not set; it is what it shares power and switch with.",
    ),
    (
        put("b2", kdist_rack=""),
        "b2: kdist_rack is not set; it is what it shares power and switch with.",
    ),
    (drop("zk1", "kdist_version"), "zk1: kdist_version is not set; it is the release to run."),
    (
        drop("zk1", "kdist_address"),
        "zk1: kdist_address is not set; it is its address on the private network.",
    ),
    (disks(), "b1: kdist_disks is not set; it is its data disks, one broker each."),
    (
        group("dc1", "b2", "zk1", "zk2", "zk3"),
        "b1: kdist_datacenter is dc1, but the host is not in the group dc1.",
    ),
    (group("dc2", "b3", "b1"), "b1: kdist_datacenter is dc1, but the group dc2 has the host too."),
    (
        put("b2", kdist_environment="prod"),
        "b2: kdist_environment is prod, but b1 beside it has lab.",
    ),
    (put("b2", kdist_host_number=1), "b2: kdist_host_number 1 is b1's already."),
    (
        put("b2", kdist_host_number="x"),
        "b2: kdist_host_number is 'x'; it is a whole number from 1 to 9999.",
    ),
    (
        put("b2", kdist_host_number=10000),
        "b2: kdist_host_number is 10000; it is a whole number from 1 to 9999.",
    ),
    (
        put("zk2", kdist_host_number=256),
        "zk2: kdist_host_number is 256, but a host of the group zookeeper has at most 255.",
    ),
    (put("b2", kdist_address="198.18.0.1"), "b2: kdist_address 198.18.0.1 is b1's already."),
    (put("b2", kdist_address="b2"), "b2: kdist_address is 'b2', which is not an IP address."),
    (
        put("b2", kdist_address="127.0.1.1"),
        "b2: kdist_address is 127.0.1.1, which no other host can reach.",
    ),
    (
        put("b2", kdist_address="2001:db8::1"),
        "b2: kdist_address is 2001:db8::1; hosts speak IPv4 with each other.",
    ),
    (
        put("b2", kdist_zookeeper_chroot="k"),
        "b2: kdist_zookeeper_chroot is 'k'; it is a path such as /kdist.",
    ),
    (
        group("zookeeper", "zk1", "zk2", "b3"),
        "zk1, zk2: the group zookeeper has 2 hosts whose kdist_datacenter is dc1; "
        "an ensemble has an odd number.",
    ),
    (
        group("zookeeper", "zk1"),
        "b3: kdist_datacenter is dc2, where no host of the group zookeeper stands.",
    ),
    (
        put("b1", kdist_disks={"d01": "sdb"}),
        "b1: kdist_disks is not a list of disks such as {id: d01, device: ...}.",
    ),
    (disks(D01 | {"id": "sdb"}), "b1: kdist_disks: a disk has the id 'sdb'; ids are d01 to d99."),
    (disks(D01 | {"id": "d100"}), "b1: kdist_disks: a disk has the id 'd100'; ids are d01 to d99."),
    (disks(D01 | {"id": "d00"}), "b1: kdist_disks: a disk has the id 'd00'; ids are d01 to d99."),
    (disks(D01 | {"sate": "active"}), "b1: kdist_disks: d01 has sate, which no disk has."),
    (disks({"id": "d01"}), "b1: kdist_disks: d01 has no device."),
    (
        disks(D01 | {"device": "/dev/sdb"}),
        "b1: kdist_disks: d01 has the device /dev/sdb, "
        "which may be another disk after the next boot; "
        "use its name under /dev/disk/by-id.",
    ),
    (
        disks(D01 | {"state": "ok"}),
        "b1: kdist_disks: d01 has the state 'ok'; states are active, failed, retired.",
    ),
    (
        disks(D01 | {"port": "x"}),
        "b1: kdist_disks: d01 has the port 'x'; numbers are from 1 to 999999.",
    ),
    (
        disks(D01 | {"broker": 1_000_000}),
        "b1: kdist_disks: d01 has the broker 1000000; numbers are from 1 to 999999.",
    ),
    (disks(D01, disk("d01", "b1b")), "b1: kdist_disks has 2 disks with the id d01."),
    (
        disks(D01, D01 | {"id": "d02", "serial": "other"}),
        "b1: kdist_disks has 2 disks with the device /dev/disk/by-id/b1-d01.",
    ),
    (disks(D01 | {"serial": "b2d02"}), "b2: kdist_disks: d02 has the serial b2d02 of d01 of b1."),
    (disks(D01 | {"broker": 202}), "b2: kdist_disks: d02 has the broker id 202 of d01 on b1."),
    (
        disks(D01, disk("d02", "b1", port=9092)),
        "b1: broker d01 and broker d02 share port 9092.\n"
        "b1: broker d01's metrics and broker d02's metrics share port 9292.",
    ),
    (disks(D01 | {"port": 9190}), "b1: node_exporter and broker d01 share port 9190."),
    (
        put("b1", kdist_port_overrides={"node_exporter": 9093}),
        "b1: node_exporter and broker d02 share port 9093.",
    ),
    (
        put("b1", kdist_port_overrides={"node": 9191}),
        "b1: kdist_port_overrides has node, which is none of ssh, zookeeper_client, "
        "zookeeper_quorum, zookeeper_election, prometheus, broker, node_exporter, alertmanager, "
        "alertmanager_cluster, broker_metrics, mirror_metrics.",
    ),
    (
        put("b1", kdist_port_overrides={"broker": "many"}),
        "b1: kdist_port_overrides has 'many' for broker; ports are from 1 to 65535.",
    ),
    (
        flows(flow("dc2", "dc1", port=9093)),
        "b1: broker d02 and mirror dc2-dc1's metrics share port 9093.",
    ),
    (
        flows(flow("dc2", "dc1", port=0)),
        "b1: kdist_mirror_flows: dc2-dc1 has the port 0; ports are from 1 to 65535.",
    ),
    (
        disks(D01 | {"port": 65500}),
        "b1: broker d01's metrics has the port 65700; 65535 is the last.",
    ),
    (flows("x"), "b1: kdist_mirror_flows has 'x', which is not a flow."),
    (
        flows(flow("dc1", "dc2", topic="a")),
        "b1: kdist_mirror_flows: dc1-dc2 has topic, which no flow has.",
    ),
    (
        flows(flow("dc1", "dc3")),
        "b1: kdist_mirror_flows: dc1-dc3 has the target 'dc3', which is no datacenter here.",
    ),
    (
        lambda site: (flows(flow("dc1", "dc2"))(site), group("mirror", "b1")(site)),
        "b1: kdist_mirror_flows: dc1-dc2 has the target dc2, "
        "where no host of the group mirror stands.",
    ),
    (flows(flow("dc1", "dc1")), "b1: kdist_mirror_flows: dc1-dc1 leads from dc1 to itself."),
    (
        flows(flow("dc1", "dc2", policy="x")),
        "b1: kdist_mirror_flows: dc1-dc2 has the policy 'x'; policies are identity, prefix.",
    ),
    (
        flows({"source": "dc1", "target": "dc2"}),
        "b1: kdist_mirror_flows: a flow has the name ''; "
        "names are of letters, digits, '_' and '-'.",
    ),
    (
        flows(flow("dc1", "dc2", topics="flights")),
        "b1: kdist_mirror_flows: dc1-dc2 has the topics 'flights', "
        "which is not a list of patterns.",
    ),
    (
        flows(flow("dc1", "dc2", topics=["(a"])),
        "b1: kdist_mirror_flows: dc1-dc2 has the pattern '(a', which is not a regular expression: "
        "missing ), unterminated subpattern at position 0.",
    ),
    (
        flows(flow("dc1", "dc2", topics=["a,b", "re{1,2}"])),
        "b1: kdist_mirror_flows: dc1-dc2 has the pattern 'a,b' with a comma; "
        "give each pattern a line of its own.",
    ),
    (
        flows(flow("dc1", "dc2", topics=[False])),
        "b1: kdist_mirror_flows: dc1-dc2 has the pattern False, which is no text; "
        "put quotes around it.",
    ),
    (
        disks(disk("d01", "b1", serial=83)),
        "b1: kdist_disks: a disk has the serial 83, which is no text; put quotes around it.",
    ),
    (
        flows(flow("dc1", "dc2"), flow("dc1", "dc2")),
        "b1: kdist_mirror_flows has another flow with the name dc1-dc2.",
    ),
    (
        flows(flow("dc1", "dc2"), flow("dc2", "dc1")),
        "b1: kdist_mirror_flows leads in a circle, dc1 to dc2 to dc1; "
        "give one of these flows the policy prefix.",
    ),
]


def replicated(factor: object, least: object, *racks: str, **more: Any) -> Change:
    """Brokers of dc1 in these racks, with such settings."""

    def change(inventory: Inventory) -> None:
        for number in range(3, len(racks) + 1):
            inventory.add(f"b{number}1", 10 + number, "dc1")
        brokers = ("b1", "b2", "b31", "b41")
        for broker, rack in zip(brokers, racks, strict=False):
            inventory.hosts[broker]["kdist_rack"] = rack
        settings = {"default.replication.factor": factor, "min.insync.replicas": least}
        inventory.hosts["b1"].update(kdist_broker_config_defaults=settings, **more)

    return change


TOPIC = {"name": "t", "replication_factor": 3, "config": {"min.insync.replicas": "3"}}
WRONG += [
    (
        replicated(3, 2, "r1", "r2"),
        "b1: a topic by default has 3 replicas, and dc1 has 2 hosts for them.",
    ),
    (
        replicated("2", 2, "r1", "r2"),
        "b1: a topic by default has 2 replicas and min.insync.replicas 2: "
        "while any of them is restarted, acks=all is refused.",
    ),
    (
        replicated(2, 1, "r1", "r2", "r3", kdist_topics_wanted=[TOPIC]),
        "b1: topic t has 3 replicas and min.insync.replicas 3: "
        "while any of them is restarted, acks=all is refused.",
    ),
    (
        replicated(3, 2, "r1", "r2", "r2"),
        "b1: a topic by default has 3 replicas over 2 racks and min.insync.replicas 2: "
        "while the rack with 2 of them is down, acks=all is refused; "
        "kdist_validate_rack_loss_accepted: true accepts that.",
    ),
]


def test_a_valid_inventory_has_no_problems() -> None:
    assert Inventory().problems() == []


@pytest.mark.parametrize(("change", "sentences"), WRONG, ids=[s for _, s in WRONG])
def test_each_mistake_gives_exactly_its_own_sentence(change: Change, sentences: str) -> None:
    inventory = Inventory()
    change(inventory)
    assert inventory.problems() == sentences.split("\n")


def test_all_mistakes_are_reported_at_once() -> None:
    inventory = Inventory()
    told = []
    for change, sentence in (WRONG[0], WRONG[8], WRONG[16]):
        change(inventory)
        told.append(sentence)
    assert inventory.problems() == told


def test_flows_with_a_prefix_may_form_a_cycle() -> None:
    inventory = Inventory()
    flows(flow("dc1", "dc2", policy="prefix"), flow("dc2", "dc1"))(inventory)
    assert inventory.problems() == []


def test_a_flow_of_all_hosts_is_one_flow() -> None:
    inventory = Inventory()
    for host in ("b1", "b2", "b3"):
        put(host, kdist_mirror_flows=[flow("dc1", "dc2")])(inventory)
    assert inventory.problems() == []


def test_a_cycle_of_three_is_reported_once() -> None:
    assert list(validate.circles({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == [["a", "b", "c", "a"]]


def test_a_disk_that_came_from_another_host_keeps_its_identity() -> None:
    moved = disk("d02", "b9", broker=907, port=9098)
    assert layout.kdist_brokers([moved], 1, layout.PORTS) == [
        {
            "instance": "d02",
            "id": 907,
            "port": 9098,
            "metrics_port": 9298,
            "mount": "/data/d02",
            "log_dir": "/data/d02/kdist",
            "device": "/dev/disk/by-id/b9-d02",
        }
    ]


def test_only_active_disks_have_brokers() -> None:
    found = [
        disk("d01", "b1", state="failed"),
        disk("d02", "b1"),
        disk("d03", "b1", state="retired"),
    ]
    brokers = layout.kdist_brokers(found, 1, layout.PORTS)
    assert [broker["instance"] for broker in brokers] == ["d02"]


def test_24_disks_of_a_host_that_does_everything_share_no_port() -> None:
    inventory = Inventory()
    all_of_them = [disk(f"d{number:02}", "b1") for number in range(1, 25)]
    put("b1", kdist_disks=all_of_them)(inventory)
    inventory.groups |= {"monitor": ["b1"], "zookeeper": ["b1", "zk2", "zk3", "b3"]}
    flows(flow("dc2", "dc1"))(inventory)
    assert inventory.problems() == []
    assert len(inventory.hosts["b1"]["kdist_listeners"]) == 48 + 2 + 3 + 3 + 1


def test_an_inventory_can_have_other_ports() -> None:
    inventory = Inventory()
    overrides = {"broker": 19092, "broker_metrics": 19292, "node_exporter": 9100}
    for host in inventory.hosts:
        put(host, kdist_port_overrides=overrides)(inventory)
    assert inventory.problems() == []
    (first, second) = inventory.hosts["b1"]["kdist_brokers"]
    assert (first["port"], first["metrics_port"]) == (19092, 19292)
    assert (second["port"], second["metrics_port"]) == (19093, 19293)


def test_no_variable_that_an_inventory_may_set_is_set_by_the_playbooks() -> None:
    """Variables beside the playbooks are stronger than those of an inventory's group `all`."""
    derived = yaml.safe_load((ROOT / "playbooks/group_vars/all.yml").read_text())
    specs = (ROOT / "roles/kdist_validate/meta/argument_specs.yml").read_text()
    site = yaml.safe_load(specs)["argument_specs"]["main"]["options"]
    assert set(derived) & set(site) == set()


@pytest.mark.parametrize(
    "change",
    [
        replicated(3, 2, "r1", "r2", "r3"),
        replicated(3, 2, "r1", "r1", "r1"),  # one rack is what there is
        replicated(2, 1, "r1", "r2"),
        replicated(1, 1, "r1", "r2"),
        replicated("{{ n }}", None, "r1", "r2"),
        replicated(3, 2, "r1", "r2", "r2", kdist_validate_rack_loss_accepted=True),
        replicated(3, 2, "r1", "r2", "r3", kdist_topics_wanted=[TOPIC | {"state": "absent"}]),
    ],
)
def test_replicas_that_bear_a_restart_and_a_racks_loss_or_are_accepted_pass(change: Change) -> None:
    inventory = Inventory()
    change(inventory)
    assert inventory.problems() == []


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """A copy of the example inventory."""
    return Path(shutil.copytree(ROOT / "inventory/example", tmp_path / "example"))


def play(inventory: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """The real playbook over an inventory, and more of them in the same run."""
    program = Path(sys.executable).with_name("ansible-playbook")
    words = [str(program), "--inventory", str(inventory), "playbooks/validate.yml", *more]
    environment = os.environ | {"ANSIBLE_NOCOLOR": "1"}
    return subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def sentences(done: subprocess.CompletedProcess[str]) -> Iterator[str]:
    _, _, told = done.stdout.partition("msg: ")
    yield from re.findall(r"^ *(?:\|-\n)? *(\S+: .+\.)$", told, re.MULTILINE)


@pytest.mark.slow
def test_the_example_inventory_is_accepted_in_seconds(example: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = play(example)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert after.ru_utime - before.ru_utime < 5


@pytest.mark.slow
def test_an_inventory_is_checked_once_in_a_run_however_many_playbooks_begin_with_that(
    example: Path,
) -> None:
    done = play(example, "playbooks/validate.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PLAY [Check the inventory]") == 2
    assert done.stdout.count("included: kdist_validate ") == 1


@pytest.mark.slow
def test_the_playbook_reports_all_mistakes_of_an_inventory(example: Path) -> None:
    for name, pattern, text in [
        ("b2.dc1.example.yml", r"kdist_rack: .*\n", ""),
        ("b2.dc1.example.yml", r"by-id/\S*B202", "../sdc"),
        ("b3.dc1.example.yml", r"kdist_host_number: 3", "kdist_host_number: 1"),
    ]:
        page = example / "host_vars" / name
        page.write_text(re.sub(pattern, text, page.read_text()))
    done = play(example)
    assert done.returncode == 2
    assert list(sentences(done)) == [
        "b2.dc1.example: kdist_rack is not set; it is what it shares power and switch with.",
        "b3.dc1.example: kdist_host_number 1 is b1.dc1.example's already.",
        "b2.dc1.example: kdist_disks: d02 has the device /dev/disk/../sdc, "
        "which may be another disk after the next boot; use its name under /dev/disk/by-id.",
    ]


@pytest.mark.slow
def test_a_name_that_an_inventory_gives_twice_is_refused(example: Path) -> None:
    page = example / "host_vars/b2.dc1.example.yml"
    page.write_text(f"{page.read_text()}\nkdist_rack: other\n")
    done = play(example)
    assert done.returncode != 0
    assert re.search(r"duplicate.* key .*kdist_rack", done.stdout + done.stderr, re.IGNORECASE)


@pytest.mark.slow
def test_the_playbook_names_a_variable_that_cannot_be_read(example: Path) -> None:
    page = example / "host_vars/mon1.dc1.example.yml"
    page.write_text(page.read_text().replace("192.0.2.31", '"{{ nothing }}"'))
    assert (
        "mon1.dc1.example: kdist_address refers to something that is not defined."
        in play(example).stdout
    )


def test_nobody_becomes_root_on_the_control_host(tmp_path: Path) -> None:
    """The example's hosts are worked on by sudo; the tasks that are delegated to localhost not."""
    script(tmp_path / "sudo", "exit 1\n")
    program = Path(sys.executable).with_name("ansible")
    words = ["-i", "inventory/example", "localhost", "-m", "ansible.builtin.command", "-a", "true"]
    # Where root runs the tests, root would need no sudo to become root.
    given = {"ansible_python_interpreter": sys.executable, "ansible_become_user": "nobody"}
    done = subprocess.run(
        [program, *words, "-e", json.dumps(given)],
        cwd=ROOT,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def derived() -> dict[str, list[str]]:
    """Derived variables of two hosts of the example inventory, as a role reads them."""
    names = ("kdist_cluster_name", "kdist_zookeeper_connect", "kdist_bootstrap_servers")
    program = Path(sys.executable).with_name("ansible")
    message = "{{ [inventory_hostname, " + ", ".join(names) + "] | to_json }}"
    hosts = "b1.dc2.example,mon1.dc1.example"
    words = [str(program), "-i", "inventory/example", hosts, "-m", "debug", "-a", f"msg={message}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    found = [json.loads(each) for each in re.findall(r"\[\"[^]]*\]", done.stdout)]
    assert len(found) == 2, done.stdout
    return {host: values for host, *values in found}


def test_derived_variables_speak_of_a_host_s_own_cluster_alone(
    derived: dict[str, list[str]],
) -> None:
    name, connect, servers = derived["b1.dc2.example"]
    assert name == "production-dc2"
    assert connect == "203.0.113.11:2181,203.0.113.12:2181,203.0.113.13:2181/kdist"
    ports = range(9092, 9104)
    assert servers.split(",") == [f"203.0.113.2{h}:{p}" for h in (1, 2, 3) for p in ports]


def test_a_disk_that_is_marked_failed_is_no_bootstrap_server(derived: dict[str, list[str]]) -> None:
    _, connect, servers = derived["mon1.dc1.example"]
    assert connect == "192.0.2.11:2181,192.0.2.12:2181,192.0.2.13:2181/kdist"
    assert "192.0.2.22:9093" in servers
    assert "192.0.2.22:9094" not in servers
