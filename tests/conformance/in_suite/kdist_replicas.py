"""A pytest plugin for foreign suites: their topics get KDIST_REPLICAS replicas instead of one.

The suites were written for one broker, and ask for one replica wherever a request must say so.
Load it with `-p kdist_replicas`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

REPLICAS = int(os.environ["KDIST_REPLICAS"])
ONE = 1


def pytest_collection_finish() -> None:
    """The suites' modules are imported by now."""
    fixtures = sys.modules.get("test.integration.fixtures")
    if fixtures is not None:  # kafka-python's, which set the number for each broker
        fixtures.KafkaFixture.replicas = property(lambda _: REPLICAS, lambda *_: None)
    for library in ("kafka.admin", "aiokafka.admin"):
        if library in sys.modules:
            new_topic = importlib.import_module(library).NewTopic
            new_topic.__init__ = _replicated(new_topic.__init__)


def _replicated(make: Callable[..., None]) -> Callable[..., None]:
    @wraps(make)
    def replicated(topic: Any, *given: Any, **named: Any) -> None:
        make(topic, *given, **named)
        if topic.replication_factor == ONE:
            topic.replication_factor = REPLICAS

    return replicated
