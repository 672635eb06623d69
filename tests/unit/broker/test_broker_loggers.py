"""Levels of loggers, described and changed through a broker, and what is refused (KIP-412)."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from broker_configs import by_name, change, describe, replace

from kdist.errors import Error
from kdist.protocol.describe_configs import BROKER_LOGGER
from kdist.protocol.incremental_alter_configs import APPEND, DELETE, SET
from kdist.runtime.diagnostics import LogLevels
from tests.simulator.cluster import Cluster

STORAGE = "kdist.storage"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    yield Cluster()
    logging.getLogger(STORAGE).setLevel(logging.NOTSET)


def test_the_brokers_loggers_are_described_with_their_levels(cluster: Cluster) -> None:
    async def scenario() -> None:
        await cluster.started()
        client = await cluster.client()
        found = by_name(await describe(client, "1", BROKER_LOGGER))
        level = LogLevels().all()["root"]
        assert {"root", STORAGE, "kdist.storage.directory"} <= found.keys()
        assert (found["root"].value, found["root"].config_source) == (level, 6)
        assert not found["root"].read_only
        some = by_name(await describe(client, "1", BROKER_LOGGER, keys=["root", "nobody"]))
        assert list(some) == ["root"]

    cluster.run(scenario())


def test_a_packages_level_is_that_of_all_its_loggers_until_it_is_removed(cluster: Cluster) -> None:
    async def scenario() -> None:
        await cluster.started()
        client = await cluster.client()
        for is_trial in (True, False):
            result = await change(
                client,
                (STORAGE, SET, "ERROR"),
                name="1",
                kind=BROKER_LOGGER,
                is_trial=is_trial,
            )
            assert (result.error_code, result.error_message) == (0, None)
            is_quiet = not logging.getLogger("kdist.storage.directory").isEnabledFor(logging.INFO)
            levels = by_name(await describe(client, "1", BROKER_LOGGER))
            assert (levels["kdist.storage.directory"].value == "ERROR") == (not is_trial)
            assert is_quiet or is_trial
        result = await change(client, (STORAGE, DELETE, None), name="1", kind=BROKER_LOGGER)
        assert result.error_code == 0
        levels = by_name(await describe(client, "1", BROKER_LOGGER))
        assert levels["kdist.storage.directory"].value == levels["root"].value

    cluster.run(scenario())


@pytest.mark.parametrize(
    ("broker", "asked", "error", "sentence"),
    [
        ("2", (STORAGE, SET, "INFO"), Error.INVALID_REQUEST, "this is broker 1, not broker '2'"),
        ("", (STORAGE, SET, "INFO"), Error.INVALID_REQUEST, "this is broker 1, not broker ''"),
        ("1", ("kdist.nobody", SET, "INFO"), Error.INVALID_CONFIG, "no logger kdist.nobody"),
        ("1", (STORAGE, SET, "LOUD"), Error.INVALID_CONFIG, "must be one of FATAL, ERROR, WARN"),
        ("1", (STORAGE, SET, None), Error.INVALID_REQUEST, "has no value"),
        ("1", ("root", DELETE, None), Error.INVALID_REQUEST, "must have a level"),
        ("1", (STORAGE, APPEND, "INFO"), Error.INVALID_REQUEST, "is set or removed"),
    ],
)
def test_what_is_no_level_of_a_logger_of_this_broker_is_refused(
    cluster: Cluster, broker: str, asked: tuple[str, int, str | None], error: Error, sentence: str
) -> None:
    async def scenario() -> None:
        await cluster.started()
        client = await cluster.client()
        before = LogLevels().all()
        result = await change(
            client, (STORAGE, SET, "ERROR"), asked, name=broker, kind=BROKER_LOGGER
        )
        if asked[0] == STORAGE:  # named twice
            assert result.error_code == Error.INVALID_REQUEST
        result = await change(
            client, ("kdist.broker", SET, "ERROR"), asked, name=broker, kind=BROKER_LOGGER
        )
        assert result.error_code == error
        assert sentence in (result.error_message or "")
        assert LogLevels().all() == before

    cluster.run(scenario())


def test_levels_are_not_replaced_all_together(cluster: Cluster) -> None:
    async def scenario() -> None:
        await cluster.started()
        client = await cluster.client()
        result = await replace(client, {STORAGE: "INFO"}, "1", BROKER_LOGGER)
        assert result.error_code == Error.INVALID_REQUEST
        assert "changed one by one" in (result.error_message or "")
        result = await describe(client, "2", BROKER_LOGGER)
        assert (result.error_code, result.configs) == (Error.INVALID_REQUEST, [])

    cluster.run(scenario())


def test_every_level_is_named_as_it_was_given() -> None:
    levels = LogLevels(logging.Logger("some", logging.WARNING))
    assert levels.all()["root"] == "WARN"
    for name in LogLevels.NAMES:
        levels.set("root", name)
        assert levels.all()["root"] == name
