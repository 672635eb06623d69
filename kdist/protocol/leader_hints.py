"""Leader hints (KIP-951): parts of Fetch's and Produce's responses that name a partition's leader.

A client that asked the wrong broker can go on at once, without asking for metadata.
"""

from __future__ import annotations

from kdist.protocol.schema import int32, nullable_string, string, struct


@struct
class CurrentLeader:
    """The broker to ask instead."""

    leader_id: int32 = -1
    leader_epoch: int32 = -1


@struct
class NodeEndpoint:
    """Where a broker listens, for clients of the listener that the request came in on."""

    node_id: int32
    host: string
    port: int32
    rack: nullable_string = None
