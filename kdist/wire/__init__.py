"""Encoding and decoding of primitive values: varints, strings, tagged sections, checksums.

Nothing here knows about messages or records, or does I/O.
"""
