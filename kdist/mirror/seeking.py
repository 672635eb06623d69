"""A position that somebody chose: a commit with a note that wins over the target's log."""

from __future__ import annotations

from collections.abc import Mapping

from kdist.client.admin.offsets import HAS_MEMBERS, alter_group_offsets
from kdist.client.cluster import Cluster
from kdist.errors import ApiError
from kdist.mirror.standing import SOUGHT
from kdist.model import TopicPartition


async def commit_sought(source: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Have the group's mirror go on from here. `ApiError`, also while the mirror runs."""
    try:
        await alter_group_offsets(source, group, offsets, SOUGHT)
    except ApiError as error:
        if error.error in HAS_MEMBERS:
            sentence = f"the mirror of group {group} runs: stop it first"
            raise ApiError(error.error, sentence) from None
        raise
