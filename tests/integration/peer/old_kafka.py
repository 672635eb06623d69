"""Apache Kafka 0.8.2's consumer and tools, with groups in ZooKeeper: the reference for ours.

The jars are downloaded once, as `kafka_peer.py` downloads those of newer releases.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from peer.kafka_peer import (
    BRING_TIMEOUT_S,
    CACHE,
    QUICK_JVM,
    TOOL_TIMEOUT_S,
    PeerMissingError,
)

POM = Path(__file__).with_name("old_pom.xml")
RELEASE = "0.8.2"


def ensure_old_jars() -> Path:
    """The directory with the jars; it appears whole or not at all. `PeerMissingError`."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise PeerMissingError(f"Tests against Apache Kafka {RELEASE} need {program}.")
    CACHE.mkdir(exist_ok=True)
    jars = CACHE / f"kafka-{RELEASE}"
    with open(CACHE / f"kafka-{RELEASE}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.is_dir():
            arriving = jars.with_name(f"{jars.name}.arriving")
            shutil.rmtree(arriving, ignore_errors=True)
            command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"]
            command += ["-DincludeScope=runtime", f"-DoutputDirectory={arriving}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=BRING_TIMEOUT_S)
            if done.returncode != 0 or not arriving.is_dir():
                cause = (done.stdout + done.stderr).strip().splitlines() or ["no reason given"]
                raise PeerMissingError(f"Maven could not bring the jars: {cause[0]}")
            arriving.rename(jars)
    return jars


def _command(main_class: str, *arguments: str) -> list[str]:
    return ["java", *QUICK_JVM, "-cp", f"{ensure_old_jars()}/*", main_class, *arguments]


@contextmanager
def old_consumer(directory: Path, topic: str, settings: Mapping[str, str]) -> Iterator[Path]:
    """A console consumer of a group, and the file that it writes each message to."""
    properties, output = directory / "old.properties", directory / "old.out"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    command = _command(
        *("kafka.tools.ConsoleConsumer", "--topic", topic),
        *("--zookeeper", settings["zookeeper.connect"], "--consumer.config", str(properties)),
    )
    with output.open("wb") as lines, (directory / "old.err").open("wb") as errors:
        process = subprocess.Popen(command, stdout=lines, stderr=errors)
    try:
        yield output
    finally:
        process.terminate()  # it commits, and leaves its group
        process.wait(TOOL_TIMEOUT_S)


def check_offsets(zookeeper: str, group: str, topic: str) -> dict[int, tuple[int, int, str]]:
    """Kafka's report on each partition: the group's offset, the log end offset, the owner."""
    arguments = ("--zookeeper", zookeeper, "--group", group, "--topic", topic)
    done = subprocess.run(
        _command("kafka.tools.ConsumerOffsetChecker", *arguments),
        capture_output=True,
        text=True,
        timeout=TOOL_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(f"{group} ")]
    return {int(row[2]): (int(row[3]), int(row[4]), row[6]) for row in rows}
