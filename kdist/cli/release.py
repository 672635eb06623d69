"""Which release of kdist this is."""

from __future__ import annotations


def release() -> str | None:
    """As `0.1.0`; None for a tree that is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # takes 20 ms

    try:
        return version("kdist")
    except PackageNotFoundError:
        return None
