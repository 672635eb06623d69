"""Mirrors topics of one cluster into another: batches pass as they are, each exactly once.

A process runs some flows (`mirror.py`), each from a source cluster to a target (`flow.py`). A flow
is a consumer group in its source; each partition that it is assigned has a `Stream` (`stream.py`),
which sends the batches in order to the same partition of the target. Each batch sent carries the
stream's position in its header (`position_marker.py`), so the target's log itself says how far the
mirror got: nothing is lost or written twice, whenever the process dies (docs/decisions/0015). The
target also keeps the origin of its mirrored topics (`origins.py`), so that none is mirrored back.
"""
