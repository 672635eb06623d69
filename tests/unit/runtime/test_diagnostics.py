"""What a process tells and finds: its diagnostic log, systemd's notifications, Java."""

from __future__ import annotations

import io
import logging
import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdist.errors import UserError
from kdist.runtime.diagnostics import LEVELS, set_up
from kdist.runtime.disk import Disk
from kdist.runtime.programs import find_java
from kdist.runtime.sd_notify import ServiceManager

logger = logging.getLogger("kdist.some.package")


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    root.setLevel(level)


def log_to_journal(path: Path) -> str:
    """What an info and an error line look like where the journal reads."""
    with path.open("w") as stream:
        found = os.fstat(stream.fileno())
        set_up("INFO", stream, {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"})
        logger.info("segment %d rolled", 7)
        logger.error("bad")
    return path.read_text()


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """Something in the place of Java."""
    path = tmp_path / "home/bin/java"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_under_the_journal_a_line_has_its_priority_and_no_time(tmp_path: Path) -> None:
    assert log_to_journal(tmp_path / "stderr") == (
        "<6>kdist.some.package: segment 7 rolled\n<3>kdist.some.package: bad\n"
    )


def test_outside_the_journal_a_line_has_time_and_level() -> None:
    stream = io.StringIO()
    set_up("INFO", stream, {})
    logger.warning("slow")
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(rf"{time} WARNING kdist\.some\.package: slow\n", stream.getvalue())


def test_a_child_whose_stderr_is_redirected_writes_time_and_level(tmp_path: Path) -> None:
    with (tmp_path / "stderr").open("w") as stream:
        set_up("INFO", stream, {"JOURNAL_STREAM": "1:2"})
        logger.info("here")
    assert " INFO kdist.some.package: here\n" in (tmp_path / "stderr").read_text()


def test_an_event_is_one_line_even_with_a_traceback() -> None:
    stream = io.StringIO()
    set_up("INFO", stream, {})
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("failed")
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().endswith(r"ValueError: two\nlines" + "\n")


@pytest.mark.parametrize("level", LEVELS)
def test_events_below_the_level_are_left_out(level: str) -> None:
    stream = io.StringIO()
    set_up(level, stream, {})
    for each in LEVELS:
        logger.log(logging.getLevelName(each), "event")
    assert stream.getvalue().count("\n") == len(LEVELS) - LEVELS.index(level)


def test_setting_up_twice_does_not_duplicate_lines() -> None:
    stream = io.StringIO()
    set_up("INFO", stream, {})
    set_up("INFO", stream, {})
    logger.info("once")
    assert stream.getvalue().count("once") == 1


def test_the_watchdog_is_notified_even_without_free_descriptors(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            manager.tell("WATCHDOG=1")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert systemd.recv(100) == b"WATCHDOG=1"


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


def test_a_process_that_runs_idle_goes_first_when_memory_ends() -> None:
    script = (
        "from kdist.runtime.linux import run_idle; run_idle();"
        " print(open('/proc/self/oom_score_adj').read(), end='')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "500\n"
