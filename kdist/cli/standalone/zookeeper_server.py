"""ZooKeeper's process, for `kdist standalone` and for tests: find the jars, start it, stop it.

The jars are PySpark's; PySpark is located, not imported. The server is a child process in a session
of its own, so that Ctrl-C reaches only the caller, which decides what stops first. Its output goes
to a file; the previous run's is kept as `.1`. If Java, the jars or the port are not available, that
is a `UserError` with one sentence.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from typing import NamedTuple

from kdist.errors import UserError
from kdist.runtime.files import Files
from kdist.runtime.programs import find_java

MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_LOG_NAME = "zookeeper.log"

_POLL_S = 0.02
_STOP_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 1.0
_LOG_LINES = 3  # from the end of the log, without stack frames, to say why the server ended

# Starts in little more than a second: only the first compiler tier, and a serial collector for so
# small a heap. It may have to grow: the server keeps its last 500 transactions, whose size the
# controller decides.
_JVM = (
    *("-Xms32m", "-Xmx512m", "-XX:+ExitOnOutOfMemoryError"),  # else it stays up and answers nobody
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
)


class ServerSettings(NamedTuple):
    """What a single server needs. Session timeouts may be 2 to 20 ticks, ZooKeeper's own bounds.

    `directory` is absolute, and so is `log`, which is given if the log belongs elsewhere.
    """

    directory: str
    port: int
    host: str = "127.0.0.1"
    tick_ms: int = 2_000
    is_durable: bool = True  # False: it answers without fsync, for tests
    log: str | None = None
    umask: int = -1  # of what it writes; -1: as this process's

    @property
    def address(self) -> str:
        """The value for `zookeeper.connect`."""
        return f"{self.host}:{self.port}"

    @property
    def log_path(self) -> str:
        """Where its output goes."""
        return self.log or f"{self.directory}/{_LOG_NAME}"


class ZooKeeperServer:
    """One server process. Its owner has to stop it."""

    def __init__(
        self, settings: ServerSettings, process: subprocess.Popen[bytes], files: Files
    ) -> None:
        self.settings = settings
        self._process = process
        self._files = files

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self.status is None

    @property
    def status(self) -> int | None:
        """The exit status, negative for a signal's number; None while it runs."""
        return self._process.poll()

    def log_tail(self) -> str:
        """The last lines of its log, without stack frames."""
        return _tail(self._read_log())

    async def wait_until_ready(self, timeout_s: float = 90.0) -> None:
        """Return once it serves; `UserError` if it ends before or takes too long."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while not await _serves(self.settings):
            if not self.is_running:
                raise self._why_it_ended()
            if loop.time() > end_s:
                raise UserError(
                    f"ZooKeeper on {self.settings.address} was not ready in {timeout_s:g} s"
                )
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """End the process and wait until it has ended: SIGTERM, then SIGKILL."""
        await self._end(signal.SIGTERM, _STOP_TIMEOUT_S)
        await self._end(signal.SIGKILL, _STOP_TIMEOUT_S)

    async def kill(self) -> None:
        """Send SIGKILL and wait until the process has ended."""
        await self._end(signal.SIGKILL, _STOP_TIMEOUT_S)

    async def _end(self, how: signal.Signals, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        if self.is_running:
            self._process.send_signal(how)
        while self.is_running and loop.time() < end_s:
            await asyncio.sleep(_POLL_S)

    def _why_it_ended(self) -> UserError:
        log = self._read_log()
        if "Address already in use" in log:
            return _port_taken(self.settings)
        return UserError(
            f"ZooKeeper ended with status {self.status}; {self.settings.log_path} says: "
            f"{_tail(log) or 'nothing'}"
        )

    def _read_log(self) -> str:
        return self._files.read(self.settings.log_path).decode(errors="replace")


def _tail(log: str) -> str:
    lines = [line for line in log.split("\n") if line and not line.startswith("\tat ")]
    return " | ".join(lines[-_LOG_LINES:])


async def start_server(
    settings: ServerSettings, files: Files, environment: Mapping[str, str]
) -> ZooKeeperServer:
    """Start a server on `settings.directory`, which exists; call `wait_until_ready` next.

    Data of an earlier run in the directory is served again. `UserError` without Java or jars, or if
    the port is taken.
    """
    java = find_java(files, environment, "ZooKeeper")
    jars = find_jars(files)
    # Checked before anything is written: an earlier server may still use this very directory.
    if await _is_listening(settings):
        raise _port_taken(settings)
    return _launch(settings, files, java, jars)


def _launch(settings: ServerSettings, files: Files, java: str, jars: str) -> ZooKeeperServer:
    configuration = f"{settings.directory}/zoo.cfg"
    files.replace(configuration, configuration_text(settings).encode("ascii"), durable=False)
    log_path = settings.log_path
    if files.exists(log_path):
        files.rename(log_path, f"{log_path}.1")
    log = files.create(log_path)
    try:
        process = subprocess.Popen(
            [
                *(java, *_JVM),
                f"-Dzookeeper.forceSync={'yes' if settings.is_durable else 'no'}",
                *("-cp", f"{jars}/*", MAIN_CLASS, configuration),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log.fileno(),
            stderr=subprocess.STDOUT,
            # Java reads and writes names of files, its arguments included, as the locale says.
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            start_new_session=True,
            umask=settings.umask,
        )
    except OSError as error:
        raise UserError(f"Java does not start: {java}: {error.strerror}") from error
    finally:
        log.close()
    return ZooKeeperServer(settings, process, files)


def configuration_text(settings: ServerSettings) -> str:
    """`zoo.cfg` for a standalone server.

    Java's .properties are Latin-1, and have JSON's escapes for all other characters.
    """
    rows = {
        "tickTime": settings.tick_ms,
        "dataDir": json.dumps(f"{settings.directory}/data")[1:-1],
        "clientPort": settings.port,
        "clientPortAddress": settings.host,
        "maxClientCnxns": 0,  # no limit per address: on a laptop all brokers share one
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "conf,ruok,srvr",
        "autopurge.snapRetainCount": 3,
        "autopurge.purgeInterval": 24,  # hours
    }
    return "".join(f"{name}={value}\n" for name, value in rows.items())


def find_jars(files: Files, package: str = "pyspark") -> str:
    """The jars directory of the installed PySpark; `UserError` if ZooKeeper's is not in it."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise UserError(
            "ZooKeeper's jars come with PySpark: pip install '.[spark]' in kdist's tree"
        )
    jars = f"{os.path.dirname(spec.origin)}/jars"
    if not files.is_directory(jars):
        raise UserError(f"PySpark is installed without its jars: there is no {jars}")
    if not any(name.startswith("zookeeper-3") for name in files.list(jars)):
        raise UserError(f"there is no ZooKeeper among PySpark's jars in {jars}")
    return jars


def _port_taken(settings: ServerSettings) -> UserError:
    return UserError(f"ZooKeeper cannot listen on {settings.address}: the port is taken")


async def _is_listening(settings: ServerSettings) -> bool:
    try:
        _, writer = await asyncio.open_connection(settings.host, settings.port)
    except OSError:
        return False
    writer.close()
    return True


async def _serves(settings: ServerSettings) -> bool:
    """Whether the server answers `conf`: it listens before it serves, and is silent until then.

    The answer must have its data directory, as another server may be using the port.
    """
    try:
        reader, writer = await asyncio.open_connection(settings.host, settings.port)
    except OSError:
        return False
    try:
        writer.write(b"conf")
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            answer = await reader.read()
        return f"dataDir={settings.directory}/data".encode() in answer
    except (OSError, TimeoutError):
        return False
    finally:
        writer.close()
