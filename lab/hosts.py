"""The lab's hosts, read from its Ansible inventory, the only place that describes them (pure).

all:
  vars: {lab_network: 198.18.0.0/24, lab_disk_size_mib: 512, lab_image: full}
  children:
    dc1:
      hosts:
        k2:
          kdist_address: 198.18.0.12
          kdist_disks: [{id: d01, device: /dev/disk/by-id/kdist-k2-d01}]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network, NetmaskValueError
from typing import Any

import yaml

from kdist.errors import UserError

DISK_SIZE_MIB_MIN = 300  # mkfs.xfs refuses less
HOST_NAME = re.compile(
    r"[a-z][a-z0-9-]{0,11}"
)  # `vb-<name>` names a network interface: at most 15 characters
DISK_ID = re.compile(r"d[0-9]{2}")


@dataclass(frozen=True)
class Disk:
    """A data disk, and the stable name that its host knows it by."""

    id: str
    device_name: str
    """The name in /dev/disk/by-id, as udev would have made it."""


@dataclass(frozen=True)
class Host:
    """A host of the lab."""

    name: str
    address: IPv4Address
    disks: tuple[Disk, ...] = ()

    def disk(self, disk_id: str) -> Disk:
        """The disk of this id; UserError if the host has none."""
        for disk in self.disks:
            if disk.id == disk_id:
                return disk
        has = ", ".join(disk.id for disk in self.disks) or "none"
        raise UserError(f"{self.name} has no disk {disk_id}: it has {has}")


@dataclass(frozen=True)
class Description:
    """The lab as the inventory describes it: network, hosts in the file's order, and groups."""

    network: IPv4Network
    disk_size_mib: int
    hosts: tuple[Host, ...]
    groups: Mapping[str, tuple[str, ...]]
    is_bare: bool = False
    """Whether the hosts start without what the roles install, as a fresh Debian does."""

    @property
    def control_address(self) -> IPv4Address:
        """The network's first address: this machine's address in it, and the hosts' gateway."""
        return self.network[1]

    def host(self, name: str) -> Host:
        """The host of this name; UserError if the inventory has none."""
        for host in self.hosts:
            if host.name == name:
                return host
        known = ", ".join(host.name for host in self.hosts)
        raise UserError(f"the lab has no host {name}: it has {known}")

    def choose(self, names: tuple[str, ...]) -> tuple[Host, ...]:
        """The hosts named, or all if none is."""
        return tuple(self.host(name) for name in names) or self.hosts

    def members(self, name: str) -> tuple[Host, ...]:
        """The host of this name, or the hosts of this group."""
        if name in self.groups:
            return tuple(self.host(member) for member in self.groups[name])
        try:
            return (self.host(name),)
        except UserError as error:
            raise UserError(f"{error}, and the groups {', '.join(self.groups)}") from None


def parse(text: str) -> Description:
    """The lab that an inventory describes; UserError says which host and variable is wrong."""
    try:
        inventory = parse_yaml(text)
    except yaml.YAMLError as error:
        raise UserError(f"the lab's inventory is no YAML: {error}") from None
    everything = inventory.get("all") if isinstance(inventory, dict) else None
    if not isinstance(everything, dict):
        raise UserError("the lab's inventory has no group `all`")
    variables = _mapping(everything, "all", "vars")
    groups: dict[str, dict[str, dict[str, Any]]] = dict(_walk("all", everything))
    network = _network(variables)
    hosts = tuple(_host(name, given, network) for name, given in groups["all"].items())
    _refuse_twins(hosts)
    return Description(
        network,
        _disk_size_mib(variables),
        hosts,
        {name: tuple(members) for name, members in groups.items()},
        _is_bare(variables),
    )


