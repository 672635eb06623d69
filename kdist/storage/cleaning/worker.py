"""Who answers a cleaner's requests: a process of its own in the broker, or a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kdist.errors import CorruptRecords
from kdist.runtime.clock import Clock
from kdist.runtime.files import Files
from kdist.runtime.line_child import LineChild
from kdist.runtime.process import Process
from kdist.runtime.tasks import Tasks
from kdist.storage.cleaning.requests import Fault, Report, Request, decode_report, encode_request
from kdist.storage.cleaning.session import Session

OnReport = Callable[[Report], None]


class CleaningWorker(Protocol):
    """Answers one request at a time."""

    def ask(self, request: Request, on_report: OnReport) -> None:
        """Have it done, then call `on_report`, on the owner's thread, unless abandoned."""
        ...

    def abandon(self) -> None:
        """End what is being done, as soon as may be; its report does not come."""
        ...


class ChildWorker:
    """Asks a process of its own, at idle priority, which ends with the broker."""

    def __init__(self, process: Process, argv: Sequence[str]) -> None:
        self._child = LineChild(process, argv, "cleaner process")

    def ask(self, request: Request, on_report: OnReport) -> None:
        """As `CleaningWorker.ask`."""

        def answered(line: bytes | None, how: str) -> None:
            try:
                report = None if line is None else decode_report(line)
            except CorruptRecords as fault:  # of what it writes from here on nothing is sure
                self._child.abandon()
                report, how = None, str(fault)
            on_report(report or Report(fault=Fault.DIED, reason=f"the cleaner process: {how}"))

        self._child.ask(encode_request(request), answered)

    def abandon(self) -> None:
        """As `CleaningWorker.abandon`."""
        self._child.abandon()


class ThreadWorker:
    """Answers on a thread of the broker's own: for tests, which have no other process."""

    def __init__(self, files: Files, clock: Clock, tasks: Tasks) -> None:
        self._tasks = tasks
        self._session = Session(files, clock, lambda _ms: None)
        self._asked = 0

    def ask(self, request: Request, on_report: OnReport) -> None:
        """As `CleaningWorker.ask`."""
        self._asked += 1
        number, reports = self._asked, list[Report]()

        def done(error: BaseException | None) -> None:
            if error is not None:
                raise error
            if number == self._asked:
                on_report(reports[0])

        self._tasks.run_blocking(lambda: reports.append(self._session.answer(request)), done)

    def abandon(self) -> None:
        """As `CleaningWorker.abandon`."""
        self._asked += 1
