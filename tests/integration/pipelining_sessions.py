"""One connection's life: random pipelines, one of many ends, and a look at what is there."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from kdist.protocol import fetch as fetch_api
from kdist.protocol import init_producer_id, list_offsets
from tests.integration.fire_wire import Wire
from tests.integration.pipelining_asking import PARTITIONS, Cluster
from tests.integration.pipelining_fetch_session import FetchSession
from tests.integration.pipelining_model import BATCH_BYTES_MAX, Log, whole_end
from tests.integration.pipelining_peer import Peer
from tests.integration.pipelining_requests import Script

ENDS = ("close", "unknown version", "no frame", "refused acks=0", "half-close", "reset")
_PIPELINE_MAX = 60
_NO_FRAME = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n")


class Session:
    """Owner: one thread."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self.rng = random.Random(name)
        self.script = Script(name, cluster, self.rng)
        self.requests = 0
        self.unanswered = 0
        self._port = cluster.port
        self._peer = Peer(cluster.port, self.rng)
        self.fetches = FetchSession(self.script, self.script.topics[0], self.rng)

    def run(self) -> str:
        """Run the session; returns how it ended. AssertionError if anything is wrong."""
        end = self.rng.choice(ENDS)
        try:
            self._begin()
            for _ in range(self.rng.randrange(1, 6)):
                self._fill()
                self._exchange()
            self._end(end)
        except Exception as error:
            raise AssertionError(f"session {self.name}, {end}: {error}") from error
        finally:
            self._peer.close()
        return end

    def _begin(self) -> None:
        """A topic, a producer's id, and perhaps a fetch session."""
        script = self.script
        script.ask_versions()
        if self.rng.random() < 0.3:
            script.describe(script.topics[0])
        script.create(script.topics[0])
        request = init_producer_id.InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=60_000
        )

        def learn(answer: Any) -> str:
            script.producer_id = answer.producer_id
            return str(answer.error_code or "")

        api = init_producer_id.API
        script.ask(api, script.version(api), request, "", learn)
        self._exchange()

    # Pipelines

    def _fill(self, *, is_calm: bool = False) -> None:
        """Write a pipeline down; `is_calm`: without what takes records away."""
        size = self.rng.choice((1, 3, 10, _PIPELINE_MAX))
        count = self.rng.randrange(1, size + 1)
        self.requests += count
        while len(self.script.frames) < count:  # a kind may have nothing to ask
            kinds = _CALM if is_calm else _ALL
            kind = self.rng.choices(list(kinds), list(kinds.values()))[0]
            kind(self, self.rng.choice((1, 1, 2, 5, 15)))

    def _exchange(
        self,
        extra: bytes = b"",
        *,
        is_last: bool = False,
        half_close: bool = False,
        may_be_cut: bool = False,
    ) -> None:
        """Send what is written down, and check the answers as far as they come.

        `is_last`: until the broker closes. `may_be_cut`: answers may be lost, as a connection that
        is closed with bytes unread ends with a reset.
        """
        script, peer = self.script, self._peer
        expected, script.expected = script.expected, []
        frames, script.frames = script.frames, []
        peer.frames.clear()
        peer.exchange(
            b"".join(frames) + extra,
            lambda: not is_last and len(peer.frames) >= len(expected),
            half_close=half_close,
        )
        for each, frame in zip(expected, peer.frames, strict=False):
            fault = each.fault(frame)
            assert not fault, fault
        assert len(peer.frames) <= len(expected), "an answer too many"
        self.unanswered = len(expected) - len(peer.frames)
        if self.unanswered and not may_be_cut:
            raise AssertionError(f"no answer to {[str(e) for e in expected[len(peer.frames) :]]}")

    def _end(self, end: str) -> None:
        script, rng = self.script, self.rng
        self._fill(is_calm=True)
        behind = self._behind() if rng.random() < 0.5 else b""
        if end == "unknown version":
            frame = bytearray(self._foreign(lambda: script.list_offset(script.topics[0], 0, -1)))
            frame[6:8] = b"\x7f\xff"
            self._exchange(bytes(frame) + behind, is_last=True, may_be_cut=bool(behind))
        elif end == "no frame":
            no_frame = rng.choice(_NO_FRAME)
            self._exchange(no_frame, is_last=True, may_be_cut=len(no_frame) > 4)
        elif end == "refused acks=0":
            frame = bytearray(self._foreign(lambda: script.produce_refused(script.topics[0], 0)))
            self._exchange(bytes(frame) + behind, is_last=True, may_be_cut=bool(behind))
        elif end == "half-close":
            self._exchange(is_last=True, half_close=True, may_be_cut=True)
        elif end == "reset":
            self._reset()
        else:
            self._exchange()
        self._peer.close()
        self._look(is_whole=end != "reset")

    def _foreign(self, write: Callable[[], None]) -> bytes:
        """A request that is not expected to be answered, and that no model takes note of."""
        expected = list(self.script.expected)
        write()
        self.script.expected = expected
        return self.script.frames.pop()

    def _behind(self) -> bytes:
        """A produce that must not be carried out."""
        script = self.script
        logs = [list(log.batches) for log in script.topics[0].logs]
        frame = self._foreign(
            lambda: script.produce([(script.topics[0], 0)], 1, is_idempotent=False, size=10)
        )
        for log, batches in zip(script.topics[0].logs, logs, strict=True):
            log.batches = batches
        return frame

    def _reset(self) -> None:
        """Send some, read some, and reset the connection."""
        data = b"".join(self.script.frames)
        enough = self.rng.randrange(len(self.script.expected) + 1)
        self._peer.frames.clear()
        size = self.rng.randrange(len(data) + 1)
        limit = enough if size == len(data) else 0
        self._peer.exchange(data[:size], lambda: len(self._peer.frames) >= limit, half_close=False)
        for each, frame in zip(self.script.expected, self._peer.frames, strict=False):
            fault = each.fault(frame)
            assert not fault, fault
        self._peer.close(with_reset=True)

    # What is there in the end

    def _look(self, *, is_whole: bool) -> None:
        """Check the topics on another connection, then delete them."""
        for topic in self.script.topics:
            for index, log in enumerate(topic.logs):
                with Wire(self._port) as wire:
                    self._read(wire, topic.name, index, log, is_whole=is_whole)
        with Wire(self._port) as wire:
            script = Script(self.name, self.script.cluster, self.rng)
            for topic in self.script.topics:
                if topic.logs:
                    script.delete(topic)
            for frame, expected in zip(script.frames, script.expected, strict=True):
                wire.send(frame)
                fault = expected.fault(wire.receive_frame())
                assert not fault, fault

    def _read(self, wire: Wire, topic: str, index: int, log: Log, *, is_whole: bool) -> None:
        offset = log.start
        while offset < log.end:
            part = fetch_api.FetchPartition(
                partition=index, fetch_offset=offset, partition_max_bytes=4 << 20
            )
            request = fetch_api.FetchRequest(
                max_wait_ms=10_000 if is_whole else 0,  # acks=0: nobody said that it is there
                min_bytes=1,
                topics=[fetch_api.FetchTopic(topic=topic, partitions=[part])],
            )
            answer = wire.ask(fetch_api.API, 11, request)
            result = answer.responses[0].partitions[0]
            assert not result.error_code, f"{topic} {index}: error {result.error_code}"
            records = bytes(result.records or b"")
            if not records:
                assert not is_whole, f"{topic} {index} ends at {offset}, not at {log.end}"
                return
            fault = log.difference(offset, records)
            assert not fault, f"{topic} {index}: {fault}"
            offset = whole_end(records, offset)

    # Kinds

    def _some_place(self) -> tuple[Any, int]:
        index = PARTITIONS if self.rng.random() < 0.03 else self.rng.randrange(PARTITIONS)
        return self.script.some_topic(), index

    def _produce(self, times: int) -> None:
        place, size = self._some_place(), self.script.size()
        if size > 64 << 10:
            times = min(times, 4)
        is_idempotent = self.rng.random() < 0.4
        acks = self.rng.choice((1, 1, -1, -1, 0))
        for _ in range(times):
            topic, index = place
            log = topic.logs[index] if index < len(topic.logs) else None
            is_fit = log is not None and size * 1.1 + 600 < BATCH_BYTES_MAX
            if acks == 0 and not is_fit:
                acks = 1
            self.script.produce([place], acks, is_idempotent=is_idempotent, size=size)

    def _produce_to_several(self, times: int) -> None:
        places = [self._some_place() for _ in range(self.rng.randrange(2, 4))]
        for _ in range(min(times, 3)):
            self.script.produce(
                places,
                self.rng.choice((1, -1)),
                is_idempotent=False,
                size=self.rng.randrange(1000),
            )

    def _refused(self, _times: int) -> None:
        self.script.produce_refused(self.script.some_topic())

    def _fetch(self, times: int) -> None:
        asked = []
        for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
            topic, index = self._some_place()
            log = topic.logs[index] if index < len(topic.logs) else Log()
            offset = self.rng.choice((log.end, log.end, log.start, -1))
            if offset < 0:
                offset = self.rng.randrange(log.start, log.end + 1)
            if (topic.name, index) not in [(each[0].name, each[1]) for each in asked]:
                asked.append((topic, index, offset))
        rng = self.rng
        limits = {
            "wait_ms": rng.choice((0, 0, 20, 100)),
            "min_bytes": rng.choice((1, 1, 0, 5000)),
            "max_bytes": rng.choice((50 << 20, 50 << 20, 1000)),
            "partition_bytes": rng.choice((1 << 20, 4 << 20, 3000, 100)),
        }
        for _ in range(min(times, 4) if limits["wait_ms"] else times):
            self.script.fetch(asked, **limits)

    def _fetch_in_session(self, times: int) -> None:
        for _ in range(times):
            self.fetches.ask()

    def _again(self, times: int) -> None:
        for _ in range(times):
            self.script.produce_again(self.script.topics[0], self.rng.randrange(PARTITIONS))

    def _list(self, times: int) -> None:
        for _ in range(times):
            which = (list_offsets.LATEST_TIMESTAMP, list_offsets.EARLIEST_TIMESTAMP)
            self.script.list_offset(*self._some_place(), self.rng.choice(which))

    def _trim(self, _times: int) -> None:
        topic = self.script.topics[0]
        index = self.rng.randrange(PARTITIONS)
        log = topic.logs[index]
        offset = self.rng.randrange(log.start, self.script.visible_end(log) + 1)
        self.script.trim(topic, index, self.rng.choice((offset, offset, offset, 1 << 40)))

    def _create_or_delete(self, _times: int) -> None:
        aside = self.script.topics[1]
        if aside.logs and self.rng.random() < 0.8:
            self.script.delete(aside)
        else:
            self.script.create(aside)

    def _set(self, _times: int) -> None:
        self.script.set_flush(self.script.topics[0], self.rng.randrange(10_000, 1_000_000))

    def _commit(self, times: int) -> None:
        for _ in range(times):
            kinds = (
                self.script.beat,
                self.script.fetch_committed,
                lambda: self.script.commit(self.rng.randrange(1 << 40)),
            )
            self.rng.choice(kinds)()

    def _others(self, times: int) -> None:
        for _ in range(times):
            kinds = (
                self.script.ask_versions,
                lambda: self.script.describe(self.script.some_topic()),
                lambda: self.script.describe_setting(self.script.topics[0]),
            )
            self.rng.choice(kinds)()


Kind = Callable[[Session, int], None]
_CALM: dict[Kind, int] = {
    Session._produce: 30,
    Session._produce_to_several: 8,
    Session._refused: 3,
    Session._fetch: 25,
    Session._fetch_in_session: 10,
    Session._again: 4,
    Session._list: 12,
    Session._others: 14,
    Session._commit: 8,
}
_ALL: dict[Kind, int] = {
    **_CALM,
    Session._trim: 3,
    Session._create_or_delete: 3,
    Session._set: 3,
}
