"""A real ZooKeeper that serves TLS and keeps ACLs: who is let in, who is not, and what is said."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kdist.config.addresses import ConnectString
from kdist.errors import UserError
from kdist.zk.client import SessionState
from kdist.zk.errors import ConnectionLoss, Untrusted
from kdist.zk.kazoo_client import KazooZooKeeper
from kdist.zk.security import ZooKeeperSecurity
from tests.certificates import Authority, authority, client_context
from tests.integration.broker_processes import BrokerProcess
from tests.integration.zookeeper_server import (
    CONNECTION_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    SecureHost,
    Way,
    real_world,
    running,
)
from tests.unit.zk.zk_contract import RequestContract, in_loop, until
from tests.unit.zk.zk_session_contract import SessionContract

PASSWORD = "of-ann-and-nobody-else"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureHost]:
    """It asks for certificates, and takes clients without."""
    host = SecureHost(tmp_path_factory.mktemp("zookeeper"))
    with running(host):
        yield host


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureHost]:
    """Nobody is let in without a certificate."""
    host = SecureHost(tmp_path_factory.mktemp("zookeeper"), needs_certificate=True)
    with running(host):
        yield host


class TestSecuredZooKeeper(RequestContract, SessionContract):
    """The same tests as for the one in memory, by TLS."""

    @pytest.fixture
    def enter(self, host: SecureHost) -> Any:
        return partial(real_world, host.settings, host.secure_port)


def client_of(
    host: SecureHost, context: ssl.SSLContext, name: str = "localhost", **how: Any
) -> KazooZooKeeper:
    connect = ConnectString.parse(f"{name}:{host.secure_port}")
    security = ZooKeeperSecurity(lambda: context, **how)
    return KazooZooKeeper(connect, SESSION_TIMEOUT_MS, CONNECTION_TIMEOUT_MS, security)


@in_loop
async def test_a_server_is_known_by_its_host_name(host: SecureHost) -> None:
    with pytest.raises(Untrusted, match="IP address mismatch"):
        await client_of(host, client_context(), "127.0.0.1").connect()
    careless = client_context()
    careless.check_hostname = False
    zk = client_of(host, careless, "127.0.0.1")
    await zk.connect()
    await zk.close()


@in_loop
async def test_a_server_is_known_by_its_ca(host: SecureHost) -> None:
    with pytest.raises(Untrusted, match="unable to get local issuer certificate"):
        await client_of(host, client_context(trusts=Authority("another").pem)).connect()


@in_loop
async def test_a_client_without_a_trusted_certificate_is_told(strict: SecureHost) -> None:
    for context in (client_context(), client_context(Authority("another").issue())):
        with pytest.raises(Untrusted, match=f"no TLS with localhost:{strict.secure_port}: "):
            await client_of(strict, context).connect()


@in_loop
async def test_a_certificates_name_is_an_identity(strict: SecureHost) -> None:
    zk = client_of(strict, client_context(authority().issue("broker")), sets_acls=True)
    await zk.connect()
    await zk.create("/owned")
    assert [entry[:2] for entry in await zk.acl("/owned")] == [
        ("x509", "CN=broker"),
        ("world", "anyone"),
    ]
    await zk.close()


@in_loop
async def test_a_port_in_clear_is_told(host: SecureHost) -> None:
    connect = ConnectString.parse(f"localhost:{host.settings.port}")
    zk = KazooZooKeeper(connect, SESSION_TIMEOUT_MS, 2_000, ZooKeeperSecurity(client_context))
    with pytest.raises(ConnectionLoss, match="TLS"):
        await zk.connect()


@in_loop
async def test_no_log_has_the_password(host: SecureHost, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(1)
    zk = client_of(host, client_context(), digest=f"ann:{PASSWORD}", sets_acls=True)
    await zk.connect()
    await zk.exists("/")
    await zk.close()
    assert "Connecting to" in caplog.text
    assert PASSWORD not in caplog.text
    assert PASSWORD not in repr(ZooKeeperSecurity(digest=f"ann:{PASSWORD}"))


@in_loop
async def test_a_client_whose_files_are_spoilt_connects_again_when_they_are_good(
    host: SecureHost,
) -> None:
    contexts: list[Callable[[], ssl.SSLContext]] = [client_context]
    tried: list[int] = []

    def context() -> ssl.SSLContext:
        tried.append(len(contexts))
        return contexts[-1]()

    def spoilt() -> ssl.SSLContext:
        raise UserError("zookeeper.ssl.truststore.location: cannot read /ca.pem")

    way = Way(host.settings.host, host.secure_port)
    connect = ConnectString.parse(await way.start())
    zk = KazooZooKeeper(connect, SESSION_TIMEOUT_MS, 15_000, ZooKeeperSecurity(context))
    await zk.connect()
    for bad in (spoilt, partial(client_context, trusts=Authority("another").pem)):
        contexts.append(bad)
        way.cut()
        way.mend()
        await until(lambda: tried.count(len(contexts)) > 2)
        assert zk.state is SessionState.SUSPENDED
        contexts.append(client_context)
        await until(lambda: zk.state is not SessionState.SUSPENDED)
        if zk.state is SessionState.EXPIRED:
            await zk.reconnect()
        await zk.exists("/")
    await zk.close()
    way.close()


# A cluster


@pytest.fixture
def broker(host: SecureHost, tmp_path: Path) -> Iterator[BrokerProcess]:
    """One that is not running, of a cluster whose brokers have a password, and set ACLs."""
    (tmp_path / "digest").write_text(f"broker:{PASSWORD}\n")
    (tmp_path / "ca.pem").write_bytes(authority().pem)
    broker = BrokerProcess(1, tmp_path, f"localhost:{host.secure_port}/{tmp_path.name}")
    broker.settings |= {
        "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.truststore.location": str(tmp_path / "ca.pem"),
        "zookeeper.digest.file": str(tmp_path / "digest"),
        "zookeeper.set.acl": "true",
    }
    yield broker
    broker.end()


def kdist(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kdist.cli", *words],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_tree_is_secured_as_brokers_create_it(broker: BrokerProcess) -> None:
    broker.settings["zookeeper.set.acl"] = "false"
    broker.start()
    secure = ("zookeeper", "secure", "--config", str(broker.file))
    before = kdist(*secure, "--check")
    assert before.returncode == 1
    assert "/controller: anybody may change it\n" in before.stdout
    assert "/consumers" not in before.stdout
    assert kdist(*secure).returncode == 0
    after = kdist(*secure, "--check")
    assert (after.returncode, after.stderr) == (0, "")
    first, second = after.stdout.splitlines()
    assert first.endswith(" znodes, of which 0 are not as they should be")
    assert re.fullmatch(r"digest:broker owned \d+ znodes", second)
    assert broker.stop() == 0

    broker.settings["zookeeper.set.acl"] = "true"
    broker.start()  # what it creates is as it should be, and what it needs is allowed
    assert kdist(*secure, "--check").returncode == 0
    assert PASSWORD not in broker.text
    assert broker.stop() == 0
    undone = kdist(*secure, "--undo")
    assert (undone.returncode, undone.stderr) == (0, "")
    assert kdist(*secure, "--check").returncode == 1


def test_a_wrong_password_ends_a_start_with_a_sentence(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    broker.start()
    assert broker.stop() == 0
    (tmp_path / "digest").write_text("broker:wrong\n")
    status, said = broker.run()
    assert status == 1
    last = said.splitlines()[-1]
    assert "ZooKeeper does not allow it with these credentials, or without any" in last
    assert "Traceback" not in said


def test_a_wrong_host_name_ends_a_start_with_a_sentence(broker: BrokerProcess) -> None:
    connect = broker.settings["zookeeper.connect"]
    broker.settings["zookeeper.connect"] = connect.replace("localhost", "127.0.0.1")
    status, said = broker.run()
    assert status == 1
    assert "IP address mismatch" in said.splitlines()[-1]


def test_a_killed_brokers_session_is_ended_by_tls(broker: BrokerProcess) -> None:
    broker.settings["zookeeper.session.timeout.ms"] = "1000"
    broker.start()
    broker.stop(signal.SIGKILL)
    ended = kdist("end-session", "--config", str(broker.file))
    assert re.fullmatch(
        r"the session of broker 1, 0x\w+, (is ended|was over already)\n", ended.stdout
    )


def test_commands_use_the_credentials_of_a_file(broker: BrokerProcess) -> None:
    broker.start()
    where = str(broker.file)
    held = kdist("gate", "--broker", "1", KDIST_ZOOKEEPER=where)
    assert "broker 1" in held.stdout
    assert held.returncode in (0, 1)
