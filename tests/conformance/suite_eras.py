"""Old and new clients share a topic: each of them reads what any of them wrote, unchanged.

zstd is the exception: clients too old to know it get an error instead (KIP-110). Produce below
version 7 with zstd is refused as well, but no client sends that.

    topic                   the reader's Fetch     what it gets
    compression by producer 0 to 3 (before 0.11)   what precedes the first zstd batch, then error 76
                            4 and later            every batch as it is, as with Apache Kafka
    compression.type=zstd   0 to 9 (before 2.1)    error 76, UNSUPPORTED_COMPRESSION_TYPE
                            10 and later           all
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import checks
import patience
from checks import WrongAnswerError, expect, new_name
from cluster import Cluster
from confluent_kafka.admin import AdminClient, NewTopic
from era_clients import READERS, WRITERS, Written
from kafka.errors import UnsupportedCompressionTypeError
from outcome import Outcome

SUITE = "eras"
CODECS = ("none", "gzip", "snappy", "lz4")
CREATE_TIMEOUT_S = 20

BEFORE_BATCHES = (
    "kafka-python (0, 8, 2)",
    "kafka-python (0, 9)",
    "kafka-python (0, 10)",
    "librdkafka 0.8.2.2",
    "librdkafka 0.9.0.1",
)
BEFORE_ZSTD = (*BEFORE_BATCHES, "kafka-python (0, 11)")
ZSTD_WRITERS = ("kafka-python (2, 4)", "kafka-python None", "librdkafka None")

Row = tuple[str, checks.Check]


class SharedTopic:
    """A topic of one partition, what was written into it, and the checks that use it."""

    def __init__(self) -> None:
        self._name = new_name("eras")
        self._written: list[Written] = []

    def creation(self, **settings: str) -> Row:
        """A check that creates the topic with `settings`, instead of on demand."""
        config = {name.replace("_", "."): value for name, value in settings.items()}
        return f"a topic is made with {settings}", partial(self._create, config)

    def writes(self, writer: str, codec: str) -> Row:
        """A check that all records of the writer are acknowledged."""
        return f"{writer} writes {codec}", partial(self._write, writer, codec)

    def reads(self, reader: str) -> Row:
        """A check that the reader gets every record as it was written."""
        return f"{reader} reads all", partial(self._read, reader)

    def refuses(self, reader: str, after: int) -> Row:
        """A check that the reader gets the first `after` writers' records, then zstd's error."""
        name = "reads up to the first zstd and is refused it" if after else "is refused zstd"
        return f"{reader} {name}", partial(self._refuse, reader, after)

    def _create(self, config: dict[str, str], address: str) -> None:
        client = AdminClient({"bootstrap.servers": address})
        new = NewTopic(self._name, 1, 1, config=config)
        client.create_topics([new])[self._name].result(patience.scaled(CREATE_TIMEOUT_S))

    def _write(self, writer: str, codec: str, address: str) -> None:
        self._written.append(WRITERS[writer](codec, address, self._name))

    def _read(self, reader: str, address: str) -> None:
        self._read_written(reader, self._written, address)

    def _refuse(self, reader: str, after: int, address: str) -> None:
        readable = self._written[:after]
        if readable:
            self._read_written(reader, readable, address)
        count = sum(len(each.rows) for each in readable)
        try:
            READERS[reader](address, self._name, count + 1)
        except UnsupportedCompressionTypeError:
            return
        except WrongAnswerError as error:  # what kcat printed
            expect("Unsupported compression type" in str(error), True, f"the reason: {error}")
        else:
            raise WrongAnswerError("a record of a zstd batch was given to a client without zstd")

    def _read_written(self, reader: str, written: Sequence[Written], address: str) -> None:
        wanted = [row for each in written for row in each.rows]
        stamps = [stamp for each in written for stamp in each.timestamps_ms]
        found = READERS[reader](address, self._name, len(wanted))
        for offset, (row, other) in enumerate(zip(wanted, found.rows, strict=True)):
            expect(other, row, f"the record at offset {offset}")
        pairs = enumerate(zip(stamps, found.timestamps_ms, strict=True))
        for offset, (stamp, other_stamp) in pairs:
            if stamp is not None and other_stamp is not None:
                expect(other_stamp, stamp, f"the timestamp at offset {offset}")


def run(cluster: Cluster, names: Sequence[str] = ()) -> Iterator[Outcome]:
    """Run the named writers, or all, on one partition, then all readers; then the zstd checks."""
    table = [*_all_in_one(names), *_zstd_behind_old(), *_zstd_by_setting()]
    yield from checks.run(SUITE, table, cluster.address)


def _all_in_one(writers: Sequence[str]) -> Iterator[Row]:
    topic = SharedTopic()
    for writer in writers or WRITERS:
        for codec in CODECS:
            yield topic.writes(writer, codec)
    for reader in READERS:
        yield topic.reads(reader)


def _zstd_behind_old() -> Iterator[Row]:
    topic = SharedTopic()
    yield topic.writes("kafka-python (0, 9)", "gzip")
    for writer in ZSTD_WRITERS:
        yield topic.writes(writer, "zstd")
    for reader in READERS:
        yield topic.refuses(reader, 1) if reader in BEFORE_BATCHES else topic.reads(reader)


def _zstd_by_setting() -> Iterator[Row]:
    topic = SharedTopic()
    yield topic.creation(compression_type="zstd")
    yield topic.writes("kafka-python (0, 9)", "gzip")
    yield topic.writes("kafka-python (0, 11)", "none")
    yield topic.writes("librdkafka None", "zstd")
    for reader in READERS:
        yield topic.refuses(reader, 0) if reader in BEFORE_ZSTD else topic.reads(reader)
