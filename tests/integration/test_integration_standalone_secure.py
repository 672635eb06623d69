"""`kdist standalone --secure` for real, of one broker and of three, by the files that it writes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import kafka
import pytest
from broker_processes import settled
from kafka.errors import KafkaError
from peer.kafka_peer import java_command
from standalone_process import KDIST, ROOT, TIMEOUT_S, Standalone, standalone

from kdist import Consumer, Producer

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("standalone-secure")]

VALUES = [f"value {number}".encode() for number in range(20)]


class Secured(NamedTuple):
    """A run, and its directory."""

    run: Standalone
    data: Path

    @property
    def client(self) -> Path:
        return self.data / "client.properties"

    @property
    def admin(self) -> Path:
        return self.data / "admin.properties"

    @property
    def librdkafka(self) -> Path:
        return self.data / "client.librdkafka"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.run.port}"


@pytest.fixture(scope="module", params=[1, 3])
def secured(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Secured]:
    data = tmp_path_factory.mktemp("secured") / "data with blanks"
    with standalone(data, "--secure", "--brokers", request.param) as run:
        topics = ("kdist", "confluent", "kafka-python", "java")
        run.run("topics", "create", *topics, "--command-config", data / "client.properties")
        yield Secured(run, data)


def settings_in(path: Path) -> dict[str, str]:
    """As the command tells Python's users to read it."""
    lines = path.read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def kdist(*words: object) -> tuple[int, str]:
    """A command that is told of no broker; its exit status, and what it said."""
    command = [*KDIST, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    return done.returncode, done.stdout + done.stderr


# Each library: produce and consume by a group, by its file


def by_kdist(secured: Secured) -> list[bytes]:
    settings: dict[str, Any] = settings_in(secured.client)
    with Producer(**settings) as producer:
        producer.send_many("kdist", VALUES).result(TIMEOUT_S)
    found: list[bytes] = []
    with Consumer(**settings, group_id="kdist", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["kdist"])
        settled(
            lambda: found.extend(each.value or b"" for each in consumer.poll(0.2)) or _all(found)
        )
    return found


def by_confluent_kafka(secured: Secured) -> list[bytes]:
    settings: dict[str, Any] = settings_in(secured.librdkafka)
    producer = confluent_kafka.Producer(settings)
    for value in VALUES:
        producer.produce("confluent", value)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = confluent_kafka.Consumer(
        {**settings, "group.id": "confluent", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["confluent"])
    found: list[bytes] = []

    def look() -> bool:
        found.extend(each.value() for each in consumer.consume(100, 0.2) if not each.error())
        return _all(found)

    settled(look)
    consumer.close()
    return found


def by_kafka_python(secured: Secured) -> list[bytes]:
    settings = _of_kafka_python(settings_in(secured.librdkafka))
    producer = kafka.KafkaProducer(**settings)
    for each in [producer.send("kafka-python", value) for value in VALUES]:
        each.get(TIMEOUT_S)
    producer.close()
    consumer = kafka.KafkaConsumer(
        "kafka-python", **settings, group_id="kafka-python", auto_offset_reset="earliest"
    )
    found: list[bytes] = []

    def look() -> bool:
        for batch in consumer.poll(200).values():
            found.extend(each.value for each in batch)
        return _all(found)

    settled(look)
    consumer.close()
    return found


def _of_kafka_python(settings: dict[str, str]) -> dict[str, Any]:
    """It has names of its own, and reads no file."""
    return {
        "bootstrap_servers": settings["bootstrap.servers"].split(","),
        "security_protocol": settings["security.protocol"],
        "ssl_cafile": settings["ssl.ca.location"],
        "sasl_mechanism": settings["sasl.mechanism"],
        "sasl_plain_username": settings["sasl.username"],
        "sasl_plain_password": settings["sasl.password"],
    }


def by_java(secured: Secured) -> list[bytes]:
    broker = ("--bootstrap-server", secured.address, "--topic", "java")
    writing = java_command(
        "kafka.tools.ConsoleProducer", *broker, "--producer.config", str(secured.client)
    )
    reading = java_command(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *(*broker, "--consumer.config", str(secured.client), "--from-beginning"),
        *("--group", "java", "--max-messages", str(len(VALUES))),
    )
    values = b"".join(value + b"\n" for value in VALUES)
    _output(writing, values)
    return _output(reading).splitlines()


def _output(command: list[str], text: bytes = b"") -> bytes:
    done = subprocess.run(command, input=text, capture_output=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def _all(found: list[bytes]) -> bool:
    return len(found) >= len(VALUES)


@pytest.mark.parametrize("library", [by_kdist, by_confluent_kafka, by_kafka_python, by_java])
def test_a_client_produces_and_consumes_by_its_file(
    secured: Secured, library: Callable[[Secured], list[bytes]]
) -> None:
    assert sorted(library(secured)) == sorted(VALUES)


def test_the_command_goes_by_the_file(secured: Secured) -> None:
    run, client = secured.run, secured.client
    run.run("topics", "create", "clicks", "--command-config", client)
    run.run("produce", "clicks", "--config", client, text="hello\n")
    output = run.run("consume", "clicks", "--config", client, "--from-beginning", "--until-end")
    assert output == "hello\n"


# Refusals


def test_without_the_file_a_client_is_refused(secured: Secured) -> None:
    status, said = kdist("topics", "list", "--broker", secured.address)
    assert status == 1
    assert said.count("\n") == 1
    assert "does it speak TLS there (security.protocol)?" in said
    producer = confluent_kafka.Producer({"bootstrap.servers": secured.address})
    with pytest.raises(confluent_kafka.KafkaException):
        producer.list_topics(timeout=3)
    with pytest.raises(KafkaError):
        kafka.KafkaProducer(bootstrap_servers=secured.address, max_block_ms=3_000).send("x", b"x")


def test_a_wrong_password_is_one_sentence(secured: Secured, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.properties"
    wrong.write_text(secured.client.read_text().replace('password="', 'password="0'))
    status, said = kdist("topics", "list", "--config", wrong)
    assert status == 1
    assert said.count("\n") == 1
    assert "refuses the credentials for SCRAM-SHA-512" in said


def test_the_client_may_not_do_what_the_admin_may(secured: Secured) -> None:
    secured.run.run("topics", "create", "kept", "--command-config", secured.client)
    for words in (("topics", "delete", "kept", "--yes"), ("acls", "list"), ("users", "list")):
        status, said = kdist(*words, "--config", secured.client)
        assert status == 1
        assert "Not authorized" in said
        assert kdist(*words, "--config", secured.admin)[0] == 0


# Secrets


def test_no_secret_is_shown(secured: Secured) -> None:
    secrets = json.loads((secured.data / "security/users.json").read_text()).values()
    told = [each.read_bytes() for each in (secured.data / "logs").iterdir()]
    told += [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in secured.run.pids.values()]
    told += [Path(f"/proc/{pid}/environ").read_bytes() for pid in secured.run.pids.values()]
    assert not [secret for secret in secrets if any(secret.encode() in each for each in told)]


def test_what_its_processes_write_is_their_owners_alone(secured: Secured) -> None:
    written = [*(secured.data / "d01").rglob("*"), *(secured.data / "zookeeper/data").rglob("*")]
    assert {each.stat().st_mode & 0o077 for each in written} == {0}


# Restarts


def test_a_later_start_goes_on_with_users_data_and_what_was_changed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with standalone(data, "--secure") as run:
        run.run("topics", "create", "clicks", "--command-config", data / "client.properties")
        run.run("produce", "clicks", "--config", data / "client.properties", text="kept\n")
        run.run("users", "delete", "client", "--yes", "--config", data / "admin.properties")
        assert run.stop() == (0, "", "")
    told = Standalone(data).end()
    assert told[0] == 1
    assert "was begun with --secure" in told[2]
    with standalone(data, "--secure") as run:  # on another port
        reading = ("consume", "clicks", "--from-beginning", "--until-end")
        assert run.run(*reading, "--config", data / "admin.properties") == "kept\n"
        status, said = kdist("topics", "list", "--config", data / "client.properties")
        assert status == 1
        assert "refuses the credentials" in said
