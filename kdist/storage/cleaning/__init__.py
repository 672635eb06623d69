"""Compaction: choosing a log, cleaning it in another process, and exchanging its segments."""
