"""Asking a cluster: the small client under the first commands of `kdist`.

`cluster` has the connections and knows who leads what; over it `admin` looks after topics and
groups, `positions` asks for offsets, `producing` writes batches and `fetching` reads them.
It speaks the newest version that both sides have, to kdist and to Kafka from 3.0 on. It is no
application's client: no idempotence, no group membership, no batching in the background.
"""
