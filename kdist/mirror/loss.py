"""Records that are gone from the source before they were mirrored, in a sentence (pure)."""

from __future__ import annotations

from kdist.client.consumer.fetcher import LogTruncated, OffsetOutOfRange
from kdist.errors import KdistError


class Loss(KdistError):
    """A partition cannot go on without passing over something."""


def loss_of(error: OffsetOutOfRange, start: int, end: int) -> Loss:
    """What `error` means for a mirror, by where the source's log begins and ends now."""
    offset = error.offset
    if isinstance(error, LogTruncated):
        return Loss(error.detail)
    if offset < start:
        return Loss(
            f"the source's log begins at {start}, and offsets {offset} to {start} were not"
            " mirrored: retention was faster. `kdist mirror seek` goes on without them"
        )
    return Loss(
        f"the source's log ends at {end}, and was mirrored up to {offset}: it lost records, or"
        " the topic was made anew. What it has before that is only mirrored into a new topic"
    )


def loss_of_topic(topic: str) -> Loss:
    """What it means for a mirror that a topic of the source is another than it was."""
    return Loss(
        f"{topic} of the source was deleted and made anew: its records do not follow on what was"
        " mirrored. `kdist mirror seek` goes on with it all the same; delete the target's topic"
        " before, to have all of it"
    )
