"""The settings of `kdist mirror`: one file for each process, with one or more flows.

    mirror.http.address=0.0.0.0:9392          of the process
    flow.flights.source=k2:9092,k3:9092       of the flow "flights"
    flow.flights.target=k4:9092
    flow.flights.topics=flights,ops\\\\..*
    flow.flights.target.security.protocol=SSL

A flow's settings are declared once, by their names after `flow.<name>.`, and how the connections to
its two clusters are secured by their names after `flow.<name>.source.` and `.target.`. Rows for
each flow in a file are derived from these, so that messages can name the whole key.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Literal

from kdist.config.addresses import parse_host_port, unreachable
from kdist.config.client_security import SecuritySettings
from kdist.config.declare import Setting, Settings, Synonym, setting, settings
from kdist.config.faults import Given, raise_if_any, sentence_at
from kdist.config.foreign import unknown_names
from kdist.config.kinds import int32, int64
from kdist.config.layers import Layer, Resolved, Source, resolve
from kdist.config.texts import parse_properties
from kdist.model import topic_name_fault

GROUP_PREFIX = "kdist-mirror-"

_FLOW_KEY = re.compile(r"flow\.([^.]*)\.(.+)")
_FLOW_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_IN_CLEAR = SecuritySettings()


@settings
class MirrorSettings(Settings):
    """What one mirror process is given, besides its flows."""

    PREFIX = "mirror."

    http_address: str | None = setting(
        default=None,
        subject="Mirror",
        doc="Where `/metrics` and `/health` are served, as `host:port`; unset, nowhere.",
    )
    buffer_bytes: int64 = setting(
        default=64 << 20,
        minimum=1 << 20,
        doc="How much a flow buffers that its target has not acknowledged; then it stops reading."
        " Each partition has an equal share, or 1 MiB if that is more.",
    )
    commit_interval_ms: int32 = setting(
        default=1_000,
        minimum=10,
        doc="How often positions are committed to the source. A restart does not depend on them.",
    )
    refresh_interval_ms: int32 = setting(
        default=10_000,
        minimum=100,
        doc="How often to look for new topics and partitions, and how far behind the flows are.",
    )
    session_timeout_ms: int32 = setting(
        default=45_000,  # as Kafka's consumers since KIP-735, for the same reason
        minimum=100,
        doc="After this long, another mirror takes over the partitions of one that is dead or cut"
        " off from the source.",
    )
    on_loss: Literal["stop-partition", "stop-mirror"] = setting(
        default="stop-partition",
        doc="What stops when records were deleted from the source unread: the partition, or all.",
    )


@settings
class FlowSettings(Settings):
    """What one flow is given: it mirrors one cluster to one other."""

    source: str = setting(
        subject="Flow", doc="Brokers of the cluster that is read, as `host1:9092,host2:9092`."
    )
    target: str = setting(doc="Brokers of the cluster that is written to, which should be near.")
    topics: tuple[str, ...] = setting(
        default=(".*",),
        synonyms=(Synonym("whitelist"),),
        doc="Regular expressions; a topic is mirrored if one of them matches its whole name. Commas"
        " separate them, but for that in `{1,2}`.",
    )
    topics_exclude: tuple[str, ...] = setting(
        default=(),
        synonyms=(Synonym("blacklist"),),
        doc="Regular expressions; a topic is not mirrored if one of them matches its whole name.",
    )
    prefix: str = setting(
        default="", doc="A prefix for the topic's name in the target; empty, it keeps its name."
    )
    start: Literal["earliest", "latest"] = setting(
        default="earliest",
        doc="Where mirroring begins in partitions that existed when the flow first found their"
        " topic; later ones are mirrored from their first record.",
    )


@dataclasses.dataclass(frozen=True)
class Flow:
    """A flow with its name, and how its connections to either cluster are secured."""

    name: str
    settings: FlowSettings
    source_security: SecuritySettings = _IN_CLEAR
    target_security: SecuritySettings = _IN_CLEAR

    @property
    def group(self) -> str:
        """The consumer group that the flow uses in its source."""
        return GROUP_PREFIX + self.name

    @cached_property
    def _wanted(self) -> tuple[re.Pattern[str], ...]:
        return tuple(map(re.compile, self.settings.topics))

    @cached_property
    def _unwanted(self) -> tuple[re.Pattern[str], ...]:
        return tuple(map(re.compile, self.settings.topics_exclude))

    def unmatched(self, topics: Collection[str]) -> tuple[str, ...]:
        """The flow's patterns that match none of the source's topics: perhaps they are mistyped."""
        return tuple(each.pattern for each in self._wanted if not any(map(each.fullmatch, topics)))

    def wants(self, topic: str) -> bool:
        """Whether the flow's patterns select a topic of the source."""
        return any(each.fullmatch(topic) for each in self._wanted) and not any(
            each.fullmatch(topic) for each in self._unwanted
        )

    def renamed(self, topic: str) -> str:
        """The name in the target of a topic of the source."""
        return self.settings.prefix + topic


@dataclasses.dataclass(frozen=True)
class MirrorConfig:
    """A mirror's whole file."""

    mirror: MirrorSettings
    flows: tuple[Flow, ...]

    def flow(self, name: str) -> Flow | None:
        return next((flow for flow in self.flows if flow.name == name), None)


