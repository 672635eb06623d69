"""The consumer: reads topics, alone or as a member of a group.

Two fronts, the blocking `consumer.Consumer` and the asyncio `aio.Consumer`, drive one `core`.
Beneath it, `membership` joins the group and sends heartbeats, and `rebalancing` tells the
application what it gains and loses; `commits` stores a group's offsets and `positions` finds where
to start; `fetcher` reads ahead; `metadata` knows the leaders, and `context` what all parts share,
such as connections. `partition` is the state of one partition, `iteration` a loop over records.
Pure: `settings`, `arguments`, `assignors`, `subscriptions`, `fetch_session`, `opening`, `batch`.
The broker's side is `kdist.groups`.
"""
