"""Spans of records sent, received and processed, by OpenTelemetry's API (extra `opentelemetry`).

    producer = Producer(..., interceptors=[TracingProducerInterceptor()])
    consumer = Consumer(..., interceptors=[TracingConsumerInterceptor()])
    for record in consumer:
        with process_span(record):
            ...

Names, kinds and attributes are those of the semantic conventions for messaging and Kafka. A span's
context travels in the record's headers, as the process's propagator writes it: by default
`traceparent`. Keys and values stay out of spans: who may read those may not read the topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, Setter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.util.types import AttributeValue

from kdist.client.consumer.batch import ConsumedRecord
from kdist.client.consumer.interceptors import ConsumerInterceptor
from kdist.client.producer.interceptors import ProducerInterceptor, ProducerRecord
from kdist.client.producer.results import RecordMetadata
from kdist.errors import ApiError
from kdist.model import NO_OFFSET
from kdist.records.record import Headers

NAME = "kdist"
Attributes = dict[str, AttributeValue]
_Fields = list[tuple[str, Any]]


class _Headers(Getter[Headers], Setter[_Fields]):
    """A record's headers, as a propagator reads and writes them."""

    def get(self, carrier: Headers, key: str) -> list[str] | None:
        values = [bytes(value) for name, value in carrier if name == key and value is not None]
        return [value.decode(errors="replace") for value in values] or None

    def keys(self, carrier: Headers) -> list[str]:
        return [name for name, _ in carrier]

    def set(self, carrier: _Fields, key: str, value: str) -> None:
        carrier[:] = [pair for pair in carrier if pair[0] != key]  # of a record that is passed on
        carrier.append((key, value.encode()))


_HEADERS = _Headers()


class TracingProducerInterceptor(ProducerInterceptor):
    """A span for each record, from `send` to its acknowledgement: `send clicks`, kind PRODUCER.

    It finds the span again by the headers, so interceptors behind it may not take those away.
    """

    def __init__(
        self, client_id: str | None = None, tracer_provider: TracerProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer(NAME, tracer_provider=tracer_provider)
        self._client_id = client_id
        self._open: dict[int, Span] = {}  # by span id

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        attributes = _attributes("send", "send", record.topic, self._client_id)
        if record.partition is not None:
            attributes["messaging.destination.partition.id"] = str(record.partition)
        if record.value is None:
            attributes["messaging.kafka.message.tombstone"] = True
        span = self._tracer.start_span(
            f"send {record.topic}", kind=SpanKind.PRODUCER, attributes=attributes
        )
        headers: _Fields = list(record.headers)
        propagate.inject(headers, trace.set_span_in_context(span), _HEADERS)
        if headers == list(record.headers):  # the propagator writes none: nobody would find it
            span.end()
        elif span.is_recording():
            self._open[span.get_span_context().span_id] = span
        return record._replace(headers=tuple(headers))

    def on_acknowledgement(
        self, metadata: RecordMetadata, error: BaseException | None, headers: Headers
    ) -> None:
        sent = trace.get_current_span(propagate.extract(headers, Context(), _HEADERS))
        span = self._open.pop(sent.get_span_context().span_id, None)
        if span is None:  # not sampled
            return
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, str(error)))
            kind = error.error.name if isinstance(error, ApiError) else type(error).__qualname__
            span.set_attribute("error.type", kind)
        else:
            span.set_attributes(_place(metadata.partition, metadata.offset))
        span.end()

    def close(self) -> None:
        """End what is left: spans whose headers were lost on their way."""
        while self._open:
            self._open.popitem()[1].end()


class TracingConsumerInterceptor(ConsumerInterceptor):
    """A span for each topic in what a poll returns: `poll clicks`, kind CLIENT.

    It has links to the spans of those who sent the records.
    """

    def __init__(
        self,
        group_id: str | None = None,
        client_id: str | None = None,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        self._tracer = trace.get_tracer(NAME, tracer_provider=tracer_provider)
        self._group_id = group_id
        self._client_id = client_id

    def on_consume(self, records: list[ConsumedRecord]) -> list[ConsumedRecord]:
        by_topic: dict[str, list[ConsumedRecord]] = {}
        for record in records:
            by_topic.setdefault(record.topic, []).append(record)
        for topic, found in by_topic.items():
            attributes = _attributes("poll", "receive", topic, self._client_id, self._group_id)
            attributes["messaging.batch.message_count"] = len(found)
            links = [link for record in found for link in _links(_sent_in(record))]
            self._tracer.start_span(
                f"poll {topic}", kind=SpanKind.CLIENT, attributes=attributes, links=links
            ).end()
        return records


@contextmanager
def process_span(
    record: ConsumedRecord,
    group_id: str | None = None,
    tracer_provider: TracerProvider | None = None,
) -> Iterator[Span]:
    """A span around what is done with a record: `process clicks`, kind CONSUMER.

    It belongs to the trace of who sent the record, and is the current span meanwhile. An exception
    that leaves the block is recorded. It needs no interceptor.
    """
    sent = _sent_in(record)
    attributes = _attributes("process", "process", record.topic, None, group_id)
    attributes |= _place(record.partition, record.offset)
    if record.value is None:
        attributes["messaging.kafka.message.tombstone"] = True
    tracer = trace.get_tracer(NAME, tracer_provider=tracer_provider)
    token = context.attach(sent)  # with the baggage of who sent it
    try:
        with tracer.start_as_current_span(
            f"process {record.topic}",
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=_links(sent),
        ) as span:
            yield span
    finally:
        context.detach(token)


def _sent_in(record: ConsumedRecord) -> Context:
    """The context in which a record was sent; the present one if its headers have none."""
    return propagate.extract(record.headers, context.get_current(), _HEADERS)


def _links(sent: Context) -> list[Link]:
    found = trace.get_current_span(sent).get_span_context()
    return [Link(found)] if found.is_valid and found.is_remote else []


def _attributes(
    name: str, kind: str, topic: str, client_id: str | None, group_id: str | None = None
) -> Attributes:
    """Those of every span."""
    found: Mapping[str, str | None] = {
        "messaging.system": "kafka",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
        "messaging.client.id": client_id,
        "messaging.consumer.group.name": group_id,
    }
    return {key: value for key, value in found.items() if value is not None}


def _place(partition: int, offset: int) -> Attributes:
    found: Attributes = {"messaging.destination.partition.id": str(partition)}
    if offset != NO_OFFSET:
        found["messaging.kafka.offset"] = offset
    return found
