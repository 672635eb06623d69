"""The agent: publishes each host's operational data, and what its ZooKeeper and disks say.

One record for each interval goes to a topic (docs/formats/ops-host.md). Metrics that the node
exporter does not have are written to a file that it shows to Prometheus.
"""
