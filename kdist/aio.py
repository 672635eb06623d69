"""kdist for asyncio programs: the same clients, with coroutines on the caller's event loop.

    from kdist import aio

    async with aio.Producer(bootstrap_servers="localhost:9092") as producer:
        await producer.send_and_wait("clicks", b"hello")

Messages, records, batches and errors are the classes in `kdist`.
"""

from __future__ import annotations

from typing import Any

from kdist.client.admin.clients import AsyncAdmin as Admin
from kdist.client.consumer.aio import Consumer
from kdist.client.foreign import CLASSES, hint
from kdist.client.producer.asynchronous import AsyncProducer as Producer

__all__ = ["Admin", "Consumer", "Producer"]


def __getattr__(name: str) -> Any:
    sentence = f"module {__name__!r} has no attribute {name!r}{hint(CLASSES, name)}"
    raise (ImportError if name in CLASSES else AttributeError)(sentence)
