"""The consumer: reads topics, alone or as a member of a group, in two fronts over one core.

`consumer.Consumer` blocks, `aio.Consumer` is awaited; both drive `core`. There
`rebalancing` is the application's side of rebalances, `membership` the member's, `coordinator` its
broker; `commits` and `positions` are where a group was and where to begin; `fetcher` reads ahead,
`topics` is metadata, `world` what all share, with lanes of connections. `partition` is where one
reader is, `iteration` how far a loop over records. Pure: `settings`, `given`, `assignors`,
`sticky`, `subscriptions`, `fetch_session`, `opening`, `batch`. The broker's side: room `groups`.
"""
