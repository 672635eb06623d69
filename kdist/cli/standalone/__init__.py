"""`kdist standalone`: ZooKeeper and brokers on one machine."""
