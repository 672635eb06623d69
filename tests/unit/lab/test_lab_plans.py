"""The commands that the lab would run, and how it parses other programs' output."""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from kdist.errors import UserError
from lab import access, cgroups, disks, image, machine, network
from lab.hosts import Description, Host
from lab.place import Place

PLACE = Place(Path("/var/lib/kdist-lab"), Path("/var/lib/kdist-lab/base"))
K1, K2, K4 = (Host(f"k{n}", IPv4Address(f"198.18.0.1{n}")) for n in (1, 2, 4))
LAB = Description(IPv4Network("198.18.0.0/24"), 512, (K1, K2, K4), {})


def words(command: object) -> str:
    return " ".join(map(str, command))  # type: ignore[call-overload]


def test_all_of_a_lab_is_named_after_its_directory() -> None:
    place = Place(Path("/tmp/lab-two"), Path("/tmp/base"))
    assert place.netns == Path("/run/netns/lab-two")
    assert place.unit("k1") == "lab-two-k1.service"
    assert place.hosts in place.disk_image("k1", "d01").parents


def test_the_environment_says_where_the_lab_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDIST_LAB_DIR", "/tmp/lab-two")
    monkeypatch.delenv("KDIST_LAB_IMAGES", raising=False)
    assert Place.of_environment() == Place(Path("/tmp/lab-two"), Path("/tmp/lab-two/base"))
    monkeypatch.setenv("KDIST_LAB_IMAGES", "/tmp/base")
    assert Place.of_environment().images == Path("/tmp/base")


def test_every_command_of_the_network_but_its_making_is_inside_it() -> None:
    first, *rest = network.plan_up(PLACE, LAB)
    assert words(first) == "ip netns add kdist-lab"
    assert all(words(c).startswith("nsenter --net=/run/netns/kdist-lab ip ") for c in rest)
    assert "address add 198.18.0.1/24 dev lab0" in words(rest[2])


def test_a_cut_between_groups_is_each_pair_both_ways() -> None:
    pairs = network.plan_cuts([K1, K2], [K4])
    assert len(pairs) == 4
    assert (K1.address, K4.address) in pairs
    assert (K4.address, K2.address) in pairs


def test_a_one_way_cut_lets_the_answers_through() -> None:
    assert network.plan_cuts([K1], [K4], is_one_way=True) == ((K1.address, K4.address),)


def test_a_host_is_not_cut_from_itself() -> None:
    assert network.plan_cuts([K1], [K1, K2], is_one_way=True) == ((K1.address, K2.address),)


def test_cuts_are_read_from_what_nft_prints() -> None:
    elements = [{"concat": ["198.18.0.12", "198.18.0.11"]}]
    printed = {"nftables": [{"metainfo": {}}, {"set": {"name": "cut", "elem": elements}}]}
    assert network.parse_cuts(json.dumps(printed)) == [(K2.address, K1.address)]
    assert network.parse_cuts('{"nftables": [{"set": {"name": "cut"}}]}') == []


def test_no_limit_takes_the_queue_away() -> None:
    assert words(network.plan_slow("vb-k1", 0)) == "tc qdisc delete dev vb-k1 root"
    assert "rate 20mbit" in words(network.plan_slow("vb-k1", 20.0))


def test_loops_of_others_are_not_the_labs() -> None:
    ours, swapped = (PLACE.disk_image("k2", disk) for disk in ("d01", "d02"))
    rows = [
        {"name": "/dev/loop1", "maj:min": "  7:1", "back-file": "/srv/other.img"},
        {"name": "/dev/loop2", "maj:min": "  7:2", "back-file": str(ours)},
        {"name": "/dev/loop3", "maj:min": "7:3", "back-file": f"{swapped} (deleted)"},
        {"name": "/dev/loop4", "maj:min": "7:4", "back-file": None},
    ]
    found = disks.parse_loops(json.dumps({"loopdevices": rows}), PLACE)
    assert [(loop.device, loop.number, loop.is_removed) for loop in found] == [
        ("/dev/loop2", "7:2", False),
        ("/dev/loop3", "7:3", True),
    ]
    assert disks.parse_loops("", PLACE) == []


def test_a_mount_is_found_by_the_number_of_its_device() -> None:
    lines = [
        "36 35 98:0 / / rw,noatime - ext4 /dev/root rw",
        "41 36 7:10 / /data/d\\04001 rw,noatime shared:1 - xfs /dev/loop10 rw",
        "42 36 7:1 / /data/d02 rw - xfs /dev/loop1 rw",
    ]
    assert disks.parse_mounts("\n".join(lines), "7:10") == ["/data/d 01"]
    assert disks.parse_mounts("\n".join(lines), "7:9") == []


