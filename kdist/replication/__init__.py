"""The partitions of one broker: leadership, appends, reads, and delayed operations.

A partition has one replica for now: no follower fetches, and no ISR shrinks. Handling of the
controller's requests, and waiting for the high watermark, are complete already.
"""
