"""Where `BackgroundLoop` was; it is in `kdist.client.background`."""

from kdist.client.background import BackgroundLoop

__all__ = ["BackgroundLoop"]
