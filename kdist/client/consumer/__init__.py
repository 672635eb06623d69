"""The consumer: reads topics, alone or as a member of a group, in two fronts over one core.

`consumer.Consumer` blocks, `aio.Consumer` is awaited; both drive `core`. Under it, `rebalancing` is
the application's side of rebalances, `membership` the member's, `coordinator` its broker; `commits`
stores a group's offsets and `positions` says where to begin; `fetcher` reads ahead, by `repeated`
where there is one partition; `topics` is metadata, `world` what all share, with lanes of
connections. `partition` is one partition's reader, `iteration` a loop over records. Pure:
`settings`, `given`, `assignors`, `sticky`, `subscriptions`, `fetch_session`, `opening`, `batch`.
The broker's side: room `groups`.
"""
