"""Topics as code: plans the steps from the existing topics to the wanted ones (pure).

Steps only add topics, partitions and settings. Fewer partitions, or another number of replicas, are
refused; a topic is deleted only if it is declared absent and its deletion is confirmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kdist.errors import UserError
from kdist.model import counted

_KEYS = frozenset({"name", "partitions", "replication_factor", "config", "state"})
_STATES = ("present", "absent")


class Wanted(NamedTuple):
    """A declared topic; None leaves an existing topic as it is, and a new one at the default."""

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    settings: Mapping[str, str] = {}
    is_absent: bool = False


class Existing(NamedTuple):
    """An existing topic, with the settings of its own.

    `replication_factor` is what is wanted of it: while it moves, what it has in the end.
    """

    name: str
    partitions: int
    replication_factor: int
    settings: Mapping[str, str]


class Create(NamedTuple):
    """Create the topic."""

    topic: Wanted

    def __str__(self) -> str:
        return f"create topic {self.topic.name}"


class Grow(NamedTuple):
    """Add partitions, up to `partitions` in all."""

    name: str
    partitions: int

    def __str__(self) -> str:
        return f"grow topic {self.name} to {counted(self.partitions, 'partition')}"


class Configure(NamedTuple):
    """Change settings of the topic; those that are not named stay."""

    name: str
    settings: Mapping[str, str]

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in self.settings.items())
        return f"set {shown} of topic {self.name}"


class Delete(NamedTuple):
    """Delete the topic with all its records."""

    name: str

    def __str__(self) -> str:
        return f"delete topic {self.name} with all its records"


Step = Create | Grow | Configure | Delete


class TopicPlan(NamedTuple):
    """The steps to take, and the refusals; if there is any refusal, no step is taken."""

    steps: tuple[Step, ...]
    refusals: tuple[str, ...]


def parse_wanted(value: Any) -> list[Wanted]:
    """The topics in a JSON document, a list of objects; `UserError` names the one that is wrong."""
    if not isinstance(value, list):
        raise UserError("topics must be a list of objects")
    wanted = [_wanted(item) for item in value]
    names = [topic.name for topic in wanted]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"topic {twice[0]} is there twice")
    return wanted


def _wanted(item: Any) -> Wanted:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str) or not item["name"]:
        raise UserError(f"a topic needs a name: {item!r}")
    name = item["name"]
    unknown = sorted(set(item) - _KEYS)
    if unknown:
        raise UserError(f"topic {name}: there is no {unknown[0]!r}; known are {sorted(_KEYS)}")
    state = item.get("state", "present")
    if state not in _STATES:
        raise UserError(f"topic {name}: state is {state!r}, and not present or absent")
    settings = item.get("config") or {}
    if not isinstance(settings, dict):
        raise UserError(f"topic {name}: config is not settings by name")
    return Wanted(
        name,
        _count(item, "partitions"),
        _count(item, "replication_factor"),
        {key: _text(name, key, value) for key, value in settings.items()},
        state == "absent",
    )


def _count(item: Mapping[str, Any], key: str) -> int | None:
    value = item.get(key)
    if value is not None and (type(value) is not int or value < 1):
        raise UserError(f"topic {item['name']}: {key} is {value!r}, and not a number above 0")
    return value


def _text(topic: str, key: str, value: object) -> str:
    """A value as text, as in a .properties file: YAML's true is `true`."""
    if not isinstance(value, str | int | float):
        raise UserError(f"topic {topic}: {key} is {value!r}, and not a text or number")
    return str(value).lower() if isinstance(value, bool) else str(value)


def plan_topics(
    wanted: Iterable[Wanted], existing: Mapping[str, Existing], deletable: Sequence[str] = ()
) -> TopicPlan:
    """The steps from `existing` to `wanted`; only topics named in `deletable` are deleted."""
    steps: list[Step] = []
    refusals: list[str] = []
    for topic in wanted:
        found = existing.get(topic.name)
        if topic.is_absent:
            if found and topic.name not in deletable:
                refusals.append(f"topic {topic.name} would be deleted, and that is not confirmed")
            elif found:
                steps.append(Delete(topic.name))
        elif found is None:
            steps.append(Create(topic))
        else:
            steps += _changes(topic, found)
            refusals += _refusals(topic, found)
    return TopicPlan(tuple(steps), tuple(refusals))


def _changes(topic: Wanted, found: Existing) -> list[Step]:
    steps: list[Step] = []
    if topic.partitions is not None and topic.partitions > found.partitions:
        steps.append(Grow(topic.name, topic.partitions))
    changed = {n: v for n, v in topic.settings.items() if found.settings.get(n) != v}
    if changed:
        steps.append(Configure(topic.name, changed))
    return steps


def _refusals(topic: Wanted, found: Existing) -> list[str]:
    refusals = []
    if topic.partitions is not None and topic.partitions < found.partitions:
        refusals.append(
            f"topic {topic.name} has {counted(found.partitions, 'partition')}, and they only"
            f" become more: not {topic.partitions}"
        )
    if topic.replication_factor not in (None, found.replication_factor):
        refusals.append(
            f"topic {topic.name} has {counted(found.replication_factor, 'replica')} of each"
            f" partition, and not {topic.replication_factor}: replicas are moved by a reassignment"
        )
    return refusals
