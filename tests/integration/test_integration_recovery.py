"""A broker that has much to recover: it says how far it is, and a signal ends it at once."""

from __future__ import annotations

import json
import random
import re
import signal
import socket
import struct
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import pytest

from kdist.config.storage import StorageSettings
from kdist.config.topic import TopicSettings
from kdist.metrics.storage import StorageMetrics
from kdist.model import TopicPartition
from kdist.records.batch import Batch, read_header
from kdist.records.build import build_batch
from kdist.runtime.clock import SystemClock
from kdist.runtime.disk import Disk
from kdist.storage.background import DirectoryContext
from kdist.storage.directory import LogDirectory
from kdist.storage.log import Log
from kdist.storage.meta import Identity
from tests.integration.broker_processes import BrokerProcess, broker_processes
from tests.integration.zookeeper_server import free_port
from tests.own_time import ended_after_s
from tests.stepped_process import SteppedProcess

LOGS = 300
BATCHES = 2_000_000  # of the one big log: seconds of scanning, as each has entries in the indexes
STOPPED_S = 1.0
OFFSET = struct.Struct(">q")
TOPIC = TopicSettings()
BATCH = build_batch([b"x" * 100], timestamp_ms=1_700_000_000_000)


def test_a_signal_during_recovery_ends_the_broker_at_once(
    tmp_path: Path, connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = f"127.0.0.1:{free_port()}"
    indexes = {"log_index_interval_bytes": "0", "log_index_size_max_bytes": str(1 << 26)}
    with (
        broker_processes(1, tmp_path, connect, http_address=http, **indexes) as (broker,),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        assert broker.stop() == 0
        fill(broker.directory)
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        interrupt_in_big_log(broker, manager)
        broker.start()  # what was cut short is done anew
        assert "cut off" not in broker.text
        assert broker.stop() == 0
        assert (broker.directory / ".kafka_cleanshutdown").exists()


def interrupt_in_big_log(broker: BrokerProcess, manager: socket.socket) -> None:
    """Start it, and end it while it scans."""
    process = broker.begin()
    told = ""
    while not re.search(rf"STATUS=recovering \d+ of {LOGS + 1} logs\n", told):
        told += manager.recv(4096).decode() + "\n"
    assert "EXTEND_TIMEOUT_USEC=" in told
    with pytest.raises(urllib.error.HTTPError) as answer:
        urllib.request.urlopen(f"http://{broker.settings['http.address']}/health", timeout=10)
    assert (answer.value.code, json.load(answer.value)["state"]) == (503, "starting")
    drain(manager)
    for _ in range(2):
        while manager.recv(4096) != b"WATCHDOG=1":
            pass
    process.send_signal(signal.SIGTERM)
    assert ended_after_s(process) < STOPPED_S
    assert process.wait() == 0
    assert "READY=1" not in told
    assert not (broker.directory / ".kafka_cleanshutdown").exists()


def drain(manager: socket.socket) -> None:
    """Pass by what has been told."""
    manager.setblocking(False)
    try:
        while manager.recv(4096):
            pass
    except BlockingIOError:
        manager.settimeout(20)


def fill(path: Path) -> None:
    """What a broker that was killed leaves: many small logs, and one that takes long to scan."""
    found = re.search(r"cluster\.id=(\S+)", (path / "meta.properties").read_text())
    assert found
    directory = LogDirectory(
        str(path),
        Identity(1, found[1]),
        DirectoryContext(
            files=Disk(),
            clock=SystemClock(),
            tasks=SteppedProcess(),
            rng=random.Random(1),
            settings=StorageSettings(reserved_bytes=0),
            metrics=StorageMetrics(),
            settings_of=lambda _: TOPIC,
            on_failure=pytest.fail,
        ),
    ).open()
    for number in range(LOGS):
        append(directory, TopicPartition("clicks", number))
    big = Path(append(directory, TopicPartition("views", 0)).active.path)
    directory._lock.release()  # as the kernel does
    content = bytearray(BATCH * BATCHES)
    for offset in range(BATCHES):  # which the checksum leaves out
        OFFSET.pack_into(content, offset * len(BATCH), offset)
    big.write_bytes(content)


def append(directory: LogDirectory, partition: TopicPartition) -> Log:
    log = directory.create(partition, uuid.UUID(int=1), TOPIC)
    for _ in range(3):
        data = bytearray(BATCH)
        log.append_as_leader([Batch(read_header(data), memoryview(data))], 0, 1_700_000_000_000)
    return log