def test_a_host_is_in_each_hierarchy_of_version_1_that_is_mounted() -> None:
    mounted = frozenset({"freezer", "memory", "systemd"})
    found = cgroups.plan(PLACE, "k1", is_v2=False, has_systemd=False, mounted=mounted)
    assert found.freezer == Path("/sys/fs/cgroup/freezer/kdist-lab/k1")
    assert {group.parts[4] for group in found.groups} == mounted


def test_on_version_2_systemd_makes_the_hosts_group_and_else_the_lab_does() -> None:
    ours = cgroups.plan(PLACE, "k1", is_v2=True, has_systemd=False, mounted=frozenset())
    assert ours.groups == (Path("/sys/fs/cgroup/kdist-lab/k1"),)
    systemds = cgroups.plan(PLACE, "k1", is_v2=True, has_systemd=True, mounted=frozenset())
    assert systemds.groups == (
        Path("/sys/fs/cgroup/kdist.slice/kdist-lab.slice/kdist-lab-k1.service"),
    )
    assert "--slice=kdist-lab" in machine.service_command(PLACE, "k1")
    assert "--unit=kdist-lab-k1.service" in machine.service_command(PLACE, "k1")


def test_nspawn_starts_in_the_labs_network_with_the_labs_first_process() -> None:
    command = words(machine.nspawn_command(PLACE, "k1"))
    assert command.startswith("nsenter --net=/run/netns/kdist-lab systemd-nspawn ")
    assert "--directory=/var/lib/kdist-lab/hosts/k1/root" in command
    assert command.endswith("/usr/local/sbin/lab-init")


def test_hosts_find_each_other_without_a_name_server() -> None:
    assert "198.18.0.14 k4\n" in machine.hosts_file(LAB)


def test_the_ssh_config_reaches_each_host_by_name_with_the_labs_key() -> None:
    config = access.ssh_config(PLACE, LAB)
    assert "Host k2\n    HostName 198.18.0.12\n" in config
    assert "IdentityFile /var/lib/kdist-lab/ssh/key\n" in config
    assert words(access.ssh_command(PLACE, "k2", ["uptime"])).endswith("ssh_config k2 uptime")


def test_all_hosts_are_known_by_the_labs_key_under_name_and_address() -> None:
    line = access.known_hosts(LAB, "ssh-ed25519 AAAA host_key\n")
    assert line == "k1,198.18.0.11,k2,198.18.0.12,k4,198.18.0.14 ssh-ed25519 AAAA\n"


def test_the_image_has_the_packages_of_the_list_and_its_files_by_root() -> None:
    commands = [words(command) for command in image.plan(["one", "two"], [], Path("/target"))]
    assert "--include=one,two" in commands[0]
    assert any(
        "--owner=root" in command and command.endswith("/target/usr/sbin/policy-rc.d")
        for command in commands
    )


def test_a_bare_image_has_a_repository_and_its_packages_start_their_services() -> None:
    commands = [words(command) for command in image.plan(["one"], ["two"], Path("/target"))]
    assert "--include=one " in commands[0]
    assert "--download-only install two\n" in commands[0]
    assert not any("policy-rc.d" in command or " disable " in command for command in commands)
    assert any("/target/usr/local/sbin/lab-init" in command for command in commands)


def test_comments_in_the_lists_of_packages_are_no_packages() -> None:
    names = image.packages("bare") + image.packages("roles")
    assert "default-jre-headless" in names
    assert all(name and " " not in name and "#" not in name for name in names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("is_bare", [False, True])
def test_another_list_of_packages_is_another_image(
    is_bare: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = image.key(is_bare)
    assert image.key(is_bare) == before != image.key(not is_bare)
    monkeypatch.setattr(image, "packages", lambda name: [name])
    assert image.key(is_bare) != before


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A directory with an image, one that is half made, and what is not the lab's."""
    for name in ("0123456789abcdef", "fedcba9876543210.unfinished", "photos"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_images_are_removed_and_what_else_is_beside_them_is_not(images: Path) -> None:
    image.remove_all(Place(PLACE.home, images))
    assert {path.name for path in images.iterdir()} == {"photos", "lock"}
    (images / "photos").rmdir()
    image.remove_all(Place(PLACE.home, images))
    assert not images.exists()


def test_an_image_that_another_labs_hosts_stand_on_is_not_removed(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = f"lab /lab/hosts/k1/root overlay rw,lowerdir={images}/0123456789abcdef,upperdir=/u 0 0"
    monkeypatch.setattr(image, "MOUNTS", images / "mounts")
    image.MOUNTS.write_text(mounts)
    with pytest.raises(UserError, match="another lab"):
        image.remove_all(Place(PLACE.home, images))
    assert len(list(images.glob("[0-9a-f]*"))) == 2
