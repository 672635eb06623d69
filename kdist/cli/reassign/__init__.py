"""`kdist reassign`: moving partitions to other brokers."""
