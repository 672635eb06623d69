"""The controller: the one broker that places partitions, elects leaders and tells all others.

Decisions are pure (`placement`, `elections`, `topics`); `cluster` is the picture they are made on;
`reign` carries them out, first in ZooKeeper, then by `channels` to the brokers. The walk "A disk's
death" in ARCHITECTURE.md goes through here.
"""
