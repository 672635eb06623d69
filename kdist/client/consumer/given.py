"""What applications may give, in more than one form, as the core has it (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from kdist.client.consumer.commits import Offsets
from kdist.client.offsets import OffsetAndMetadata, OffsetAndTimestamp
from kdist.errors import KdistError, UserError
from kdist.model import TopicPartition

Bootstrap = str | Iterable[str]
"""`host:port`, several between commas, or a list of them."""

Given = Mapping[TopicPartition, int | OffsetAndMetadata]


def with_servers(given: Bootstrap, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings, those that are brokers' addresses among them."""
    return {**settings, "bootstrap_servers": given if isinstance(given, str) else tuple(given)}


def checked_topics(given: Iterable[str] | re.Pattern[str]) -> list[str] | re.Pattern[str]:
    """What to subscribe; `UserError` for a single name, which is a list of letters."""
    if isinstance(given, str):
        raise UserError(f"topics are a list: [{given!r}]")
    return given if isinstance(given, re.Pattern) else list(given)


def to_commit(given: Given | None) -> Offsets | None:
    """Offsets to commit; None, for all positions, stays that."""
    if given is None:
        return None
    offsets = {
        TopicPartition(*key): OffsetAndMetadata(each) if isinstance(each, int) else each
        for key, each in given.items()
    }
    for key, each in offsets.items():
        if each.offset < 0:
            raise UserError(f"{each.offset} is no offset to commit for {key}")
    return offsets


def found_offsets(
    found: Mapping[TopicPartition, OffsetAndTimestamp | None],
) -> dict[TopicPartition, int]:
    """The offsets alone; every partition has a first and a next one."""
    return {key: each.offset for key, each in found.items() if each is not None}


def ignore(offsets: Offsets, error: KdistError | None) -> None:
    """Nobody wants to know how a commit ended."""
