"""A stream whose target refuses a batch: its error, and the state that the next mirror finds."""

from __future__ import annotations

import pytest
from mirror_world import Scene, play, source_batches, values_of

from kdist.errors import Error
from kdist.mirror.position_lookup import why_stopped
from kdist.mirror.stream import State
from tests.unit.client.producer_world import FINE, Fault


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (Error.MESSAGE_TOO_LARGE, "max.message.bytes"),
        (Error.RECORD_LIST_TOO_LARGE, "segment.bytes"),
    ],
)
def test_a_batch_too_large_for_the_target_stops_the_stream_and_names_the_setting(
    error: Error, limit: str
) -> None:
    async def work(scene: Scene) -> None:
        scene.source = source_batches(scene.rng, 5, 0.0)
        scene.brokers.fault = lambda *_: Fault(is_written=False, error=error)
        mirror = scene.mirror()
        await scene.until(lambda: mirror.stream.state is State.STOPPED)
        end, size = scene.source[0].end, scene.source[0].header.size
        sentence = (
            f"{error.name}: t-0 of the target refuses the batch that ends at source offset {end}:"
            f" raise {limit} of topic t in the target to the source's value, at least {size},"
            " and restart the mirror"
        )
        assert str(mirror.stream.failure) == sentence
        assert mirror.stream.held_bytes == 0
        mirror.commit_position()
        await mirror.stream.stop()
        assert scene.committed is not None
        assert why_stopped(scene.committed.metadata) == sentence
        scene.brokers.fault = lambda *_: FINE
        mirror = scene.mirror()
        await scene.until(lambda: scene.arrived == values_of(scene.source))
        mirror.commit_position()
        assert scene.committed.metadata == f"target={len(scene.arrived)}"
        await mirror.die()

    play(work)
