"""The filter that reads an inventory and says, in one sentence each, what is wrong with it (pure).

A rule is a function from a `Site` to sentences; each names the host and the variable. A rule passes
over values that an earlier rule has refused, so one mistake is told once.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from jinja2 import Undefined

Values = Mapping[str, Any]
Disk = Mapping[str, Any]

# What a host has to have, and for which of its groups ("" is every host).
REQUIRED = {
    "kdist_environment": ("", "what this site is, such as production or lab"),
    "kdist_datacenter": ("", "the datacenter it stands in, which is its cluster"),
    "kdist_address": ("", "its address on the private network"),
    "kdist_host_number": ("", "its number, from which broker ids follow"),
    "kdist_version": ("", "the release to run"),
    "kdist_rack": ("broker", "what it shares power and switch with"),
    "kdist_disks": ("broker", "its data disks, one broker each"),
}
OPTIONAL = (
    "kdist_zookeeper_chroot", "kdist_mirror_flows", "kdist_spark_jobs", "kdist_port_overrides",
    "kdist_ports", "kdist_brokers", "kdist_listeners",
)  # fmt: skip
# What holds for a whole cluster is read on its first broker's host alone: that takes time.
OF_CLUSTER = (
    "kdist_broker_config_defaults", "kdist_broker_config_group", "kdist_topics_wanted",
    "kdist_validate_rack_loss_accepted",
)  # fmt: skip
HOST_NUMBER_MAX = 9999
BROKER_ID_MAX = 999_999  # a disk's XFS label has no room for more
ZOOKEEPER_ID_MAX = 255  # ZooKeeper's `myid` is the host number, and one byte
DISK_KEYS = {"id", "device", "serial", "state", "broker", "port"}
DISK_STATES = ("active", "failed", "retired")
DISK_ID = re.compile(r"d(0[1-9]|[1-9][0-9])")
STABLE_DEVICE = re.compile(r"/dev/disk/by-(id|path|partuuid|uuid|partlabel|label)/[^/\s]+")
FLOW_KEYS = {"name", "source", "target", "topics", "policy", "port"}
PORT_MAX = 0xFFFF
FLOW_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
FLOW_POLICIES = ("identity", "prefix")


@dataclass(frozen=True)
class Site:
    """An inventory: each host's values, and each group's hosts."""

    hosts: Mapping[str, Values]
    groups: Mapping[str, list[str]]

    def has(self, host: str, group: str) -> bool:
        return not group or host in self.groups.get(group, ())

    def members(self, group: str, datacenter: str) -> list[str]:
        inside = self.groups.get(group, ())
        return [h for h, v in self.hosts.items() if h in inside and datacenter_of(v) == datacenter]

    @property
    def datacenters(self) -> list[str]:
        return sorted({datacenter_of(values) for values in self.hosts.values()} - {""})


def datacenter_of(values: Values) -> str:
    return str(values.get("kdist_datacenter") or "")


def sound_number(values: Values) -> int | None:
    """The host's number, if it is one."""
    number = values.get("kdist_host_number")
    return number if is_whole(number) and 1 <= number <= HOST_NUMBER_MAX else None


def is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def disks_of(values: Values) -> list[Disk]:
    """The host's disks, as far as they are mappings; `disk_shapes` tells of the others."""
    disks = values.get("kdist_disks")
    return [d for d in disks if isinstance(d, Mapping)] if isinstance(disks, list) else []


def missing_values(site: Site) -> Iterator[str]:
    for host, values in site.hosts.items():
        for name, (group, meaning) in REQUIRED.items():
            if site.has(host, group) and values.get(name) in (None, "", []):
                yield f"{host}: {name} is not set; it is {meaning}."


def placement(site: Site) -> Iterator[str]:
    """Each host is in the group of its own datacenter and of no other."""
    for host, values in site.hosts.items():
        if (own := datacenter_of(values)) and not site.has(host, own):
            yield f"{host}: kdist_datacenter is {own}, but the host is not in the group {own}."
        for other in site.datacenters:
            if own and other != own and site.has(host, other):
                yield f"{host}: kdist_datacenter is {own}, but the group {other} has the host too."


