"""A partition's log on a disk: segments, indexes, recovery, retention, producers, checkpoints."""
