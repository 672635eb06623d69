"""What operators see and change: topics, settings, groups, offsets, records, disks, the cluster.

Each operation is a function over a `Cluster`, in the module of its subject; `AsyncAdmin`
(asynchronous.py) and `Admin` (sync.py) offer them as methods. Who has a cluster at hand calls them
directly, as the command line does.

One style for what goes wrong: what is asked of one thing raises `ApiError` naming it. What is asked
of many is tried for each of them, and then `SomeFailed`, an `ApiError`, says which failed and why,
and has what the others gave.
"""
