"""Fixtures of the tests that inspect a log: see `inspection_logs.py`."""

from tests.unit.inspection.inspection_logs import killed, log, pristine

__all__ = ["killed", "log", "pristine"]