def _walk(name: str, group: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """All groups below this one, then this one, each with all its hosts and their variables."""
    hosts: dict[str, dict[str, Any]] = {}
    own = _mapping(group, name, "hosts")
    _merge(hosts, {str(host): _mapping(own, name, host) for host in own})
    children = _mapping(group, name, "children")
    for child in children:
        for below, members in _walk(child, _mapping(children, name, child)):
            yield below, members
            if below == child:
                _merge(hosts, members)
    yield name, hosts


def _merge(hosts: dict[str, dict[str, Any]], more: Mapping[str, Mapping[str, Any]]) -> None:
    for name, given in more.items():
        hosts.setdefault(name, {}).update(given)


def _mapping(given: Mapping[str, Any], owner: str, name: str) -> Mapping[str, Any]:
    """The owner's mapping of this name; empty if it has none, UserError if it is not a mapping."""
    found = given.get(name) or {}
    if not isinstance(found, dict):
        raise UserError(f"{owner}: {name} is {found}, and no mapping")
    return found


def _network(variables: Mapping[str, Any]) -> IPv4Network:
    try:
        return IPv4Network(variables["lab_network"])
    except KeyError:
        raise UserError("the lab's inventory does not say lab_network") from None
    except (AddressValueError, NetmaskValueError, ValueError):
        raise UserError(f"lab_network is no IPv4 network: {variables['lab_network']}") from None


def _disk_size_mib(variables: Mapping[str, Any]) -> int:
    size_mib = variables.get("lab_disk_size_mib")
    if not isinstance(size_mib, int) or size_mib < DISK_SIZE_MIB_MIN:
        raise UserError(
            f"lab_disk_size_mib is {size_mib}: XFS takes a number from {DISK_SIZE_MIB_MIN}"
        )
    return size_mib


def _is_bare(variables: Mapping[str, Any]) -> bool:
    image = variables.get("lab_image", "full")
    if image not in ("full", "bare"):
        raise UserError(f"lab_image is {image}: it can be full or bare")
    return bool(image == "bare")


def _host(name: str, given: Mapping[str, Any], network: IPv4Network) -> Host:
    if not HOST_NAME.fullmatch(name):
        raise UserError(
            f"{name}: a lab host's name is at most 12 of a-z, 0-9 and -, and begins with a letter"
        )
    try:
        address = IPv4Address(given["kdist_address"])
    except KeyError:
        raise UserError(f"{name}: kdist_address is missing") from None
    except AddressValueError:
        raise UserError(
            f"{name}: kdist_address is no IPv4 address: {given['kdist_address']}"
        ) from None
    if address not in network or address == network[1]:
        raise UserError(f"{name}: kdist_address {address} is not one for a host of {network}")
    return Host(name, address, tuple(_disk(name, disk) for disk in given.get("kdist_disks") or ()))


def _disk(host: str, given: Any) -> Disk:
    if not isinstance(given, dict):
        raise UserError(f"{host}: kdist_disks has {given}, and no mapping with id and device")
    disk_id, device = str(given.get("id")), str(given.get("device"))
    if not DISK_ID.fullmatch(disk_id):
        raise UserError(f"{host}: kdist_disks has an id {disk_id}, not one like d01")
    wanted = f"kdist-{host}-{disk_id}"
    if device != f"/dev/disk/by-id/{wanted}":
        raise UserError(
            f"{host}: the lab makes disk {disk_id} as /dev/disk/by-id/{wanted}, not as {device}"
        )
    return Disk(disk_id, wanted)


def _refuse_twins(hosts: tuple[Host, ...]) -> None:
    seen: dict[IPv4Address, str] = {}
    for host in hosts:
        if other := seen.get(host.address):
            raise UserError(f"{host.name}: kdist_address {host.address} is {other}'s too")
        seen[host.address] = host.name
        if len({disk.id for disk in host.disks}) < len(host.disks):
            raise UserError(f"{host.name}: kdist_disks has an id twice")


class _OnceEach(yaml.SafeLoader):
    """Refuses a name that a mapping gives twice: YAML's readers take the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        for key, _ in node.value:
            if names.count(key.value) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} is given twice", key.start_mark
                )
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> Any:
    """The value of a YAML text; `yaml.YAMLError`, also for a name that is given twice."""
    return yaml.load(text, _OnceEach)
