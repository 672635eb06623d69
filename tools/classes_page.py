"""docs/reference/classes.md: what applications import, with methods, from the docstrings (pure)."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import kdist
from tools.page_text import page_head

INTRO = """What `from kdist import ...` offers, and `kdist.aio` and `kdist.classic`.
The guides show them at work: [writing](../guides/producer.md), [reading](../guides/consumer.md),
[administering](../guides/admin.md), [streams](../guides/connector.md). Settings have
[a page of their own](clients.md)."""

# Public for the other modules of the package, not for applications.
INNER = """
    over encoded body placed numbers places checked_values records_of offset_at raw_records
    raw_values all_offsets all_timestamps all_keys all_headers part add add_one settle look put
    fail stop is_full pieces count cluster run
"""
FIRST = ("Producer", "Sent", "SentMany", "Consumer", "ConsumedRecord", "Batch", "Admin")


def classes_page() -> str:
    """Every class that applications import: clients first, then values, then errors."""
    names = [*FIRST, *(name for name in kdist.__all__ if name not in FIRST)]
    classes = {name: getattr(kdist, name) for name in names}
    errors = {name: cls for name, cls in classes.items() if issubclass(cls, Exception)}
    parts = [page_head("Classes and methods", INTRO)]
    for name, cls in classes.items():
        if name not in errors and name != "Error":
            parts += class_section(name, cls)
    parts += ["## Errors\n", *(error_line(name, cls) for name, cls in errors.items()), ""]
    parts.append(
        "`Error` is the [table of the protocol's errors](errors.md), whose rows `ApiError` has.\n"
    )
    for module in ("kdist.aio", "kdist.classic"):
        parts += module_section(module)
    return "\n".join(parts)


def class_section(name: str, cls: type) -> Iterator[str]:
    yield f"## {name}\n"
    yield f"{text_of(cls)}\n"
    fields = getattr(cls, "_fields", ()) or getattr(cls, "__annotations__", {})
    if issubclass(cls, tuple) and not any(each.startswith("batch") for each in fields):
        yield f"Fields: {', '.join(f'`{field(cls, each)}`' for each in fields)}.\n"
    elif issubclass(cls, dict):
        yield f"Keys: {', '.join(f'`{each}`' for each in fields)}.\n"
    for member, found in members(cls):
        yield f"### `{heading(name, member, found)}`\n"
        yield f"{text_of(found)}\n"


def module_section(name: str) -> Iterator[str]:
    """The classes of a module: in full where `kdist` has none of that name, else what differs."""
    module = importlib.import_module(name)
    yield f"## {name}\n"
    yield f"{text_of(module)}\n"
    for each in module.__all__:
        cls = getattr(module, each)
        twin = getattr(kdist, each) if each in kdist.__all__ else None
        if not isinstance(cls, type) or cls is twin:
            continue
        known = {member for member, _ in members(twin)} if twin is not None else set()
        found = list(members(cls))
        yield f"### {name}.{each}\n"
        yield f"{text_of(cls)}\n"
        waiting = [f"`{m}`" for m, f in found if m in known and inspect.iscoroutinefunction(f)]
        if waiting:
            yield f"Coroutines, but otherwise those of `kdist.{each}`: {', '.join(waiting)}.\n"
        for member, own in found:
            if member not in known:
                text = text_of(own).replace("\n", "\n  ")
                yield f"- `{heading(each, member, own)}`: {text}".replace("\n  \n", "\n\n")
        yield ""


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties, in the order of the source, the class's own first."""
    seen: set[str] = set()
    for base in cls.__mro__:
        if not base.__module__.startswith("kdist."):
            continue
        for name, found in vars(base).items():
            found = getattr(found, "function", found)  # of an `Operation` or a `Call`
            found = getattr(found, "__func__", found)
            is_member = callable(found) or isinstance(found, property)
            is_public = (
                not name.startswith("_") and name not in INNER.split() and bool(found.__doc__)
            )
            if is_member and is_public and name not in seen and not isinstance(found, type):
                seen.add(name)
                yield name, found


def heading(owner: str, name: str, found: Any) -> str:
    """A member as it is used: `Producer.flush(timeout_s: float | None = None) -> None`."""
    if isinstance(found, property):
        kind = inspect.signature(found.fget).return_annotation if found.fget else "Any"
        return f"{owner}.{name}: {kind}"
    return f"{owner}.{name}{shown_signature(found)}"


def shown_signature(function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.name not in ("self", "cluster")]
    text = str(signature.replace(parameters=own))
    return re.sub(r"<function (\w+) at \w+>|'([^']*)'", r"\1\2", text)


def field(cls: Any, name: str) -> str:
    """A field of a named tuple, with its default if it has one."""
    default = getattr(cls, "_field_defaults", {})
    return f"{name}={default[name]!r}" if name in default else name


def error_line(name: str, cls: type) -> str:
    base = cls.__bases__[0].__name__
    kind = "" if base in ("Exception", "KdistError") else f", a kind of `{base}`"
    return f"- `{name}`{kind}: {' '.join(text_of(cls).split())}"


def text_of(declared: object) -> str:
    """An object's docstring without its examples, which the guides have."""
    text = inspect.getdoc(declared) or ""
    text = re.sub(r"(?m)^ *(>>>|    \S).*\n?(?:(?!^ *$).*\n?)*", "", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()
