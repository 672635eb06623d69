"""How a message is declared: a class body in wire order, with the versions that carry each field.

    @message(flexible=12)
    class FetchRequest:
        replica_id: int32 = -1
        max_bytes: int32 = at(since=3, default=2**31 - 1, ignorable=True)
        topics: list[FetchTopic]

The class becomes a dataclass with slots and keyword-only fields. `compiler.py` makes its codec.

What a declaration can say:
- a wire type: the aliases below, `bool`, a `@struct` class, `list[...]` of those, `... | None`;
- `at(since=, until=)`: the first and last version that carry the field;
- `at(nullable_since=)`: the first version that may send None (without it, every version may);
- `at(tag=)`: the field travels in the tagged section (KIP-482), and only if it differs from its
  default; a struct there is `X | None`, and None says that the tag is absent;
- `at(secret=)`: the message's text form does not show the field;
- `at(default=)`: what a decoder sets where the version lacks the field. Encoding any other value at
  such a version is refused, as Kafka does, unless the field is `ignorable`.

Source: Kafka's message definitions (clients/src/main/resources/common/message/README.md), KIP-482.
"""

from __future__ import annotations

import dataclasses
import types
import typing
import uuid as uuids
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar, dataclass_transform

from kdist.wire.primitives import Buffer

NEVER = 32767  # the largest int16: as `flexible` or `until`, a version that no message reaches
FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}  # wire kinds of fixed size, with their struct codes


class Splice(Protocol):
    """Bytes that are stored elsewhere, such as a range of a segment file."""

    def __len__(self) -> int:
        """How many bytes will be sent."""
        ...


int8 = Annotated[int, "int8"]
int16 = Annotated[int, "int16"]
uint16 = Annotated[int, "uint16"]
int32 = Annotated[int, "int32"]
uint32 = Annotated[int, "uint32"]
int64 = Annotated[int, "int64"]
float64 = Annotated[float, "float64"]
uuid = Annotated[uuids.UUID, "uuid"]
string = Annotated[str, "string"]
nullable_string = Annotated[str | None, "string"]
bytes_ = Annotated[bytes, "bytes"]
nullable_bytes = Annotated[bytes | None, "bytes"]
# Record batches, or None. Decoded: a view of the receive buffer, without a copy. To be encoded: any
# buffer, or with `spliced_record_set` a `Splice` that stays in its file (frame.py).
record_set = Annotated[Buffer | None, "record_set"]
spliced_record_set = Annotated[Buffer | Splice | None, "record_set"]

T = TypeVar("T")


class Shape(NamedTuple):
    """A wire type; `kind`: a key of FIXED, "string", "bytes", "record_set", "struct" or "array"."""

    kind: str
    is_nullable: bool = False
    struct: type[Any] | None = None  # of kind "struct"
    item: Shape | None = None  # of kind "array"


class WireField(NamedTuple):
    """One field of a message: its type, the versions that carry it, and its default elsewhere."""

    name: str
    shape: Shape
    since: int
    until: int
    nullable_since: int
    tag: int | None
    default: Any
    is_ignorable: bool

    def is_in(self, version: int) -> bool:
        return self.since <= version <= self.until

    def is_nullable_in(self, version: int) -> bool:
        """Whether `version` encodes None here. For a tagged struct, None means an absent tag."""
        is_tagged_struct = self.tag is not None and self.shape.kind == "struct"
        return self.shape.is_nullable and version >= self.nullable_since and not is_tagged_struct


def at(
    *,
    since: int = 0,
    until: int = NEVER,
    default: Any = dataclasses.MISSING,
    nullable_since: int = 0,
    tag: int | None = None,
    ignorable: bool = False,
    secret: bool = False,
) -> Any:
    """Declare a field's versions, default or tag; see the module's docstring."""
    meta = {
        "since": since,
        "until": until,
        "nullable_since": nullable_since,
        "tag": tag,
        "ignorable": ignorable,
        "secret": secret,
    }
    if default is dataclasses.MISSING:
        if since > 0 or until < NEVER or tag is not None:
            raise TypeError("a field that some version lacks needs a default")
        return dataclasses.field(metadata=meta)
    if default == []:
        return dataclasses.field(default_factory=list, metadata=meta)
    return dataclasses.field(default=default, metadata=meta)


