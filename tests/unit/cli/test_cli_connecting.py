"""What a command prints while it waits for a cluster."""

from __future__ import annotations

import asyncio
import sys

import pytest

from kdist.cli.shared import connecting
from kdist.cli.shared.client_settings import Clients
from kdist.client.cluster import Address, Cluster


@pytest.mark.parametrize(
    ("is_terminal", "has_answered", "said"),
    [
        (True, False, "kdist: waiting for an answer from slow:9092\n"),
        (True, True, ""),
        (False, False, ""),
    ],
)
def test_a_person_is_soon_told_which_broker_does_not_answer(
    is_terminal: bool,
    has_answered: bool,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def work(cluster: Cluster) -> None:
        if has_answered:
            cluster.brokers = {0: Address("slow", 9092)}
        await asyncio.sleep(0.05)

    monkeypatch.setattr(connecting, "_PATIENCE_S", 0.01)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    connecting.ask_cluster(Clients.at("slow:9092"), work)
    assert capsys.readouterr().err == said
