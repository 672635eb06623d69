"""What operators see and change: topics, settings, groups, offsets, records, disks, the cluster.

Each operation is a function over a `Cluster`, in the module of its subject; `AsyncAdmin`
(asynchronous.py) and `Admin` (sync.py) offer them as methods. Code that has a cluster calls them
directly, as the command line does.

All fail in one style. A call about one thing raises `ApiError` naming it. A call about many tries
each of them; then `SomeFailed`, an `ApiError`, says which failed and why, and has the results of
the others.
"""
