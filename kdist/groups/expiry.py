"""Which committed offsets have expired (pure). Source: KIP-211.

    group                              its offsets go when `offsets.retention.minutes` have passed
    EMPTY, had members once            since it became empty (since the commit, where the log does
                                       not say when that was)
    never had members                  since the commit
    STABLE, of consumers whose         since the commit, for topics that none of them reads
    topics are known
    any other                          never

An offset with an expiry time of its own goes at that time instead; one with a commit under way
stays.
"""

from __future__ import annotations

from functools import partial

from kdist.groups.group import Group
from kdist.groups.offsets import CommittedOffset
from kdist.groups.states import EMPTY, STABLE
from kdist.model import NO_TIMESTAMP, TopicPartition


def choose_expired(group: Group, now_ms: int, retention_ms: int) -> list[TopicPartition]:
    """The partitions whose offsets the group may forget."""
    if group.protocol_type is None:
        return group.offsets.find(partial(_is_old, now_ms, retention_ms, NO_TIMESTAMP))
    if group.state is EMPTY:
        return group.offsets.find(partial(_is_old, now_ms, retention_ms, group.state_since_ms))
    topics = group.subscribed_topics
    if group.state is STABLE and topics is not None:
        is_old = partial(_is_old, now_ms, retention_ms, NO_TIMESTAMP)
        return group.offsets.find(
            lambda where, what: where.topic not in topics and is_old(where, what)
        )
    return []


def _is_old(
    now_ms: int, retention_ms: int, since_ms: int, _where: TopicPartition, what: CommittedOffset
) -> bool:
    if what.expire_timestamp_ms != NO_TIMESTAMP:
        return now_ms >= what.expire_timestamp_ms
    start_ms = what.commit_timestamp_ms if since_ms == NO_TIMESTAMP else since_ms
    return now_ms - start_ms >= retention_ms
