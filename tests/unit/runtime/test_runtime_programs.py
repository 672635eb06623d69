"""Finding Java, and a sentence for what is missing; no Java runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdist.errors import UserError
from kdist.runtime.disk import Disk
from kdist.runtime.programs import find_java


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """Something in the place of Java."""
    path = tmp_path / "home/bin/java"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_java_home_comes_before_path(java: Path) -> None:
    environment = {"JAVA_HOME": str(java.parents[1]), "PATH": "/usr/bin"}
    assert find_java(Disk(), environment, "ZooKeeper") == str(java)


def test_the_first_java_on_path_is_taken(java: Path, tmp_path: Path) -> None:
    assert find_java(Disk(), {"PATH": f"{tmp_path}::{java.parent}:/usr/bin"}, "ZooKeeper") == str(
        java
    )


def test_a_java_on_path_that_is_somebody_elses_is_passed_by(java: Path) -> None:
    class Guarded(Disk):
        def exists(self, path: str) -> bool:
            if path.startswith("/root/"):
                raise PermissionError(13, "Permission denied", path)
            return super().exists(path)

    assert find_java(Guarded(), {"PATH": f"/root/bin:{java.parent}"}, "ZooKeeper") == str(java)


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"JAVA_HOME is {tmp_path}"):
        find_java(Disk(), {"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin"}, "ZooKeeper")


def test_a_machine_without_java_gets_one_sentence(tmp_path: Path) -> None:
    for environment in ({}, {"PATH": str(tmp_path)}):
        with pytest.raises(UserError, match="Spark needs Java 17 or newer"):
            find_java(Disk(), environment, "Spark")
