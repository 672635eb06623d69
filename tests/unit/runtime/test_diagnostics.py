"""The diagnostic log: one line per event, in journald's format when journald reads it."""

from __future__ import annotations

import io
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdist.runtime.diagnostics import LEVELS, set_up

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
