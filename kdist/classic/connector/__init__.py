"""The first design's consumer: groups that live in ZooKeeper, and streams that never end.

Applications use `connector`, and the streams (`stream`) that it returns. Beneath, on an event loop,
`rebalancing` runs the group's rebalances, `registry` reads and writes its znodes, and `feed`
fetches from the brokers into the streams; an `ownership` is of one partition. Pure: `settings`,
`subscription` and `assignment`, the papers' Algorithm 1. For groups managed by the brokers'
coordinators see `kdist.client.consumer`; a cluster can serve both kinds, under different group
names.
"""

from kdist.classic.connector.connector import (
    ConsumerConnector,
    create,
    create_message_streams,
)
from kdist.classic.connector.rebalancing import ConsumerRebalanceListener
from kdist.classic.connector.stream import ConsumerTimeout, Message, Stream
from kdist.classic.connector.subscription import Blacklist, Whitelist

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
