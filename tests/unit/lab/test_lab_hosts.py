"""Reading the lab's hosts out of an inventory, and the sentences for one that is wrong."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest

from kdist.errors import UserError
from lab.cli import INVENTORY
from lab.hosts import Description, parse

GOOD = """
all:
  vars: {lab_network: 198.18.0.0/24, lab_disk_size_mib: 512}
  children:
    dc1:
      hosts:
        k1: {kdist_address: 198.18.0.11}
        k2:
          kdist_address: 198.18.0.12
          kdist_disks:
            - {id: d01, device: /dev/disk/by-id/kdist-k2-d01}
            - {id: d02, device: /dev/disk/by-id/kdist-k2-d02}
    dc2:
      children:
        dc2_broker:
          hosts: {k4: {kdist_address: 198.18.0.14}}
    broker:
      hosts: {k2: {}, k4: {}}
    mirror: {}
"""


@pytest.fixture
def lab() -> Description:
    return parse(GOOD)


def test_hosts_have_their_addresses_in_the_order_of_the_file(lab: Description) -> None:
    assert [(host.name, str(host.address)) for host in lab.hosts] == [
        ("k1", "198.18.0.11"),
        ("k2", "198.18.0.12"),
        ("k4", "198.18.0.14"),
    ]


def test_a_disk_is_known_by_its_stable_name(lab: Description) -> None:
    assert [disk.device_name for disk in lab.host("k2").disks] == ["kdist-k2-d01", "kdist-k2-d02"]
    assert lab.host("k2").disk("d02").device_name == "kdist-k2-d02"


def test_a_name_that_is_given_twice_is_refused() -> None:
    with pytest.raises(UserError, match="the lab's inventory is no YAML: 'all' is given twice"):
        parse(f"{GOOD}\nall: {{}}\n")


def test_commands_come_from_the_first_address_of_the_network(lab: Description) -> None:
    assert lab.control_address == IPv4Address("198.18.0.1")


def test_a_group_has_the_hosts_of_the_groups_below(lab: Description) -> None:
    assert [host.name for host in lab.members("dc2")] == ["k4"]
    assert [host.name for host in lab.members("broker")] == ["k2", "k4"]
    assert len(lab.members("all")) == 3
    assert lab.members("mirror") == ()


def test_a_host_is_a_group_of_one(lab: Description) -> None:
    assert lab.members("k1") == (lab.host("k1"),)


def test_no_names_choose_all_hosts(lab: Description) -> None:
    assert lab.choose(()) == lab.hosts
    assert lab.choose(("k4",)) == (lab.host("k4"),)


def test_an_unknown_host_or_disk_is_refused_with_what_there_is(lab: Description) -> None:
    with pytest.raises(UserError, match="no host k9: it has k1, k2, k4"):
        lab.host("k9")
    with pytest.raises(UserError, match="k2 has no disk d09: it has d01, d02"):
        lab.host("k2").disk("d09")
    with pytest.raises(UserError, match="k1 has no disk d01: it has none"):
        lab.host("k1").disk("d01")
    with pytest.raises(UserError, match="no host dc3: it has k1, k2, k4, and the groups dc1, dc2"):
        lab.members("dc3")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("all:", "everything:", "no group `all`"),
        ("all:", "all: [", "no YAML"),
        ("lab_network: 198.18.0.0/24, ", "", "does not say lab_network"),
        ("198.18.0.0/24", "198.18.0.0/240", "lab_network is no IPv4 network: 198.18.0.0/240"),
        ("512", "299", "lab_disk_size_mib is 299: XFS takes a number from 300"),
        (", lab_disk_size_mib: 512", "", "lab_disk_size_mib is None"),
        ("mib: 512", "mib: 512, lab_image: empty", "lab_image is empty: it can be full or bare"),
        ("k1:", "K1:", "K1: a lab host's name"),
        ("k1:", "abcdefghijklm:", "abcdefghijklm: a lab host's name"),
        ("{kdist_address: 198.18.0.11}", "{}", "k1: kdist_address is missing"),
        ("198.18.0.11", "k1.example", "k1: kdist_address is no IPv4 address: k1.example"),
        ("198.18.0.11", "198.18.1.11", "k1: kdist_address 198.18.1.11 is not one for a host"),
        ("198.18.0.11", "198.18.0.1", "k1: kdist_address 198.18.0.1 is not one for a host"),
        ("198.18.0.11", "198.18.0.12", "k2: kdist_address 198.18.0.12 is k1's too"),
        ("id: d02", "id: sdb", "k2: kdist_disks has an id sdb"),
        ("by-id/kdist-k2-d01", "by-id/kdist-k1-d01", "k2: the lab makes disk d01 as"),
        ("id: d02, device: /dev/disk/by-id/kdist-k2-d02",
         "id: d01, device: /dev/disk/by-id/kdist-k2-d01", "k2: kdist_disks has an id twice"),
        ("vars: {lab_network", "vars: [lab_network", "no YAML"),
        ("{lab_network: 198.18.0.0/24, lab_disk_size_mib: 512}", "[512]", "all: vars is [512]"),
        ("hosts: {k2: {}, k4: {}}", "hosts: [k2, k4]", "broker: hosts is ['k2', 'k4']"),
        ("mirror: {}", "mirror: k4", "all: mirror is k4, and no mapping"),
        ("{kdist_address: 198.18.0.11}", "198.18.0.11", "dc1: k1 is 198.18.0.11"),
        ("{id: d02, device: /dev/disk/by-id/kdist-k2-d02}", "d02", "k2: kdist_disks has d02"),
        ("k1:", "1:", "1: a lab host's name"),
    ],
)  # fmt: skip
def test_a_wrong_inventory_is_refused_with_host_and_variable(
    old: str, new: str, sentence: str
) -> None:
    with pytest.raises(UserError) as refusal:
        parse(GOOD.replace(old, new, 1))
    assert sentence in str(refusal.value)


def test_the_inventory_of_the_tree_describes_two_datacenters_with_disks() -> None:
    lab = parse(INVENTORY.read_text())
    assert {host.name for host in lab.members("dc1")} == {"k1", "k2", "k3"}
    assert {host.name for host in lab.members("dc2")} == {"k4"}
    assert [len(host.disks) for host in lab.hosts] == [2, 2, 2, 1]
    assert not lab.is_bare


def test_the_larger_form_is_three_bare_racks_with_twelve_disks_in_a_host() -> None:
    lab = parse((INVENTORY.parents[1] / "lab-racks" / "hosts.yml").read_text())
    assert len(lab.members("zookeeper")) == 3
    assert [len(host.disks) for host in lab.members("broker")] == [12, 2, 2]
    assert lab.is_bare
