"""Fuzz the protocol's decoders: `python tests/fuzz/fuzz_protocol.py --seconds 600 [--seed N]`.

An input is a valid message that is cut, spliced, overwritten or given huge lengths, or plain noise.
It goes to one decoder: a message at one version, a whole request or response, what consumers and
the coordinator write with a version in front, or framing byte by byte. Only ProtocolError may come
out, and decoding may allocate BYTES_PER_INPUT_BYTE times the input at most. A failure prints the
seed and the input.
"""

from __future__ import annotations

import argparse
import pathlib
import random
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "unit" / "protocol"))

from protocol_samples import ALL_CASES, encoded, sample

from kdist.errors import ProtocolError
from kdist.protocol.compiler import codec_for
from kdist.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    read_assignment,
    read_subscription,
)
from kdist.protocol.frame import (
    SIZE_BYTES,
    RequestHeader,
    bytes_wanted,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from kdist.protocol.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    read_group_value,
    read_key,
    read_offset_value,
)
from kdist.protocol.versions import TABLE

FRAME_BYTES_MAX = 1 << 20
# Tagged sections take the most memory: two bytes of input become a dict entry of int and bytes.
BYTES_PER_INPUT_BYTE = 150
ALLOWANCE_BYTES = 20_000
INPUTS_MIN = 500
MEASURED = 50  # one input in so many runs under tracemalloc, which is slow
HOSTILE = (
    b"\x7f\xff\xff\xff",  # 2 GB as int32
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\x0f",  # 2**32 - 1 as varint
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\xff\xff",  # a varint without an end
    b"\x7f\xff",
    b"\xff\xff",
    b"\x00",
    b"\xc3\x28",  # not UTF-8
)
VERSIONED: dict[type[Any], Callable[[bytes], object]] = {
    ConsumerProtocolAssignment: read_assignment,
    ConsumerProtocolSubscription: read_subscription,
    GroupMetadataKey: read_key,
    GroupMetadataValue: read_group_value,
    OffsetCommitKey: read_key,
    OffsetCommitValue: read_offset_value,
}


class Attack(NamedTuple):
    """An input and the decoder it is for."""

    target: str
    arguments: tuple[Any, ...]
    frame: bytes


class Report(NamedTuple):
    """What a run did: how many inputs, and how many of them a decoder accepted."""

    inputs: int
    accepted: int


def damage(frame: bytes, rng: random.Random) -> bytes:
    """`frame` damaged in one to four places, or sometimes unchanged."""
    wounded = bytearray(frame)
    for _ in range(rng.randrange(5)):
        at = rng.randrange(len(wounded) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            del wounded[at:]
        elif kind == 1:
            bad = rng.choice(HOSTILE)
            wounded[at : at + len(bad)] = bad
        elif kind == 2:
            wounded[at:at] = rng.choice(HOSTILE)
        elif kind == 3:
            del wounded[at : at + rng.randrange(1, 9)]
        else:
            wounded[at : at + 1] = rng.randbytes(1)
    return bytes(wounded)


def make_attack(rng: random.Random) -> Attack:
    """A random decoder and a damaged input for it."""
    target = rng.choice(("message", "message", "request", "response", "versioned", "framing"))
    arguments: tuple[Any, ...] = ()
    if target == "message":
        case = rng.choice(ALL_CASES)
        arguments, frame = (case,), encoded(case, sample(case, rng))
    elif target == "versioned":
        case = rng.choice([case for case in ALL_CASES if case.cls in VERSIONED])
        frame = case.version.to_bytes(2, "big") + encoded(case, sample(case, rng))
        arguments = (VERSIONED[case.cls],)
    else:
        api = rng.choice(TABLE)
        version = rng.randint(api.oldest, api.newest)
        case = rng.choice([case for case in ALL_CASES if case.cls is api.request])
        case = case._replace(version=version)
        header = RequestHeader(api.key, version, rng.getrandbits(31), "a client")
        frame = bytes(encode_request(header, sample(case, rng)))
        if target == "response":
            case = case._replace(cls=api.response)
            frame = bytes(encode_response(version, 7, sample(case, rng)))
            arguments = (api, version)
        frame = frame if target == "framing" else frame[4:]
    noise = rng.randbytes(rng.randrange(64)) if rng.randrange(20) == 0 else None
    return Attack(target, arguments, noise or damage(frame, rng))


def decode(attack: Attack) -> None:
    """Run the decoder on the input; errors pass through."""
    if attack.target == "message":
        [case] = attack.arguments
        codec_for(*case).decode(memoryview(attack.frame), 0)
    elif attack.target == "request":
        decode_request(attack.frame)
    elif attack.target == "response":
        decode_response(*attack.arguments, attack.frame)
    elif attack.target == "versioned":
        [read] = attack.arguments
        read(attack.frame)
    else:
        for end in range(len(attack.frame) + 1):
            if (size := bytes_wanted(attack.frame, 0, end, FRAME_BYTES_MAX)) <= end:
                decode_request(attack.frame[SIZE_BYTES:size])
                break


def is_accepted(attack: Attack) -> bool:
    """Whether the decoder took the input; ProtocolError is the only other outcome."""
    try:
        decode(attack)
    except ProtocolError:
        return False
    return True


def allocated_bytes(attack: Attack) -> int:
    """The most memory that decoding the input held at any time."""
    tracemalloc.start()
    try:
        is_accepted(attack)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def run(seconds: float, seed: int) -> Report:
    """Run until the time is up, and for `INPUTS_MIN` on however slow a machine.

    A failure is an AssertionError with the seed and the input.
    """
    rng = random.Random(seed)
    end = time.monotonic() + seconds
    inputs = accepted = 0
    while time.monotonic() < end or inputs < INPUTS_MIN:
        attack = make_attack(rng)
        inputs += 1
        try:
            accepted += is_accepted(attack)
            if inputs % MEASURED == 0:
                used = allocated_bytes(attack)
                bound = ALLOWANCE_BYTES + BYTES_PER_INPUT_BYTE * len(attack.frame)
                assert used <= bound, f"{used} bytes allocated for {len(attack.frame)}"
        except Exception as error:
            raise AssertionError(
                f"seed {seed}, input {inputs}: {attack.target} {attack.arguments} "
                f"{attack.frame.hex()}: {error!r}"
            ) from error
    return Report(inputs, accepted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    sys.stdout.write(f"seed {options.seed}\n")
    sys.stdout.flush()
    report = run(options.seconds, options.seed)
    sys.stdout.write(f"{report.inputs} inputs, {report.accepted} accepted, the others refused\n")


if __name__ == "__main__":
    main()
