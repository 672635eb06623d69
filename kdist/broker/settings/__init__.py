"""Settings of topics and brokers in a running cluster: as stored in ZooKeeper, and as in force."""
