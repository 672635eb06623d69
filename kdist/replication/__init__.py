"""The partitions of one broker: leadership, appends, reads, and delayed operations.

A leader appends what producers send, and counts how far its followers are; a follower fetches from
its leader, and cuts off what the leader does not have. `in_sync.py` has the theory of the ISR,
`fetcher.py` that of the follower.
"""
