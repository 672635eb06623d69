"""`kdist zookeeper secure`: what it says and how it ends, on a ZooKeeper in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kdist.cli import zookeeper
from kdist.cli.main import kdist
from kdist.client import zookeeper_session
from kdist.runtime.clock import SystemClock
from kdist.testing.memory_zookeeper import MemoryEnsemble, MemoryZooKeeper
from kdist.zk.znode_acls import SENSITIVE

SETTINGS = """\
broker.id=1
log.dir=/srv/kdist/d01
zookeeper.connect=zk1:2181/kdist
"""
IDENTITY = """\
zookeeper.digest.over.clear.enable=true
zookeeper.digest.file=/etc/kdist/digest
"""


@asynccontextmanager
async def session(*_: object) -> AsyncIterator[MemoryZooKeeper]:
    """By the broker's credentials, to a tree of four znodes, of which one is a stranger's."""
    loop = asyncio.get_running_loop()
    ensemble = MemoryEnsemble(SystemClock(), random.Random(0), loop=loop)
    zks = [ensemble.client("/kdist", digest=each) for each in ("broker:word", "stranger:word")]
    for zk in zks:
        await zk.connect()
    for path in ("/brokers", "/consumers", "/controller"):
        await zks[1].create(path)
    await zks[1].set_acl("/controller", SENSITIVE)
    yield zks[0]
    await asyncio.gather(*(zk.close() for zk in zks))


def secure(directory: Path, *words: str, settings: str = SETTINGS + IDENTITY) -> Result:
    file = directory / "broker.properties"
    file.write_text(settings)
    command = ["zookeeper", "secure", "--config", str(file), *words]
    return CliRunner().invoke(kdist, command)


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_session, "zookeeper_by", session)


def test_acls_are_set_and_what_was_refused_is_told(tmp_path: Path) -> None:
    result = secure(tmp_path)
    assert result.exit_code == 1
    assert result.stdout == "4 znodes, of which 2 were set\n"
    refused = "/controller: ZooKeeper does not let these credentials set its ACL\n"
    assert result.stderr == refused


@pytest.mark.parametrize(
    ("option", "status", "last"),
    [
        ("--dry-run", 0, "4 znodes, of which 3 would be set"),
        ("--check", 1, "4 znodes, of which 3 are not as they should be"),
    ],
)
def test_each_znode_that_is_not_as_it_should_be_is_listed(
    option: str, status: int, last: str, tmp_path: Path
) -> None:
    result = secure(tmp_path, option)
    assert result.exit_code == status
    assert sorted(result.stdout.splitlines()) == sorted(
        [
            "/: anybody may change it",
            "/brokers: anybody may change it",
            "/controller: these credentials may not read it",
            last,
        ]
    )


def test_without_an_identity_nothing_is_begun(tmp_path: Path) -> None:
    result = secure(tmp_path, settings=SETTINGS)
    assert result.exit_code == 1
    assert "has no identity for ZooKeeper" in result.stderr


def test_a_long_work_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper, "_PROGRESS", 1)
    assert "4 znodes\n" in secure(tmp_path, "--dry-run").stderr
