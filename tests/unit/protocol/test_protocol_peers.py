"""Our bytes against those of kafka-python (versions from 0) and kio (the versions still in 4.x).

Each peer decodes what we encode and encodes it again: the bytes must be the same, and we must read
the peer's bytes as the message we began with.
"""

import importlib
import io
import random
import re

from kio.serial import entity_reader, entity_writer
from protocol_samples import ALL_CASES, Case, encoded, every_version_of, sample

from kdist.protocol.api_versions import ApiVersionsResponse
from kdist.protocol.compiler import codec_for

SAMPLES = 15
KAFKA_PYTHON = [
    importlib.import_module(f"kafka.protocol.{name}")
    for name in ("admin", "consumer", "metadata", "producer")
]


def kafka_python_class(case: Case):
    """kafka-python's class of the same name, or None."""
    classes = (getattr(module, case.cls.__name__, None) for module in KAFKA_PYTHON)
    return next((cls for cls in classes if cls is not None), None)


def kio_class(case: Case):
    """kio's class of the same name and version, or None."""
    noun, kind = re.fullmatch(r"(\w+?)(Request|Response|)", case.cls.__name__).groups()
    package = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", noun).lower()
    path = f"kio.schema.{package}.v{case.version}.{kind.lower() or 'data'}"
    try:
        return getattr(importlib.import_module(path), case.cls.__name__)
    except ModuleNotFoundError:
        return None


IN_KAFKA_PYTHON = [case for case in ALL_CASES if kafka_python_class(case)]
IN_KIO = [case for case in ALL_CASES if kio_class(case)]


def samples(case: Case):
    rng = random.Random(str(case))
    for _ in range(SAMPLES):
        yield sample(case, rng, is_tame=True)


def test_as_many_messages_are_compared_as_the_peers_have():
    assert len(IN_KAFKA_PYTHON) == 378  # all but keys 4 to 7 and the records of __consumer_offsets
    assert len(IN_KIO) == 346


@every_version_of(IN_KAFKA_PYTHON)
def test_kafka_python_reads_and_writes_the_same_bytes(case):
    peer = kafka_python_class(case)
    # Its consumer protocol classes read and write the version in front of the message.
    prefix = case.version.to_bytes(2, "big") if "ConsumerProtocol" in str(case) else b""
    for message in samples(case):
        if case.cls is ApiVersionsResponse:
            message.error_code = 0  # with an error it reads every version as 0, as KIP-511 has it
        ours = encoded(case, message)
        read = peer.decode(prefix + ours, version=case.version)
        read._header = None  # decode() leaves it out, encode() asks for it
        theirs = bytes(read.encode(version=case.version))
        assert theirs == prefix + ours
        assert codec_for(*case).decode(theirs, len(prefix)) == (message, len(theirs))


@every_version_of(IN_KIO)
def test_kio_reads_and_writes_the_same_bytes(case):
    peer = kio_class(case)
    read, write = entity_reader(peer), entity_writer(peer)
    for message in samples(case):
        ours = encoded(case, message)
        entity, size = read(ours, 0)
        assert size == len(ours)
        out = io.BytesIO()
        write(out, entity)
        theirs = out.getvalue()
        assert theirs == ours
        assert codec_for(*case).decode(theirs, 0) == (message, len(theirs))
