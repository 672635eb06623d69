"""Clients of a cluster: for applications, and under the commands of `kdist`.

`producer` and `consumer` are what applications use. Below them, and for the commands, `cluster` has
the connections and knows who leads what; over it `admin` looks after topics and groups, `positions`
asks for offsets, `producing` writes batches and `fetching` reads them: all of it speaks the newest
version that both sides have, to kdist and to Kafka from 3.0 on.
"""
