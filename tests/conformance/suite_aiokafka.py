"""aiokafka's tests, which start brokers of their own by the fake `docker` in in_suite/.

The tests are copied out of the source tree, so that they import the installed aiokafka with its C
extensions, and what its fixtures would create (certificates, a Kerberos keytab) exists or fails.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import patience
import pytest_suite
import sources
from outcome import Outcome

SUITE = "aiokafka"
FILES = ("admin", "client", "conn", "consumer", "coordinator", "producer", "sender")
TEST_TIMEOUT_S = 120
IMAGE = "kdist:2.13_3.9.0"  # the fixtures read the broker's version out of the image's name


def prepare(given: Path | None) -> Path:
    """Prepare the folder to run in, and return it."""
    with sources.locked():
        origin = sources.aiokafka(given)
        folder = sources.CACHE / "aiokafka-tests"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(origin / "tests", folder / "tests")
        (folder / "tests" / "ssl_cert").mkdir(exist_ok=True)
        (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
        _stand_in_for_kerberos(folder / "bin")
        sources.python()
        return folder


def run(
    serve: Sequence[str], folder: Path, replicas: int, names: Sequence[str] = ()
) -> Iterator[Outcome]:
    """Run the named tests, or all; `serve` is the command that starts the brokers."""
    environment = {
        "KDIST_REPLICAS": str(replicas),
        "KDIST_SERVE": json.dumps([sys.executable, *serve]),
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    timeout = f"{patience.scaled(TEST_TIMEOUT_S):.0f}"
    arguments = ["-q", "--timeout", timeout, "--timeout-method=signal", "--docker-image", IMAGE]
    arguments += ["--no-pull", "-p", "kdist_replicas", *(f"tests/{name}" for name in names)]
    if not names:
        arguments += [f"tests/test_{file}.py" for file in FILES]
    for outcome in pytest_suite.run(SUITE, folder, arguments, environment):
        yield outcome._replace(test=outcome.test.removeprefix("tests/"))


def _stand_in_for_kerberos(programs: Path) -> None:
    """Fake the Kerberos tools: each test class makes a keytab, though only SASL's tests use it."""
    programs.mkdir()
    (programs / "ktutil").write_text("#!/bin/sh\nexec cat >/dev/null\n")
    (programs / "ktutil").chmod(0o755)
