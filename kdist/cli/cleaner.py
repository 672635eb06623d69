"""The cleaner process that a broker starts: `python -m kdist.cli.cleaner PARENT-PID`.

It answers the requests on its standard input, lines of JSON, on its standard output, until that
input ends (`storage/cleaning/requests.py`). Not a command for people: `kdist log clean` is.
"""

from __future__ import annotations

import signal
import sys
from typing import BinaryIO

from kdist.runtime.clock import SystemClock
from kdist.runtime.disk import Disk
from kdist.runtime.linux import die_with_parent, run_idle
from kdist.storage.cleaning.pass_runner import PassRunner
from kdist.storage.cleaning.requests import decode_request, encode_report


def serve(requests: BinaryIO, reports: BinaryIO, runner: PassRunner) -> None:
    """Answer each line of `requests` with one of `reports`."""
    for line in requests:
        reports.write(encode_report(runner.answer(decode_request(line))))
        reports.flush()


def main(parent: int) -> None:
    """Serve a broker, the process `parent`, until that ends."""
    for ending in (signal.SIGINT, signal.SIGTERM):  # sent to the whole group: the broker ends first
        signal.signal(ending, signal.SIG_IGN)
    die_with_parent(parent)
    run_idle()
    clock = SystemClock()
    serve(sys.stdin.buffer, sys.stdout.buffer, PassRunner(Disk(), clock, clock.wait_ms))


if __name__ == "__main__":
    main(int(sys.argv[1]))
