"""The group coordinator: the members of consumer groups, their assignments and committed offsets.

A core without I/O: method calls, a clock and timers come in; responses and records for
`__consumer_offsets` go out through callbacks. The broker connects it to requests and to the log.
`coordinator.py` is the front door, `group.py` a group's state, and `rebalance.py` takes it from one
generation to the next. Each request has a file of its own; `offsets.py` holds what groups commit,
`records.py` and `loading.py` write it to the log and read it back.
"""
