"""The source of a generated function: its lines, and the names that they use.

Adjacent values of fixed size are collected in a `run` until something else must be written; then
one `struct` call packs or unpacks all of them. The packers are named after their format, so that
generated code reads `unpack_iqi(buffer, position)`.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Any

from kdist.protocol.schema import FIXED, Shape, WireField, wire_fields


class Source:
    """Source being written. `names` becomes the globals of the compiled functions."""

    def __init__(self, names: dict[str, Any], version: int, is_flexible: bool) -> None:
        self.names = names
        self.version = version
        self.is_flexible = is_flexible
        self.lines: list[str] = []
        self.run: list[tuple[str, str]] = []  # (expression or target, struct code)
        self._depth = 0

    def text(self) -> str:
        """The lines as one piece of Python."""
        return "\n".join(self.lines) + "\n"

    def line(self, text: str) -> None:
        """Write one line at the current depth."""
        self.lines.append("    " * self._depth + text)

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Write `head`, and indent what is written inside the `with` block."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def fixed(self, expression: str, code: str) -> None:
        """Add a value of fixed size to the run."""
        self.run.append((expression, code))

    def class_name(self, cls: type[Any]) -> str:
        """The name of a message class in the generated code."""
        name: str = cls.__name__
        assert self.names.setdefault(name, cls) is cls, f"two classes are called {name}"
        return name

    def take_run(self, verb: str) -> tuple[str, list[str], int]:
        """End the run: the name of its `pack` or `unpack_from`, its expressions, its size."""
        codes = "".join(code for _, code in self.run)
        expressions = [expression for expression, _ in self.run]
        self.run.clear()
        packer = struct.Struct(">" + codes)
        name = f"{verb}_{codes.replace('?', 'o')}"
        self.names[name] = packer.pack if verb == "pack" else packer.unpack_from
        return name, expressions, packer.size

    def known_tags(self, cls: type[Any]) -> list[WireField]:
        """The tagged fields of `cls` that this version knows."""
        return [f for f in wire_fields(cls) if f.tag is not None and f.is_in(self.version)]

    def smallest_size(self, shape: Shape, is_nullable: bool) -> int:
        """The fewest bytes that a value can take, for checking counts."""
        if shape.kind in FIXED:
            return struct.calcsize(">" + FIXED[shape.kind])
        if shape.kind == "struct":
            assert shape.struct is not None
            return 1 if is_nullable else self._smallest_struct(shape.struct)
        if self.is_flexible:
            return 1
        return 2 if shape.kind == "string" else 4

    def _smallest_struct(self, cls: type[Any]) -> int:
        sizes = [
            self.smallest_size(field.shape, field.is_nullable_in(self.version))
            for field in wire_fields(cls)
            if field.tag is None and field.is_in(self.version)
        ]
        return sum(sizes) + (1 if self.is_flexible else 0)

    def constant(self, value: Any) -> str:
        if value is None or type(value) in (bool, int, float, str, bytes):
            return repr(value)
        name = f"default_{type(value).__name__}_{value}".replace("-", "")
        self.names[name] = value
        return name
