"""`kdist users`: users with SCRAM credentials, by brokers and straight in ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdist import Admin
from kdist.client import zookeeper_session
from kdist.client.admin.users import alteration
from kdist.errors import WrongType
from kdist.security.scram import new_credential
from tests.unit.cli.cli_cluster import ZOOKEEPER, CliCluster, cli_cluster

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
FROM_STDIN = ("--password-file", "-")
BROKERS = ()
IN_ZOOKEEPER = ("--zookeeper", ZOOKEEPER)


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    """A cluster that takes salted passwords in clear."""
    path = tmp_path_factory.mktemp("trusting")
    with cli_cluster(path, settings={"scram.alter.over.clear.enable": "true"}) as running:
        yield running


def listed(cluster: CliCluster, *where: str) -> list[tuple[str, str, int]]:
    lines = cluster.done("users", "list", *where, "--json").splitlines()
    return [
        (each["user"], each["mechanism"], each["iterations"]) for each in map(json.loads, lines)
    ]


@pytest.mark.parametrize("where", [BROKERS, IN_ZOOKEEPER])
def test_a_user_is_created_changed_listed_and_deleted(
    trusting: CliCluster, tmp_path: Path, where: tuple[str, ...]
) -> None:
    words = ("--password-file", str(tmp_path / "password"), *where)
    (tmp_path / "password").write_text("secret\n")
    assert trusting.done("users", "create", "alice", *words) == (
        "Created user alice for SCRAM-SHA-512.\n"
    )
    trusting.done("users", "create", "bob", *words, "--mechanism", SHA_256, "--iterations", "8192")
    alice, bob = ("alice", SHA_512, 4096), ("bob", SHA_256, 8192)
    assert listed(trusting, *where) == [alice, bob]
    table = trusting.done("users", "list", *where).splitlines()
    assert table[0].split() == ["USER", "MECHANISM", "ITERATIONS"]
    output = trusting.done(
        *("users", "passwd", "alice", *FROM_STDIN, *where, "--mechanism", SHA_256),
        *("--mechanism", SHA_512),
        text="another\n",
    )
    assert output == "Changed the password of user alice for SCRAM-SHA-256, SCRAM-SHA-512.\n"
    assert listed(trusting, *where) == [("alice", SHA_256, 4096), alice, bob]
    trusting.done("users", "delete", "alice", "--mechanism", SHA_512, "--yes", *where)
    assert listed(trusting, *where) == [("alice", SHA_256, 4096), bob]
    for name in ("alice", "bob"):
        trusting.done("users", "delete", name, "--yes", *where)
    assert trusting.done("users", "list", *where) == "There are no users.\n"


def test_a_new_password_is_hashed_as_often_as_the_one_before(trusting: CliCluster) -> None:
    trusting.done("users", "create", "fred", *FROM_STDIN, "--iterations", "8192", text="x\n")
    trusting.done(
        *("users", "passwd", "fred", *FROM_STDIN, "--mechanism", SHA_256, "--mechanism", SHA_512),
        text="y\n",
    )
    hashed = [("fred", SHA_256, 4096), ("fred", SHA_512, 8192)]
    assert [each for each in listed(trusting) if each[0] == "fred"] == hashed
    trusting.done("users", "passwd", "fred", *FROM_STDIN, "--iterations", "5000", text="z\n")
    assert {each[2] for each in listed(trusting) if each[0] == "fred"} == {5000}
    trusting.done("users", "delete", "fred", "--yes")


def test_a_credential_that_cannot_be_read_keeps_nobody_from_the_other_users(
    trusting: CliCluster,
) -> None:
    async def spoil() -> None:
        async with zookeeper_session.zookeeper_at(ZOOKEEPER) as zk:
            stored = {"version": 1, "config": {SHA_256: "hunter2"}}
            path = "/config/users/ann"
            await zk.create(path, json.dumps(stored).encode(), make_parents=True)

    asyncio.run(spoil())
    trusting.done("users", "create", "gus", *FROM_STDIN, *IN_ZOOKEEPER, text="x\n")
    found = trusting.run("users", "list", *IN_ZOOKEEPER)
    assert "gus" in found.stdout
    assert found.stderr.startswith("kdist: user ann: what is stored is not")
    trusting.done("users", "delete", "gus", "--yes", *IN_ZOOKEEPER)
    words = ("--mechanism", SHA_256, *IN_ZOOKEEPER)
    trusting.done("users", "create", "ann", *FROM_STDIN, *words, text="x\n")
    trusting.done("users", "delete", "ann", "--yes", *words)


def test_the_password_that_was_given_is_the_one_that_is_set(trusting: CliCluster) -> None:
    trusting.done("users", "create", "carol", *FROM_STDIN, text="correct horse \r\nignored\n")
    broker = trusting.brokers[0]
    trusting.until(lambda: broker._users.credential(SHA_512, "carol"))
    found = broker._users.credential(SHA_512, "carol")
    assert found is not None
    assert found == new_credential(SHA_512, "correct horse ", found.salt)
    assert len(found.salt) >= 20
    trusting.done("users", "delete", "carol", "--yes")


def test_what_cannot_be_done_is_a_sentence(trusting: CliCluster) -> None:
    trusting.done("users", "create", "dora", *FROM_STDIN, text="secret\n")
    for words, text, sentence in (
        (("create", "dora", *FROM_STDIN), "x\n", "there is a user dora: `kdist users passwd` ch"),
        (("create", "eve", *FROM_STDIN), "", "the password is empty"),
        (("create", "eve"), "", "give the password by --password-file, as there is no terminal"),
        (("passwd", "dra", *FROM_STDIN), "x\n", "there is no user dra: did you mean dora?"),
        (("delete", "nobody", "--yes"), "", "there is no user nobody"),
        (("delete", "dora", "--mechanism", SHA_256, "--yes"), "", "user dora has no credential f"),
        (("delete", "dora"), "", "user dora will not get in by SCRAM-SHA-512 any more: confirm i"),
    ):
        assert trusting.refused("users", *words, text=text).startswith(sentence)
    assert listed(trusting) == [("dora", SHA_512, 4096)]
    trusting.done("users", "delete", "dora", "--yes")


def test_a_broker_that_takes_no_password_in_clear_says_so(cluster: CliCluster) -> None:
    sentence = cluster.refused("users", "create", "alice", *FROM_STDIN, text="secret\n")
    assert "salted passwords are not taken in clear" in sentence
    assert "secret" not in sentence


def test_no_error_about_an_argument_shows_a_password(trusting: CliCluster) -> None:
    with Admin(trusting.address) as admin:
        for wrong in (["alice", "hunter2"], {"alice": b"hunter2"}):
            with pytest.raises(WrongType) as raised:
                admin.upsert_user_scram_credentials(wrong)  # type: ignore[arg-type]
            assert "hunter2" not in str(raised.value)


def test_brokers_are_told_to_disconnect_a_user(trusting: CliCluster) -> None:
    words = ("users", "disconnect", "CN=a,O=b", "--zookeeper", ZOOKEEPER)
    assert trusting.refused(*words).startswith("all connections of user CN=a,O=b will end: con")
    assert trusting.done(*words, "--yes") == "Told all brokers to disconnect user CN=a,O=b.\n"

    async def orders() -> list[bytes]:
        async with zookeeper_session.zookeeper_at(ZOOKEEPER) as zk:
            names = await zk.children("/kdist/disconnects")
            return [(await zk.get(f"/kdist/disconnects/{name}")).data for name in names]

    assert asyncio.run(orders()) == [b"User:CN=a,O=b"]


def test_each_credential_has_a_salt_of_its_own() -> None:
    asked = alteration({"a": "x", "b": "x"}, {SHA_256: 4096, SHA_512: 4096}, random.Random(1))
    assert len({each.salt for each in asked.upsertions}) == 4
