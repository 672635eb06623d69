"""The agent: publishes each host's operational data, and what its ZooKeeper and disks say.

One record for each interval goes to a topic (docs/formats/ops-host.md). What Prometheus wants and
its node exporter does not have, the agent writes to a file for that exporter.
"""
