"""Every broker's disk: mounted from the right device, marked as its own, guarded underneath."""

from __future__ import annotations

import json

from tests.deploy.deployed import Broker

_GUARD = "unshare --mount sh -c 'mount --bind /data /mnt && stat -c %u:%g:%a /mnt/{0}'"
_ATTRIBUTES = "unshare --mount sh -c 'mount --bind /data /mnt && lsattr -d /mnt/{0}'"
# Mount options for mount(8) and systemd, which the kernel does not list.
_NOT_THE_KERNELS = ("nofail", "x-systemd")


def mounted(broker: Broker) -> dict[str, str]:
    """The filesystem at the broker's mount point, as the kernel reports it."""
    columns = "SOURCE,FSTYPE,OPTIONS,MAJ:MIN"
    found = broker.host.says(f"findmnt --json --output {columns} --mountpoint {broker.mount}")
    (filesystem,) = json.loads(found)["filesystems"]
    return {name: str(value).strip() for name, value in filesystem.items()}


def test_the_disk_is_mounted_with_its_options(broker: Broker) -> None:
    found = mounted(broker)
    assert found["fstype"] == "xfs"
    wanted = broker.host["kdist_disks_mount_options"].split(",")
    kernels = {option for option in wanted if not option.startswith(_NOT_THE_KERNELS)}
    assert kernels <= set(found["options"].split(","))


def test_it_is_the_device_that_the_inventory_names(broker: Broker) -> None:
    number = broker.host.says(f"lsblk --nodeps --noheadings --output MAJ:MIN {broker.device}")
    assert mounted(broker)["maj:min"] == number.strip()


def test_fstab_finds_the_disk_by_its_uuid(broker: Broker) -> None:
    uuid = broker.host.says(f"blkid --output value --match-tag UUID {broker.device}")
    lines = [line.split() for line in broker.host.says("cat /etc/fstab").splitlines()]
    (entry,) = [line for line in lines if len(line) > 1 and line[1] == broker.mount]
    options = broker.host["kdist_disks_mount_options"]
    assert entry == [f"UUID={uuid}", broker.mount, "xfs", options, "0", "0"]


def test_the_marker_names_cluster_broker_and_disk(broker: Broker) -> None:
    marker = json.loads(broker.host.says(f"cat {broker.mount}/disk.json"))
    cluster = broker.host["kdist_cluster_name"]
    assert marker == {"cluster": cluster, "broker": broker.id, "disk": broker.instance}


def test_the_log_directory_is_the_brokers_alone(broker: Broker) -> None:
    user = broker.host["kdist_user"]
    said = broker.host.says(f"stat -c %U:%G:%a {broker.log_dir}")
    assert said == f"{user}:{broker.host['kdist_group']}:750"


def test_without_its_disk_nothing_can_be_written_there(broker: Broker) -> None:
    """The directory below the mount belongs to root, has no rights, and is immutable."""
    host = broker.host
    assert host.says(_GUARD.format(broker.instance)) == "0:0:0"
    if host.facts["capabilities"]["immutable"]:
        assert "i" in host.says(_ATTRIBUTES.format(broker.instance)).split()[0]
    else:
        assert host.could_not(broker.mount, "immutable")


def test_a_disk_that_appears_late_is_mounted_and_its_broker_started(broker: Broker) -> None:
    """A container has no udev, and nobody who would tell of a disk."""
    host = broker.host
    assert host.works(f"systemctl start kdist-revive@{broker.instance}.service")  # all is there
    assert broker.is_well
    if host.facts["capabilities"]["udev"]:
        path = f"$(udevadm info --query=path --name={broker.device})"
        added = host.says(f"udevadm test --action=add {path} 2>&1")
        assert f"kdist-revive@{broker.instance}.service" in added
