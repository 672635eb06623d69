"""What the groups of one partition of `__consumer_offsets` add up to, for `/metrics`.

Counted as it changes: with 100,000 groups a scrape would take long to count it.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(slots=True)
class Totals:
    """Owner: the partition's groups. A group that is removed has no member or offset left."""

    members: int = 0
    offsets: int = 0
    rebalancing: int = 0  # groups
