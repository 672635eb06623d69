"""Metrics of the groups: members, rebalances, commits, and expired offsets."""

from __future__ import annotations

from kdist.metrics.declare import Metrics, Reading, counter, gauge, metrics, reading


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
    hidden_lags: int = gauge(
        "Topics of groups whose lag is not shown, since the 500 that are have greater ones."
    )


@metrics
class GroupLagMetrics(Metrics):
    """How far a group that this broker coordinates is behind; the labels are `group` and `topic`.

    Brokers ask the partitions' leaders when they are scraped, every 10 s at most; a scrape shows
    what the one before it has asked for. At most 500 groups and topics are shown, the worst.
    """

    PREFIX = "kdist_group_"

    lag_records: int = gauge("Records of the topic behind the offsets that the group committed.")
    lag_seconds: float = gauge(
        "The age, at most, of the oldest of these records, a fifth too much at worst. It begins"
        " anew when the group's coordinator restarts or is another broker."
    )
