"""Clients of a cluster: for applications, and under the commands of `kdist`.

`producer`, `consumer`, `admin`, and of the first design `connector` and `simple`, are what
applications use. Below them, and for commands and pipelines, `cluster` has the connections and
knows who leads what, `discovery` finds the first brokers, `background` is the loop of those that
block; `offsets` asks leaders for theirs, `committed` is what coordinators are told and asked,
`producing` writes batches and `fetching` reads them. `gate` and `cluster_view` judge, from
ZooKeeper, whether a broker may go down, and `probe` whether one works. All of it speaks the newest
version that both sides have.
"""