def host_numbers(site: Site) -> Iterator[str]:
    seen: dict[int, str] = {}
    for host, values in site.hosts.items():
        number = sound_number(values)
        if number is None:
            if (wrong := values.get("kdist_host_number")) is not None:
                yield (
                    f"{host}: kdist_host_number is {wrong!r}; "
                    f"it is a whole number from 1 to {HOST_NUMBER_MAX}."
                )
        elif (first := seen.setdefault(number, host)) != host:
            yield f"{host}: kdist_host_number {number} is {first}'s already."
        elif site.has(host, "zookeeper") and number > ZOOKEEPER_ID_MAX:
            yield (
                f"{host}: kdist_host_number is {number}, "
                f"but a host of the group zookeeper has at most {ZOOKEEPER_ID_MAX}."
            )


def addresses(site: Site) -> Iterator[str]:
    seen: dict[str, str] = {}
    for host, values in site.hosts.items():
        if not (address := values.get("kdist_address")):
            continue
        try:
            parsed = ipaddress.ip_address(str(address))
        except ValueError:
            yield f"{host}: kdist_address is {str(address)!r}, which is not an IP address."
            continue
        if parsed.version != 4:
            yield f"{host}: kdist_address is {parsed}; hosts speak IPv4 with each other."
        elif parsed.is_loopback or parsed.is_unspecified:
            yield f"{host}: kdist_address is {parsed}, which no other host can reach."
        elif (first := seen.setdefault(str(parsed), host)) != host:
            yield f"{host}: kdist_address {parsed} is {first}'s already."


def one_environment(site: Site) -> Iterator[str]:
    """All hosts agree on what names the cluster: its environment, and its place in ZooKeeper."""
    for datacenter in site.datacenters:
        members = [h for h, v in site.hosts.items() if datacenter_of(v) == datacenter]
        for name in ("kdist_environment", "kdist_zookeeper_chroot"):
            first = site.hosts[members[0]].get(name)
            for host in members[1:]:
                other = site.hosts[host].get(name)
                if first and other and other != first:
                    yield f"{host}: {name} is {other}, but {members[0]} beside it has {first}."


def chroots(site: Site) -> Iterator[str]:
    for host, values in site.hosts.items():
        chroot = values.get("kdist_zookeeper_chroot")
        if chroot is not None and not re.fullmatch(r"(/[A-Za-z0-9._-]+)+", str(chroot)):
            yield f"{host}: kdist_zookeeper_chroot is {chroot!r}; it is a path such as /kdist."


def ensembles(site: Site) -> Iterator[str]:
    """An even ensemble bears no more failures than the odd one below it."""
    for datacenter in site.datacenters:
        members = site.members("zookeeper", datacenter)
        if members and len(members) % 2 == 0:
            yield (
                f"{', '.join(members)}: the group zookeeper has {len(members)} hosts whose "
                f"kdist_datacenter is {datacenter}; an ensemble has an odd number."
            )
        brokers = site.members("broker", datacenter)
        if brokers and not members:
            yield (
                f"{brokers[0]}: kdist_datacenter is {datacenter}, "
                "where no host of the group zookeeper stands."
            )


