"""Metrics of the groups: members, rebalances, commits, and expired offsets."""

from __future__ import annotations

from kdist.metrics.declare import Metrics, Reading, counter, metrics, reading


@metrics
class GroupMetrics(Metrics):
    """One broker's group coordinator."""

    finished_rebalances: int = counter(
        "kdist_group_finished_rebalances_total", "Rebalances that ended with an assignment."
    )
    expired_members: int = counter(
        "kdist_group_expired_members_total", "Members removed because their session timed out."
    )
    committed_offsets: int = counter(
        "kdist_group_committed_offsets_total", "Offsets that groups have committed."
    )
    expired_offsets: int = counter(
        "kdist_group_expired_offsets_total", "Committed offsets deleted after their retention."
    )
    failed_appends: int = counter(
        "kdist_group_failed_appends_total", "Appends to __consumer_offsets that failed."
    )
    groups: Reading = reading(
        "kdist_group_coordinated_groups", "Groups that this broker coordinates."
    )
    members: Reading = reading("kdist_group_joined_members", "Members of all groups.")
    rebalancing_groups: Reading = reading(
        "kdist_group_rebalancing_groups",
        "Groups that wait for joins or for the leader's assignment.",
    )
    offsets: Reading = reading("kdist_group_kept_offsets", "Committed offsets of all groups.")
