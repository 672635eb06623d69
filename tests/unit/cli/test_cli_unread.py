"""A command that waits ends when the pipe that it writes to has no reader any more."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from kdist.cli.shared.unread import ended_when_unread


async def wait(seconds: float) -> None:
    with ended_when_unread():
        await asyncio.sleep(seconds)


def test_a_pipe_whose_reader_goes_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)

        async def scenario() -> None:
            asyncio.get_running_loop().call_soon(os.close, reading)
            await wait(30)

        with pytest.raises(BrokenPipeError):
            asyncio.run(scenario())


def test_output_to_a_file_never_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(tmp_path / "out", "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        asyncio.run(wait(0))
    assert (tmp_path / "out").read_text() == ""


def test_another_cancellation_is_kept() -> None:
    async def scenario() -> None:
        waits = asyncio.ensure_future(wait(30))
        await asyncio.sleep(0)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits

    asyncio.run(scenario())
