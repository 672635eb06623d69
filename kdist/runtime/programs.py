"""Another program's output, with a limit on how long it may take."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

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
