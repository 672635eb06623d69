"""A connection's fetch session (KIP-227): each request names what moved and counts an epoch up."""

from __future__ import annotations

import random
from typing import Any

from kdist.errors import Error
from kdist.protocol import fetch
from tests.integration.pipelining_model import Topic
from tests.integration.pipelining_requests import Look, Script

_LOST = (Error.FETCH_SESSION_ID_NOT_FOUND, Error.INVALID_FETCH_SESSION_EPOCH)


class FetchSession:
    """Of one topic. Requests never wait: then the next finds the session's epoch counted."""

    def __init__(self, script: Script, topic: Topic, rng: random.Random) -> None:
        self._script = script
        self._topic = topic
        self._rng = rng
        self._id = 0
        self._epoch = 0
        self._is_opening = False
        self._offsets: dict[int, int] = {}
        self.lost = 0

    def ask(self) -> None:
        """Begin it, or go on."""
        if self._is_opening:
            return  # its id is not known yet
        if not self._id:
            count = self._rng.choice((1, 1, len(self._topic.logs)))
            self._offsets = dict.fromkeys(range(count), 0)
            self._epoch = 0
            self._is_opening = True
        named = [n for n in self._offsets if not self._epoch or self._rng.random() < 0.5]
        for index in named:
            log = self._topic.logs[index]
            somewhere = self._rng.randrange(log.start, self._script.visible_end(log) + 1)
            self._offsets[index] = self._rng.choice((somewhere, self._script.visible_end(log)))
        looks = {
            index: Look(self._topic, index, offset, self._script.visible_end)
            for index, offset in self._offsets.items()
        }
        parts = [looks[index].asked(1 << 20).partitions[0] for index in named]
        request = fetch.FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            session_id=self._id,
            session_epoch=self._epoch,
            topics=[fetch.FetchTopic(topic=self._topic.name, partitions=parts)] if parts else [],
        )
        epoch, self._epoch = self._epoch, self._epoch + 1

        def check(answer: Any) -> str:
            return self._fault(answer, looks, is_first=not epoch)

        what = f"session {self._id} {epoch} {named} of {self._offsets}"
        version = self._script.version(fetch.API, 7, fetch.NEWEST_BY_NAME)
        self._script.ask(fetch.API, version, request, what, check)

    def _fault(self, answer: Any, looks: dict[int, Look], *, is_first: bool) -> str:
        if is_first:
            self._id, self._is_opening = answer.session_id, False
        if answer.error_code in _LOST:
            self._id, self._is_opening = 0, False
            self.lost += 1
            return ""
        if answer.error_code:
            return f"error {answer.error_code}"
        results = {
            part.partition_index: part for topic in answer.responses for part in topic.partitions
        }
        if not results.keys() <= looks.keys():
            return f"{list(results)} of {list(looks)}"
        faults = [looks[index].fault(part, is_at_once=True) for index, part in results.items()]
        has_any = any(part.records or part.error_code for part in results.values())
        if any(look.has_records for look in looks.values()) and not has_any:
            faults.append("no records, where there are some")
        return "; ".join(filter(None, faults))
