"""Programs as applications write them, with every setting of every client: mypy checks them.

`test_client_exports.py` has mypy read this page, and checks that no setting is missing on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from kdist import (
    Admin,
    AdminKeywords,
    Batch,
    CodingContext,
    ConsumedRecord,
    Consumer,
    ConsumerInterceptor,
    ConsumerKeywords,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    ProducerInterceptor,
    ProducerKeywords,
    ProducerRecord,
    RebalanceListener,
    RecordMetadata,
    Sent,
    TopicPartition,
    aio,
)
from kdist.classic import CallbackHandler


def show(*values: object) -> None:
    """Stands for what a program does with its data."""


def encode(value: object, context: CodingContext) -> bytes:
    """An encoder that needs to know where the value belongs."""
    return f"{context.topic} {context.role} {len(context.headers)} {value}".encode()


def decode(data: bytes, context: CodingContext) -> tuple[str, bytes]:
    return context.topic, data


class Stamping(ProducerInterceptor):
    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record._replace(headers=(*record.headers, ("source", b"web-7")))


class Counting(ConsumerInterceptor):
    def on_consume(self, records: list[ConsumedRecord]) -> list[ConsumedRecord]:
        show(len(records))
        return records


def write() -> int:
    with Producer(
        "b1:9092,b2:9092",
        client_id="orders",
        metadata_max_age_ms=60_000,
        reconnect_backoff_ms=50,
        reconnect_backoff_max_ms=1_000,
        batch_size=100_000,
        linger_ms=0.5,
        buffer_memory=64 << 20,
        max_block_ms=5_000,
        max_request_size=1 << 20,
        compression_type="lz4",
        acks="all",
        enable_idempotence=True,
        max_in_flight_requests_per_connection=5,
        retries=10,
        retry_backoff_ms=100,
        retry_backoff_max_ms=1_000,
        request_timeout_ms=30_000,
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_username="reports",
        sasl_password="secret",
        sasl_jaas_config=None,
        sasl_oauthbearer_token_endpoint_url=None,
        ssl_truststore_location="/etc/kdist/ca.pem",
        ssl_truststore_certificates=None,
        ssl_truststore_type="PEM",
        ssl_keystore_location=None,
        ssl_keystore_key=None,
        ssl_keystore_certificate_chain=None,
        ssl_keystore_type="PEM",
        ssl_key_password=None,
        ssl_endpoint_identification_algorithm="https",
        ssl_enabled_protocols=("TLSv1.3",),
        delivery_timeout_ms=120_000,
        metadata_max_idle_ms=300_000,
        partitioner=lambda key, count: 0 if key is None else key[0] % count,
        key_encoder=str.encode,
        value_encoder=encode,
        callback_handler=CallbackHandler(),
        interceptors=[Stamping()],
        on_statistics=show,
        statistics_interval_ms=60_000,
    ) as producer:
        sent: Sent = producer.send("clicks", {"page": "/"}, key="de", headers=[("source", b"web")])
        producer.flush(timeout_s=10)
        producer.send_many("clicks", [1, 2, 3])
        record: RecordMetadata = sent.result(timeout=10)
        return record.offset


def write_otherwise() -> None:
    settings: ProducerKeywords = {"acks": 1, "partitioner": "round_robin", "key_encoder": None}
    Producer("b1:9092", **settings).close(timeout_s=1)
    Producer(broker_list=["b1:9092"])
    Producer(zk_connect="zk1:2181/kdist", value_encoder=lambda value: json.dumps(value).encode())


class Tidy(RebalanceListener):
    def on_revoked(self, partitions: Iterable[TopicPartition]) -> None:
        show(sorted(partitions))


def read() -> int | None:
    with Consumer(
        ["b1:9092", "b2:9092"],
        group_id="reports",
        group_instance_id="reports-1",
        partition_assignment_strategy=["cooperative-sticky", "range"],
        session_timeout_ms=45_000,
        heartbeat_interval_ms=3_000,
        max_poll_interval_ms=300_000,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        auto_commit_interval_ms=5_000,
        isolation_level="read_committed",
        max_poll_records=500,
        fetch_min_bytes=1,
        fetch_max_wait_ms=500,
        fetch_max_bytes=50 << 20,
        max_partition_fetch_bytes=1 << 20,
        check_crcs=True,
        client_rack="r1",
        client_id="reports",
        metadata_max_age_ms=300_000,
        request_timeout_ms=30_000,
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_username="reports",
        sasl_password="secret",
        sasl_jaas_config=None,
        sasl_oauthbearer_token_endpoint_url=None,
        ssl_truststore_location="/etc/kdist/ca.pem",
        ssl_truststore_certificates=None,
        ssl_truststore_type="PEM",
        ssl_keystore_location=None,
        ssl_keystore_key=None,
        ssl_keystore_certificate_chain=None,
        ssl_keystore_type="PEM",
        ssl_key_password=None,
        ssl_endpoint_identification_algorithm="https",
        ssl_enabled_protocols=("TLSv1.3",),
        default_api_timeout_ms=60_000,
        retry_backoff_ms=100,
        retry_backoff_max_ms=1_000,
        key_decoder=bytes.decode,
        value_decoder=decode,
        interceptors=(Counting(),),
        on_statistics=lambda metrics: show(metrics["kdist_consumer_rebalances_total"]),
        statistics_interval_ms=60_000,
    ) as consumer:
        consumer.subscribe(re.compile("clicks.*"), Tidy())
        records: list[ConsumedRecord] = consumer.poll(timeout_s=1.0, max_records=10)
        batches: list[Batch] = consumer.poll_batches(1.0)
        first = TopicPartition("clicks", 0)
        consumer.pause(first)
        consumer.resume(first)
        consumer.commit({first: OffsetAndMetadata(len(records) + len(batches), "a note")})
        consumer.commit_async({first: 2}, lambda offsets, error: show(offsets, error))
        consumer.seek(first, offset=0)
        consumer.seek_to_beginning()
        consumer.seek_to_time(1_700_000_000_000, first)
        position: int = consumer.position(first, timeout_s=5)
        lag: int | None = consumer.lag(first)
        watermark: int | None = consumer.high_watermark(first)
        show(position, watermark, consumer.partitions_for("clicks"), consumer.end_offsets([first]))
        text: str = consumer.metrics_text()
        waiting: float = consumer.metrics()["kdist_consumer_assigned_partitions"]
        show(text, waiting)
        consumer.close(timeout_s=5)
        return lag


async def read_and_write() -> None:
    settings: ConsumerKeywords = {"group_id": None, "partition_assignment_strategy": "sticky"}
    async with (
        aio.Consumer("b1:9092", **settings) as consumer,
        aio.Consumer(zk_connect="zk1:2181") as other,
        aio.Producer("b1:9092", acks="1") as producer,
    ):
        other.assign(await consumer.partitions_for("clicks"))
        async for record in consumer:
            sent: Sent = await producer.send("views", record.value)
            done: RecordMetadata = await sent
            position: int = await consumer.position(TopicPartition("clicks", done.partition))
            show(position, consumer.lag(TopicPartition("clicks", 0)))
        await producer.flush(timeout_s=1)
        await producer.close(timeout_s=1)
        await consumer.close(timeout_s=1)


def administer() -> None:
    settings: AdminKeywords = {
        "client_id": "ops",
        "request_timeout_ms": 30_000,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_username": None,
        "sasl_password": None,
        "sasl_jaas_config": None,
        "sasl_oauthbearer_token_endpoint_url": "file:///run/token",
        "ssl_truststore_location": "/etc/kdist/ca.pem",
        "ssl_truststore_certificates": None,
        "ssl_truststore_type": "PEM",
        "ssl_keystore_location": None,
        "ssl_keystore_key": None,
        "ssl_keystore_certificate_chain": None,
        "ssl_keystore_type": "PEM",
        "ssl_key_password": None,
        "ssl_endpoint_identification_algorithm": "https",
        "ssl_enabled_protocols": ("TLSv1.3",),
    }
    Admin("b1:9092", **settings).close()
    with Admin("b1:9092", default_api_timeout_ms=60_000) as admin:
        admin.create_topics([NewTopic("views", partitions=3)])
        admin.create_partitions({"views": 4})
        admin.incremental_alter_topic_configs("views", {"retention.ms": "1"})
        names: list[str] = [topic.name for topic in admin.list_topics()]
        show(names, Admin(zk_connect="zk1:2181/kdist"))


async def administer_asynchronously() -> None:
    async with aio.Admin("b1:9092", client_id="ops") as admin:
        names: list[str] = [topic.name for topic in await admin.list_topics()]
        show(names)
