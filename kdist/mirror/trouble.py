"""Errors of a mirror: those that are retried, logged as they begin and end; and what is lost."""

from __future__ import annotations

import logging

from kdist.client.cluster import REFUSALS, NoBroker
from kdist.client.consumer.commits import CommitFailed
from kdist.client.consumer.fetcher import LogTruncated, OffsetOutOfRange
from kdist.errors import ApiError, Error, KdistError
from kdist.model import TopicPartition

logger = logging.getLogger(__name__)

FROM_TARGET = frozenset(  # the target refuses a batch, as our idea of the position is wrong
    (
        Error.OUT_OF_ORDER_SEQUENCE_NUMBER,
        Error.INVALID_PRODUCER_EPOCH,
        Error.UNKNOWN_PRODUCER_ID,
    )
)
_OUTDATED = frozenset(  # the request was valid a moment before
    (
        Error.OFFSET_OUT_OF_RANGE,  # retention has moved the target's log start offset meanwhile
        Error.REBALANCE_IN_PROGRESS,  # a commit came between two generations of the group
    )
)
_UNAUTHORIZED = frozenset(
    (
        Error.TOPIC_AUTHORIZATION_FAILED,
        Error.GROUP_AUTHORIZATION_FAILED,
        Error.CLUSTER_AUTHORIZATION_FAILED,
    )
)
_PASSING = FROM_TARGET.union(_OUTDATED, _UNAUTHORIZED, REFUSALS)


def may_pass(error: ApiError | NoBroker) -> bool:
    """Whether to retry. `CommitFailed` means only that the partition is being reassigned.

    Who was let in before may be again: a token is renewed, a user's new password reaches all, an
    ACL is replaced by another.
    """
    if isinstance(error, NoBroker | CommitFailed):
        return True
    return error.error.retriable or error.error in _PASSING


class Trouble:
    """The present error of something that is retried for as long as it takes. Owner: its task."""

    def __init__(self, about: str) -> None:
        self.said = ""  # the last error; "" if all is well
        self._about = about

    def begin(self, error: Exception) -> None:
        """It failed, for the first time or again."""
        if not self.said:
            logger.warning("%s: %s; retrying", self._about, error)
        self.said = str(error)

    def end(self) -> None:
        """It succeeded."""
        if self.said:
            logger.info("%s: works again", self._about)
        self.said = ""


class Loss(KdistError):
    """A partition cannot be mirrored further without skipping records."""


def loss_of(error: OffsetOutOfRange, start: int, end: int) -> Loss:
    """What `error` means for a mirror, if the source's log now has offsets `start` to `end`."""
    offset = error.offset
    if isinstance(error, LogTruncated):
        return Loss(error.detail)
    if offset < start:
        return Loss(
            f"the source's log begins at {start}, and offsets {offset} to {start} were not"
            " mirrored: retention was faster. `kdist mirror seek` goes on without them"
        )
    return Loss(
        f"the source's log ends at {end}, but was mirrored up to {offset}: it lost records, or the"
        " topic was recreated. Only a new topic in the target can take records before that offset"
    )


def loss_of_topic(topic: str) -> Loss:
    """What it means for a mirror that a topic of the source was recreated."""
    return Loss(
        f"{topic} of the source was deleted and recreated: its records do not continue those that"
        " were mirrored. `kdist mirror seek` goes on with it all the same; to have all of its"
        " records, delete the target's topic first"
    )


def position_lost(partition: TopicPartition) -> Loss:
    """What it means that neither the target's log nor a commit says what was mirrored."""
    return Loss(
        f"nobody knows up to where {partition} was mirrored: the source no longer has the flow's"
        " commit, and the target none of its records. `kdist mirror seek` says from where to go on"
    )


def lost_since(partition: TopicPartition, known_end: int, end: int) -> Loss:
    """What it means that the target lacks records that were once mirrored from it."""
    return Loss(
        f"{partition} of the target ends at offset {end}, but the source has records that were"
        f" mirrored from there up to {known_end}: the target has lost them. If its topic is"
        " deleted, the mirror fills a new one with all that the source has"
    )
