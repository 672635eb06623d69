"""Which committed offsets have expired (pure). Source: KIP-211.

    group                              an offset expires `offsets.retention.minutes` after
    EMPTY, had members once            the group became empty (after the commit, if the log does
                                       not say when that was)
    never had members                  the commit
    STABLE, of consumers whose         the commit, for topics that no member reads
    topics are known
    any other                          never

An offset with an expiry time of its own expires at that time instead. While a commit of a partition
is under way, its offset does not expire.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from kdist.groups.group import Group
from kdist.groups.offsets import CommittedOffset
from kdist.groups.states import EMPTY, STABLE
from kdist.model import NO_TIMESTAMP, TopicPartition


def choose_expired(
    group: Group, now_ms: int, retention_ms: int, among: Iterable[TopicPartition]
) -> list[TopicPartition]:
    """The partitions, of these, whose offsets the group may forget."""
    if group.protocol_type is None:
        return group.offsets.find(partial(_is_old, now_ms, retention_ms, NO_TIMESTAMP), among)
    if group.state is EMPTY:
        is_old = partial(_is_old, now_ms, retention_ms, group.state_since_ms)
        return group.offsets.find(is_old, among)
    topics = group.subscribed_topics
    if group.state is STABLE and topics is not None:
        unread = (each for each in among if each.topic not in topics)
        return group.offsets.find(partial(_is_old, now_ms, retention_ms, NO_TIMESTAMP), unread)
    return []


def _is_old(
    now_ms: int, retention_ms: int, since_ms: int, _where: TopicPartition, what: CommittedOffset
) -> bool:
    if what.expire_timestamp_ms != NO_TIMESTAMP:
        return now_ms >= what.expire_timestamp_ms
    start_ms = what.commit_timestamp_ms if since_ms == NO_TIMESTAMP else since_ms
    return now_ms - start_ms >= retention_ms
