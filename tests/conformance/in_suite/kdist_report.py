"""A pytest plugin for foreign suites: reports each result as soon as it is known.

Load it with `-p kdist_report`. It writes lines of JSON to the file that KDIST_REPORT names: first
the list of collected tests, then [test, outcome, seconds, reason] for each call, and for each
set-up or tear-down that did not pass. So the report of a run that hangs or dies shows how far it
came. Tests that match a pattern in KDIST_LATER (JSON) get the timeout KDIST_LATER_TIMEOUT_S.
"""

from __future__ import annotations

import json
import os
from fnmatch import fnmatchcase
from typing import Any

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set the shorter timeout on the tests that match KDIST_LATER."""
    short = pytest.mark.timeout(float(os.environ["KDIST_LATER_TIMEOUT_S"]))
    patterns = json.loads(os.environ["KDIST_LATER"])
    for item in items:
        if any(fnmatchcase(item.nodeid, f"*{pattern}") for pattern in patterns):
            item.add_marker(short)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Report the list of all tests that will run."""
    _tell([item.nodeid for item in session.items])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Report each call, and each set-up or tear-down that did not pass."""
    if report.when == "call" or report.outcome != "passed":
        _tell([report.nodeid, report.outcome, report.duration, _reason(report.longrepr)])


def _reason(longrepr: Any) -> str:
    if longrepr is None:
        return ""
    if isinstance(longrepr, tuple):
        return str(longrepr[2])
    crash = getattr(longrepr, "reprcrash", None)
    return str(crash or longrepr).strip()[:600]


def _tell(line: list[Any]) -> None:
    with open(os.environ["KDIST_REPORT"], "a", encoding="utf-8") as report:
        report.write(json.dumps(line) + "\n")
