"""kdist: a bare-metal distribution of a Kafka-style commit log.

Applications import the blocking clients from here, their asyncio versions from `kdist.aio`, and the
first design's from `kdist.classic`:

    from kdist import Consumer, Producer

A name is imported when it is first used (PEP 562), so a broker or command that needs no client does
not load one. ARCHITECTURE.md describes each package; imports between packages only go down.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kdist.client.admin.client_settings import AdminKeywords as AdminKeywords
    from kdist.client.admin.clients import Admin as Admin
    from kdist.client.admin.outcomes import SomeFailed as SomeFailed
    from kdist.client.admin.quotas import QuotaOwner as QuotaOwner
    from kdist.client.admin.resets import ShiftBy as ShiftBy
    from kdist.client.admin.resets import ToEarliest as ToEarliest
    from kdist.client.admin.resets import ToLatest as ToLatest
    from kdist.client.admin.resets import ToOffset as ToOffset
    from kdist.client.admin.resets import ToTime as ToTime
    from kdist.client.admin.topics import NewTopic as NewTopic
    from kdist.client.cluster import NoBroker as NoBroker
    from kdist.client.coding import CodingContext as CodingContext
    from kdist.client.consumer.batch import Batch as Batch
    from kdist.client.consumer.batch import ConsumedRecord as ConsumedRecord
    from kdist.client.consumer.batch import NotDecoded as NotDecoded
    from kdist.client.consumer.commits import CommitFailed as CommitFailed
    from kdist.client.consumer.consumer import Consumer as Consumer
    from kdist.client.consumer.context import ConsumerClosed as ConsumerClosed
    from kdist.client.consumer.context import WakenUp as WakenUp
    from kdist.client.consumer.fetcher import LogTruncated as LogTruncated
    from kdist.client.consumer.fetcher import OffsetOutOfRange as OffsetOutOfRange
    from kdist.client.consumer.interceptors import ConsumerInterceptor as ConsumerInterceptor
    from kdist.client.consumer.positions import NoOffset as NoOffset
    from kdist.client.consumer.rebalancing import RebalanceListener as RebalanceListener
    from kdist.client.consumer.settings import ConsumerKeywords as ConsumerKeywords
    from kdist.client.offsets import OffsetAndMetadata as OffsetAndMetadata
    from kdist.client.offsets import OffsetAndTimestamp as OffsetAndTimestamp
    from kdist.client.producer.faults import BufferFull as BufferFull
    from kdist.client.producer.faults import DeliveryTimedOut as DeliveryTimedOut
    from kdist.client.producer.faults import ProducerClosed as ProducerClosed
    from kdist.client.producer.faults import RecordTooLarge as RecordTooLarge
    from kdist.client.producer.interceptors import ProducerInterceptor as ProducerInterceptor
    from kdist.client.producer.interceptors import ProducerRecord as ProducerRecord
    from kdist.client.producer.results import RecordMetadata as RecordMetadata
    from kdist.client.producer.results import Sent as Sent
    from kdist.client.producer.results import SentMany as SentMany
    from kdist.client.producer.settings import ProducerKeywords as ProducerKeywords
    from kdist.client.producer.sync import Producer as Producer
    from kdist.errors import ApiError as ApiError
    from kdist.errors import Error as Error
    from kdist.errors import KdistError as KdistError
    from kdist.errors import UserError as UserError
    from kdist.errors import WrongType as WrongType
    from kdist.model import OffsetRange as OffsetRange
    from kdist.model import TopicPartition as TopicPartition

# The same names at run time. A test checks that this table and the imports above agree.
_HOMES = {
    "kdist.client.admin.client_settings": "AdminKeywords",
    "kdist.client.admin.outcomes": "SomeFailed",
    "kdist.client.admin.quotas": "QuotaOwner",
    "kdist.client.admin.resets": "ShiftBy ToEarliest ToLatest ToOffset ToTime",
    "kdist.client.admin.clients": "Admin",
    "kdist.client.admin.topics": "NewTopic",
    "kdist.client.cluster": "NoBroker",
    "kdist.client.coding": "CodingContext",
    "kdist.client.consumer.batch": "Batch ConsumedRecord NotDecoded",
    "kdist.client.consumer.commits": "CommitFailed",
    "kdist.client.consumer.consumer": "Consumer",
    "kdist.client.consumer.context": "ConsumerClosed WakenUp",
    "kdist.client.consumer.fetcher": "LogTruncated OffsetOutOfRange",
    "kdist.client.consumer.interceptors": "ConsumerInterceptor",
    "kdist.client.consumer.positions": "NoOffset",
    "kdist.client.consumer.rebalancing": "RebalanceListener",
    "kdist.client.consumer.settings": "ConsumerKeywords",
    "kdist.client.offsets": "OffsetAndMetadata OffsetAndTimestamp",
    "kdist.client.producer.faults": "BufferFull DeliveryTimedOut ProducerClosed RecordTooLarge",
    "kdist.client.producer.interceptors": "ProducerInterceptor ProducerRecord",
    "kdist.client.producer.results": "RecordMetadata Sent SentMany",
    "kdist.client.producer.settings": "ProducerKeywords",
    "kdist.client.producer.sync": "Producer",
    "kdist.errors": "ApiError Error KdistError UserError WrongType",
    "kdist.model": "OffsetRange TopicPartition",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

# The first design's names, which were here.
_IN_CLASSIC = """
    Blacklist CallbackHandler ConsumerConnector ConsumerRebalanceListener ConsumerTimeout
    FetchRequest Message MessageSet OutOfRange SimpleConsumer Stream Whitelist
"""

__all__ = sorted(_HOME_OF)
__version__: str


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if name in _IN_CLASSIC.split():
        # Of an AttributeError `from kdist import` would not show the sentence.
        raise ImportError(f"{name} is a name of the first design: import it from kdist.classic")
    if name == "__version__":
        from importlib.metadata import version  # here, as it takes 20 ms

        return version("kdist")
    if home is None:
        from kdist.client.foreign import CLASSES, hint

        sentence = f"module {__name__!r} has no attribute {name!r}{hint(CLASSES, name)}"
        raise (ImportError if name in CLASSES else AttributeError)(sentence)
    # Kept in the module, so that this function is called once for each name.
    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
