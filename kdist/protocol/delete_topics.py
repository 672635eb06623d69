"""DeleteTopics (key 20): delete topics with all their records.

version  changed
1        response: throttle time (KIP-124)
2        throttling happens after the response is sent (KIP-219)
3        response: TOPIC_DELETION_DISABLED may come (KIP-322)
4        flexible (KIP-482)
5        response: error message; THROTTLING_QUOTA_EXCEEDED may come (KIP-599)
6        topics by name or id: `topics` for `topic_names`; response: topic id (KIP-516)
"""

from __future__ import annotations

from kdist.model import ZERO_UUID
from kdist.protocol.api import Api
from kdist.protocol.schema import at, int16, int32, message, nullable_string, string, struct, uuid


@struct
class TopicToDelete:
    """A topic by name, or by id with the name None."""

    name: nullable_string = None
    topic_id: uuid = ZERO_UUID


@message(flexible=4)
class DeleteTopicsRequest:
    """Up to version 5 `topic_names`, from 6 on `topics`."""

    topics: list[TopicToDelete] = at(since=6, default=[])
    topic_names: list[string] = at(until=5, default=[], ignorable=True)
    timeout_ms: int32


@struct
class DeletedTopicResult:
    """`name` is None for an unknown id."""

    name: nullable_string = at(nullable_since=6)
    topic_id: uuid = at(since=6, default=ZERO_UUID, ignorable=True)
    error_code: int16
    error_message: nullable_string = at(since=5, default=None, ignorable=True)


@message(flexible=4)
class DeleteTopicsResponse:
    throttle_time_ms: int32 = at(since=1, default=0, ignorable=True)
    responses: list[DeletedTopicResult]


API = Api(20, DeleteTopicsRequest, DeleteTopicsResponse, newest=6)
