"""The partitions of one broker: who leads them, what is appended and read, and who waits for them.

A partition has one replica for now: no follower fetches, and no ISR shrinks. The controller's
orders, and waiting for the high watermark, have their final form already.
"""
