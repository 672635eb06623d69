"""Log directories on a real disk, as a broker leaves them, for the tests of inspection."""

from __future__ import annotations

import random
import shutil
import uuid
from pathlib import Path

import pytest

from kdist.config.storage import StorageSettings
from kdist.config.topic import TopicSettings
from kdist.inspection.place import locate
from kdist.inspection.report import Report, Severity
from kdist.inspection.verify import verify
from kdist.metrics.storage import StorageMetrics
from kdist.model import TopicPartition
from kdist.records.batch import HEADER_SIZE, Batch, BatchHeader, read_header
from kdist.records.build import build_batch
from kdist.runtime.disk import Disk
from kdist.runtime.files import Files
from kdist.runtime.readonly import ReadOnlyFiles
from kdist.storage.background import DirectoryContext
from kdist.storage.directory import LogDirectory
from kdist.storage.meta import Identity
from kdist.testing.virtual_clock import VirtualClock
from tests.stepped_process import SteppedProcess

CLICKS = TopicPartition("clicks", 0)
START_MS = 1_700_000_000_000
BATCHES = 24
RECORDS = 3  # in each
END_OFFSET = BATCHES * RECORDS
TOPIC = TopicSettings(
    segment_bytes=2000, index_interval_bytes=300, file_delete_delay_ms=0, flush_before_expose=True
)

# A byte of each header field, from the batch's first on.
FIELDS = {
    "base offset": 7,
    "batch length, lower": 11,
    "batch length, higher": 10,
    "leader epoch": 15,
    "magic": 16,
    "crc": 19,
    "attributes": 22,
    "last offset delta": 26,
    "base timestamp": 34,
    "max timestamp": 42,
    "producer id": 50,
    "producer epoch": 52,
    "base sequence": 56,
    "record count": 60,
    "records": 80,
}


def raise_failure(error: BaseException) -> None:
    """`on_failure`: a failing disk fails the test."""
    raise error


def open_directory(path: Path, files: Files | None = None) -> LogDirectory:
    """A broker's start on a log directory."""
    return LogDirectory(
        str(path),
        Identity(1, "test-cluster"),
        DirectoryContext(
            files=files or Disk(),
            clock=VirtualClock(START_MS),
            tasks=SteppedProcess(),
            rng=random.Random(0),
            settings=StorageSettings(reserved_bytes=0),
            metrics=StorageMetrics(),
            settings_of=lambda _: TOPIC,
            on_failure=raise_failure,
        ),
    ).open()


def make_directory(path: Path, *, is_closed: bool = True) -> Path:
    """`clicks-0` with 24 batches of 3 records in several segments, two epochs, a producer.

    Record `n` has timestamp START_MS + n. Without `is_closed` the broker was killed. Returns the
    partition's directory.
    """
    path.mkdir(parents=True, exist_ok=True)
    directory = open_directory(path)
    log = directory.create(CLICKS, uuid.UUID(int=7), TOPIC)
    for number in range(BATCHES):
        first = number * RECORDS
        batch = build_batch(
            [f"value-{first + i} ".encode() * 8 for i in range(RECORDS)],
            [b"key", None, b""],
            timestamps=[START_MS + first + i for i in range(RECORDS)],
            timestamp_ms=START_MS,
            producer_id=7,
            producer_epoch=0,
            base_sequence=first,
        )
        epoch = 0 if number < BATCHES // 2 else 3
        log.append_as_leader([Batch(read_header(batch), batch)], epoch, START_MS + first)
    if is_closed:
        directory.close()
    else:
        log.close()
        directory._lock.release()
    return path / "clicks-0"


def segments(partition: Path) -> list[Path]:
    """The `.log` files in order."""
    return sorted(partition.glob("*.log"))


def headers(segment: Path) -> list[tuple[int, BatchHeader]]:
    """Position and header of each batch in a sound segment."""
    data, position, found = segment.read_bytes(), 0, []
    while position + HEADER_SIZE <= len(data):
        header = read_header(data, position)
        found.append((position, header))
        position += header.size
    return found


def flip(path: Path, position: int, mask: int = 0x01) -> None:
    """Change bits of one byte in a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


LOOK = ReadOnlyFiles(Disk())


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory after a clean stop; tests copy it."""
    path = tmp_path_factory.mktemp("pristine") / "log"
    make_directory(path)
    return path


@pytest.fixture
def log(pristine: Path, tmp_path: Path) -> Path:
    """A partition's directory in a closed log directory."""
    shutil.copytree(pristine, tmp_path / "log")
    return tmp_path / "log/clicks-0"


@pytest.fixture
def killed(log: Path) -> Path:
    """The same after a kill of the broker: nothing is known to be synced."""
    (log.parent / ".kafka_cleanshutdown").unlink()
    (log.parent / "recovery-point-offset-checkpoint").write_text("0\n1\nclicks 0 0\n")
    return log


def check(path: Path, *, is_deep: bool = True) -> Report:
    return verify(LOOK, locate(LOOK, str(path)), is_deep=is_deep)


def of(report: Report, severity: Severity) -> list[tuple[str, int | None]]:
    """Name and position of the findings."""
    found = [finding for finding in report.findings if finding.severity is severity]
    return [(finding.path.rpartition("/")[2], finding.position) for finding in found]
