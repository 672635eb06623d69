"""A mirror, an agent, `kdist gate` and Spark on a listener where users log in over TLS.

Each has a user of its own with the ACLs that docs/guides/acls.md says it needs, and no others.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mirror_processes import MirrorProcess, ended, kdist
from pyspark.sql import SparkSession
from spark_work import Job, small_spark, table

from kdist import Admin, Consumer, Producer
from kdist.client.security import SecurityKeywords
from kdist.config.security import ACL_AUTHORIZER
from kdist.errors import ApiError, Error
from tests.certificates import authority
from tests.integration.broker_processes import BrokerProcess, settled
from tests.integration.zookeeper_server import ZooKeeperHost, free_port

USERS = ("mona", "reader", "writer", "agent", "gate", "load")  # mona is a super user
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
ACLS = (
    ("reader", ("read", "describeconfigs"), ("--topic", "m")),
    ("reader", ("read",), ("--group", "kdist-mirror-f")),
    ("reader", ("read",), ("--topic", "__kdist_mirror_origins")),
    (
        "writer",
        ("create", "alter", "read", "write", "describeconfigs"),
        ("--topic", "copy.", "--prefixed"),
    ),
    ("writer", ("create", "read", "write"), ("--topic", "__kdist_mirror_origins")),
    ("agent", ("write",), ("--topic", "ops.host")),
    ("agent", ("create", "alter", "read", "write"), ("--topic", "ops.canary")),
    ("gate", ("describe", "describeconfigs"), ("--cluster",)),
    (
        "gate",
        ("create", "delete", "read", "write"),
        ("--topic", "kdist-probe-", "--prefixed"),
    ),
    ("load", ("read",), ("--topic", "loaded")),
)


def password_of(user: str) -> str:
    return f"of {user}"


class Secured(NamedTuple):
    """A broker on which users get in only by `named`, Kafka's names of what they need."""

    broker: BrokerProcess
    address: str
    zookeeper: str
    trusted: str

    def named(self, user: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password_of(user),
            "ssl.truststore.location": self.trusted,
        }

    @property
    def keywords(self) -> SecurityKeywords:
        named: SecurityKeywords = {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "sasl_username": "mona",
            "sasl_password": password_of("mona"),
            "ssl_truststore_location": self.trusted,
        }
        return named


def written(path: Path, settings: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperHost
) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    (directory / "ca.pem").write_bytes(authority().pem)
    (directory / "broker.pem").write_bytes(authority().issue("broker").pem)
    connect = f"{zookeeper.settings.address}/operations"
    address = f"127.0.0.1:{free_port()}"
    broker = BrokerProcess(1, directory, connect)
    logins = " ".join(f'user_{user}="{password_of(user)}"' for user in USERS)
    broker.settings |= {
        "listeners": f"BROKERS://127.0.0.1:{free_port()},SASL://{address}",
        "listener.security.protocol.map": "BROKERS:SSL,SASL:SASL_SSL",
        "inter.broker.listener.name": "BROKERS",
        "listener.name.brokers.ssl.client.auth": "required",
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f"{MODULE} required {logins};",
        "authorizer.class.name": ACL_AUTHORIZER,
        "super.users": "User:CN=broker;User:mona",
        "ssl.keystore.location": str(directory / "broker.pem"),
        "ssl.truststore.location": str(directory / "ca.pem"),
        "num.partitions": "1",
    }
    for user, operations, resource in ACLS:
        named = [word for operation in operations for word in ("--operation", operation)]
        who = ("--principal", f"User:{user}", "--zookeeper", connect)
        done = kdist("acls", "add", *who, *named, *resource)
        assert done.returncode == 0, done.stderr
    try:
        broker.start()
        yield Secured(broker, address, connect, str(directory / "ca.pem"))
    finally:
        broker.end()


def produce(secured: Secured, topic: str, values: list[bytes]) -> None:
    with Producer(secured.address, **secured.keywords) as producer:
        for sent in [producer.send(topic, value) for value in values]:
            sent.result(60)


def read(secured: Secured, topic: str, count: int) -> list[bytes | None]:
    """The first records of a topic, of which there is only partition 0."""
    given: dict[str, Any] = {
        "group_id": topic,
        "auto_offset_reset": "earliest",
        "metadata_max_age_ms": 200,
    }
    with Consumer(secured.address, **given, **secured.keywords) as consumer:
        consumer.subscribe([topic])
        found: list[bytes | None] = []

        def look() -> bool:
            found.extend(each.value for each in consumer.poll(0.2))
            return len(found) >= count

        settled(look)
    return found


def mirror_of(secured: Secured, directory: Path, **changed: str) -> MirrorProcess:
    """From the broker to itself, as a user for either end."""
    flow = {"source": secured.address, "target": secured.address, "prefix": "copy.", "topics": "m"}
    for end, user in (("source", "reader"), ("target", "writer")):
        flow |= {f"{end}.{name}": text for name, text in secured.named(user).items()}
    flow |= {name.replace("_", "."): text for name, text in changed.items()}
    return MirrorProcess(directory, "m", {f"flow.f.{name}": text for name, text in flow.items()})


def test_a_mirror_reads_and_writes_as_a_user_over_tls(secured: Secured, tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(20)]
    produce(secured, "m", values)
    mirror = mirror_of(secured, tmp_path)
    with ended(mirror):
        mirror.start()
        assert read(secured, "copy.m", len(values)) == values
        settled(lambda: (found := mirror.status_of(0)) is not None and found["lag_records"] == 0)
        assert mirror.stop() == 0
    assert not [each for each in USERS if password_of(each) in mirror.text]