@dataclass_transform(field_specifiers=(at,), kw_only_default=True)
def message(
    *, flexible: int = NEVER, entries_max: int | None = None
) -> Callable[[type[T]], type[T]]:
    """Declare a message; from version `flexible` on it has compact lengths and tagged fields.

    A decoder refuses one with more than `entries_max` structs and strings in arrays.

    Each instance also has `unknown_tags`, a dict from tag to bytes, or None: tagged fields that a
    newer peer sent and this declaration lacks. Encoding writes them again, so that none is lost.
    """

    def declare(cls: type[T]) -> type[T]:
        made = struct(cls)
        made.flexible_since = flexible  # type: ignore[attr-defined]
        made.entries_max = entries_max  # type: ignore[attr-defined]
        return made

    return declare


@dataclass_transform(field_specifiers=(at,), kw_only_default=True)
def struct(cls: type[T]) -> type[T]:
    """Declare a structure within messages; it is flexible where its message is."""
    cls.__annotations__["unknown_tags"] = "dict[int, bytes] | None"
    cls.unknown_tags = None  # type: ignore[attr-defined]
    # Dataclasses would generate these for each class, and a docstring from its signature: half of
    # the time that importing all messages takes.
    cls.__doc__ = cls.__doc__ or cls.__name__
    cls.__repr__ = _show  # type: ignore[method-assign]
    cls.__eq__ = _equals  # type: ignore[method-assign]
    cls.__hash__ = None  # type: ignore[assignment]
    return dataclasses.dataclass(slots=True, kw_only=True, repr=False, eq=False)(cls)


def _show(message: Any) -> str:
    secret = {each.name for each in dataclasses.fields(message) if each.metadata.get("secret")}
    fields = (
        f"{name}={'(secret)' if name in secret else repr(getattr(message, name))}"
        for name in message.__slots__
    )
    return f"{type(message).__qualname__}({', '.join(fields)})"


def _equals(message: Any, other: Any) -> bool:
    if type(other) is not type(message):
        return False
    return all(getattr(message, name) == getattr(other, name) for name in message.__slots__)


def flexible_since(cls: type[Any]) -> int:
    """The first flexible version of a message class."""
    since: int = cls.flexible_since
    return since


def entries_max_of(cls: type[Any]) -> int | None:
    """How many structs and strings a message may have in arrays; None: as its bytes allow."""
    entries_max: int | None = cls.entries_max
    return entries_max


def wire_fields(cls: type[Any]) -> tuple[WireField, ...]:
    """The fields of a message or struct class in wire order, tagged ones among them."""
    fields = _FIELDS.get(cls)
    if fields is None:
        fields = _FIELDS[cls] = _wire_fields(cls)
    return fields


# Annotations are resolved at the first use, when all classes they name exist.
_FIELDS: dict[type[Any], tuple[WireField, ...]] = {}


def _wire_fields(cls: type[Any]) -> tuple[WireField, ...]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple(
        WireField(
            name=field.name,
            shape=_shape_of(hints[field.name]),
            since=field.metadata.get("since", 0),
            until=field.metadata.get("until", NEVER),
            nullable_since=field.metadata.get("nullable_since", 0),
            tag=field.metadata.get("tag"),
            default=[] if field.default_factory is list else field.default,
            is_ignorable=field.metadata.get("ignorable", False),
        )
        for field in dataclasses.fields(cls)
        if field.name != "unknown_tags"
    )


def _shape_of(hint: Any) -> Shape:
    """The wire type of an annotation; `TypeError` if it is none."""
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return Shape(arguments[1], is_nullable=types.NoneType in typing.get_args(arguments[0]))
    if origin in (typing.Union, types.UnionType):
        inner, _none = arguments
        return _shape_of(inner)._replace(is_nullable=True)
    if origin is list:
        return Shape("array", item=_shape_of(arguments[0]))
    if hint is bool:
        return Shape("bool")
    if dataclasses.is_dataclass(hint):
        return Shape("struct", struct=typing.cast("type[Any]", hint))
    raise TypeError(f"{hint!r} is no wire type")
