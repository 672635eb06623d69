"""Generates the encoder of a message at one version, as source; compiler.py shows an example.

As in Kafka, the encoder raises UNSUPPORTED_VERSION for what the version cannot carry: a value of a
field that it lacks and that is not ignorable, None before the field became nullable, unknown tags
before KIP-482. A value outside its type's range is the caller's bug and raises `struct.error`.
"""

from __future__ import annotations

from typing import Any

from kdist.protocol.schema import FIXED, Shape, WireField, wire_fields
from kdist.protocol.source import Source


def encoder_source(cls: type[Any], version: int, is_flexible: bool, names: dict[str, Any]) -> str:
    """`def encode(m0, out)` and a function for each struct that has known tags."""
    writer = _Encoder(Source(names, version, is_flexible))
    with writer.source.block("def encode(m0, out):"):
        writer.struct(cls, "m0", depth=0)
        writer.flush()
    return "\n".join([*writer.tag_functions.values(), writer.source.text()])


class _Encoder:
    """Writes into `source`. The struct at nesting depth n is the variable `m<n>`."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.tag_functions: dict[str, str] = {}

    def flush(self) -> None:
        """Write one `pack` for all values in the run."""
        if self.source.run:
            pack, values, _ = self.source.take_run("pack")
            self.source.line(f"out += {pack}({', '.join(values)})")

    def struct(self, cls: type[Any], me: str, depth: int) -> None:
        """A struct's fields in order, and its tags."""
        for field in wire_fields(cls):
            value = f"{me}.{field.name}"
            if not field.is_in(self.source.version):
                if not field.is_ignorable:
                    self._refuse_if(self._differs(me, field), cls, field.name)
            elif field.tag is None:
                is_nullable = field.is_nullable_in(self.source.version)
                if field.shape.is_nullable and not is_nullable:
                    self._refuse_if(f"{value} is None", cls, f"a null {field.name}")
                self.value(field.shape, value, is_nullable, depth)
        if self.source.is_flexible:
            self.flush()
            self._tags(cls, me)
        else:
            self._refuse_if(f"{me}.unknown_tags", cls, "tagged fields")

    def value(self, shape: Shape, value: str, is_nullable: bool, depth: int) -> None:
        """One value of any wire type, taken from the expression `value`."""
        if shape.kind == "uuid":
            self.source.fixed(f"{value}.bytes", FIXED["uuid"])
        elif shape.kind in FIXED:
            self.source.fixed(value, FIXED[shape.kind])
        elif shape.kind == "array":
            assert shape.item is not None
            self._array(shape.item, value, is_nullable, depth)
        elif shape.kind == "struct":
            self._nested(shape, value, is_nullable, depth)
        else:
            self._sized(shape.kind, value, is_nullable)

    def _sized(self, kind: str, value: str, is_nullable: bool) -> None:
        raw = f"{value}.encode()" if kind == "string" else value
        if is_nullable:
            self.source.line(f"raw = {value}")
            with self.source.block("if raw is None:"):
                self.source.line('size = -1; raw = b""')
            with self.source.block("else:"):
                if kind == "string":
                    self.source.line("raw = raw.encode()")
                self.source.line("size = len(raw)")
        else:
            self.source.line(f"raw = {raw}; size = len(raw)")
        self._prefix("size", "h" if kind == "string" else "i")
        if kind != "record_set":
            self.source.line("out += raw")
            return
        with self.source.block("if isinstance(raw, BUFFERS):"):
            self.source.line("out += raw")
        with self.source.block("else:"):
            self.source.line("out.splice(raw)")

    def _array(self, item: Shape, value: str, is_nullable: bool, depth: int) -> None:
        items = f"items{depth}"
        self.source.line(f"{items} = {value}")
        if is_nullable:
            with self.source.block(f"if {items} is None:"):
                self.source.line(f"count = -1; {items} = ()")
            with self.source.block("else:"):
                self.source.line(f"count = len({items})")
        else:
            self.source.line(f"count = len({items})")
        self._prefix("count", "i")
        if item.kind in FIXED and item.kind != "uuid":
            layout = f'f">{{len({items})}}{FIXED[item.kind]}"'
            self.source.line(f"out += pack({layout}, *{items})")
            return
        made = f"m{depth + 1}" if item.kind == "struct" else "item"
        with self.source.block(f"for {made} in {items}:"):
            self.value(item, made, is_nullable=False, depth=depth)
            self.flush()

    def _nested(self, shape: Shape, value: str, is_nullable: bool, depth: int) -> None:
        assert shape.struct is not None
        if not is_nullable:
            self.struct(shape.struct, value, depth + 1)
            return
        self.flush()
        with self.source.block(f"if {value} is None:"):  # KIP-893: one byte, negative for null
            self.source.line("out.append(255)")
        with self.source.block("else:"):
            self.source.line("out.append(1)")
            self.struct(shape.struct, value, depth + 1)
            self.flush()

    def _prefix(self, name: str, plain_code: str) -> None:
        """Write a length or count from the variable `name`, -1 for null."""
        if not self.source.is_flexible:
            self.source.fixed(name, plain_code)
            self.flush()
            return
        self.flush()
        with self.source.block(f"if {name} < 127:"):
            self.source.line(f"out.append({name} + 1)")
        with self.source.block("else:"):
            self.source.line(f"put_unsigned(out, {name} + 1)")

    def _refuse_if(self, condition: str, cls: type[Any], what: str) -> None:
        with self.source.block(f"if {condition}:"):
            place = f"{cls.__name__} version {self.source.version}"
            self.source.line(f'refuse_value("{place}", "{what}")')

    def _tags(self, cls: type[Any], me: str) -> None:
        tags = f"{me}.unknown_tags"
        reasons = [tags]
        if known := self.source.known_tags(cls):
            tags = f"tags_of_{cls.__name__}({me})"
            reasons += [self._differs(me, field) for field in known]
            self._tag_function(cls, known)
        with self.source.block(f"if {' or '.join(reasons)}:"):
            self.source.line(f"put_tags(out, {tags})")
        with self.source.block("else:"):
            self.source.line("out.append(0)")

    def _differs(self, me: str, field: WireField) -> str:
        """A condition that is true when a field is not at its default."""
        if field.default == []:
            return f"{me}.{field.name}"
        operator = "is not" if field.default is None else "!="
        return f"{me}.{field.name} {operator} {self.source.constant(field.default)}"

    def _tag_function(self, cls: type[Any], known: list[WireField]) -> None:
        """`tags_of_<cls>(m)` gives a dict with the unknown tags and the known ones, encoded."""
        outer, name = self.source, f"tags_of_{cls.__name__}"
        if name in self.tag_functions:
            return
        self.source = source = Source(outer.names, outer.version, outer.is_flexible)
        with source.block(f"def {name}(m):"):
            source.line("tags = dict(m.unknown_tags or ())")
            for field in known:
                with source.block(f"if {self._differs('m', field)}:"):
                    source.line(f"tags[{field.tag}] = out = bytearray()")
                    is_nullable = field.is_nullable_in(outer.version)
                    self.value(field.shape, f"m.{field.name}", is_nullable, depth=0)
                    self.flush()
            source.line("return tags")
        self.tag_functions[name] = source.text()
        self.source = outer
