"""What hostile peers do to a broker: from random noise to nearly valid requests.

An attack is a call that opens connections, does its worst, and closes them or hands them to `held`.
Where a broker has to close a connection, an attack waits for that; `Stubborn` if it does not.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kdist.protocol import api_versions, fetch, metadata
from kdist.protocol.versions import TABLE
from kdist.records.compression import Codec, compress
from kdist.records.message_set import Message, write_message
from tests.integration.fire_requests import TOPIC, all_frames, valid_frame
from tests.integration.fire_wire import Wire

CLOSE_S = 10.0  # a broker that is busy with other attacks may take its time
HELD_MAX = 200
FLOOD = 200
GREEDY_REQUESTS = 3_000
FRAME_BYTES_MAX = 100 << 20  # the default of socket.request.max.bytes
BOMB_BYTES = 200 << 20
MASKS = (0xFF, 0x80, 0x01)
NAMES = ("", ".", "..", "a/b", "../../etc", "\0", "two\nlines", "\u4e16", "x" * 250, "x" * 30_000)
HUGE = (0x7FFFFFFF, -1, -(2**31), FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1, 1 << 20)
_SIZE = struct.Struct(">i")
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset


class Stubborn(AssertionError):
    """A connection stayed open that had to be closed."""


class Arena:
    """The attacks' surroundings: the broker's port, randomness, and half-open connections."""

    def __init__(self, port: int, seed: int) -> None:
        self.port = port
        self.rng = random.Random(seed)
        self.frames = all_frames()
        self.flips = self._flips()
        self.flipped = 0
        self._held: list[Wire] = []

    def hold(self, wire: Wire) -> None:
        """Keep a connection open; too many push out the oldest."""
        self._held.append(wire)
        if len(self._held) > HELD_MAX:
            self._held.pop(0).socket.close()

    def let_go(self) -> None:
        """Close all that is held."""
        for wire in self._held:
            wire.socket.close()
        self._held.clear()

    def any_frame(self) -> bytes:
        return self.rng.choice(self.frames)[2]

    @property
    def flips_in_all(self) -> int:
        """Every byte behind the size of every request, once per mask."""
        return sum((len(frame) - _SIZE.size) * len(MASKS) for _, _, frame in self.frames)

    def _flips(self) -> Iterator[bytes]:
        """Valid requests with one byte flipped: each of them once, and then again."""
        order = [
            (n, at, mask)
            for n, (_, _, frame) in enumerate(self.frames)
            for at in range(_SIZE.size, len(frame))
            for mask in MASKS
        ]
        while True:
            self.rng.shuffle(order)
            for n, at, mask in order:
                flipped = bytearray(self.frames[n][2])
                flipped[at] ^= mask
                yield bytes(flipped)


def last_words(arena: Arena, content: bytes) -> None:
    """Send and end: the broker answers or not, and closes."""
    with Wire(arena.port, CLOSE_S) as wire:
        try:
            wire.send(content)
            wire.socket.shutdown(socket.SHUT_WR)
            while wire.socket.recv(1 << 16):
                pass
        except TimeoutError:
            raise Stubborn(f"open {CLOSE_S} s after {content[:200].hex()}") from None
        except OSError:
            pass  # reset: closed as well


def noise(arena: Arena) -> None:
    """Random bytes, with or without a frame's size in front."""
    content = arena.rng.randbytes(arena.rng.randrange(1, 300))
    last_words(arena, content if arena.rng.random() < 0.3 else _framed(content))


def noise_behind_a_header(arena: Arena) -> None:
    """A valid header followed by noise."""
    head = arena.any_frame()[4:16]
    last_words(arena, _framed(head + arena.rng.randbytes(arena.rng.randrange(200))))


def truncated(arena: Arena) -> None:
    """A request that ends anywhere; a size that says so, or one that promises more."""
    frame = arena.any_frame()
    end = arena.rng.randrange(len(frame))
    last_words(arena, frame[:end] if arena.rng.random() < 0.5 else _framed(frame[4:end]))


def huge_length(arena: Arena) -> None:
    """A size that is negative or too large, or the largest there may be, and ten bytes."""
    size = arena.rng.choice(HUGE)
    content = _SIZE.pack(size) + arena.any_frame()[4:14]
    if 0 <= size <= FRAME_BYTES_MAX:
        wire = Wire(arena.port, CLOSE_S)
        wire.send(content)
        arena.hold(wire)
    else:
        last_words(arena, content)


def huge_count(arena: Arena) -> None:
    """A length inside a request that says 2 GB."""
    frame = bytearray(arena.any_frame())
    at = arena.rng.randrange(8, len(frame))
    frame[at : at + 4] = arena.rng.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07"))
    last_words(arena, _framed(bytes(frame[4:])))


