"""What a log directory is given by its owner, and the broker that it must belong to."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from kdist.config.storage import StorageSettings
from kdist.config.topic import TopicSettings
from kdist.metrics.storage import StorageMetrics
from kdist.runtime.clock import Clock
from kdist.runtime.files import Files
from kdist.runtime.tasks import Tasks

Done = Callable[[BaseException | None], None]
"""Called once with the error, or with None."""


class Identity(NamedTuple):
    """The broker and cluster that the directory must belong to."""

    broker_id: int
    cluster_id: str


class DirectoryContext(NamedTuple):
    """What a log directory is given by its owner."""

    files: Files
    clock: Clock
    tasks: Tasks
    rng: random.Random
    settings: StorageSettings
    metrics: StorageMetrics
    settings_of: Callable[[str], TopicSettings]
    """The settings of a topic by its name, for the logs that are found at start."""
    on_failure: Callable[[BaseException], None]
    """Called when the disk failed, so that nothing in the directory is trusted any more."""
    boot_id: str = ""
    """The host's: another one after each start of the host."""
