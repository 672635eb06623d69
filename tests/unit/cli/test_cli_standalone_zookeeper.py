"""Finding what a ZooKeeper server needs, and a sentence for what is missing; no Java runs."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from kdist.cli.standalone.zookeeper_server import (
    ServerSettings,
    configuration_text,
    find_jars,
    start_server,
)
from kdist.errors import UserError
from kdist.runtime.disk import Disk


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """Something in the place of Java."""
    path = tmp_path / "home/bin/java"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_the_jars_are_found_without_importing_pyspark() -> None:
    assert find_jars(Disk()).endswith("/pyspark/jars")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable package of a name that nobody has used."""
    name = f"spark{random.getrandbits(32):x}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / name


def test_missing_jars_get_one_sentence_each(package: Path) -> None:
    with pytest.raises(UserError, match="come with PySpark"):
        find_jars(Disk(), f"no_{package.name}")
    with pytest.raises(UserError, match="without its jars"):
        find_jars(Disk(), package.name)
    (package / "jars").mkdir()
    with pytest.raises(UserError, match="no ZooKeeper among"):
        find_jars(Disk(), package.name)
    (package / "jars/zookeeper-3.9.5.jar").touch()
    assert find_jars(Disk(), package.name) == str(package / "jars")


def test_a_java_that_cannot_be_run_gets_one_sentence(java: Path, tmp_path: Path) -> None:
    settings = ServerSettings(str(tmp_path), 1)  # a port that nobody listens on
    with pytest.raises(UserError, match="Java does not start"):
        asyncio.run(start_server(settings, Disk(), {"JAVA_HOME": str(java.parents[1])}))


def test_the_configuration_stands_alone_on_one_address() -> None:
    settings = ServerSettings("/data/zookeeper", 2182, "127.0.0.2", tick_ms=500)
    lines = configuration_text(settings).splitlines()
    for line in (
        "dataDir=/data/zookeeper/data",
        "clientPort=2182",
        "clientPortAddress=127.0.0.2",
        "tickTime=500",
        "admin.enableServer=false",
    ):
        assert line in lines
    assert settings.address == "127.0.0.2:2182"
