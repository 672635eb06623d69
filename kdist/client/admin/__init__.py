"""Administration: topics, settings, groups, offsets, records, log directories, the cluster.

Each operation is a function whose first argument is a `Cluster`, in the module of its subject;
`Admin` and `AsyncAdmin` (clients.py) offer them as methods. Code that already has a `Cluster`, such
as the command line, calls the functions directly.

They report errors in one way. An operation on one item raises an `ApiError` that names it. An
operation on several tries them all, then raises `SomeFailed`, an `ApiError` with the error of each
that failed and the results of the others.
"""
