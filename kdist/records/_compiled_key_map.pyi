"""What mypy sees of the compiled map of keys, whose source is in Cython's terms."""

from kdist.records._reference_cleaning import KeyMap as KeyMap

def hash_of(key: bytes, secret: bytes) -> bytes: ...
