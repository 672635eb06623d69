"""Metrics of the groups: members, rebalances, commits, and expired offsets."""

from __future__ import annotations

from kdist.metrics.declare import Metrics, Reading, counter, metrics, reading


@metrics
class GroupMetrics(Metrics):
    """One broker's group coordinator."""

    PREFIX = "kdist_group_"

    finished_rebalances: int = counter("Rebalances that ended with an assignment.")
    expired_members: int = counter("Members removed because their session timed out.")
    committed_offsets: int = counter("Offsets that groups have committed.")
    expired_offsets: int = counter("Committed offsets deleted after their retention.")
    failed_appends: int = counter("Appends to __consumer_offsets that failed.")
    groups: Reading = reading(
        "Groups that this broker coordinates.", name="kdist_group_coordinated_groups"
    )
    members: Reading = reading("Members of all groups.", name="kdist_group_joined_members")
    rebalancing_groups: Reading = reading(
        "Groups that wait for joins or for the leader's assignment."
    )
    offsets: Reading = reading("Committed offsets of all groups.", name="kdist_group_kept_offsets")
