"""A child process that answers lines with lines, one at a time.

It is started when it is first asked, and again when it is asked after it has died. Whatever else it
does than answer with a line counts as that: it is killed then. Its errors go where this process's
go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from kdist.runtime.process import Process

logger = logging.getLogger(__name__)

_LINE_BYTES_MAX = 1 << 20
_ENDING_S = 5  # that a child has to end by itself after its output has


class LineChild:
    """Owner: whoever asks. The child ends when `process` cancels what it has started."""

    def __init__(self, process: Process, argv: Sequence[str], name: str) -> None:
        self._process = process
        self._argv = argv
        self._name = name
        self._child: asyncio.subprocess.Process | None = None
        self._asked = 0

    @property
    def pid(self) -> int | None:
        """The child's process id while it runs."""
        return None if self._child is None else self._child.pid

    def ask(self, line: bytes, on_answer: Callable[[bytes | None, str], None]) -> None:
        """Send a line; then call `on_answer` with the line that comes back.

        Or with None, and how the child ended. Not after `abandon`.
        """
        self._asked += 1
        self._process.start(self._exchange(self._asked, line, on_answer), self._name)

    def abandon(self) -> None:
        """Kill the child: nobody waits for its answer any more."""
        self._asked += 1
        self._kill()

    def _kill(self) -> None:
        child, self._child = self._child, None
        if child is not None and child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()

    async def _exchange(
        self, number: int, line: bytes, on_answer: Callable[[bytes | None, str], None]
    ) -> None:
        answer, how = None, ""
        try:
            child = await self._start()
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(line)
            with suppress(ConnectionError):  # the end of its output says so too
                await child.stdin.drain()
            answered = await child.stdout.readline()
            if answered.endswith(b"\n"):
                answer = answered
            else:
                how = f"it ended with status {await self._end_of(child)}"
        except ValueError:  # as `readline` has it
            how = f"it answered with more than {_LINE_BYTES_MAX} bytes"
        except OSError as error:  # it could not be started
            how = f"it cannot be started: {error.strerror or error}"
        except BaseException:  # as when the broker stops
            self.abandon()
            raise
        if number == self._asked:
            if answer is None:
                self._kill()
            on_answer(answer, how)

    async def _end_of(self, child: asyncio.subprocess.Process) -> int:
        """The status of one whose output has ended; -9 if it has to be killed, too."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_ENDING_S):
                return await child.wait()
        with suppress(ProcessLookupError):
            child.kill()
        return await child.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        if self._child is None:
            self._child = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LINE_BYTES_MAX,
            )
        return self._child
