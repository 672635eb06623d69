"""`kdist log`: inspects a log on disk, and repairs it."""
