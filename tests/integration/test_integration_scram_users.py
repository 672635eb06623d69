"""Users with SCRAM credentials: Apache Kafka's own tool and kdist's command use the same ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from peer.kafka_peer import java_command

from kdist.client.admin.clients import Admin
from kdist.security.scram import new_credential, parse_credential
from tests.integration.broker_processes import BrokerProcess, broker_processes
from tests.integration.zookeeper_server import ZooKeeperHost

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("scram users")]

TIMEOUT_S = 120
SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"


@pytest.fixture(scope="module")
def connect(zookeeper: ZooKeeperHost) -> str:
    return f"{zookeeper.settings.address}/users"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, connect: str) -> Iterator[BrokerProcess]:
    """A broker of a cluster whose first user was there before it."""
    words = ("create", "first", "--zookeeper", connect, "--password-file", "-")
    assert "Created user first" in kdist_users(*words, text="secret\n")
    path = tmp_path_factory.mktemp("brokers")
    allowed = {"scram_alter_over_clear_enable": "true"}
    with broker_processes(1, path, connect, num_partitions="1", **allowed) as (only,):
        yield only


@pytest.fixture(scope="module")
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(broker.address) as client:
        yield client


def run(command: list[str], text: str = "") -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, input=text)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def kdist_users(*words: str, text: str = "") -> str:
    return run([sys.executable, "-m", "kdist.cli", "users", *words], text)


def kafka_configs(broker: BrokerProcess, *words: str) -> str:
    where = ("--bootstrap-server", broker.address, "--entity-type", "users")
    return run(java_command("kafka.admin.ConfigCommand", *where, *words))


def stored(connect: str, node: str) -> dict[str, str]:
    """What ZooKeeper has of a user."""
    from kazoo.client import KazooClient

    keeper = KazooClient(connect)
    keeper.start()
    try:
        data, _ = keeper.get(f"/config/users/{node}")
    finally:
        keeper.stop()
    found: dict[str, str] = json.loads(data)["config"]
    return found


def test_a_user_that_was_made_before_the_first_broker_is_known_to_it(admin: Admin) -> None:
    assert admin.describe_user_scram_credentials(["first"]) == {"first": {SHA_512: 4096}}


def test_kafkas_own_tool_sets_describes_and_deletes_credentials(
    broker: BrokerProcess, admin: Admin, connect: str
) -> None:
    name = ("--entity-name", "java tool*")
    added = f"{SHA_256}=[iterations=8192,password=secret],{SHA_512}=[password=secret]"
    kafka_configs(broker, *name, "--alter", "--add-config", added)
    has = {SHA_256: 8192, SHA_512: 4096}
    assert admin.describe_user_scram_credentials(["java tool*"]) == {"java tool*": has}
    for mechanism, text in stored(connect, "java%20tool%2A").items():
        found = parse_credential(text)
        expected = new_credential(mechanism, "secret", found.salt, found.iterations)
        assert found == expected
    told = kafka_configs(broker, *name, "--describe")
    assert "SCRAM-SHA-256=iterations=8192" in told
    kafka_configs(broker, *name, "--alter", "--delete-config", f"{SHA_256},{SHA_512}")
    assert "java tool*" not in admin.describe_user_scram_credentials()


def test_kafkas_own_tool_describes_what_the_command_has_set(broker: BrokerProcess) -> None:
    words = ("create", "ours", "--broker", broker.address, "--password-file", "-")
    kdist_users(*words, "--mechanism", SHA_256, text="secret\n")
    assert "SCRAM-SHA-256=iterations=4096" in kafka_configs(
        broker, "--entity-name", "ours", "--describe"
    )
    kdist_users("delete", "ours", "--broker", broker.address, "--yes")
