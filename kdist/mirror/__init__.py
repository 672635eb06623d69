"""One datacenter into another: record batches pass as they are, each exactly once.

A process runs some flows (`mirror.py`), each from a source cluster to a target (`flow.py`). A flow
is a consumer group of its source; each partition it is given has a `Stream` (`stream.py`) that
sends batches in order to the same partition of the target. Where a stream stands is written in
every batch that it sends (`trace.py`), so the target's log itself says how far the mirror got:
nothing is lost, or sent twice, whenever it dies (docs/decisions/0015). Which topics come from where
is kept in the target too (`origins.py`), so that none is sent back to where it came from.
"""
