"""Generates the decoder of a message at one version, as source; compiler.py shows an example.

A second form decodes in steps, for large requests, which would keep a server's one thread for long:
a generator that yields after each `STEP_BYTES`, at most a few milliseconds. It also bounds how many
structs and strings it makes: each may take two bytes on the wire and a hundred in memory.

Invariant of the generated code: `position` never passes `limit`, and nothing is made from a length
or count before it was checked against the bytes that remain. `unpack_` and indexing check the end
themselves (struct.error, IndexError); slices do not, so a check precedes each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from kdist.protocol.schema import FIXED, Shape, WireField, entries_max_of, wire_fields
from kdist.protocol.source import Source
from kdist.wire.primitives import STRING_BYTES_MAX

STEP_BYTES = 16 << 10
ENTRIES_MAX = 650_000  # of a request that names 200,000 topics, a partition and a setting of each
_NUMBERS_MAX = 250_000  # in one array: its decoding is a single step
_NUMBERS_PER_ENTRY = 8  # that take as much memory

_MAKE = {"bytes": "bytes(buffer[position:end])", "record_set": "buffer[position:end]"}


def decoder_source(
    cls: type[Any],
    version: int,
    is_flexible: bool,
    names: dict[str, Any],
    *,
    in_steps: bool = False,
) -> str:
    """`def decode(buffer, position)` and a function for each struct that has known tags."""
    entries_max = ENTRIES_MAX if in_steps else entries_max_of(cls)
    source = Source(names, version, is_flexible)
    writer = _Decoder(source, is_counted=entries_max is not None, in_steps=in_steps)
    with source.block("def decode(buffer, position):"):
        with source.block("try:"):
            source.line("limit = len(buffer)")
            if entries_max is not None:
                source.line(f"room = {entries_max}")
            if in_steps:
                source.line(f"yield; step_end = position + {STEP_BYTES}")
            writer.struct(cls, depth=0)
            source.line("return m0, position")
        with source.block("except REFUSALS as error:"):
            what = f"{cls.__name__} version {version}"
            source.line(f'raise ProtocolError(f"{what}: {{error}}") from None')
    return "\n".join([*writer.tag_functions.values(), source.text()])


class _Decoder:
    """Writes into `source`. The struct at nesting depth n is the variable `m<n>`."""

    def __init__(self, source: Source, *, is_counted: bool, in_steps: bool) -> None:
        self.source = source
        self.is_counted = is_counted
        self.in_steps = in_steps
        self.tag_functions: dict[str, str] = {}

    def flush(self) -> None:
        """Write one `unpack` for all values in the run."""
        if not self.source.run:
            return
        if [code for _, code in self.source.run] == ["B"]:  # indexing beats unpacking
            [(target, _)] = self.source.run
            self.source.run.clear()
            self.source.line(f"{target} = buffer[position]; position += 1")
            return
        unpack, targets, size = self.source.take_run("unpack")
        self.source.line(f"{', '.join(targets)}, = {unpack}(buffer, position); position += {size}")

    def struct(self, cls: type[Any], depth: int) -> None:
        """A struct's fields in order, defaults for those this version lacks, and its tags."""
        me = f"m{depth}"
        self.flush()
        self.source.line(f"{me} = new({self.source.class_name(cls)})")
        missing = []
        for field in wire_fields(cls):
            if field.tag is None and field.is_in(self.source.version):
                is_nullable = field.is_nullable_in(self.source.version)
                self.value(field.shape, f"{me}.{field.name}", is_nullable, depth)
            else:
                missing.append(field)
        if self.source.is_flexible:
            self.source.fixed(f"tags{depth}", "B")
        self.flush()
        self._defaults(me, missing)
        if self.source.is_flexible:
            self._tags(me, cls, f"tags{depth}")

    def value(self, shape: Shape, target: str, is_nullable: bool, depth: int) -> None:
        """One value of any wire type, stored to `target`."""
        if shape.kind == "uuid":
            self.source.fixed(target, FIXED["uuid"])
            self.flush()
            self.source.line(f"{target} = UUID(bytes={target})")
        elif shape.kind in FIXED:
            self.source.fixed(target, FIXED[shape.kind])
        elif shape.kind == "array":
            assert shape.item is not None
            self._array(shape.item, target, is_nullable, depth)
        elif shape.kind == "struct":
            self._nested(shape, target, is_nullable, depth)
        else:
            self._sized(shape.kind, target, is_nullable)

    def _sized(self, kind: str, target: str, is_nullable: bool) -> None:
        self._prefix("size", "h" if kind == "string" else "i")
        with self._unless_null("size", target, is_nullable):
            if kind == "string" and self.source.is_flexible:
                # A compact length can exceed the int16 that other versions write the string with.
                with self.source.block(f"if size > {STRING_BYTES_MAX}:"):
                    self.source.line("refuse_string(size)")
            self.source.line("end = position + size")
            with self.source.block("if not position <= end <= limit:"):
                self.source.line("refuse_length(size, limit - position)")
            self._make(kind, target)

    def _make(self, kind: str, target: str) -> None:
        if kind != "string":
            self.source.line(f"{target} = {_MAKE[kind]}; position = end")
            return
        with self.source.block("try:"):  # for valid UTF-8 cheaper than an `errors` argument
            self.source.line(f'{target} = str(buffer[position:end], "utf-8")')
        with self.source.block("except UnicodeDecodeError as wrong:"):
            self.source.line(f"{target} = replaced(wrong)")
        self.source.line("position = end")

    def _array(self, item: Shape, target: str, is_nullable: bool, depth: int) -> None:
        item_size = self.source.smallest_size(item, is_nullable=False)
        assert item_size > 0, "items without bytes would let a count allocate what it likes"
        count, items = f"count{depth}", f"items{depth}"
        self._prefix(count, "i")
        with self._unless_null(count, target, is_nullable):
            with self.source.block(f"if not 0 <= {count} * {item_size} <= limit - position:"):
                self.source.line(f"refuse_count({count}, limit - position)")
            is_numbers = item.kind in FIXED and item.kind != "uuid"
            if is_numbers and self.in_steps:
                with self.source.block(f"if {count} > {_NUMBERS_MAX}:"):
                    self.source.line(f"refuse_entries({count})")
            if self.is_counted:
                entries = f"{count} // {_NUMBERS_PER_ENTRY}" if is_numbers else count
                self.source.line(f"room -= {entries}")
                with self.source.block("if room < 0:"):
                    self.source.line(f"refuse_entries({count})")
            if is_numbers:
                layout = f'f">{{{count}}}{FIXED[item.kind]}"'
                self.source.line(f"{target} = list(unpack_from({layout}, buffer, position))")
                self.source.line(f"position += {count} * {item_size}")
                return
            self.source.line(f"{target} = {items} = []")
            with self.source.block(f"for _ in range({count}):"):
                made = f"m{depth + 1}" if item.kind == "struct" else "item"
                self.value(item, made, is_nullable=False, depth=depth)
                self.flush()
                self.source.line(f"{items}.append({made})")
                if self.in_steps and self.is_counted:
                    with self.source.block("if position > step_end:"):
                        self.source.line(f"yield; step_end = position + {STEP_BYTES}")

    def _nested(self, shape: Shape, target: str, is_nullable: bool, depth: int) -> None:
        assert shape.struct is not None
        made = f"m{depth + 1}"
        if is_nullable:  # KIP-893: one byte, negative for null
            self.source.fixed("marker", "b")
            self.flush()
            with self.source.block("if marker < 0:"):
                self.source.line(f"{target} = None")
        with self.source.block("else:") if is_nullable else contextlib.nullcontext():
            self.struct(shape.struct, depth + 1)
            if target != made:
                self.source.line(f"{target} = {made}")

    def _prefix(self, name: str, plain_code: str) -> None:
        """Read a length or count into `name`, -1 for null; its first byte joins the run."""
        self.source.fixed(name, "B" if self.source.is_flexible else plain_code)
        self.flush()
        if self.source.is_flexible:
            with self.source.block(f"if {name} > 127:"):
                self.source.line(f"{name}, position = get_unsigned(buffer, position - 1)")
            self.source.line(f"{name} -= 1")

    @contextlib.contextmanager
    def _unless_null(self, name: str, target: str, is_nullable: bool) -> Iterator[None]:
        if not is_nullable:  # -1 is then refused like any other negative
            yield
            return
        with self.source.block(f"if {name} == -1:"):
            self.source.line(f"{target} = None")
        with self.source.block("else:"):
            yield

    def _defaults(self, me: str, fields: list[WireField]) -> None:
        targets = {"None": f"{me}.unknown_tags = "}
        for field in fields:
            if field.default == []:
                self.source.line(f"{me}.{field.name} = []")
                continue
            constant = self.source.constant(field.default)
            targets[constant] = targets.get(constant, "") + f"{me}.{field.name} = "
        for constant, assignments in targets.items():
            self.source.line(assignments + constant)

    def _tags(self, me: str, cls: type[Any], tags: str) -> None:
        with self.source.block(f"if {tags}:"):
            self.source.line(f"{tags}, position = get_tags(buffer, position - 1)")
            if known := self.source.known_tags(cls):
                self.source.line(f"take_tags_of_{cls.__name__}({me}, {tags})")
                self._tag_function(cls, known)
            self.source.line(f"{me}.unknown_tags = {tags} or None")

    def _tag_function(self, cls: type[Any], known: list[WireField]) -> None:
        """`take_tags_of_<cls>(m, tags)` moves the known tags from the dict to their fields."""
        outer, name = self.source, f"take_tags_of_{cls.__name__}"
        if name in self.tag_functions:
            return
        self.source = source = Source(outer.names, outer.version, outer.is_flexible)
        was_counted, self.is_counted = self.is_counted, False  # what is in tags is few
        with source.block(f"def {name}(m, tags):"):
            for field in known:
                with source.block(f"if (buffer := tags.pop({field.tag}, None)) is not None:"):
                    source.line("position = 0; limit = len(buffer)")
                    is_nullable = field.is_nullable_in(outer.version)
                    self.value(field.shape, f"m.{field.name}", is_nullable, depth=0)
                    self.flush()
                    with source.block("if position != limit:"):
                        source.line("refuse_length(limit, position)")
        self.tag_functions[name] = source.text()
        self.source, self.is_counted = outer, was_counted
