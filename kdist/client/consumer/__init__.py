"""The consumer: reads topics, alone or as a member of a group, in Python's two fronts.

`consumer.Consumer` blocks, `aio.Consumer` is awaited; both drive `core`. Below it: `membership` and
`joining` (the group protocol), `commits`, `fetcher` and `fetch_session` (reading), `positions`
(where to read), `topics` (metadata), `partition` (what is known of one that is read). Pure:
`settings`, `assignors`, `sticky`, `opening` (a fetch's batches), `batch` (what is given). The
broker's side of groups is the room `groups`.
"""
