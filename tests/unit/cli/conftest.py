"""A cluster that the tests of the commands share: they use topics of their own. Logs on a disk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.cli.cli_cluster import CliCluster, cli_cluster
from tests.unit.inspection.inspection_logs import log, pristine

__all__ = ["cluster", "log", "pristine"]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    """Two brokers."""
    with cli_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
