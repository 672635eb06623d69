"""The group coordinator: who is in a consumer group, who reads what, and how far each group is.

A core without I/O: method calls, a clock and timers come in, answers and records for
`__consumer_offsets` go out through callbacks. The broker wires it to requests and to the log.
`coordinator.py` is the front door, `group.py` a group's state, `rebalance.py` the heart that moves
it; one file each has what members ask; `offsets.py` is what groups commit, `records.py` and
`loading.py` are the log's side of it.
"""
