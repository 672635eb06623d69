"""Judges a history: what was promised to clients and not kept (pure).

The promises are those of acks=all, idempotent producers and groups, without transactions and
without deletion, so that offsets are dense. What a client was not answered may have happened or
not, at any time. The kinds of anomalies are near Jepsen's for queues:

| kind | what |
|---|---|
| lost | acknowledged, and nobody reads it: below what was read, or in a finished last read |
| duplicate | a value at two offsets |
| renumbered | a value at two offsets, sent again by its client in another epoch: no fault |
| reordered | a producer's values are in a partition in another order than it sent them |
| phantom | a value that nobody sent there, or that was refused for good |
| torn | a value that is not whole |
| inconsistent | two values at one offset, by what was read and what was acknowledged |
| misplaced | a value that is read at another offset than its producer was told |
| backwards | a reader gets an offset again, or a lower one |
| skipped | a reader gets a higher offset than the next, or is told that its position is not there |
| group back | a group's committed offset is lower than one acknowledged or told before |
| group ahead | a committed offset above all that the group's members were given |
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.chaos.history import (
    OK,
    REFUSED,
    TORN,
    Answered,
    Began,
    Committed,
    Event,
    Fetched,
    Finished,
    Read,
    Reset,
    Sent,
)

Place = tuple[int, int]  # partition, offset
WriterAt = Callable[[Place], object]
RENUMBERED = "renumbered"
NOTHING = -1001  # the committed offset of a group that has committed none


class Anomaly(NamedTuple):
    """A promise that was not kept, with what shows it."""

    kind: str
    text: str


def judge(events: Sequence[Event], writer_at: WriterAt = lambda _: None) -> list[Anomaly]:
    """All anomalies of a history whose events are in the order of their times.

    `writer_at` tells the producer id and epoch of the record at a place, if that is known. After a
    batch was refused for its sequence librdkafka begins a new epoch, and sends in it again all that
    is unanswered, also what another broker has appended without an answer: no broker can know.
    """
    kept = _Kept(events)
    return [
        *_lost(kept),
        *_wrong_places(kept),
        *_duplicates(kept, writer_at),
        *_reordered(kept),
        *_phantoms(kept),
        *_positions(events),
        *_groups_back(events),
        *_groups_ahead(events),
    ]


class _Kept:
    """The history by what was sent, promised and read."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.sent: set[str] = set()
        self.refused: set[str] = set()
        self.promised: dict[str, Place] = {}
        self.read: dict[Place, dict[str, str]] = defaultdict(dict)  # value -> its first reader
        self.end: dict[int, int] = defaultdict(int)  # by partition, of what was read
        self.is_finished = False
        for event in events:
            self._take(event)
        self.places: dict[str, set[Place]] = defaultdict(set)
        for place, values in self.read.items():
            for value in values:
                self.places[value].add(place)

    def _take(self, event: Event) -> None:
        match event:
            case Sent():
                self.sent.add(_value(event))
            case Answered(outcome="ok"):
                self.promised[_value(event)] = (event.partition, event.offset)
            case Answered(outcome="refused"):
                self.refused.add(_value(event))
            case Read():
                self.read[event.partition, event.offset].setdefault(event.value, event.reader)
                self.end[event.partition] = max(self.end[event.partition], event.offset + 1)
            case Finished():
                self.is_finished = True


def _value(event: Sent | Answered) -> str:
    return f"{event.producer} {event.partition} {event.number}"


def _lost(kept: _Kept) -> Iterator[Anomaly]:
    for value, (partition, offset) in kept.promised.items():
        due = kept.is_finished or 0 <= offset < kept.end[partition]
        if due and value not in kept.places:
            yield Anomaly("lost", f"{value}, acknowledged at {partition}@{offset}")


def _wrong_places(kept: _Kept) -> Iterator[Anomaly]:
    promised: dict[Place, list[str]] = defaultdict(list)
    for value, place in kept.promised.items():
        if place[1] < 0:
            continue
        promised[place].append(value)
        found = kept.places.get(value, set())
        if found and place not in found:
            yield Anomaly("misplaced", f"{value}, told {_text(place)}, read at {_texts(found)}")
    for place in sorted(promised.keys() | kept.read.keys()):
        values = sorted({*promised.get(place, ()), *kept.read.get(place, {})})
        if len(values) > 1:
            yield Anomaly("inconsistent", f"{_text(place)}: {', '.join(values)}")


def _duplicates(kept: _Kept, writer_at: WriterAt) -> Iterator[Anomaly]:
    for value, places in kept.places.items():
        if len(places) > 1 and value != TORN:
            writers = {writer_at(place) for place in places}
            is_renumbered = None not in writers and len(writers) == len(places)
            kind = RENUMBERED if is_renumbered else "duplicate"
            yield Anomaly(kind, f"{value} at {_texts(places)}")


