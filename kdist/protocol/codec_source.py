"""Generates the encoder and the decoder of a message at one version, as source.

`compiler.py` shows an example. Adjacent values of fixed size are collected in a `run` until
something else must be written; then one `struct` call packs or unpacks all of them. The packers are
named after their format, so that generated code reads `unpack_iqi(buffer, position)`.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Any

from kdist.protocol.schema import FIXED, Shape, WireField, entries_max_of, wire_fields
from kdist.wire.primitives import STRING_BYTES_MAX

STEP_BYTES = 16 << 10
ENTRIES_MAX = 650_000  # of a request that names 200,000 topics, a partition and a setting of each
_NUMBERS_MAX = 250_000  # in one array: its decoding is a single step
_NUMBERS_PER_ENTRY = 8  # that take as much memory

_MAKE = {"bytes": "bytes(buffer[position:end])", "record_set": "buffer[position:end]"}


def encoder_source(cls: type[Any], version: int, is_flexible: bool, names: dict[str, Any]) -> str:
    """`def encode(m0, out)` and a function for each struct that has known tags."""
    source = _Encoder(names, version, is_flexible)
    with source.block("def encode(m0, out):"):
        source.struct(cls, "m0", depth=0)
        source.flush()
    return source.text()


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
    source = _Decoder(names, version, is_flexible)
    source.is_counted, source.in_steps = entries_max is not None, in_steps
    with source.block("def decode(buffer, position):"):
        with source.block("try:"):
            source.line("limit = len(buffer)")
            if entries_max is not None:
                source.line(f"room = {entries_max}")
            if in_steps:
                source.line(f"yield; step_end = position + {STEP_BYTES}")
            source.struct(cls, depth=0)
            source.line("return m0, position")
        with source.block("except REFUSALS as error:"):
            what = f"{cls.__name__} version {version}"
            source.line(f'raise ProtocolError(f"{what}: {{error}}") from None')
    return source.text()


class _Source:
    """Source being written, by a subclass for each direction; the names become its globals.

    The struct at nesting depth n is the variable `m<n>`.
    """

    def __init__(self, names: dict[str, Any], version: int, is_flexible: bool) -> None:
        self.names = names
        self.version = version
        self.is_flexible = is_flexible
        self.lines: list[str] = []
        self.run: list[tuple[str, str]] = []  # (expression or target, struct code)
        self._depth = 0
        self.tag_functions: dict[str, str] = {}

    def text(self) -> str:
        """All functions as one piece of Python."""
        return "\n".join([*self.tag_functions.values(), self._own_text()])

    def _own_text(self) -> str:
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

    @contextlib.contextmanager
    def tag_function(self, name: str, parameters: str) -> Iterator[None]:
        """What is written inside the `with` block is the body of another function."""
        outer = self.lines, self._depth
        self.lines, self._depth = [], 0
        with self.block(f"def {name}({parameters}):"):
            yield
        self.tag_functions[name] = self._own_text()
        self.lines, self._depth = outer

    def value(self, shape: Shape, place: str, is_nullable: bool, depth: int) -> None:
        """Write one value of any wire type: that of the expression, or to the target, `place`."""
        if shape.kind == "uuid":
            self.uuid(place)
        elif shape.kind in FIXED:
            self.fixed(place, FIXED[shape.kind])
        elif shape.kind == "array":
            assert shape.item is not None
            self.array(shape.item, place, is_nullable, depth)
        elif shape.kind == "struct":
            assert shape.struct is not None
            self.nested(shape.struct, place, is_nullable, depth)
        else:
            self.sized(shape.kind, place, is_nullable)

    def uuid(self, place: str) -> None:
        raise NotImplementedError

    def array(self, item: Shape, place: str, is_nullable: bool, depth: int) -> None:
        raise NotImplementedError

    def nested(self, cls: type[Any], place: str, is_nullable: bool, depth: int) -> None:
        raise NotImplementedError

    def sized(self, kind: str, place: str, is_nullable: bool) -> None:
        """A string, bytes or a record set."""
        raise NotImplementedError

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


class _Encoder(_Source):
    """As in Kafka, it raises UNSUPPORTED_VERSION for what the version cannot carry.

    That is a value of a field that it lacks and that is not ignorable, None before the field became
    nullable, and unknown tags before KIP-482. A value outside its type's range is the caller's bug
    and raises `struct.error`.
    """

    def flush(self) -> None:
        """Write one `pack` for all values in the run."""
        if self.run:
            pack, values, _ = self.take_run("pack")
            self.line(f"out += {pack}({', '.join(values)})")

    def struct(self, cls: type[Any], me: str, depth: int) -> None:
        """A struct's fields in order, and its tags."""
        for field in wire_fields(cls):
            value = f"{me}.{field.name}"
            if not field.is_in(self.version):
                if not field.is_ignorable:
                    self._refuse_if(self._differs(me, field), cls, field.name)
            elif field.tag is None:
                is_nullable = field.is_nullable_in(self.version)
                if field.shape.is_nullable and not is_nullable:
                    self._refuse_if(f"{value} is None", cls, f"a null {field.name}")
                self.value(field.shape, value, is_nullable, depth)
        if self.is_flexible:
            self.flush()
            self._tags(cls, me)
        else:
            self._refuse_if(f"{me}.unknown_tags", cls, "tagged fields")

    def uuid(self, place: str) -> None:
        self.fixed(f"{place}.bytes", FIXED["uuid"])

    def sized(self, kind: str, place: str, is_nullable: bool) -> None:
        raw = f"{place}.encode()" if kind == "string" else place
        if is_nullable:
            self.line(f"raw = {place}")
            with self.block("if raw is None:"):
                self.line('size = -1; raw = b""')
            with self.block("else:"):
                if kind == "string":
                    self.line("raw = raw.encode()")
                self.line("size = len(raw)")
        else:
            self.line(f"raw = {raw}; size = len(raw)")
        self._prefix("size", "h" if kind == "string" else "i")
        if kind != "record_set":
            self.line("out += raw")
            return
        with self.block("if isinstance(raw, BUFFERS):"):
            self.line("out += raw")
        with self.block("else:"):
            self.line("out.splice(raw)")

    def array(self, item: Shape, place: str, is_nullable: bool, depth: int) -> None:
        items = f"items{depth}"
        self.line(f"{items} = {place}")
        if is_nullable:
            with self.block(f"if {items} is None:"):
                self.line(f"count = -1; {items} = ()")
            with self.block("else:"):
                self.line(f"count = len({items})")
        else:
            self.line(f"count = len({items})")
        self._prefix("count", "i")
        if item.kind in FIXED and item.kind != "uuid":
            layout = f'f">{{len({items})}}{FIXED[item.kind]}"'
            self.line(f"out += pack({layout}, *{items})")
            return
        made = f"m{depth + 1}" if item.kind == "struct" else "item"
        with self.block(f"for {made} in {items}:"):
            self.value(item, made, is_nullable=False, depth=depth)
            self.flush()

    def nested(self, cls: type[Any], place: str, is_nullable: bool, depth: int) -> None:
        if not is_nullable:
            self.struct(cls, place, depth + 1)
            return
        self.flush()
        with self.block(f"if {place} is None:"):  # KIP-893: one byte, negative for null
            self.line("out.append(255)")
        with self.block("else:"):
            self.line("out.append(1)")
            self.struct(cls, place, depth + 1)
            self.flush()

    def _prefix(self, name: str, plain_code: str) -> None:
        """Write a length or count from the variable `name`, -1 for null."""
        if not self.is_flexible:
            self.fixed(name, plain_code)
            self.flush()
            return
        self.flush()
        with self.block(f"if {name} < 127:"):
            self.line(f"out.append({name} + 1)")
        with self.block("else:"):
            self.line(f"put_unsigned(out, {name} + 1)")

    def _refuse_if(self, condition: str, cls: type[Any], what: str) -> None:
        with self.block(f"if {condition}:"):
            place = f"{cls.__name__} version {self.version}"
            self.line(f'refuse_value("{place}", "{what}")')

    def _tags(self, cls: type[Any], me: str) -> None:
        tags = f"{me}.unknown_tags"
        reasons = [tags]
        if known := self.known_tags(cls):
            tags = f"tags_of_{cls.__name__}({me})"
            reasons += [self._differs(me, field) for field in known]
            self._tag_function(cls, known)
        with self.block(f"if {' or '.join(reasons)}:"):
            self.line(f"put_tags(out, {tags})")
        with self.block("else:"):
            self.line("out.append(0)")

    def _differs(self, me: str, field: WireField) -> str:
        """A condition that is true when a field is not at its default."""
        if field.default == []:
            return f"{me}.{field.name}"
        operator = "is not" if field.default is None else "!="
        return f"{me}.{field.name} {operator} {self.constant(field.default)}"

    def _tag_function(self, cls: type[Any], known: list[WireField]) -> None:
        """`tags_of_<cls>(m)` gives a dict with the unknown tags and the known ones, encoded."""
        name = f"tags_of_{cls.__name__}"
        if name in self.tag_functions:
            return
        with self.tag_function(name, "m"):
            self.line("tags = dict(m.unknown_tags or ())")
            for field in known:
                with self.block(f"if {self._differs('m', field)}:"):
                    self.line(f"tags[{field.tag}] = out = bytearray()")
                    is_nullable = field.is_nullable_in(self.version)
                    self.value(field.shape, f"m.{field.name}", is_nullable, depth=0)
                    self.flush()
            self.line("return tags")


