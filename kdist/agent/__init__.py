"""The agent: publishes a host's operational data, and the state of its ZooKeeper and disks.

It writes one record per interval to a topic (docs/formats/ops-host.md), and metrics that the node
exporter does not have to a file for its textfile collector.
"""
