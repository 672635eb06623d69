"""The partitions of one broker: who leads them, what is appended and read, and who waits for them.

One replica per partition for now: there is no follower that fetches, and no ISR that shrinks. What
the controller says, and what waits for the high watermark, has its final shape.
"""