class _Decoder(_Source):
    """The decoder, in one of two forms, of which the second is for large requests.

    Those would keep a server's one thread for long: it is a generator that yields after each
    `STEP_BYTES`, at most a few milliseconds. It also bounds how many structs and strings it makes:
    each may take two bytes on the wire and a hundred in memory.

    Invariant of the generated code: `position` never passes `limit`, and nothing is made from a
    length or count before it was checked against the bytes that remain. `unpack_` and indexing
    check the end themselves (struct.error, IndexError); slices do not, so a check precedes each.
    """

    is_counted: bool  # whether it bounds how many structs and strings it makes
    in_steps: bool

    def flush(self) -> None:
        """Write one `unpack` for all values in the run."""
        if not self.run:
            return
        if [code for _, code in self.run] == ["B"]:  # indexing beats unpacking
            [(target, _)] = self.run
            self.run.clear()
            self.line(f"{target} = buffer[position]; position += 1")
            return
        unpack, targets, size = self.take_run("unpack")
        self.line(f"{', '.join(targets)}, = {unpack}(buffer, position); position += {size}")

    def struct(self, cls: type[Any], depth: int) -> None:
        """A struct's fields in order, defaults for those this version lacks, and its tags."""
        me = f"m{depth}"
        self.flush()
        self.line(f"{me} = new({self.class_name(cls)})")
        missing = []
        for field in wire_fields(cls):
            if field.tag is None and field.is_in(self.version):
                is_nullable = field.is_nullable_in(self.version)
                self.value(field.shape, f"{me}.{field.name}", is_nullable, depth)
            else:
                missing.append(field)
        if self.is_flexible:
            self.fixed(f"tags{depth}", "B")
        self.flush()
        self._defaults(me, missing)
        if self.is_flexible:
            self._tags(me, cls, f"tags{depth}")

    def uuid(self, place: str) -> None:
        self.fixed(place, FIXED["uuid"])
        self.flush()
        self.line(f"{place} = UUID(bytes={place})")

    def sized(self, kind: str, place: str, is_nullable: bool) -> None:
        self._prefix("size", "h" if kind == "string" else "i")
        with self._unless_null("size", place, is_nullable):
            if kind == "string" and self.is_flexible:
                # A compact length can exceed the int16 that other versions write the string with.
                with self.block(f"if size > {STRING_BYTES_MAX}:"):
                    self.line("refuse_string(size)")
            self.line("end = position + size")
            with self.block("if not position <= end <= limit:"):
                self.line("refuse_length(size, limit - position)")
            self._make(kind, place)

    def _make(self, kind: str, target: str) -> None:
        if kind != "string":
            self.line(f"{target} = {_MAKE[kind]}; position = end")
            return
        with self.block("try:"):  # for valid UTF-8 cheaper than an `errors` argument
            self.line(f'{target} = str(buffer[position:end], "utf-8")')
        with self.block("except UnicodeDecodeError as wrong:"):
            self.line(f"{target} = replaced(wrong)")
        self.line("position = end")

    def array(self, item: Shape, place: str, is_nullable: bool, depth: int) -> None:
        item_size = self.smallest_size(item, is_nullable=False)
        assert item_size > 0, "items without bytes would let a count allocate what it likes"
        count, items = f"count{depth}", f"items{depth}"
        self._prefix(count, "i")
        with self._unless_null(count, place, is_nullable):
            with self.block(f"if not 0 <= {count} * {item_size} <= limit - position:"):
                self.line(f"refuse_count({count}, limit - position)")
            is_numbers = item.kind in FIXED and item.kind != "uuid"
            if is_numbers and self.in_steps:
                with self.block(f"if {count} > {_NUMBERS_MAX}:"):
                    self.line(f"refuse_entries({count})")
            if self.is_counted:
                entries = f"{count} // {_NUMBERS_PER_ENTRY}" if is_numbers else count
                self.line(f"room -= {entries}")
                with self.block("if room < 0:"):
                    self.line(f"refuse_entries({count})")
            if is_numbers:
                layout = f'f">{{{count}}}{FIXED[item.kind]}"'
                self.line(f"{place} = list(unpack_from({layout}, buffer, position))")
                self.line(f"position += {count} * {item_size}")
                return
            self.line(f"{place} = {items} = []")
            with self.block(f"for _ in range({count}):"):
                made = f"m{depth + 1}" if item.kind == "struct" else "item"
                self.value(item, made, is_nullable=False, depth=depth)
                self.flush()
                self.line(f"{items}.append({made})")
                if self.in_steps and self.is_counted:
                    with self.block("if position > step_end:"):
                        self.line(f"yield; step_end = position + {STEP_BYTES}")

    def nested(self, cls: type[Any], place: str, is_nullable: bool, depth: int) -> None:
        made = f"m{depth + 1}"
        if is_nullable:  # KIP-893: one byte, negative for null
            self.fixed("marker", "b")
            self.flush()
            with self.block("if marker < 0:"):
                self.line(f"{place} = None")
        with self.block("else:") if is_nullable else contextlib.nullcontext():
            self.struct(cls, depth + 1)
            if place != made:
                self.line(f"{place} = {made}")

    def _prefix(self, name: str, plain_code: str) -> None:
        """Read a length or count into `name`, -1 for null; its first byte joins the run."""
        self.fixed(name, "B" if self.is_flexible else plain_code)
        self.flush()
        if self.is_flexible:
            with self.block(f"if {name} > 127:"):
                self.line(f"{name}, position = get_unsigned(buffer, position - 1)")
            self.line(f"{name} -= 1")

    @contextlib.contextmanager
    def _unless_null(self, name: str, target: str, is_nullable: bool) -> Iterator[None]:
        if not is_nullable:  # -1 is then refused like any other negative
            yield
            return
        with self.block(f"if {name} == -1:"):
            self.line(f"{target} = None")
        with self.block("else:"):
            yield

    def _defaults(self, me: str, fields: list[WireField]) -> None:
        targets = {"None": f"{me}.unknown_tags = "}
        for field in fields:
            if field.default == []:
                self.line(f"{me}.{field.name} = []")
                continue
            constant = self.constant(field.default)
            targets[constant] = targets.get(constant, "") + f"{me}.{field.name} = "
        for constant, assignments in targets.items():
            self.line(assignments + constant)

    def _tags(self, me: str, cls: type[Any], tags: str) -> None:
        with self.block(f"if {tags}:"):
            self.line(f"{tags}, position = get_tags(buffer, position - 1)")
            if known := self.known_tags(cls):
                self.line(f"take_tags_of_{cls.__name__}({me}, {tags})")
                self._tag_function(cls, known)
            self.line(f"{me}.unknown_tags = {tags} or None")

    def _tag_function(self, cls: type[Any], known: list[WireField]) -> None:
        """`take_tags_of_<cls>(m, tags)` moves the known tags from the dict to their fields."""
        name = f"take_tags_of_{cls.__name__}"
        if name in self.tag_functions:
            return
        was_counted, self.is_counted = self.is_counted, False  # what is in tags is few
        with self.tag_function(name, "m, tags"):
            for field in known:
                with self.block(f"if (buffer := tags.pop({field.tag}, None)) is not None:"):
                    self.line("position = 0; limit = len(buffer)")
                    is_nullable = field.is_nullable_in(self.version)
                    self.value(field.shape, f"m.{field.name}", is_nullable, depth=0)
                    self.flush()
                    with self.block("if position != limit:"):
                        self.line("refuse_length(limit, position)")
        self.is_counted = was_counted
