"""`kdist standalone --secure` before anything runs: its secrets, files, first users, refusals."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import confluent_kafka
import pytest
from click.testing import CliRunner

from kdist.broker.stored_security import StoredAcls
from kdist.broker.stored_users import StoredUsers, read_all
from kdist.cli.main import kdist
from kdist.cli.standalone.certificate import require_cryptography
from kdist.cli.standalone.first_users import store_first_users
from kdist.cli.standalone.home import Home
from kdist.cli.standalone.security import CLIENT, MECHANISM, Making, Security
from kdist.client.admin.client_settings import read_settings
from kdist.config.load import load_broker
from kdist.config.texts import parse_properties
from kdist.errors import UserError
from kdist.model import Principal
from kdist.runtime.clock import SystemClock
from kdist.runtime.disk import Disk
from kdist.security.acls import AclTable, Operation, ResourceType
from kdist.testing.memory_zookeeper import MemoryEnsemble
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop
from kdist.zk.client import ZooKeeper

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER


def making() -> Making:
    return Making(random.Random(1), SystemClock().now_ms())


def prepared(path: Path, brokers: int | None = None, port: int = 19092, **given: str) -> Security:
    """A directory as a run leaves it, and what secures it."""
    home = Home(Disk(), str(path))
    try:
        count = home.claim(brokers, making())
        home.prepare(count, port, "127.0.0.1:19091", given)
    finally:
        home.close()
    assert home.security is not None
    return home.security


def in_file(path: Path) -> dict[str, str]:
    found = parse_properties(path.read_text(), str(path))
    assert not found.faults
    return {name: each.text for name, each in found.given.items()}


def refused(*arguments: object) -> str:
    """The one sentence that the command exits with."""
    result = CliRunner().invoke(kdist, ["standalone", *map(str, arguments)])
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("kdist: ").rstrip("\n")


# The directory


def test_each_secured_brokers_configuration_is_valid_without_warnings(tmp_path: Path) -> None:
    path = tmp_path / "odd = näme"
    prepared(path, 3)
    for number in (1, 2, 3):
        conf = path / f"conf/d0{number}.properties"
        config = load_broker(conf.read_text(), str(conf))
        assert config.warnings == ()
        assert config.broker.listeners == (f"SASL_SSL://127.0.0.1:{19091 + number}",)
        assert config.inter_broker_listener == "SASL_SSL"


def test_files_with_a_secret_are_their_owners_alone_to_read(tmp_path: Path) -> None:
    security = prepared(tmp_path, 2)
    secrets = [*security.passwords.values(), "PRIVATE KEY"]
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    secret = {each for each in files if any(text in each.read_text() for text in secrets)}
    assert {each.stat().st_mode & 0o777 for each in secret} == {0o600}
    assert sorted(str(each.relative_to(tmp_path)) for each in secret) == [
        "admin.properties",
        "client.librdkafka",
        "client.properties",
        "conf/d01.properties",
        "conf/d02.properties",
        "security/broker.pem",
        "security/users.json",
    ]


def test_a_later_start_keeps_passwords_and_certificate_and_renews_addresses(tmp_path: Path) -> None:
    first = prepared(tmp_path)
    kept = [tmp_path / "security" / name for name in ("users.json", "broker.pem", "ca.pem")]
    before = [each.read_bytes() for each in kept]
    again = prepared(tmp_path, 2, port=29092)
    assert again.passwords == first.passwords
    assert [each.read_bytes() for each in kept] == before
    settings = in_file(tmp_path / "client.properties")
    assert settings["bootstrap.servers"] == "127.0.0.1:29092,127.0.0.1:29093"


def test_another_directory_has_other_passwords(tmp_path: Path) -> None:
    rng = random.Random(1)
    one, other = (
        Security.of(Disk(), str(tmp_path / name), Making(rng, 0)) for name in ("one", "other")
    )
    assert len({*one.passwords.values(), *other.passwords.values()}) == 6


def test_half_of_the_certificates_is_made_anew_as_a_whole(tmp_path: Path) -> None:
    prepared(tmp_path)
    trusted = tmp_path / "security/ca.pem"
    before = (tmp_path / "security/broker.pem").read_bytes()
    trusted.unlink()
    prepared(tmp_path)
    assert trusted.exists()
    assert (tmp_path / "security/broker.pem").read_bytes() != before


def test_kdists_clients_take_the_files(tmp_path: Path) -> None:
    security = prepared(tmp_path / "odd = näme")
    for user in ("admin", "client"):
        settings = read_settings(in_file(Path(security.file_of(user))))
        assert settings.connections.security is not None
        assert settings.bootstrap_servers == ("127.0.0.1:19092",)


def test_librdkafka_takes_its_file(tmp_path: Path) -> None:
    security = prepared(tmp_path / "odd = näme")
    lines = Path(security.file_of_librdkafka).read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    confluent_kafka.Producer(settings).flush(0)  # raises for a name or a CA that it cannot use


def test_no_repr_has_a_password(tmp_path: Path) -> None:
    security = prepared(tmp_path)
    assert not [each for each in security.passwords.values() if each in repr(security)]


# Refusals


def test_a_directory_that_was_begun_in_clear_is_not_secured(tmp_path: Path) -> None:
    home = Home(Disk(), str(tmp_path))
    home.prepare(home.claim(1), 19092, "127.0.0.1:19091", {})
    home.close()
    assert refused("--data", tmp_path, "--secure") == (
        f"{tmp_path} was begun in clear: leave out --secure, or name another directory with --data"
    )
    assert not (tmp_path / "security").exists()


def test_a_secured_directory_is_not_started_in_clear(tmp_path: Path) -> None:
    prepared(tmp_path)
    assert refused("--data", tmp_path) == (
        f"{tmp_path} was begun with --secure: say it again, or name another directory with --data"
    )


@pytest.mark.parametrize("name", ["super.users", "ssl.keystore.location", "listeners"])
def test_what_secures_the_brokers_cannot_be_set(tmp_path: Path, name: str) -> None:
    sentence = refused("--data", tmp_path / "new", "--secure", "--config", f"{name}=x")
    assert sentence == f"{name} cannot be set by --config: it is `kdist standalone`'s own"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"admin": "a"}', '{"admin": "\\"", "broker": "b", "client": "c"}']
)
def test_damaged_passwords_are_one_sentence(tmp_path: Path, text: str) -> None:
    prepared(tmp_path)
    (tmp_path / "security/users.json").write_text(text)
    assert refused("--data", tmp_path, "--secure") == (
        f"{tmp_path}/security/users.json is damaged: it has passwords, of letters and digits, of"
        " broker, admin, client"
    )


def test_without_the_extra_it_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"^--secure needs no_such: pip install '\.\[security\]'"):
        require_cryptography("no_such")


# The first users


def with_zookeeper(test: Callable[[ZooKeeper], Awaitable[None]]) -> None:
    """Run a test in virtual time, with a ZooKeeper that has nothing yet."""
    clock = VirtualClock()

    async def run() -> None:
        zk = MemoryEnsemble(clock, random.Random(1)).client()
        await zk.connect()
        await test(zk)
        await zk.close()

    loop = VirtualLoop(clock)
    loop.run_until_complete(run())
    loop.close()


PASSWORDS = {"broker": "b", "admin": "a", "client": "c"}


@pytest.mark.played(by=with_zookeeper)
async def test_the_first_users_can_log_in(zk: ZooKeeper, /) -> None:
    await store_first_users(zk, PASSWORDS)
    users = StoredUsers(zk, random.Random(1))
    await users.load_all()
    assert all(users.credential(MECHANISM, name) for name in PASSWORDS)


@pytest.mark.played(by=with_zookeeper)
async def test_a_user_who_was_deleted_does_not_come_back(zk: ZooKeeper, /) -> None:
    await store_first_users(zk, PASSWORDS)
    await zk.delete("/config/users/client")
    await store_first_users(zk, PASSWORDS)
    assert set(await read_all(zk)) == {"broker", "admin"}


@pytest.mark.played(by=with_zookeeper)
async def test_a_start_that_was_cut_short_is_made_whole(zk: ZooKeeper, /) -> None:
    await store_first_users(zk, PASSWORDS)
    await zk.delete("/config/users/broker")  # what is stored last
    await store_first_users(zk, {**PASSWORDS, "client": "another"})
    assert set(await read_all(zk)) == set(PASSWORDS)


@pytest.mark.played(by=with_zookeeper)
async def test_another_password_of_the_brokers_is_told_at_once(zk: ZooKeeper, /) -> None:
    await store_first_users(zk, PASSWORDS)
    with pytest.raises(UserError, match="the brokers cannot log in"):
        await store_first_users(zk, {**PASSWORDS, "broker": "another"})


@pytest.mark.played(by=with_zookeeper)
async def test_the_client_uses_topics_and_groups_and_nothing_else(zk: ZooKeeper, /) -> None:
    await store_first_users(zk, PASSWORDS)
    table = AclTable()
    await StoredAcls(zk, SystemClock(), table).load_all()

    def may(operation: Operation, kind: ResourceType, name: str, user: str = CLIENT) -> bool:
        return table.permits(Principal("User", user), "127.0.0.1", operation, kind, name)

    for operation in (Operation.CREATE, Operation.READ, Operation.WRITE, Operation.DESCRIBE):
        assert may(operation, TOPIC, "clicks")
        assert not may(operation, TOPIC, "__consumer_offsets")
        assert not may(operation, TOPIC, "clicks", "somebody")
    assert may(Operation.READ, GROUP, "audit")
    for operation in (Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS):
        assert not may(operation, TOPIC, "clicks")
        assert not may(operation, CLUSTER, "kafka-cluster")


def test_the_marker_says_that_it_is_secured(tmp_path: Path) -> None:
    prepared(tmp_path)
    assert json.loads((tmp_path / "standalone.json").read_text())["secured"] is True
