"""Errors that are retried: which ones, and logging only when they begin and when they are over."""

from __future__ import annotations

import logging

from kdist.client.cluster import NoBroker
from kdist.client.consumer.commits import CommitFailed
from kdist.errors import ApiError, Error

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


def may_pass(error: ApiError | NoBroker) -> bool:
    """Whether to retry. `CommitFailed` means only that the partition is being reassigned."""
    if isinstance(error, NoBroker | CommitFailed):
        return True
    return error.error.retriable or error.error in FROM_TARGET | _OUTDATED


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
