"""The cleaner beside Apache Kafka's, on copies of one log, in one run: `make bench-cleaner`.

A log is written once and copied for each pass. Both have a map of 128 MiB and one thread that
cleans. Kafka's broker, otherwise idle, is started on some partitions of it: its cleaner's first
passes warm up the JVM and are left out. CPU is the cleaning thread's alone, so without Kafka's
garbage collector and compiler; seconds are those that each says. Ours is the process that a
broker starts. Ratios within one run are meaningful, rates are this machine's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

sys.path += [str(Path(__file__).parents[1] / "tests" / "integration")]
sys.path += [str(Path(__file__).parents[1])]

from measuring import make_room
from peer.kafka_broker import CLUSTER_ID, KafkaBroker
from peer.kafka_workload import create_topics

from kdist.config.storage import StorageSettings
from kdist.config.topic import TopicSettings
from kdist.metrics.storage import StorageMetrics
from kdist.model import TopicPartition
from kdist.records.batch import Batch, read_header
from kdist.records.build import build_batch
from kdist.records.compression import Codec
from kdist.runtime.clock import SystemClock
from kdist.runtime.disk import Disk
from kdist.storage.background import DirectoryContext
from kdist.storage.cleaning.requests import (
    MapKeys,
    Report,
    Request,
    Rewrite,
    Source,
    decode_report,
    encode_request,
)
from kdist.storage.directory import LogDirectory
from kdist.storage.meta import Identity
from tests.stepped_process import SteppedProcess

MAP_BYTES = 128 << 20
SEGMENT_BYTES = 64 << 20
WARM_UP = 2  # passes of Kafka's that are left out
START_MS = 1_700_000_000_000
FAR = 1 << 62
KAFKA_JVM = ("-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
CLEANER_THREAD = "kafka-log-clean"  # the kernel keeps 15 characters
SAID = re.compile(
    r"cleaned log ([^ ]+) .*?([\d.,]+) MB of log processed in ([\d.,]+) seconds", re.S
)


class Shape(NamedTuple):
    """A log: records with keys of 16 bytes, one in `versions` the last of its key."""

    name: str
    value_bytes: int
    batch_records: int
    codec: Codec
    versions: int = 5


SHAPES = (
    Shape("100 B values, 100 a batch", 100, 100, Codec.NONE),
    Shape("100 B values, 1 a batch", 100, 1, Codec.NONE),
    Shape("1 KiB values, 16 a batch", 1024, 16, Codec.NONE),
    Shape("100 B values, 100 a batch, lz4", 100, 100, Codec.LZ4),
)


class Cost(NamedTuple):
    """What a pass took."""

    wall_s: float
    cpu_s: float


def write_log(path: Path, shape: Shape, log_bytes: int) -> tuple[Path, int]:
    """A log directory with one partition of that shape; the partition's directory, and records."""
    path.mkdir()
    tasks, topic = SteppedProcess(), TopicSettings(segment_bytes=SEGMENT_BYTES)
    surroundings = DirectoryContext(
        files=Disk(),
        clock=SystemClock(),
        tasks=tasks,
        rng=random.Random(1),
        settings=StorageSettings(reserved_bytes=0),
        metrics=StorageMetrics(),
        settings_of=lambda _: topic,
        on_failure=_fail,
    )
    directory = LogDirectory(str(path), Identity(1, CLUSTER_ID), surroundings).open()
    log = directory.create(TopicPartition("bench", 0), uuid.UUID(int=7), topic)
    count = log_bytes // (shape.value_bytes + 30)
    rng = random.Random(2)
    text = rng.randbytes(shape.value_bytes // 2).hex().encode()  # compresses to a half
    for start in range(0, count, shape.batch_records):
        numbers = range(start, start + shape.batch_records)
        keys = [b"user-%011d" % rng.randrange(count // shape.versions) for _ in numbers]
        data = build_batch(
            [b"%08d" % number + text[8:] for number in numbers],
            keys,
            timestamp_ms=START_MS,
            codec=shape.codec,
        )
        log.append_as_leader([Batch(read_header(data), data)], 0, START_MS)
    log.roll(START_MS)
    tasks.run_until_idle()
    directory.close()
    return path / "bench-0", count


def _fail(error: BaseException) -> None:
    raise error


def closed_segments(partition: Path) -> list[Source]:
    """All but the active one."""
    paths = sorted(partition.glob("*.log"))[:-1]
    return [Source(int(path.stem), path.stat().st_size) for path in paths]


class OurCleaner:
    """The process that a broker starts."""

    def __init__(self) -> None:
        argv = [sys.executable, "-m", "kdist.cli.cleaner", str(os.getpid())]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, request: Request) -> Report:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(encode_request(request))
        self._process.stdin.flush()
        report = decode_report(self._process.stdout.readline())
        assert not report.fault, report
        return report

    def clean(self, partition: Path, end_offset: int) -> Cost:
        """One pass over a log, up to its active segment."""
        sources = closed_segments(partition)
        began_s, began_cpu_s = time.perf_counter(), self._cpu_s()
        slots = min(MAP_BYTES // 24, 2 * end_offset)
        self._ask(MapKeys(str(partition), tuple(sources), 0, end_offset, slots, "07" * 16, FAR))
        for source in sources:
            self._ask(Rewrite((source,), 0, 4096, START_MS, 86_400_000, True, (), ()))
        return Cost(time.perf_counter() - began_s, self._cpu_s() - began_cpu_s)

    def _cpu_s(self) -> float:
        stat = Path(f"/proc/{self._process.pid}/schedstat").read_text()
        return int(stat.split()[0]) / 1e9


def clean_ours(partition: Path, records: int, passes: int, scratch: Path) -> list[Cost]:
    """Our cleaner on copies of a partition."""
    costs = []
    with closing(OurCleaner()) as cleaner:
        for number in range(passes):
            copy = scratch / f"ours-{number}"
            shutil.copytree(partition, copy)
            costs.append(cleaner.clean(copy, records))
            shutil.rmtree(copy)
    return costs


def clean_kafkas(partition: Path, passes: int, scratch: Path) -> list[Cost]:
    """Kafka's, started on as many copies of the partition as there are passes."""
    settings = {"cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES)}
    broker = KafkaBroker(
        scratch / "kafka",
        jvm=(*KAFKA_JVM, *_log4j()),
        log_cleaner_enable="false",
        log_cleaner_dedupe_buffer_size=str(MAP_BYTES),
    )
    with broker:
        create_topics(broker, {f"bench{number}": settings for number in range(passes)})
    for number in range(passes):
        target = broker.data / f"bench{number}-0"
        for path in [*target.glob("0*")]:
            path.unlink()
        for path in partition.glob("0*"):
            shutil.copy2(path, target)
        shutil.copy2(partition / "leader-epoch-checkpoint", target)
    broker._settings["log.cleaner.enable"] = "true"
    with broker:
        cpu_s: dict[str, float] = {}
        said: dict[str, float] = {}
        while len(said) < passes:
            time.sleep(0.02)
            now_s = _thread_cpu_s(broker.pid)
            for name, _, seconds in SAID.findall(broker.diagnostics()):
                if name.startswith("bench") and name not in said:
                    said[name] = float(seconds.replace(",", ""))
                    cpu_s[name] = now_s
    ends = [0.0, *cpu_s.values()]
    return [
        Cost(wall_s, end - start)
        for wall_s, start, end in zip(said.values(), ends, ends[1:], strict=False)
    ]


def _log4j() -> Sequence[str]:
    where = Path(__file__).parents[1] / "tests" / "integration" / "peer" / "log4j.properties"
    return (f"-Dlog4j.configuration=file:{where}",)


def _thread_cpu_s(pid: int) -> float:
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == CLEANER_THREAD:
            return int((task / "schedstat").read_text().split()[0]) / 1e9
    return 0.0


def compare(shape: Shape, log_bytes: int, passes: int, scratch: Path) -> dict[str, object]:
    """Both cleaners on one log."""
    partition, records = write_log(scratch / "log", shape, log_bytes)
    size = sum(source.size for source in closed_segments(partition))
    make_room(2 * size)
    kafkas = clean_kafkas(partition, passes + WARM_UP, scratch)[WARM_UP:]
    ours = clean_ours(partition, records, passes, scratch)
    ours_s, kafkas_s = _median(ours), _median(kafkas)
    return {
        "shape": shape.name,
        "mb": round(size / 1e6),
        "records": records,
        "kdist_mb_per_cpu_s": round(size / 1e6 / ours_s.cpu_s),
        "kafka_mb_per_cpu_s": round(size / 1e6 / kafkas_s.cpu_s),
        "kdist_keys_per_cpu_s": round(records / ours_s.cpu_s),
        "kafka_keys_per_cpu_s": round(records / kafkas_s.cpu_s),
        "cpu_ratio": round(kafkas_s.cpu_s / ours_s.cpu_s, 2),
        "wall_ratio": round(kafkas_s.wall_s / ours_s.wall_s, 2),
    }


def _median(costs: Sequence[Cost]) -> Cost:
    return Cost(
        statistics.median(each.wall_s for each in costs),
        statistics.median(each.cpu_s for each in costs),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=200, help="size of the log")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--only", default="", help="only shapes with this in their name, as 'lz4'")
    parser.add_argument("--directory", type=Path, help="where to put the logs")
    options = parser.parse_args()
    for shape in (each for each in SHAPES if options.only in each.name):
        with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
            found = compare(shape, options.mb << 20, options.passes, Path(scratch))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