def wrong_version(arena: Arena) -> None:
    """Requests in versions that do not exist."""
    frame = bytearray(arena.any_frame())
    version = arena.rng.choice((-1, 99, 32767, -32768))
    struct.pack_into(">h", frame, 6, version)
    last_words(arena, bytes(frame))


def unknown_key(arena: Arena) -> None:
    """Requests of API keys that do not exist."""
    frame = bytearray(arena.any_frame())
    known = {api.key for api in TABLE}
    unknown = [key for key in (*range(100), -1, 32767, -32768) if key not in known]
    struct.pack_into(">h", frame, 4, arena.rng.choice(unknown))
    last_words(arena, bytes(frame))


def odd_names(arena: Arena) -> None:
    """Names that no topic and no group may have, or that mean something to a filesystem."""
    api, version, _ = arena.rng.choice(arena.frames)
    last_words(arena, valid_frame(api, version, arena.rng.choice(NAMES)))


def flipped_bytes(arena: Arena) -> None:
    """Requests with one byte wrong, some behind each other on one connection."""
    for _ in range(20):
        last_words(arena, next(arena.flips))
        arena.flipped += 1


def half_open(arena: Arena) -> None:
    """A part of a request, and silence."""
    wire = Wire(arena.port, CLOSE_S)
    frame = arena.any_frame()
    wire.send(frame[: arena.rng.randrange(len(frame))])
    arena.hold(wire)


def vanishing(arena: Arena) -> None:
    """A whole request, and a reset instead of waiting for the answer."""
    with Wire(arena.port, CLOSE_S) as wire:
        wire.send(arena.any_frame())
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def flood_of_connects(arena: Arena) -> None:
    """Many connections at once that say nothing and go; half of them by a reset."""
    wires = [Wire(arena.port, CLOSE_S) for _ in range(FLOOD)]
    for wire in wires:
        if arena.rng.random() < 0.5:
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        wire.socket.close()


def never_reading(arena: Arena) -> None:
    """An endless stream of requests whose answers are never read."""
    question = valid_frame(*arena.rng.choice(((metadata.API, 9), (fetch.API, 11))))
    wire = Wire(arena.port, CLOSE_S)
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    wire.socket.setblocking(False)
    content = question * GREEDY_REQUESTS
    try:
        while content:
            content = content[wire.socket.send(content) :]
    except (BlockingIOError, ConnectionError):
        pass  # the broker reads no more: as it should
    arena.hold(wire)


def compression_bomb(arena: Arena) -> None:
    """A small message of magic 1 that would be 200 MB."""
    produce = next(api for api in TABLE if api.name == "Produce")
    inner = write_message(*Message(0, 1, 0, 0, None, bytes(BOMB_BYTES)))
    codec = arena.rng.choice((Codec.GZIP, Codec.SNAPPY, Codec.LZ4))
    bomb = write_message(*Message(0, 1, int(codec), 0, None, compress(codec, inner)))
    valid = produce_frame_with(bomb, valid_frame(produce, 2))
    last_words(arena, valid)


def produce_frame_with(records: bytes, frame: bytes) -> bytes:
    """`frame`, a Produce request for one partition, with other records: they are its end."""
    topic_at = frame.index(TOPIC.encode())
    size_at = topic_at + len(TOPIC) + 8  # the count of partitions and the partition's number
    return _framed(frame[4:size_at] + _SIZE.pack(len(records)) + records)


def _framed(content: bytes) -> bytes:
    return _SIZE.pack(len(content)) + content


class SlowSender:
    """A request that comes a byte a second, and has its answer in the end."""

    def __init__(self, port: int) -> None:
        self._wire = Wire(port, CLOSE_S)
        self._left = valid_frame(api_versions.API, 0)
        self._next_s = 0.0
        self.is_answered = False

    def step(self, is_last: bool = False) -> None:
        """Send what is due; with `is_last` all that is left, and wait for the answer."""
        now_s = time.monotonic()
        if self._left and (is_last or now_s >= self._next_s):
            count = len(self._left) if is_last else 1
            self._wire.send(self._left[:count])
            self._left, self._next_s = self._left[count:], now_s + 1
        if is_last:
            self.is_answered = bool(self._wire.receive_frame())
            self._wire.socket.close()


class Weighted(NamedTuple):
    """An attack, and how often it comes among the others."""

    attack: Callable[[Arena], None]
    weight: float


ATTACKS = (
    Weighted(noise, 10),
    Weighted(noise_behind_a_header, 10),
    Weighted(truncated, 10),
    Weighted(huge_length, 5),
    Weighted(huge_count, 10),
    Weighted(wrong_version, 5),
    Weighted(unknown_key, 5),
    Weighted(odd_names, 10),
    Weighted(flipped_bytes, 30),
    Weighted(half_open, 5),
    Weighted(vanishing, 5),
    Weighted(flood_of_connects, 0.5),
    Weighted(never_reading, 0.5),
    Weighted(compression_bomb, 0.1),
)
