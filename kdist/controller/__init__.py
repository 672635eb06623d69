"""The controller: the one broker that places partitions, elects leaders and informs the others.

Decisions are pure (`placement`, `elections`, `topics`) and based on the controller
`context`; `term` carries them out, first in ZooKeeper, then over `channels` to the brokers. The
walk "A disk's death" in ARCHITECTURE.md goes through here.
"""
