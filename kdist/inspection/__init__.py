"""Reads and repairs log directories of a stopped broker, for `kdist log` and the scrub."""
