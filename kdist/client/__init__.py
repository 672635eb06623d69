"""Clients of a cluster: those that applications use, and those that the `kdist` commands use.

Applications use `producer`, `consumer` and `admin`, and from the first design `connector` and
`simple`. Beneath them, and used directly by commands and pipelines, `cluster` holds connections and
metadata, `discovery` finds the bootstrap brokers, and `background` runs the blocking clients' event
loop; `offsets` asks partition leaders for offsets, `committed` builds and reads the requests for
committed offsets, `producing` writes batches and `fetching` reads them. `gate` and `cluster_view`
judge from ZooKeeper whether a broker may go down, and `probe` whether one works. Every request uses
the newest version that client and broker share.
"""
