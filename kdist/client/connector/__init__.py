"""The first design's consumer: groups that live in ZooKeeper, and streams that never end.

`connector` is what applications use, `stream` what it gives them. Below, on a loop: `joining` puts
the parts together, `rebalancing` is the group's machine, `registry` its znodes, `feed` reads from
the brokers into `streams`; a `claim` is a partition that is owned. Pure: `settings`, `subscription`
and `assignment`, which is the papers' Algorithm 1. Groups of the brokers' coordinator are the
`consumer`'s; both kinds work on one cluster, for different groups.
"""

from kdist.client.connector.connector import (
    ConsumerConnector,
    create,
    create_message_streams,
)
from kdist.client.connector.rebalancing import ConsumerRebalanceListener
from kdist.client.connector.stream import ConsumerTimeout, Message, Stream
from kdist.client.connector.subscription import Blacklist, Whitelist

__all__ = [
    "Blacklist",
    "ConsumerConnector",
    "ConsumerRebalanceListener",
    "ConsumerTimeout",
    "Message",
    "Stream",
    "Whitelist",
    "create",
    "create_message_streams",
]
