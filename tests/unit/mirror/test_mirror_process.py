"""A mirror as a process: an uncaught exception ends it, and is not only logged."""

from __future__ import annotations

import asyncio

import pytest

from kdist.config.mirror import load_mirror
from kdist.mirror.flow import MirrorFlow
from kdist.mirror.process import run_mirror

TEXT = "flow.f.source=h1:1\nflow.f.target=h2:1\n"


def run_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Run a mirror, and stop it a moment after a callback has raised `error`."""

    async def run(_: MirrorFlow, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(raise_it)
        loop.call_later(0.1, stop.set)
        await stop.wait()

    def raise_it() -> None:
        raise error

    monkeypatch.setattr(MirrorFlow, "run", run)
    run_mirror(load_mirror(TEXT, "file"), {})


def test_a_bug_in_a_callback_ends_the_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        run_with(monkeypatch, ZeroDivisionError())


def test_a_connection_error_does_not_end_the_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    run_with(monkeypatch, ConnectionResetError())
