"""The consumer: reads topics, alone or as a member of a group, in two fronts over one core.

`consumer.Consumer` blocks (over `loop_thread`), `aio.Consumer` is awaited; both drive `core`, where
the application's rebalances are `rebalancing`, the member is `membership`, its broker
`coordinator`, `commits` and `positions` are the group's and the first offsets, `fetcher` reads ahead, `topics` is
metadata, and `world` (with `lane`s of connections) what all share. `partition` is where one reader
is, `iteration` how far a loop over records. Pure: `settings`, `given`, `assignors`, `sticky`,
`subscriptions`, `fetch_session`, `opening`, `batch`. The broker's side of groups is room `groups`.
"""
