"""ZooKeeper: the client, the znodes and their contents, controller election, watches."""
