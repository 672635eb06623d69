"""Runs of small adjacent batches, decoded as one, so that they share the cost of each call (pure).

A slow producer's log has few records per batch, and a batch costs the interpreter as much as twenty
records. A run is one item of the completed fetches, and its records come from columns decoded
together. `poll_batches` still returns each batch as the log has it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, TypeVar

from kdist.client.consumer.batch import Batch, CorruptFetch
from kdist.records.batch import read_header
from kdist.records.codec import decode_numbers

T = TypeVar("T")
RUN_BYTES_MAX = 64 << 10


class BatchRun(Batch):
    """Batches that `iter_runs` joined to a run; `header` describes them as if they were one."""

    def _column(self, decode: Callable[..., list[T]]) -> list[T]:
        return self.placed(decode, self.encoded, self.header.record_count, True)

    @cached_property
    def numbers(self) -> tuple[array[int], array[int]]:
        count = self.header.record_count
        return self.placed(partial(decode_numbers, is_span=True), self.encoded, count)

    def batches(self, position: int) -> list[Batch]:
        """The run's batches, without those that end before `position`."""
        found: list[Batch] = []
        decoders = (self._decode_key, self._decode_value)
        at, end = self._at, self._at + self.header.size
        while at < end:
            header = read_header(self._buffer, at)
            if header.next_offset > position:
                batch = _Part(self.partition, header, self._buffer, at, position, decoders)
                batch.run = self
                found.append(batch)
            at += header.size
        return found

    def column(self, decode: Callable[..., list[T]]) -> list[T]:
        """A column of the whole run, decoded once and shared by its batches."""
        if decode not in self._columns:
            self._columns[decode] = self._column(decode)
        return self._columns[decode]

    @cached_property
    def _columns(self) -> dict[Callable[..., Any], list[Any]]:
        return {}


class _Part(Batch):
    """A batch of a run."""

    run: BatchRun

    def _column(self, decode: Callable[..., list[T]]) -> list[T]:
        try:
            rows = self.run.column(decode)
        except CorruptFetch:  # in this batch, or in another of the run: decode this one alone
            return super()._column(decode)
        start = self.header.base_offset - self.run.header.base_offset
        return rows[start : start + self.header.record_count]
