"""The group coordinator: the members of consumer groups, their assignments and committed offsets.

A core without I/O: method calls, a clock and timers come in; responses and records for
`__consumer_offsets` go out through callbacks. The broker connects it to requests and to the log.
`coordinator.py` is the front door, `group.py` a group's state; `membership.py` has what a member
may ask, and `rebalance.py` takes a group from one generation to the next. `offsets.py` has commits,
`deletion.py` their end; `records.py` writes all that to the log and reads it back.
"""
