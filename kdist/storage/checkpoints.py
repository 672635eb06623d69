"""Kafka's text checkpoint files: their common frame, and offsets by partition.

    0                    version
    2                    number of entries
    clicks 0 4711        entries, one a line: here topic, partition, offset
    clicks 1 0

ASCII, every line ends in a line feed. An empty file is an empty checkpoint, as Kafka makes it on
its first start. The frame serves `leader-epoch-checkpoint` too (`epochs.py`).
Format: docs/formats/checkpoints.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kdist.config.kinds import INT32_MAX, INT64_MAX
from kdist.errors import CorruptFile
from kdist.model import TopicPartition, topic_name_fault
from kdist.runtime.files import Files

_VERSION = 0
_HEADER_LINES = 2
_SHOWN_MAX = 40


def encode_rows(rows: Iterable[str]) -> bytes:
    """The whole file with these entry lines, given without their line ends."""
    lines = list(rows)
    return "\n".join([str(_VERSION), str(len(lines)), *lines, ""]).encode("ascii")


def decode_rows(content: bytes, path: str, width: int) -> Iterator[tuple[int, list[str]]]:
    """Each entry's line number and its `width` fields; `CorruptFile` at the first fault.

    Raises before the first entry if the file as a whole is not one of version 0 with as many
    entries as it says. `path` is only for the message.
    """
    if not content:
        return
    lines = _split_lines(content, path)
    if (version := lines[0]) != str(_VERSION):
        raise CorruptFile(path, 1, f"version {shown(version)} is not {_VERSION}")
    if len(lines) < _HEADER_LINES:
        raise CorruptFile(path, None, "ends before the number of its entries")
    count, found = parse_number(lines[1], INT32_MAX, path, 2), len(lines) - _HEADER_LINES
    if count != found:
        raise CorruptFile(path, None, f"says it has {count} entries and has {found}")
    for number, line in enumerate(lines[_HEADER_LINES:], _HEADER_LINES + 1):
        fields = line.split()
        if len(fields) != width:
            raise CorruptFile(path, number, f"has {len(fields)} fields instead of {width}")
        yield number, fields


def _split_lines(content: bytes, path: str) -> list[str]:
    if not content.endswith(b"\n"):
        # A cut last line could pass for a smaller number.
        raise CorruptFile(path, None, "its last line has no end of line")
    try:
        return content.decode("ascii").split("\n")[:-1]
    except UnicodeDecodeError:
        raise CorruptFile(path, None, "is not ASCII text") from None


def parse_number(text: str, largest: int, path: str, line: int | None) -> int:
    """A number of 0 to `largest` in plain digits; `CorruptFile` for anything else."""
    # int() alone would let "+1", "1_000" and "-1" through, and refuses thousands of digits itself.
    digits_max = len(str(largest))
    if not text.isdigit() or len(text) > digits_max or (number := int(text)) > largest:
        raise CorruptFile(path, line, f"{shown(text)} is not a number of 0 to {largest}")
    return number


def shown(text: str) -> str:
    """What a file contains instead of the expected text, quoted for a message, cut if long."""
    return repr(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}...")


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """An offset checkpoint, its partitions sorted."""
    return encode_rows(
        f"{topic} {number} {offset}" for (topic, number), offset in sorted(offsets.items())
    )


def decode_offsets(content: bytes, path: str) -> dict[TopicPartition, int]:
    """The offsets of a checkpoint; `CorruptFile` if the frame or a line is wrong or a duplicate."""
    offsets: dict[TopicPartition, int] = {}
    for line, (topic, number, offset) in decode_rows(content, path, width=3):
        if fault := topic_name_fault(topic):
            raise CorruptFile(path, line, f"the topic name {shown(topic)} {fault}")
        partition = TopicPartition(topic, parse_number(number, INT32_MAX, path, line))
        if partition in offsets:
            raise CorruptFile(path, line, f"{partition} is there twice")
        offsets[partition] = parse_number(offset, INT64_MAX, path, line)
    return offsets


def load_offsets(files: Files, path: str) -> dict[TopicPartition, int]:
    """Read an offset checkpoint; a missing file counts as empty."""
    try:
        content = files.read(path)
    except FileNotFoundError:
        return {}
    return decode_offsets(content, path)


def save_offsets(files: Files, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Write an offset checkpoint, atomically and durably."""
    files.replace(path, encode_offsets(offsets))
