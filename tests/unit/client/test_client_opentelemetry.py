"""Spans of records sent and consumed, as OpenTelemetry's own exporter in memory sees them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kdist.client.consumer.batch import ConsumedRecord
from kdist.client.consumer.consumer import Consumer
from kdist.client.consumer.opening import Opening, open_fetched
from kdist.client.producer.faults import BufferFull
from kdist.client.producer.interceptors import ProducerInterceptor, ProducerRecord
from kdist.client.producer.sync import Producer
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.opentelemetry import (
    TracingConsumerInterceptor,
    TracingProducerInterceptor,
    process_span,
)
from kdist.records.build import build_batch
from tests.refusals import refused
from tests.unit.cli.cli_cluster import CliCluster, cli_cluster
from tests.unit.client.producer_world import Fault, Scene, play

T0 = TopicPartition("t", 0)


class Spans:
    """What was exported, and the provider that exports there."""

    def __init__(self, **settings: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, **settings)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [each for each in self._exporter.get_finished_spans() if each.name == name]


@pytest.fixture
def spans() -> Spans:
    return Spans()


def ids(span: ReadableSpan | None) -> tuple[int, int]:
    assert span is not None
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with cli_cluster(tmp_path_factory.mktemp("cluster")) as brokers:
        yield brokers


def test_a_record_that_is_sent_and_consumed_is_one_trace(running: CliCluster, spans: Spans) -> None:
    provider = spans.provider
    sending = TracingProducerInterceptor("orders", provider)
    receiving = TracingConsumerInterceptor("g", "reports", provider)
    tracer = provider.get_tracer("the application")
    with (
        Producer(running.address, interceptors=[sending]) as producer,
        tracer.start_as_current_span("checkout") as checkout,
    ):
        producer.send("traced", b"x", key=b"k", headers=[("source", b"web")]).result(20)
    with Consumer(running.address, interceptors=[receiving]) as consumer:
        consumer.assign(consumer.partitions_for("traced"))
        consumer.seek_to_beginning()
        (record,) = consumer.poll(20)
        with process_span(record, "g", provider), tracer.start_as_current_span("charge"):
            pass
    (sent,), (polled,), (processed,) = map(
        spans.named, ("send traced", "poll traced", "process traced")
    )
    assert sent.parent == checkout.get_span_context()
    assert {ids(each)[0] for each in (sent, processed, *spans.named("charge"))} == {
        checkout.get_span_context().trace_id
    }
    (charge,) = spans.named("charge")
    assert processed.parent is not None
    assert processed.parent.span_id == ids(sent)[1]
    assert charge.parent is not None
    assert charge.parent.span_id == ids(processed)[1]
    for each in (polled, processed):
        (link,) = each.links
        assert (link.context.trace_id, link.context.span_id) == ids(sent)
    assert [each.kind for each in (sent, polled, processed)] == [
        SpanKind.PRODUCER,
        SpanKind.CLIENT,
        SpanKind.CONSUMER,
    ]
    shared = {"messaging.system": "kafka", "messaging.destination.name": "traced"}
    place = {
        "messaging.destination.partition.id": str(record.partition),
        "messaging.kafka.offset": record.offset,
    }
    assert sent.attributes == shared | place | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.client.id": "orders",
    }
    assert polled.attributes == shared | {
        "messaging.operation.name": "poll",
        "messaging.operation.type": "receive",
        "messaging.client.id": "reports",
        "messaging.consumer.group.name": "g",
        "messaging.batch.message_count": 1,
    }
    assert processed.attributes == shared | place | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "g",
    }
    assert [name for name, _ in record.headers] == ["source", "traceparent"]


@pytest.mark.played(by=play)
async def test_a_records_span_lasts_until_its_acknowledgement(
    scene: Scene, /, spans: Spans
) -> None:
    scene.brokers.fault = lambda *_: Fault(delay_s=1)
    tracing = TracingProducerInterceptor(tracer_provider=spans.provider)
    async with scene.producer(interceptors=[tracing]) as producer:
        sent = [await producer.send("t", b"%d" % number) for number in range(3)]
        assert spans.named("send t") == []
        for each in sent:
            await each
    offsets = [(each.attributes or {})["messaging.kafka.offset"] for each in spans.named("send t")]
    assert offsets == [0, 1, 2]
    assert tracing._open == {}


@pytest.mark.played(by=play)
async def test_the_span_of_a_record_that_fails_says_why(scene: Scene, /, spans: Spans) -> None:
    tracing = TracingProducerInterceptor(tracer_provider=spans.provider)
    scene.brokers.fault = lambda *_: Fault(is_written=False, error=Error.TOPIC_AUTHORIZATION_FAILED)
    async with scene.producer(
        interceptors=[tracing], buffer_memory=20_000, max_block_ms=10
    ) as producer:
        with refused(Error.TOPIC_AUTHORIZATION_FAILED):
            await producer.send_and_wait("t", b"x")
        scene.brokers.fault = lambda *_: Fault(delay_s=1)
        await producer.send("t", b"x" * 15_000)
        with pytest.raises(BufferFull):
            await producer.send("t", b"x" * 15_000)
    failed = [each for each in spans.named("send t") if each.status.status_code is StatusCode.ERROR]
    assert [(each.attributes or {})["error.type"] for each in failed] == [
        "TOPIC_AUTHORIZATION_FAILED",
        "BufferFull",
    ]
    assert tracing._open == {}


@pytest.mark.played(by=play)
async def test_of_records_that_are_not_sampled_only_the_context_is_sent(scene: Scene, /) -> None:
    spans = Spans(sampler=ALWAYS_OFF)
    tracing = TracingProducerInterceptor(tracer_provider=spans.provider)
    async with scene.producer(interceptors=[tracing]) as producer:
        await producer.send_and_wait("t", b"x")
    (record,) = scene.brokers.kept[T0].records
    (pair,) = record.headers
    assert pair[0] == "traceparent"
    assert pair[1] is not None
    assert not int(pair[1].rpartition(b"-")[2], 16) & TraceFlags.SAMPLED
    assert spans.named("send t") == []
    assert tracing._open == {}


@pytest.mark.played(by=play)
async def test_a_span_that_no_header_names_does_not_stay_open(
    scene: Scene, /, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(propagate, "propagator", CompositePropagator([]))
    tracing = TracingProducerInterceptor(tracer_provider=spans.provider)
    async with scene.producer(interceptors=[tracing]) as producer:
        await producer.send_and_wait("t", None)
        assert tracing._open == {}
    (span,) = spans.named("send t")
    assert (span.attributes or {})["messaging.kafka.message.tombstone"] is True


@pytest.mark.played(by=play)
async def test_a_record_that_is_passed_on_has_one_context_its_last_senders(
    scene: Scene, /, spans: Spans
) -> None:
    tracing = TracingProducerInterceptor(tracer_provider=spans.provider)
    old = f"00-{1:032x}-{1:016x}-01".encode()
    async with scene.producer(interceptors=[tracing]) as producer:
        await producer.send_and_wait("t", b"x", headers=[("traceparent", old), ("a", None)])
    (record,) = scene.brokers.kept[T0].records
    (span,) = spans.named("send t")
    (kept, (name, value)) = record.headers
    assert (kept, name) == (("a", None), "traceparent")
    assert value is not None
    assert value.startswith(b"00-%032x-%016x-" % ids(span))


@pytest.mark.played(by=play)
async def test_spans_whose_headers_were_taken_away_end_with_the_producer(
    scene: Scene, /, spans: Spans
) -> None:
    class Bare(ProducerInterceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return record._replace(headers=())

    tracing = TracingProducerInterceptor(tracer_provider=spans.provider)
    async with scene.producer(interceptors=[tracing, Bare()]) as producer:
        await producer.send_and_wait("t", b"x")
        assert len(tracing._open) == 1
    assert len(spans.named("send t")) == 1


def record_with(*headers: tuple[str, bytes | None], topic: str = "t") -> ConsumedRecord:
    """A record as a consumer returns it."""
    data = build_batch([None], headers=[headers], timestamp_ms=0, base_offset=7)
    (ready,) = open_fetched(data, Opening(TopicPartition(topic, 0), 0))
    assert ready.batch is not None
    (record,) = ready.batch
    return record


SENT = f"00-{1:032x}-{2:016x}-01".encode()


@pytest.mark.parametrize(
    "headers", [(), (("traceparent", None),), (("traceparent", b"\xff\xfe"),), (("x", SENT),)]
)
def test_a_record_without_a_context_is_processed_in_the_present_one(
    spans: Spans, headers: tuple[tuple[str, bytes | None], ...]
) -> None:
    tracer = spans.provider.get_tracer("the application")
    with tracer.start_as_current_span("loop") as loop:
        with process_span(record_with(*headers), tracer_provider=spans.provider):
            pass
        assert trace.get_current_span() is loop
    (span,) = spans.named("process t")
    assert span.parent == loop.get_span_context()
    assert not span.links
    assert (span.attributes or {})["messaging.kafka.message.tombstone"] is True


def test_what_leaves_the_block_is_recorded_and_the_context_restored(spans: Spans) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        process_span(record_with(("traceparent", SENT)), tracer_provider=spans.provider),
    ):
        _ = 1 // 0
    (span,) = spans.named("process t")
    assert span.status.status_code is StatusCode.ERROR
    assert span.events[0].name == "exception"
    assert context.get_current() == {}


def test_the_senders_baggage_is_there_while_a_record_is_processed(
    spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()])
    monkeypatch.setattr(propagate, "propagator", both)
    record = record_with(("traceparent", SENT), ("baggage", b"user=7"))
    with process_span(record, tracer_provider=spans.provider):
        assert baggage.get_baggage("user") == "7"
    assert baggage.get_baggage("user") is None


def test_a_poll_has_a_span_for_each_topic_with_links_to_all_senders(spans: Spans) -> None:
    tracing = TracingConsumerInterceptor(tracer_provider=spans.provider)
    other = f"00-{3:032x}-{4:016x}-01".encode()
    records = [
        record_with(("traceparent", SENT)),
        record_with(topic="u"),
        record_with(("traceparent", other)),
    ]
    assert tracing.on_consume(records) == records
    (of_t,), (of_u,) = spans.named("poll t"), spans.named("poll u")
    assert [each.context.span_id for each in of_t.links] == [2, 4]
    assert not of_u.links
    assert (of_t.attributes or {})["messaging.batch.message_count"] == 2


@pytest.mark.played(by=play)
async def test_without_an_sdk_nothing_is_changed(scene: Scene, /) -> None:
    async with scene.producer(interceptors=[TracingProducerInterceptor()]) as producer:
        await producer.send_and_wait("t", b"x")
    (record,) = scene.brokers.kept[T0].records
    assert (record.value, record.headers) == (b"x", ())
    with process_span(record_with()) as span:
        assert not span.is_recording()
