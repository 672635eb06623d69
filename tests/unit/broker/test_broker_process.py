"""The last log line and the exit status of a broker's process."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from kdist.broker.process import sentence_of, status_of
from kdist.errors import DiskFailed, UserError

PATH = "/d01/clicks-0/00000000000000000000.log"


def os_error(code: int, path: str | None = PATH) -> OSError:
    return OSError(code, os.strerror(code), path)


@pytest.mark.parametrize(
    ("failure", "status", "sentence"),
    [
        (UserError("broker.id 1 is taken"), 1, "broker.id 1 is taken"),
        (
            DiskFailed(PATH, os_error(errno.EIO)),
            74,
            f"the disk under {PATH} failed: Input/output error",
        ),
        (os_error(errno.ENOENT), 70, f"{PATH} is gone, removed or unmounted: "),
        (os_error(errno.EACCES), 70, f"{PATH} cannot be used any more, Permission denied: "),
        (os_error(errno.EISDIR), 70, f"{PATH} cannot be used any more, Is a directory: "),
        (os_error(errno.EINVAL, None), 70, "a bug: "),
        (MemoryError(), 70, "no memory is left: "),
        (AssertionError(), 70, "a bug: "),
    ],
)
def test_each_cause_of_exit_has_its_status_and_sentence(
    failure: Exception, status: int, sentence: str
) -> None:
    said = sentence_of(failure)
    assert said.startswith(sentence)
    assert status_of(failure) == status
    assert (type(failure).__name__ in said) == (status == 70)


def test_a_disk_failure_during_a_request_names_disk_and_request() -> None:
    failure = RuntimeError("handling a request of 127.0.0.1:46540 failed")
    failure.__cause__ = os_error(errno.EPERM)
    said = sentence_of(failure)
    assert said.startswith(f"{PATH} cannot be used any more, Operation not permitted: ")
    assert "handling a request" in said


def test_a_start_does_not_wait_for_imports_that_it_does_not_need() -> None:
    """A roll pays for them at each broker. `prometheus_client` comes with the first scrape."""
    report = "import sys, kdist.cli.broker; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, check=True)
    loaded = set(done.stdout.decode().split())
    assert "kdist.broker.process" in loaded
    needless = {
        "prometheus_client",
        "http.server",
        "email",
        "importlib.metadata",
        "crcmod",
        "argparse",
    }
    assert not loaded & needless
