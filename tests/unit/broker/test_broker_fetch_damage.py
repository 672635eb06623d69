"""Fetches that meet a damaged batch or lack a descriptor are answered, on either path."""

from __future__ import annotations

import errno

import pytest

from kdist.errors import Error
from tests.unit.broker.broker_fetches import Asked, Broker, large
from tests.unit.replication.replication_world import CLICKS

MAGIC_AT = 16  # in a batch


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_a_damaged_batch_is_left_to_the_general_path(broker: Broker) -> None:
    """A consumer that reached one used to end the broker, after each restart again."""
    large(broker, CLICKS, batches=3)
    asked, log = Asked(broker), broker.directory.logs[CLICKS]
    log.active.file.write([b"\x12"], log.recent[1] + MAGIC_AT)
    log.recent.clear()
    assert asked.take(0)
    assert asked.take(1) is None
    fetch = broker.fetch({CLICKS: 1})
    assert fetch.errors == [Error.CORRUPT_MESSAGE]
    assert broker.pins == 0


def test_a_waiting_fetch_gets_the_general_paths_error_for_a_damaged_batch(broker: Broker) -> None:
    asked = Asked(broker, min_bytes=1500)
    large(broker, CLICKS, batches=1)
    answers, log = asked.take(0), broker.directory.logs[CLICKS]
    assert answers == []
    log.active.file.write([b"\x12"], MAGIC_AT)
    log.recent.clear()
    broker.settle(600)
    assert answers == asked.general_path(0)
    assert broker.pins == 0


def test_without_a_descriptor_the_general_path_refuses_and_nothing_stays_pinned(
    broker: Broker,
) -> None:
    large(broker, CLICKS, batches=3)
    asked, log = Asked(broker), broker.directory.logs[CLICKS]
    log.close_idle()
    broker.disk.fail(errno.EMFILE, when=lambda call: call.name == "open")
    assert asked.take(1) is None
    assert broker.fetch({CLICKS: 1}).errors == [Error.KAFKA_STORAGE_ERROR]
    broker.disk.heal()
    assert broker.pins == 0
    assert asked.take(1)