def load_mirror(text: str, source: str) -> MirrorConfig:
    """The configuration in the text of a .properties file; `source` names the file in messages.

    Raises `ConfigError` with all faults.
    """
    properties = parse_properties(text, source)
    of_flows, of_mirror, misnamed = _sorted_by_flow(properties.given)
    outcome = _resolve(MirrorSettings.TABLE, of_mirror, source)
    faults = [*properties.faults, *misnamed, *unknown_names(of_mirror, MirrorSettings.TABLE)]
    faults += outcome.faults.values()
    found: dict[str, list[Resolved]] = {}
    for name, given in of_flows.items():
        tables = flow_tables(name)
        rows = tuple(itertools.chain(*tables))
        found[name] = [_resolve(each, given, source) for each in tables]
        faults += (*unknown_names(given, rows), *_twice(rows, given))
        faults += (fault for each in found[name] for fault in each.faults.values())
    if not of_flows and not misnamed:
        faults.append(sentence_at(source, "a mirror needs a flow: give flow.<name>.source"))
    mirror = MirrorSettings(**outcome.values)
    flows = tuple(
        Flow(
            name,
            FlowSettings(**own.or_else(_FAULTLESS)),
            *(SecuritySettings(**each.values) for each in of_ends),
        )
        for name, (own, *of_ends) in found.items()
    )
    raise_if_any((*faults, *_later_faults(mirror, flows, properties.given, source)))
    return MirrorConfig(mirror, flows)


_FAULTLESS = {
    "source": "a:1",
    "target": "b:1",
    "topics": (".*",),
    "topics_exclude": (),
    "prefix": "",
}
"""What stands for a value that has a fault or is missing, so that the others can be checked."""


def flow_tables(name: str) -> tuple[tuple[Setting, ...], ...]:
    """The rows of a flow's own settings, of its source's security and of its target's.

    With their full names in a file.
    """
    return (
        _below(f"flow.{name}.", FlowSettings.TABLE),
        _below(f"flow.{name}.source.", SecuritySettings.TABLE),
        _below(f"flow.{name}.target.", SecuritySettings.TABLE),
    )


def _below(prefix: str, table: tuple[Setting, ...]) -> tuple[Setting, ...]:
    named = (
        (row, tuple(Synonym(prefix + each.name, each.factor) for each in row.names))
        for row in table
    )
    return tuple(dataclasses.replace(row, names=names, broker_names=names) for row, names in named)


DESCRIBED = (*MirrorSettings.TABLE, *flow_tables("<name>")[0])
"""Every row, for the page of settings, but for those of security."""


def _sorted_by_flow(
    given: Mapping[str, Given],
) -> tuple[dict[str, dict[str, Given]], dict[str, Given], list[str]]:
    """The settings of each flow, those of the process, and a sentence for each bad flow name."""
    of_flows: dict[str, dict[str, Given]] = {}
    of_mirror: dict[str, Given] = {}
    misnamed = []
    for name, each in given.items():
        key = _FLOW_KEY.fullmatch(name)
        if key is None:
            of_mirror[name] = each
        elif _FLOW_NAME.fullmatch(key[1]):
            of_flows.setdefault(key[1], {})[name] = each
        else:
            claim = f"{name}: a flow's name has up to 100 letters, digits, '_' and '-'"
            misnamed.append(each.sentence(claim))
    return of_flows, of_mirror, misnamed


def _resolve(table: tuple[Setting, ...], given: Mapping[str, Given], source: str) -> Resolved:
    return resolve(table, (Layer(Source.STATIC_BROKER_CONFIG, given),), source)


def _twice(table: tuple[Setting, ...], given: Mapping[str, Given]) -> Iterator[str]:
    """Faults of settings given by both of their names: one value would be ignored silently."""
    for row in table:
        name, *others = [each.name for each in row.names if each.name in given] or [""]
        for other in others:
            yield given[other].sentence(f"{other} is another name for {name}: give only one")


def _later_faults(
    mirror: MirrorSettings, flows: tuple[Flow, ...], given: Mapping[str, Given], source: str
) -> Iterator[str]:
    """Faults that cannot be found from a single row."""

    def found_at(*names: str) -> tuple[str, str]:
        """The first of the names that was given, and where."""
        found = ((name, given[name].where) for name in names if name in given)
        return next(found, (names[0], source))

    if mirror.http_address is not None and not parse_host_port(mirror.http_address):
        name, where = found_at("mirror.http.address")
        yield sentence_at(where, f"{name} is {mirror.http_address!r}, but must be host:port")
    for flow in flows:
        for fault, *keys in _flow_faults(flow):
            name, where = found_at(*(f"flow.{flow.name}.{key}" for key in keys))
            yield sentence_at(where, f"{name} {fault}")


def _flow_faults(flow: Flow) -> Iterator[tuple[str, ...]]:
    """Each fault with the names of its setting, the primary one first."""
    found = flow.settings
    for key, addresses in (("source", found.source), ("target", found.target)):
        for text in unreachable(addresses):
            yield f"has {text!r}, but must have host:port", key
    for keys, patterns in (
        (("topics", "whitelist"), found.topics),
        (("topics.exclude", "blacklist"), found.topics_exclude),
    ):
        for pattern in patterns:
            fault = _pattern_fault(pattern)
            if fault:
                comma = "; a comma separates patterns, but for that in {1,2}"
                hint = comma if len(patterns) > 1 else ""
                yield f"has {pattern!r}, which is not a regular expression: {fault}{hint}", *keys
    if not found.topics:
        yield "is empty: give at least one pattern", "topics", "whitelist"
    if found.prefix and topic_name_fault(found.prefix + "x"):
        yield f"is {found.prefix!r}, which no topic's name can begin with", "prefix"
    if not found.prefix and _addresses(found.source) == _addresses(found.target):
        yield "is the source too: without a prefix a topic would be mirrored into itself", "target"


def _pattern_fault(pattern: str) -> str | None:
    try:
        re.compile(pattern)
    except re.error as error:
        return str(error)
    return None


def _addresses(text: str) -> frozenset[str]:
    return frozenset(each.strip() for each in text.split(","))
