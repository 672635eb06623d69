"""Resolving options to offsets, with a broker in virtual time."""

from __future__ import annotations

import pytest

from kdist.client.cluster import Address
from kdist.client.cluster import Cluster as Brokers
from kdist.errors import UserError
from kdist.model import TopicPartition
from kdist.network.client import ClientSettings
from kdist.spark.options import read_options
from kdist.spark.ranges import Range
from kdist.spark.resolving import Resolver
from tests.simulator.cluster import PORT, Cluster, create, produce

CLICKS = TopicPartition("clicks", 0)


def ranges(**options: str) -> list[Range]:
    """The offsets to read of a topic with three records."""
    cluster = Cluster()
    given = {"kafka.bootstrap.servers": f"m1:{PORT}", "subscribe": "clicks", **options}

    async def scenario() -> list[Range]:
        await cluster.started()
        client = await cluster.client()
        await client.negotiate()
        await create(client, "clicks")
        await produce(client, "clicks", b"1", b"2", b"3")
        brokers = Brokers(
            cluster.network.host("driver"), [Address("m1", PORT)], ClientSettings("spark")
        )
        return await Resolver(brokers, read_options(given)).ranges()

    found: list[Range] = cluster.run(scenario())
    return found


def at(offset: int) -> str:
    return f'{{"clicks": {{"0": {offset}}}}}'


def test_a_read_goes_from_where_it_is_told_to_the_end() -> None:
    assert ranges() == [Range(CLICKS, 0, 3)]
    assert ranges(startingOffsets=at(1)) == [Range(CLICKS, 1, 3)]
    assert ranges(startingOffsets=at(3)) == []


def test_offsets_beyond_the_end_are_refused_unless_fail_on_data_loss_is_off() -> None:
    with pytest.raises(UserError) as refused:
        ranges(startingOffsets=at(4))
    assert str(refused.value) == (
        "clicks-0 is to be read from 4, but ends at 3 now; with failOnDataLoss false, nothing of it"
        " would be read"
    )
    assert ranges(startingOffsets=at(4), failOnDataLoss="false") == []
    with pytest.raises(UserError, match="clicks-0 is to be read from 4, but only up to 2"):
        ranges(startingOffsets=at(4), endingOffsets=at(2))


def test_a_time_after_the_last_record_may_start_at_the_end() -> None:
    late = {"startingTimestamp": "9999999999999"}
    assert ranges(**late, startingOffsetsByTimestampStrategy="latest") == []
