"""A target that was recreated under a stream: one batch may get into it, and none behind it."""

from __future__ import annotations

from mirror_world import PARTITION, Scene, play, source_batches, values_of

from kdist.client.consumer.batch import Batch
from kdist.mirror.stream import State
from kdist.records.batch import read_header
from kdist.records.build import build_batch


def test_a_batch_accepted_by_a_recreated_target_stops_the_stream_for_good() -> None:
    async def work(scene: Scene) -> None:
        scene.source = source_batches(scene.rng, 20, 0.0)
        mirror = scene.mirror()
        await scene.until(lambda: scene.arrived == values_of(scene.source))
        mirror.commit_position()
        scene.brokers.log().make_anew()
        for value in (b"next", b"last"):
            end = scene.source[-1].end
            data = build_batch([value], timestamp_ms=0, base_offset=end, leader_epoch=0)
            scene.source.append(Batch(PARTITION, read_header(data), bytes(data), 0, 0))
            mirror.stream.put(scene.source[-1:])
            await scene.until(lambda m=mirror: m.stream.state is State.STOPPED)
        assert scene.arrived == [b"next"]
        mirror.commit_position()
        await mirror.die()
        mirror = scene.mirror()
        await scene.until(lambda: mirror.stream.state is State.STOPPED)
        assert "delete it once more" in str(mirror.stream.failure)
        assert scene.arrived == [b"next"]
        await mirror.stream.stop()

    play(work)


def test_a_target_that_lost_its_end_before_a_commit_is_filled_again() -> None:
    async def work(scene: Scene) -> None:
        scene.source = source_batches(scene.rng, 20, 0.0)
        mirror = scene.mirror()
        await scene.until(lambda: scene.arrived == values_of(scene.source))
        mirror.commit_position()
        await mirror.die()
        scene.brokers.log().lose_last()
        mirror = scene.mirror()
        await scene.until(lambda: scene.arrived == values_of(scene.source))
        await mirror.die()

    play(work)
