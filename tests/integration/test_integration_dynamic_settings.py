"""Settings that are changed while a real broker runs, by librdkafka's client and the command."""

from __future__ import annotations

import json
from pathlib import Path

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.integration.standalone_process import Standalone, standalone

TIMEOUT_S = 20
BROKER = "0"
DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT = 2, 3, 4, 5


def address(run: Standalone) -> dict[str, str]:
    return {"bootstrap.servers": f"127.0.0.1:{run.port}"}


def change(run: Standalone, name: str, value: str | None) -> None:
    """Of the one broker; librdkafka has no name for all of them."""
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(name, value, incremental_operation=operation)
    resource = ConfigResource(ResourceType.BROKER, BROKER, incremental_configs=[entry])
    client = AdminClient(address(run))
    client.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def found(run: Standalone, name: str) -> tuple[str, int]:
    """A setting of the broker, with its source."""
    resource = ConfigResource(ResourceType.BROKER, BROKER)
    client = AdminClient(address(run))
    entry = client.describe_configs([resource])[resource].result(TIMEOUT_S)[name]
    return entry.value, entry.source


def produce(run: Standalone, topic: str, count: int) -> None:
    """A batch for each record."""
    producer = ck.Producer(address(run))
    for _ in range(count):
        producer.produce(topic, b"x" * 500)
        assert producer.flush(TIMEOUT_S) == 0


def segments(run: Standalone, topic: str) -> int:
    logs = run.data.glob(f"**/{topic}-0/*.log")
    return len(list(logs))


def described(run: Standalone, topic: str, name: str) -> tuple[str, str]:
    """As the command says it: value and source."""
    line = run.run("configs", "describe", "topic", topic, name, "--json")
    row = json.loads(line)
    return row["value"], row["source"]


def test_what_is_given_for_all_brokers_rolls_logs_outlives_a_restart_and_is_taken_back(
    tmp_path: Path,
) -> None:
    size, time = "log.segment.bytes", "log.retention.ms"
    options = ("--config", f"{size}=50000")
    with standalone(tmp_path / "data", *options) as run:
        run.run("topics", "create", "clicks")
        produce(run, "clicks", 5)
        assert segments(run, "clicks") == 1
        assert found(run, size) == ("50000", STATIC)
        run.run("configs", "alter", "broker", "all", "--set", f"{size}=1200")
        change(run, time, "86400000")
        assert found(run, size) == ("1200", DYNAMIC_DEFAULT)
        assert found(run, time) == ("86400000", DYNAMIC_BROKER)
        produce(run, "clicks", 4)
        assert segments(run, "clicks") == 3
        with pytest.raises(ck.KafkaException, match="cannot be changed while a broker runs"):
            change(run, "log.dir", "/elsewhere")
        port = run.port
        assert run.stop()[0] == 0
    with standalone(tmp_path / "data", *options, port=port) as run:
        assert found(run, size) == ("1200", DYNAMIC_DEFAULT)
        assert described(run, "clicks", "segment.bytes") == ("1200", "all brokers")
        produce(run, "clicks", 4)
        assert segments(run, "clicks") == 5
        run.run("configs", "alter", "broker", "all", "--unset", size)
        change(run, time, None)
        assert found(run, size) == ("50000", STATIC)
        assert found(run, time) == ("604800000", DEFAULT)
        produce(run, "clicks", 8)
        assert segments(run, "clicks") == 5
        assert described(run, "clicks", "segment.bytes") == ("50000", "file")
