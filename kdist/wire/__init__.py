"""Bytes to primitive values and back: varints, strings, arrays, compact forms, checksums.

Nothing here knows a message or a record, and nothing here does I/O.
"""