def replication(site: Site) -> Iterator[str]:
    """Replicas have a host each, one of them may be restarted, and so may a rack be lost."""
    for datacenter in site.datacenters:
        if brokers := site.members("broker", datacenter):
            racks = {str(site.hosts[host].get("kdist_rack") or host) for host in brokers}
            first = site.hosts[brokers[0]]
            for what, replicas, needed in wanted_replicas(first):
                here = f"{brokers[0]}: {what} has {replicas} replicas"
                in_one = -(-replicas // len(racks))  # where they are spread as well as they can be
                is_lost = len(racks) > 1 and replicas > 1 and replicas - in_one < needed
                if replicas > len(brokers):
                    yield f"{here}, and {datacenter} has {len(brokers)} hosts for them."
                elif needed >= replicas > 1:
                    yield (
                        f"{here} and min.insync.replicas {needed}: "
                        "while any of them is restarted, acks=all is refused."
                    )
                elif is_lost and not first.get("kdist_validate_rack_loss_accepted"):
                    yield (
                        f"{here} over {len(racks)} racks and min.insync.replicas {needed}: "
                        f"while the rack with {in_one} of them is down, acks=all is refused; "
                        "kdist_validate_rack_loss_accepted: true accepts that."
                    )


def wanted_replicas(values: Values) -> Iterator[tuple[str, int, int]]:
    """What is replicated, how often, and with which min.insync.replicas, as far as it is said."""
    parts = [values.get(name) for name in OF_CLUSTER[:2]]
    settings = {k: v for part in parts if isinstance(part, Mapping) for k, v in part.items()}
    factor = number_of(settings.get("default.replication.factor")) or 1
    needed = number_of(settings.get("min.insync.replicas")) or 1
    yield "a topic by default", factor, needed
    for topic in values.get("kdist_topics_wanted") or ():
        if isinstance(topic, Mapping) and topic.get("state", "present") == "present":
            own = topic.get("config")
            least = number_of(own.get("min.insync.replicas")) if isinstance(own, Mapping) else None
            replicas = number_of(topic.get("replication_factor")) or factor
            if (replicas, least or needed) != (factor, needed):  # else it is told of already
                yield f"topic {topic.get('name')}", replicas, least or needed


def number_of(value: object) -> int | None:
    """A number as settings have it, which may be a text."""
    return int(str(value)) if str(value).isdecimal() else None


def disk_shapes(site: Site) -> Iterator[str]:
    for host, values in site.hosts.items():
        disks = values.get("kdist_disks")
        if disks is None:
            continue
        if not isinstance(disks, list) or not all(isinstance(d, Mapping) for d in disks):
            yield f"{host}: kdist_disks is not a list of disks such as {{id: d01, device: ...}}."
        for disk in disks_of(values):
            yield from (f"{host}: kdist_disks: {wrong}." for wrong in wrong_in_disk(disk))


def wrong_in_disk(disk: Disk) -> Iterator[str]:
    """What is wrong with one disk by itself."""
    yield from not_texts(disk, ("id", "device", "serial", "state"), "a disk")
    name = str(disk.get("id", ""))
    if not DISK_ID.fullmatch(name):
        yield f"a disk has the id {name!r}; ids are d01 to d99"
    if unknown := sorted(set(disk) - DISK_KEYS):
        yield f"{name} has {', '.join(unknown)}, which no disk has"
    device = str(disk.get("device") or "")
    if not device:
        yield f"{name} has no device"
    elif not STABLE_DEVICE.fullmatch(device):
        yield (
            f"{name} has the device {device}, which may be another disk after the next boot; "
            "use its name under /dev/disk/by-id"
        )
    state = disk.get("state", "active")
    if state not in DISK_STATES:
        yield f"{name} has the state {state!r}; states are {', '.join(DISK_STATES)}"
    for key in ("broker", "port"):
        if key in disk and not (is_whole(disk[key]) and 1 <= disk[key] <= BROKER_ID_MAX):
            yield f"{name} has the {key} {disk[key]!r}; numbers are from 1 to {BROKER_ID_MAX}"


def disk_duplicates(site: Site) -> Iterator[str]:
    """Ids and devices are unique on a host, serials everywhere."""
    serials: dict[str, str] = {}
    for host, values in site.hosts.items():
        disks = disks_of(values)
        for key in ("id", "device"):
            for value, count in Counter(str(d[key]) for d in disks if d.get(key)).items():
                if count > 1:
                    yield f"{host}: kdist_disks has {count} disks with the {key} {value}."
        for disk in disks:
            if not (serial := str(disk.get("serial") or "")):
                continue
            here = f"{disk.get('id')} of {host}"
            if (first := serials.setdefault(serial, here)) != here:
                yield f"{host}: kdist_disks: {disk.get('id')} has the serial {serial} of {first}."


def sound_brokers(site: Site) -> Iterator[tuple[str, Values]]:
    """The brokers of hosts whose number and disks are sound, so that kdist_brokers can be read."""
    for host, values in site.hosts.items():
        disks = disks_of(values)
        alone = Counter(d.get("id") for d in disks)
        sound = all(not list(wrong_in_disk(d)) and alone[d["id"]] == 1 for d in disks)
        if site.has(host, "broker") and sound_number(values) is not None and sound:
            yield from ((host, broker) for broker in values.get("kdist_brokers") or ())


def broker_ids(site: Site) -> Iterator[str]:
    """A broker id is unique in its cluster. Equal host numbers have been told of already."""
    seen: dict[tuple[str, int], tuple[str, str]] = {}
    for host, broker in sound_brokers(site):
        values = site.hosts[host]
        here = (host, broker["instance"])
        first = seen.setdefault((datacenter_of(values), broker["id"]), here)
        other = site.hosts[first[0]]
        same_number = first[0] != host and sound_number(values) == sound_number(other)
        if first != here and not same_number:
            yield (
                f"{host}: kdist_disks: {here[1]} has the broker id {broker['id']} "
                f"of {first[1]} on {first[0]}."
            )


def port_overrides(site: Site) -> Iterator[str]:
    """Ports that the inventory has instead of the table's: of things that there are."""
    for host, values in site.hosts.items():
        for sentence in wrong_in_overrides(values):
            yield f"{host}: kdist_port_overrides {sentence}."


def wrong_in_overrides(values: Values) -> Iterator[str]:
    overrides = values.get("kdist_port_overrides") or {}
    if not isinstance(overrides, Mapping):
        yield "is not a mapping such as {node_exporter: 9190}"
        return
    known = values.get("kdist_ports") or {}
    for name, port in overrides.items():
        if known and name not in known:
            yield f"has {name}, which is none of {', '.join(known)}"
        elif not (is_whole(port) and 1 <= port <= PORT_MAX):
            yield f"has {port!r} for {name}; ports are from 1 to {PORT_MAX}"


def ports(site: Site) -> Iterator[str]:
    """No two things on a host listen on one port."""
    for host, values in site.hosts.items():
        taken: dict[int, list[str]] = defaultdict(list)
        for each in values.get("kdist_listeners") or ():
            taken[each["port"]].append(each["name"])
        for port, names in taken.items():
            if port > PORT_MAX:
                yield f"{host}: {names[0]} has the port {port}; {PORT_MAX} is the last."
            elif len(names) > 1:
                yield f"{host}: {' and '.join(names)} share port {port}."


def flows(site: Site) -> list[tuple[str, Any]]:
    """Each flow with the first host that has it; twice only if that one has it twice."""
    found: list[tuple[str, Any]] = []
    for host, values in site.hosts.items():
        told = [flow for _, flow in found]
        found += [(host, f) for f in values.get("kdist_mirror_flows") or () if f not in told]
    return found


def mirror_flows(site: Site) -> Iterator[str]:
    for host, flow in flows(site):
        if not isinstance(flow, Mapping):
            yield f"{host}: kdist_mirror_flows has {flow!r}, which is not a flow."
        else:
            yield from (f"{host}: kdist_mirror_flows: {w}." for w in wrong_in_flow(flow, site))


def flow_duplicates(site: Site) -> Iterator[str]:
    """A flow's name is its unit's and its file's."""
    named = [(host, str(f.get("name") or "")) for host, f in flows(site) if isinstance(f, Mapping)]
    for number, (host, name) in enumerate(named):
        if name and any(name == other for _, other in named[:number]):
            yield f"{host}: kdist_mirror_flows has another flow with the name {name}."


def wrong_in_flow(flow: Values, site: Site) -> Iterator[str]:
    """What is wrong with one flow by itself."""
    yield from not_texts(flow, ("name", "source", "target", "policy"), "a flow")
    name = str(flow.get("name") or "")
    if not FLOW_NAME.fullmatch(name):
        yield f"a flow has the name {name!r}; names are of letters, digits, '_' and '-'"
    yield from (f"{name} has {key}, which no flow has" for key in sorted(set(flow) - FLOW_KEYS))
    for end, group in (("source", "broker"), ("target", "mirror")):
        if flow.get(end) not in site.datacenters:
            yield f"{name} has the {end} {flow.get(end)!r}, which is no datacenter here"
        elif not site.members(group, flow[end]):
            yield f"{name} has the {end} {flow[end]}, where no host of the group {group} stands"
    if flow.get("source") == flow.get("target"):
        yield f"{name} leads from {flow.get('source')} to itself"
    if flow.get("policy", "identity") not in FLOW_POLICIES:
        yield f"{name} has the policy {flow['policy']!r}; policies are {', '.join(FLOW_POLICIES)}"
    if "port" in flow and not (is_whole(flow["port"]) and 1 <= flow["port"] <= PORT_MAX):
        yield f"{name} has the port {flow['port']!r}; ports are from 1 to {PORT_MAX}"
    if not isinstance(flow.get("topics") or [], list):
        yield f"{name} has the topics {flow['topics']!r}, which is not a list of patterns"
    else:
        found = (w for p in flow.get("topics") or () for w in wrong_in_pattern(p))
        yield from (f"{name} has {wrong}" for wrong in found)


def wrong_in_pattern(pattern: object) -> Iterator[str]:
    """What is wrong with one pattern of a flow's topics."""
    if not isinstance(pattern, str):
        yield f"the pattern {pattern!r}, which is no text; put quotes around it"
        return
    try:
        re.compile(pattern)
    except re.error as error:
        yield f"the pattern {pattern!r}, which is not a regular expression: {error}"
    else:
        if "," in re.sub(r"\{[0-9]*,[0-9]*\}", "", pattern):
            yield f"the pattern {pattern!r} with a comma; give each pattern a line of its own"


def not_texts(values: Values, keys: tuple[str, ...], what: str) -> Iterator[str]:
    """Values that are no text, as YAML takes some words for others: `no` is false, 0123 is 83."""
    for key in keys:
        value = values.get(key, "")
        if not isinstance(value, str):
            yield f"{what} has the {key} {value!r}, which is no text; put quotes around it"


def mirror_loops(site: Site) -> Iterator[str]:
    """Flows that keep topic names lead in no circle: every record would go round for ever."""
    onward: dict[str, set[str]] = defaultdict(set)
    first_host = ""
    for host, flow in flows(site):
        if isinstance(flow, Mapping) and flow.get("policy", "identity") == "identity":
            first_host = first_host or host
            if flow.get("source") != flow.get("target"):
                onward[str(flow.get("source"))].add(str(flow.get("target")))
    for circle in circles(onward):
        yield (
            f"{first_host}: kdist_mirror_flows leads in a circle, {' to '.join(circle)}; "
            "give one of these flows the policy prefix."
        )


def circles(onward: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """Each circle of a small graph once, written from its least member back to it."""

    def walk(path: list[str]) -> Iterator[list[str]]:
        for step in sorted(onward.get(path[-1], ())):
            if step == path[0]:
                yield [*path, step]
            elif step > path[0] and step not in path:
                yield from walk([*path, step])

    for start in sorted(onward):
        yield from walk([start])


RULES: tuple[Callable[[Site], Iterator[str]], ...] = (
    missing_values, placement, one_environment, host_numbers, addresses, chroots, ensembles,
    replication, disk_shapes, disk_duplicates, broker_ids, port_overrides, mirror_flows,
    flow_duplicates, ports, mirror_loops,
)  # fmt: skip


def problems(site: Site) -> list[str]:
    """Every problem of the inventory, a sentence each, without repetitions."""
    return list(dict.fromkeys(sentence for rule in RULES for sentence in rule(site)))


def kdist_validate_problems(hostvars: Mapping[str, Values], groups: Values) -> list[str]:
    """The filter: `hostvars | kdist_validate_problems(groups)`."""
    unreadable: list[str] = []
    hosts = {str(host): read(str(host), hostvars[host], unreadable) for host in groups["all"]}
    site = Site(dict(sorted(hosts.items())), {str(g): list(m) for g, m in groups.items()})
    for datacenter in site.datacenters:
        for first in site.members("broker", datacenter)[:1]:
            hosts[first] |= read(first, hostvars[first], unreadable, OF_CLUSTER)
    return unreadable or problems(site)


def read(
    host: str,
    variables: Values,
    unreadable: list[str],
    names: Iterable[str] = (*REQUIRED, *OPTIONAL),
) -> dict[str, Any]:
    """The site variables of a host, templated by being read; what fails is added to `unreadable`.

    What is derived is read only where what it derives from is sound.
    """
    values: dict[str, Any] = {}
    for name in names:
        if name not in variables or (name in DERIVED and not DERIVED[name](values)):
            continue
        value = variables[name]
        if isinstance(value, Undefined):
            unreadable.append(f"{host}: {name} refers to something that is not defined.")
        else:
            values[name] = value
    return values


def has_ports(values: Values) -> bool:
    return isinstance(values.get("kdist_port_overrides") or {}, Mapping)


def has_brokers(values: Values) -> bool:
    """Whether kdist_brokers can be computed."""
    disks = values.get("kdist_disks") or []
    listed = isinstance(disks, list) and len(disks_of(values)) == len(disks)
    wrong = any(w for disk in disks_of(values) for w in wrong_in_disk(disk))
    return listed and sound_number(values) is not None and not wrong and has_sound_ports(values)


def has_sound_ports(values: Values) -> bool:
    return not any(wrong_in_overrides(values))


def has_listeners(values: Values) -> bool:
    flows = values.get("kdist_mirror_flows") or []
    named = isinstance(flows, list) and all(
        isinstance(f, Mapping) and {"name", "source", "target"} <= f.keys() for f in flows
    )
    numbered = named and all(is_whole(f.get("port", 1)) for f in flows)
    ids = [disk.get("id") for disk in disks_of(values)]
    return numbered and len(set(ids)) == len(ids) and has_brokers(values)


DERIVED: Mapping[str, Callable[[Values], bool]] = {
    "kdist_ports": has_ports,
    "kdist_brokers": has_brokers,
    "kdist_listeners": has_listeners,
}


class FilterModule:
    """What Ansible looks for in this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"kdist_validate_problems": kdist_validate_problems}
