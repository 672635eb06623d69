"""How a setting is declared: a line in a class body, from which everything else is derived.

    @settings
    class TopicSettings(Settings):
        segment_bytes: int32 = setting(
            default=1 << 30, minimum=14, broker="log.segment.bytes", doc="One sentence.")

The annotation gives the kind of value (`kinds.py`), to mypy and to the parser. The attribute gives
the name, `segment.bytes`, and the unit, unless the declaration has others. An instance is a
frozen dataclass with slots, so `topic.segment_bytes` is a plain attribute in hot code.
`TopicSettings.TABLE` holds the rows for parsing, checks, `describe` and the generated pages.
Nothing here reads a file.
"""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, ClassVar, NamedTuple, Required, TypedDict, TypeVar, Unpack

from kdist.config.kinds import (
    INT32_MAX,
    INT64_MAX,
    LIMITS,
    NOUNS,
    Kind,
    Shape,
    read_text,
    shape_of,
    show_text,
)
from kdist.model import counted

REQUIRED: Any = dataclasses.MISSING

_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_DURATIONS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second"))


class Synonym(NamedTuple):
    """A name of a setting. Its values are multiplied by `factor`, for example hours to ms."""

    name: str
    factor: int = 1


class Columns(TypedDict, total=False):
    """What a declaration says besides name and annotation.

    `minimum` and `maximum` are inclusive; an integer is also bounded by its width. A setting with
    `broker` is a topic's, and `broker` is the name of its default in a broker's file; one that is
    `topic_only` is a topic's without a default there. `synonyms`
    and `broker_synonyms` come after `name` and `broker` in precedence, in the order given.
    `subject` heads a section: the rows that follow have it too, until one has another.
    `dynamic`: can be changed while brokers run, for all brokers or one; topic defaults always can.
    """

    default: Any
    minimum: float
    maximum: float
    unit: str
    subject: str
    synonyms: tuple[Synonym, ...]
    broker: str
    topic_only: bool
    broker_synonyms: tuple[Synonym, ...]
    default_of_synonym: bool
    dynamic: bool
    doc: Required[str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row: a setting as declared.

    `names` are its own name and synonyms; `broker_names` are its names in a broker's file, if it
    has any. Both are in order of precedence, and equal for a broker's setting. While brokers run, a
    dynamic one is changed by the first of `broker_names` only, as in Kafka. The default is a value
    of that name too, unless Kafka gives it to a synonym: `log.retention.hours` has one,
    `log.retention.ms` none.
    """

    attribute: str
    shape: Shape
    names: tuple[Synonym, ...]
    broker_names: tuple[Synonym, ...]
    default: Any
    minimum: float | None
    maximum: float | None
    unit: str
    subject: str
    is_dynamic: bool
    is_default_of_synonym: bool = False
    doc: str

    @property
    def name(self) -> str:
        """Its own dotted name."""
        return self.names[0].name

    @property
    def is_secret(self) -> bool:
        return self.shape.kind is Kind.PASSWORD

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED

    def read(self, text: str, factor: int = 1) -> Any:
        """Parse and check `text`; a `ValueError` says what is allowed.

        `factor` multiplies positive values only: -1 keeps its meaning, "no limit".
        """
        if self.shape.nullable and not text.strip():
            return None
        try:
            value = read_text(self.shape.kind, text)
        except ValueError:
            raise ValueError(self.allowed(factor)) from None
        if factor != 1 and value > 0:
            value *= factor
        if not self.admits(value):
            raise ValueError(self.allowed(factor))
        return value

    def admits(self, value: Any) -> bool:
        """Whether a value of the right kind is within bounds, or among the choices."""
        if self.shape.choices:
            items = value if isinstance(value, tuple) else (value,)
            return set(items) <= set(self.shape.choices)
        if self.minimum is not None and value < self.minimum:
            return False
        return self.maximum is None or value <= self.maximum

    def allowed(self, factor: int = 1) -> str:
        """What is allowed, as a noun phrase: 'an integer from 14 to 2147483647'."""
        if self.shape.choices:
            several = "any of " if self.shape.kind is Kind.LIST else "one of "
            return several + ", ".join(self.shape.choices)
        words = [NOUNS.get(self.shape.kind, "text")]
        if self.minimum is not None:
            words.append(
                f"from {self.minimum if factor == 1 else _rounded_up(self.minimum, factor)}"
            )
        if self.maximum is not None:
            words.append(f"to {self.maximum if factor == 1 else int(self.maximum) // factor}")
        return " ".join(words)


def _rounded_up(limit: float, factor: int) -> int:
    """A lower limit in the larger unit; a negative one stays, as -1 means "no limit"."""
    return int(limit) if limit < 0 else -(-int(limit) // factor)


def setting(name: str = "", **columns: Unpack[Columns]) -> Any:
    """Declare a setting, in the body of a class under `@settings`.

    `name` is needed only where it is not `PREFIX` and the attribute's words with `SEPARATOR`s.
    """
    default = columns.get("default", REQUIRED)
    return dataclasses.field(default=default, metadata={"name": name, **columns})


class Settings:
    """The base of every class of settings."""

    __slots__ = ()
    PREFIX: ClassVar[str] = ""
    SEPARATOR: ClassVar[str] = "."
    TABLE: ClassVar[tuple[Setting, ...]] = ()


S = TypeVar("S", bound=Settings)


@typing.dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(setting,))
def settings(cls: type[S]) -> type[S]:
    """Make the class a frozen dataclass with slots, and its declarations its `TABLE`.

    Those of a base class follow its own, under the names that they have there.
    """
    hints = typing.get_type_hints(cls, include_extras=True)
    own = cls.__annotations__
    for name in own:
        cls.__dict__[name].repr = shape_of(hints[name]).kind is not Kind.PASSWORD
    made = dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)
    subject, rows = "", []
    fields = dataclasses.fields(typing.cast(Any, made))
    for each in (field for field in fields if field.name in own):
        name = each.metadata["name"] or cls.PREFIX + each.name.replace("_", cls.SEPARATOR)
        subject = each.metadata.get("subject", subject)
        columns = {**each.metadata, "name": name, "subject": subject}
        rows.append(_row(each.name, shape_of(hints[each.name]), columns))
    made.TABLE = (*rows, *(row for row in cls.TABLE if row.attribute not in own))
    return made


def _row(attribute: str, shape: Shape, columns: dict[str, Any]) -> Setting:
    lowest, highest = LIMITS.get(shape.kind, (None, None))
    last_word = attribute.rpartition("_")[2]
    names = (Synonym(columns["name"]), *columns.get("synonyms", ()))
    broker = columns.get("broker")
    own = () if columns.get("topic_only") else names
    return Setting(
        attribute=attribute,
        shape=shape,
        names=names,
        broker_names=(Synonym(broker), *columns.get("broker_synonyms", ())) if broker else own,
        default=columns.get("default", REQUIRED),
        minimum=columns.get("minimum", lowest),
        maximum=columns.get("maximum", highest),
        unit=columns.get("unit", last_word if last_word in ("ms", "bytes") else ""),
        subject=columns["subject"],
        is_dynamic=columns.get("dynamic", broker is not None),
        is_default_of_synonym=columns.get("default_of_synonym", False),
        doc=columns["doc"],
    )


def show_human(row: Setting, value: Any) -> str:
    """A value of this setting in human-readable form; as `show_text` if there is no other."""
    if row.is_required and value is row.default:
        return "must be given"
    if value is None or value == ():
        return "not set"
    if row.shape.kind not in (Kind.INT, Kind.LONG):
        return show_text(value)
    if value in (INT32_MAX, INT64_MAX):
        return "no limit"
    if value <= 0:
        return show_text(value)
    return _amount(value, row.unit)


def _amount(value: int, unit: str) -> str:
    """An amount in the largest unit in which it is a whole number."""
    if unit == "bytes":
        return next(
            (f"{value // n} {word}" for n, word in _BYTES if _fits(value, n)), f"{value} bytes"
        )
    if unit == "minutes":
        value, unit = value * 60_000, "ms"
    if unit == "ms":
        return next(
            (counted(value // n, word) for n, word in _DURATIONS if _fits(value, n)), f"{value} ms"
        )
    return str(value)


def _fits(value: int, size: int) -> bool:
    return value >= size and value % size == 0
