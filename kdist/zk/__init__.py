"""ZooKeeper: what kdist keeps there, how it gets there, elections, watches."""