def _reordered(kept: _Kept) -> Iterator[Anomaly]:
    last: dict[tuple[str, int], tuple[int, int]] = {}  # by producer and partition: number, offset
    for partition, offset in sorted(kept.read):
        for value in kept.read[partition, offset]:
            if value == TORN or (partition, offset) != min(kept.places[value]):
                continue  # the second of two is a duplicate, and not out of order too
            producer, _, number = value.split(" ")
            before, at = last.get((producer, partition), (-1, -1))
            if int(number) < before:
                text = f"{value} at {partition}@{offset}, after number {before} at {at}"
                yield Anomaly("reordered", text)
            last[producer, partition] = (int(number), offset)


def _phantoms(kept: _Kept) -> Iterator[Anomaly]:
    for place, values in sorted(kept.read.items()):
        for value, reader in values.items():
            if value == TORN:
                yield Anomaly("torn", f"{_text(place)}, read by {reader}")
            elif value not in kept.sent or value.split(" ")[1] != str(place[0]):
                yield Anomaly("phantom", f"{value} at {_text(place)} was not sent there")
            elif value in kept.refused:
                yield Anomaly("phantom", f"{value} at {_text(place)} had been refused")


def _positions(events: Iterable[Event]) -> Iterator[Anomaly]:
    """Each reader is given each offset once, from where it began."""
    expected: dict[tuple[str, int], int] = {}
    for event in events:
        if isinstance(event, Began):
            expected[event.reader, event.partition] = event.offset
        elif isinstance(event, Read):
            due = expected.get((event.reader, event.partition), event.offset)
            if event.offset != due:
                kind = "backwards" if event.offset < due else "skipped"
                text = f"{event.reader} got {event.partition}@{event.offset} where {due} was due"
                yield Anomaly(kind, text)
            expected[event.reader, event.partition] = event.offset + 1
        elif isinstance(event, Reset):
            text = f"{event.reader} in partition {event.partition}: {event.error}"
            yield Anomaly("skipped", text)


def _groups_back(events: Sequence[Event]) -> Iterator[Anomaly]:
    """Whoever asks after something was acknowledged or told is told that, or more."""
    known: list[tuple[float, str, int, int]] = []
    asked: list[tuple[float, Fetched]] = []
    for event in events:
        if isinstance(event, Committed | Fetched):
            known.append((event.at_s, event.group, event.partition, event.offset))
        if isinstance(event, Fetched):
            asked.append((event.asked_s, event))
    known.sort()
    floors: dict[tuple[str, int], int] = {}
    following = iter(known)
    upcoming = next(following, None)
    for asked_s, event in sorted(asked):
        while upcoming is not None and upcoming[0] < asked_s:
            _, group, partition, offset = upcoming
            floors[group, partition] = max(offset, floors.get((group, partition), NOTHING))
            upcoming = next(following, None)
        floor = floors.get((event.group, event.partition), NOTHING)
        if event.offset < floor:
            text = f"{event.group} in {event.partition}: {event.offset} after {floor}"
            yield Anomaly("group back", text)


def _groups_ahead(events: Sequence[Event]) -> Iterator[Anomaly]:
    """Members are named `group/...`; they commit what they were given."""
    given: dict[tuple[str, int], int] = defaultdict(int)
    for event in events:
        if isinstance(event, Read):
            place = (event.reader.split("/")[0], event.partition)
            given[place] = max(given[place], event.offset + 1)
    for event in events:
        if isinstance(event, Committed | Fetched):
            read = given[event.group, event.partition]
            if event.offset > read:
                text = f"{event.group} in {event.partition}: {event.offset}, was given to {read}"
                yield Anomaly("group ahead", text)


def _text(place: Place) -> str:
    return f"{place[0]}@{place[1]}"


def _texts(places: Iterable[Place]) -> str:
    return ", ".join(map(_text, sorted(places)))


def shown_errors(events: Iterable[Event], meant: str) -> Iterator[Anomaly]:
    """What producers were told but OK, apart from the one whose records are `meant` to be refused.

    For clients that have patience enough for each fault: they would show it to their users.
    """
    for event in events:
        if isinstance(event, Answered):
            expected = REFUSED if event.producer == meant else OK
            if event.outcome != expected:
                yield Anomaly("shown error", f"{_value(event)}: {event.outcome} {event.error}")


def unheard(events: Iterable[Event]) -> Iterator[Anomaly]:
    """Clients that asked for something and were never given any: nothing of theirs was judged."""
    asked: dict[str, None] = {}
    given: set[str] = set()
    for event in events:
        match event:
            case Sent() | Answered():
                client = f"producer {event.producer}: no answer"
            case Began() | Read():
                client = f"reader {event.reader.split('/')[0]}: no record"  # a group's as one
            case Fetched() | Committed():
                client = f"group {event.group}: no commit"
            case _:
                continue
        if isinstance(event, Answered | Read | Committed):
            given.add(client)
        else:
            asked[client] = None
    yield from (Anomaly("unheard", client) for client in asked if client not in given)


def count_outcomes(events: Iterable[Event]) -> Counter[str]:
    """How many records were sent, and what producers were told of them."""
    counts: Counter[str] = Counter({"sent": 0, OK: 0, REFUSED: 0})
    for event in events:
        if isinstance(event, Sent):
            counts["sent"] += 1
        elif isinstance(event, Answered):
            counts[event.outcome] += 1
    return counts
