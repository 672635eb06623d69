"""A transient error does not stop a stream: it looks up its position again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from mirror_world import Mirror, Scene, play, source_batches, values_of

from kdist.client.fetch_once import FetchedBatches, fetch_at
from kdist.client.offsets import OffsetAndMetadata
from kdist.errors import ApiError, Error
from kdist.model import TopicPartition
from kdist.records.build import build_batch


def test_a_commit_between_two_generations_of_the_group_is_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit, refused = Mirror.commit, [ApiError(Error.REBALANCE_IN_PROGRESS, "group g")]

    async def refuse_once(
        self: Mirror, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        if refused:
            raise refused.pop()
        await commit(self, offsets)

    monkeypatch.setattr(Mirror, "commit", refuse_once)

    async def work(scene: Scene) -> None:
        scene.source = source_batches(scene.rng, 5, 0.0)
        mirror = scene.mirror()
        await scene.until(lambda: scene.arrived == values_of(scene.source), 30)
        await mirror.die()

    play(work)
    assert not refused


def test_a_target_whose_retention_outruns_the_look_up_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = [ApiError(Error.OFFSET_OUT_OF_RANGE, "t-0")]

    async def look(*asked: Any) -> FetchedBatches:
        if gone:
            raise gone.pop()
        return await fetch_at(*asked)

    monkeypatch.setattr("kdist.mirror.position_lookup.fetch_at", look)

    async def work(scene: Scene) -> None:
        scene.source = source_batches(scene.rng, 5, 0.0)
        scene.brokers.log().append(bytes(build_batch([b"another's"], timestamp_ms=0)))
        mirror = scene.mirror()
        await scene.until(lambda: scene.arrived[1:] == values_of(scene.source), 30)
        await mirror.die()

    play(work)
    assert not gone