@pytest.mark.parametrize("end", ["source", "target"])
def test_a_mirror_with_a_wrong_password_ends_in_a_sentence(
    secured: Secured, tmp_path: Path, end: str
) -> None:
    mirror = mirror_of(secured, tmp_path, **{f"{end}_sasl_password": "of nobody"})
    for words in ((), ("status",)):
        done = kdist("mirror", *words, "--config", str(mirror.file))
        assert done.returncode == 1
        said = [line for line in done.stderr.splitlines() if line.startswith("kdist: ")]
        assert len(said) == 1
        assert "refuses the credentials for PLAIN" in said[0]
        assert "of nobody" not in done.stderr + done.stdout


@contextmanager
def agent_of(secured: Secured, directory: Path, **changed: str) -> Iterator[Callable[[str], None]]:
    """An agent, which ends in good order; with what waits until a counter of its has counted.

    Its log is `agent.log` of the directory.
    """
    exported = directory / "kdist.prom"
    settings = {
        "bootstrap.servers": secured.address,
        "agent.interval.ms": "200",
        "agent.canary.topic": "ops.canary",
        "agent.canary.interval.ms": "200",
        "agent.metrics.file": str(exported),
        **secured.named("agent"),
        **{name.replace("_", "."): text for name, text in changed.items()},
    }
    file = written(directory / "agent.properties", settings)
    command = [sys.executable, "-m", "kdist.cli", "agent", "--config", str(file)]
    with (
        (directory / "agent.log").open("wb") as log,
        subprocess.Popen(command, stderr=log) as agent,
    ):

        def counted(name: str) -> bool:
            text = exported.read_text() if exported.exists() else ""
            return re.search(rf"^{re.escape(name)} [1-9]", text, re.MULTILINE) is not None

        try:
            yield lambda name: settled(lambda: counted(name))
        finally:
            agent.terminate()
    assert agent.returncode == 0


def test_an_agent_publishes_and_probes_as_a_user_over_tls(secured: Secured, tmp_path: Path) -> None:
    with Admin(secured.address, **secured.keywords) as admin:
        admin.create_topic("ops.host", partitions=1, replication_factor=1)
    with agent_of(secured, tmp_path) as until_counted:
        (value,) = read(secured, "ops.host", 1)[:1]
        assert b'"host"' in (value or b"")
        until_counted('kdist_canary_seconds_count{broker="1"}')
    assert "cannot be sent" not in (tmp_path / "agent.log").read_text()


def test_an_agent_with_a_wrong_password_says_so_once_and_keeps_its_records(
    secured: Secured, tmp_path: Path
) -> None:
    with agent_of(secured, tmp_path, sasl_password="of nobody") as until_counted:
        until_counted("kdist_agent_failed_sends_total")
        until_counted("kdist_agent_queued_records")
    said = (tmp_path / "agent.log").read_text()
    assert said.count("records cannot be sent: SASL_AUTHENTICATION_FAILED") == 1
    assert "of nobody" not in said


def test_a_gate_probes_as_a_user_over_tls(secured: Secured, tmp_path: Path) -> None:
    where = ("gate", "--broker", "1", "--zookeeper", secured.zookeeper)
    file = written(tmp_path / "client.properties", secured.named("gate"))
    settled(lambda: _gate(*where, "--after", file).stdout == "yes   broker 1 is fully back\n")
    asked = _gate(*where, "--allow-single-replica", file)
    assert asked.returncode == 0, asked.stdout + asked.stderr


def test_a_gate_with_a_wrong_password_cannot_tell(secured: Secured, tmp_path: Path) -> None:
    where = ("gate", "--broker", "1", "--zookeeper", secured.zookeeper)
    file = written(tmp_path / "client", {**secured.named("gate"), "sasl.password": "of nobody"})
    for word in ("--after", "--allow-single-replica"):
        done = _gate(*where, word, file)
        assert done.returncode == 2
        assert "refuses the credentials for PLAIN" in done.stderr
        assert "of nobody" not in done.stderr + done.stdout


def _gate(*words: str | Path) -> subprocess.CompletedProcess[str]:
    *words, file = words
    return kdist(*map(str, words), "--command-config", str(file))


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with small_spark() as session:
        yield session


def test_spark_reads_and_loads_as_a_user_over_tls(
    secured: Secured, spark: SparkSession, tmp_path: Path
) -> None:
    values = [b'{"n": %d}' % number for number in range(10)]
    produce(secured, "loaded", values)
    file = str(written(tmp_path / "client.properties", secured.named("load")))
    found = table(spark, secured.address, subscribe="loaded", securityFile=file)
    assert sorted(bytes(row.value) for row in found.collect()) == sorted(values)
    job = Job(secured.address, tmp_path / "load", spark)
    assert job.run("loaded", security_file=file).error is None
    assert job.rows("loaded") == len(values)


def test_a_load_with_a_wrong_password_fails_in_a_sentence(
    secured: Secured, spark: SparkSession, tmp_path: Path
) -> None:
    wrong = written(tmp_path / "client", {**secured.named("load"), "sasl.password": "of nobody"})
    job = Job(secured.address, tmp_path / "load", spark)
    error = job.run("loaded", security_file=str(wrong)).error
    assert isinstance(error, ApiError)
    assert error.error is Error.SASL_AUTHENTICATION_FAILED
    assert "of nobody" not in str(error)
    file = tmp_path / "job.properties"
    output = str(tmp_path / "l")
    given = {"bootstrap.servers": secured.address, "topics": "loaded", "output": output}
    written(file, {**given, "security.file": str(wrong)})
    done = kdist("load", "--config", str(file))
    assert done.returncode == 1
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("kdist: ")]
    assert "refuses the credentials for PLAIN" in said
