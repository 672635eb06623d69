"""Other programs: their output, with a limit on how long that may take; and where Java is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from kdist.errors import UserError
from kdist.runtime.files import Files

logger = logging.getLogger(__name__)


async def output_of(argv: Sequence[str], timeout_ms: float) -> bytes:
    """The program's output, whatever its exit status; empty if it cannot start or times out."""
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
    except TimeoutError:
        logger.warning("%s took more than %d ms and was killed", argv[0], timeout_ms)
        return b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output


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
