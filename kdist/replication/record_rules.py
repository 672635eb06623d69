"""The rules for a topic's records, from its settings (pure)."""

from __future__ import annotations

from kdist.config.topic import TopicSettings
from kdist.records.batch import TimestampType
from kdist.records.compression import Codec
from kdist.records.validate import Rules

# The most that records may take when decompressed, where that is necessary (an old format, a
# compacted topic). It bounds the cost of a request with highly compressed zeros: the conversion
# holds some three times as much.
_BODY_BYTES_MAX = 64 << 20
_BODY_RATIO_MAX = 16

_TOPIC_CODECS = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
_TIMESTAMP_TYPES = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
}


def rules_of(settings: TopicSettings) -> Rules:
    """The rules for a topic's records, from its settings (pure)."""
    return Rules(
        message_bytes_max=settings.max_message_bytes,
        codec=_TOPIC_CODECS[settings.compression_type],
        is_compacted="compact" in settings.cleanup_policy,
        validates_compressed=settings.message_compressed_validation_enable,
        timestamp_type=_TIMESTAMP_TYPES[settings.message_timestamp_type],
        timestamp_before_max_ms=settings.message_timestamp_before_max_ms,
        timestamp_after_max_ms=settings.message_timestamp_after_max_ms,
        body_bytes_max=max(_BODY_BYTES_MAX, _BODY_RATIO_MAX * settings.max_message_bytes),
    )
