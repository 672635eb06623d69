"""Authorized operations: what a client may do with a resource, as a bit set (KIP-430).

A bit's number is the code of Kafka's `AclOperation`. Without access control, every client may do
all that a type of resource allows.
"""

from __future__ import annotations

OMITTED = -(2**31)  # the request did not ask for them

READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION = range(3, 10)
DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = range(10, 13)

_GOVERNING = (ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS)

ON_CLUSTER = sum(1 << code for code in (*_GOVERNING, CREATE, CLUSTER_ACTION, IDEMPOTENT_WRITE))
ON_TOPIC = sum(1 << code for code in (*_GOVERNING, READ, WRITE, CREATE, DELETE))
ON_GROUP = sum(1 << code for code in (READ, DELETE, DESCRIBE))
