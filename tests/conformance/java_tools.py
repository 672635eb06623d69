"""Runs Apache Kafka's command line tools, each in a JVM of its own.

The first run leaves an archive of the classes that it loaded, with which the others start in less
than half of the time.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import patience
import sources
from checks import WrongAnswerError, expect
from confluent_kafka import Producer
from outcome import SuiteMissingError
from peer.kafka_peer import QUICK_JVM, PeerMissingError, ensure_jars, java_command

TIMEOUT_S = 90
SETTLE_S = 40
FLUSH_S = 20
POLL_S = 0.1
ARCHIVE = sources.CACHE / "kafka-tools.jsa"

TOPICS = "org.apache.kafka.tools.TopicCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONSOLE_PRODUCER = "kafka.tools.ConsoleProducer"
CONFIGS = "kafka.admin.ConfigCommand"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
API_VERSIONS = "kafka.admin.BrokerApiVersionsCommand"
ELECTIONS = "org.apache.kafka.tools.LeaderElectionCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
REPLICA_VERIFICATION = "org.apache.kafka.tools.ReplicaVerificationTool"


def prepare() -> None:
    """Raise `SuiteMissingError` if Kafka's jars are missing."""
    try:
        ensure_jars()
    except PeerMissingError as missing:
        raise SuiteMissingError(str(missing)) from None


def tool(main_class: str, address: str, *arguments: str, lines: Sequence[str] = ()) -> list[str]:
    """Run a tool with `lines` as its input; its output lines, `WrongAnswerError` if it fails."""
    return run(main_class, "--bootstrap-server", address, *arguments, lines=lines)


def run(main_class: str, *arguments: str, lines: Sequence[str] = ()) -> list[str]:
    """As `tool`, without an address."""
    done = _done(main_class, arguments, lines)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()
        raise WrongAnswerError(f"{' '.join(arguments[-6:])} failed: {said[-400:]}")
    return done.stdout.splitlines()


def refused(main_class: str, address: str, *arguments: str) -> str:
    """Run a tool that is to fail; all that it said, `WrongAnswerError` if it does not fail."""
    done = _done(main_class, ("--bootstrap-server", address, *arguments), ())
    said = done.stdout + done.stderr
    if done.returncode == 0:
        raise WrongAnswerError(f"{' '.join(arguments[-6:])} was not refused: {said[-400:]}")
    return said


def said(main_class: str, address: str, *arguments: str, lines: Sequence[str] = ()) -> str:
    """Run a tool; all that it said, whether it failed or not."""
    done = _done(main_class, ("--bootstrap-server", address, *arguments), lines)
    return done.stdout + done.stderr


def settled(look: Callable[[], object], what: str) -> None:
    """Wait until `look` says yes; `WrongAnswerError` with `what` if it does not in time."""
    end_s = time.monotonic() + patience.scaled(SETTLE_S)
    while not look():
        if time.monotonic() > end_s:
            raise WrongAnswerError(f"it did not happen in time that {what}")
        time.sleep(POLL_S)


def fill(address: str, topic: str, partition: int, count: int) -> int:
    """Produce `count` records to one partition, by a client that starts sooner.

    Returns the timestamp of the first, in ms. Each has one ms more than the one before.
    """
    client = Producer({"bootstrap.servers": address, "acks": "all"})
    start_ms = int(time.time() * 1000)
    for number in range(count):
        text, at_ms = f"line {number}".encode(), start_ms + number
        client.produce(topic, text, partition=partition, timestamp=at_ms)
    expect(client.flush(patience.scaled(FLUSH_S)), 0, "records that were not acknowledged")
    return start_ms


@contextmanager
def json_file(content: object) -> Iterator[str]:
    """The name of a file with JSON in it, for a tool that takes its work from one."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(content, file)
        file.flush()
        yield file.name


class Running:
    """A tool that runs beside the check, and the lines that it has printed so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.lines: list[str] = []
        self._process = process
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))

    def done(self) -> list[str]:
        """Wait for its end; all its lines, `WrongAnswerError` if it failed."""
        status = self._process.wait(patience.scaled(TIMEOUT_S))
        self._reader.join()
        if status != 0:
            raise WrongAnswerError(f"a tool ended with status {status}: {self.lines[-3:]}")
        return self.lines


@contextmanager
def running(main_class: str, *arguments: str) -> Iterator[Running]:
    """Start a tool; in the end it is stopped, if it has not ended by itself."""
    process = subprocess.Popen(
        command(main_class, arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield Running(process)
    finally:
        process.kill()
        process.wait()


def command(main_class: str, arguments: Sequence[str] = (), *options: str) -> list[str]:
    """The command line that runs a tool; `options` are the JVM's."""
    shared = (f"-XX:SharedArchiveFile={ARCHIVE}",) if ARCHIVE.exists() else ()
    # Without its own log, in which the JVM would complain about classes that it cannot archive.
    jvm = (*QUICK_JVM, "-Xlog:disable", *shared, *options)
    return java_command(main_class, *arguments, jvm=jvm)


def _done(
    main_class: str, arguments: Sequence[str], lines: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    archive = ARCHIVE.with_suffix(f".{os.getpid()}")
    options = () if ARCHIVE.exists() else (f"-XX:ArchiveClassesAtExit={archive}",)
    done = subprocess.run(
        command(main_class, arguments, *options),
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=patience.scaled(TIMEOUT_S),
    )
    if archive.exists():
        archive.replace(ARCHIVE)
    return done
