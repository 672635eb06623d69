"""What may pass: which errors do; logged when it begins and when it is over, not at every try."""

from __future__ import annotations

import logging

from kdist.client.cluster import NoBroker
from kdist.client.consumer.commits import CommitFailed
from kdist.errors import ApiError, Error

logger = logging.getLogger(__name__)

FROM_TARGET = frozenset(  # what the target refuses since it knows better where we stand
    (
        Error.OUT_OF_ORDER_SEQUENCE_NUMBER,
        Error.INVALID_PRODUCER_EPOCH,
        Error.UNKNOWN_PRODUCER_ID,
    )
)
_OVERTAKEN = frozenset(  # what was asked was right just before
    (
        Error.OFFSET_OUT_OF_RANGE,  # retention of the target, since it said where its log begins
        Error.REBALANCE_IN_PROGRESS,  # a commit came between two generations of the group
    )
)


def may_pass(error: ApiError | NoBroker) -> bool:
    """Whether to ask again. A commit that failed: the partition is about to be another's."""
    if isinstance(error, NoBroker | CommitFailed):
        return True
    return error.error.retriable or error.error in FROM_TARGET | _OVERTAKEN


class Trouble:
    """Of one thing that is tried again for as long as it takes. Owner: who tries."""

    def __init__(self, about: str) -> None:
        self.said = ""  # while it lasts
        self._about = about

    def begin(self, error: Exception) -> None:
        """It failed, for the first time or again."""
        if not self.said:
            logger.warning("%s: %s; trying on", self._about, error)
        self.said = str(error)

    def end(self) -> None:
        """It works."""
        if self.said:
            logger.info("%s: goes on", self._about)
        self.said = ""
