"""Other programs: one's output, within some time; a child that answers lines; where Java is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from kdist.errors import UserError
from kdist.runtime.files import Files
from kdist.runtime.process import Process

logger = logging.getLogger(__name__)

_LINE_BYTES_MAX = 1 << 20
_ENDING_S = 5  # that a child has to end by itself after its output has
_killed: dict[tuple[str, ...], asyncio.Task[int]] = {}  # and not ended yet, by command


async def output_of(argv: Sequence[str], timeout_ms: float) -> bytes:
    """The program's output, whatever its exit status; empty if it cannot start.

    On `TimeoutError` it was killed, and is not waited for: a program that waits for a disk that
    hangs does not end before the disk answers. Until then, the same command times out at once,
    so that such programs do not add up.
    """
    command = tuple(argv)
    if command in _killed:
        raise TimeoutError(f"{argv[0]} was killed and has not ended")
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as error:
        logger.warning("cannot run %s: %s", argv[0], error.strerror or error)
        return b""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            _killed[command] = ending = asyncio.create_task(process.wait())
            ending.add_done_callback(lambda _: _killed.pop(command, None))
    return output


class LineChild:
    """A child process that answers lines with lines, one at a time.

    It is started when it is first asked, and again when it is asked after it has died. Whatever
    else it does than answer with a line counts as that: it is killed then. Its errors go where this
    process's go. Owner: whoever asks. It ends when `process` cancels what it has started.
    """

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


def find_java(files: Files, environment: Mapping[str, str], whose: str) -> str:
    """The `java` of JAVA_HOME, else the first on PATH; `UserError`, naming `whose`, without one."""
    home = environment.get("JAVA_HOME")
    if home:
        java = f"{home}/bin/java"
        if not files.exists(java):
            raise UserError(f"JAVA_HOME is {home}, but there is no bin/java in it")
        return java
    for directory in environment.get("PATH", "").split(":"):
        if directory and _is_there(files, f"{directory}/java"):
            return f"{directory}/java"
    raise UserError(f"{whose} needs Java 17 or newer, and there is no java on PATH or JAVA_HOME")


def _is_there(files: Files, path: str) -> bool:
    """False also if we may not look: PATH may contain directories closed to us."""
    try:
        return files.exists(path)
    except PermissionError:
        return False
