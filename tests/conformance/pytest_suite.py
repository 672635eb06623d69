"""Runs a foreign pytest suite in its own interpreter and reads the result of each test."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import later
import patience
import sources
from outcome import FAILED, PASSED, SKIPPED, Outcome

IN_SUITE = Path(__file__).resolve().parent / "in_suite"
STATES = {"passed": PASSED, "failed": FAILED, "skipped": SKIPPED}
RUN_TIMEOUT_S = 1800
LATER_TIMEOUT_S = 15


def run(
    suite: str, folder: Path, arguments: Sequence[str], environment: Mapping[str, str]
) -> Iterator[Outcome]:
    """Run one pytest process in `folder`; its output is kept in .cache/conformance/logs.

    Tests that cannot pass yet get a shorter timeout, since some would use all of it.
    """
    log = sources.new_log(suite.replace(" ", "-"))
    report = log.with_suffix(".jsonl")
    path = os.pathsep.join([str(IN_SUITE), environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    command = [sources.python(), "-m", "pytest", "-p", "kdist_report", "-p", "no:cacheprovider"]
    own = {
        "PYTHONPATH": path,
        "KDIST_REPORT": str(report),
        "KDIST_LATER": json.dumps(later.patterns(suite)),
        "KDIST_LATER_TIMEOUT_S": f"{patience.scaled(LATER_TIMEOUT_S):.0f}",
    }
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=folder,
            env=os.environ | dict(environment) | own,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            process.wait(patience.scaled(RUN_TIMEOUT_S))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    text = report.read_text() if report.exists() else ""
    yield from read_report(suite, text, f"the run ended before it, see {log}")


def read_report(suite: str, text: str, missing: str) -> Iterator[Outcome]:
    """Outcomes in the order of the tests; one without a result failed, for the reason `missing`."""
    lines = [json.loads(line) for line in text.splitlines()]
    if not lines:
        yield Outcome(suite, "collection", FAILED, 0, missing)
        return
    results: dict[str, Outcome] = {}
    for test, outcome, seconds, reason in lines[1:]:
        earlier = results.get(test)
        if earlier is None or earlier.state == PASSED:  # a tear-down can fail after a pass
            results[test] = Outcome(suite, test, STATES[outcome], seconds, reason)
    for test in lines[0]:
        yield results.get(test) or Outcome(suite, test, FAILED, 0, missing)
