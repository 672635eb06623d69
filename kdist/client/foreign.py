"""What other clients' names are here: those of kafka-python, confluent-kafka and aiokafka (pure).

Who comes from there gets a sentence with our name, or why there is none, in the place of Python's
own. It costs nothing where a name is ours. docs/guides/from-*.md have each name with its library
and more words; a test compares them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


def _read(text: str) -> dict[str, str]:
    """By their name what is here: a name of ours, or a few words on why there is none."""
    rows = [line.partition(" = ") for line in text.strip().splitlines()]
    return {name: here.strip() for names, _, here in rows for name in names.split()}


_NONE = "kdist has nothing like it"

SETTINGS = _read("""
    key_serializer = key_encoder
    value_serializer = value_encoder
    key_deserializer = key_decoder
    value_deserializer = value_decoder
    max_batch_size batch_num_messages = batch_size
    metadata_broker_list = bootstrap_servers
    request_required_acks = acks
    compression_codec = compression_type
    queue_buffering_max_ms = linger_ms
    queue_buffering_max_kbytes queue_buffering_max_messages = buffer_memory
    message_max_bytes = max_request_size
    message_timeout_ms = delivery_timeout_ms
    message_send_max_retries = retries
    max_in_flight = max_in_flight_requests_per_connection
    socket_timeout_ms = request_timeout_ms
    topic_metadata_refresh_interval_ms = metadata_max_age_ms
    fetch_wait_max_ms = fetch_max_wait_ms
    fetch_message_max_bytes = max_partition_fetch_bytes
    fetch_error_backoff_ms = retry_backoff_ms
    rebalance_timeout_ms = max_poll_interval_ms
    topics = Consumer.subscribe
    consumer_timeout_ms = Consumer.poll
    default_offset_commit_callback = Consumer.commit_async
    enable_partition_eof = Consumer.end_offsets
    enable_auto_offset_store = what was given is committed
    exclude_internal_topics = a pattern never matches internal topics
    enable_incremental_fetch_sessions = they are always used
    allow_auto_create_topics = the brokers decide, and a consumer creates no topics
    queued_min_messages queued_max_messages_kbytes = twice fetch_max_bytes is held ready
    group_protocol group_remote_assignor = there is the classic protocol only
    stats_cb = on_statistics
    error_cb throttle_cb log_level debug = \
        Python's logging has what clients say, under kdist
    compression_level sticky_partitioning_linger_ms enable_gapless_guarantee = none
    transactional_id transaction_timeout_ms = there are no transactions
    sasl_mechanisms = sasl_mechanism
    sasl_plain_username = sasl_username
    sasl_plain_password = sasl_password
    sasl_oauth_token_provider sasl_oauthbearer_config oauth_cb = sasl_oauthbearer_token_endpoint_url
    sasl_kerberos_name sasl_kerberos_service_name sasl_kerberos_domain_name = \
        there is no Kerberos
    ssl_cafile ssl_ca_location = ssl_truststore_location
    ssl_certfile ssl_keyfile ssl_certificate_location ssl_key_location = ssl_keystore_location
    ssl_password = ssl_key_password
    ssl_check_hostname = ssl_endpoint_identification_algorithm
    ssl_context ssl_crlfile ssl_ciphers = none
    api_version bootstrap_timeout_ms client_dns_lookup connections_max_idle_ms kafka_client loop \
        metric_group_prefix metric_reporters metrics_enabled metrics_num_samples \
        metrics_sample_window_ms proxy_url socks5_proxy selector socket_options \
        receive_buffer_bytes receive_message_max_bytes send_buffer_bytes reconnect_backoff_ms \
        reconnect_backoff_max_ms retry_backoff_ms metadata_max_age_ms \
        max_in_flight_requests_per_connection = leave it out
""")

_OF_TRANSACTIONS = """
    init_transactions transaction begin_transaction commit_transaction abort_transaction \
        send_offsets_to_transaction = there are no transactions
"""

METHODS = {
    "Producer": _read(f"""
        produce = Producer.send
        produce_batch create_batch send_batch = Producer.send_many
        stop = Producer.close
        poll = there is nothing to call: callbacks come by themselves
        partitions_for = Consumer.partitions_for
        list_topics = Admin.list_topics
        cluster_id = Admin.describe_cluster
        set_sasl_credentials = there is nothing to renew: a client is opened with its password
        bootstrap_connected purge max_usable_produce_magic DEFAULT_CONFIG \
            DEPRECATED_CONFIGS = none
        {_OF_TRANSACTIONS.strip()}
    """),
    "Consumer": _read("""
        getone getmany consume = Consumer.poll
        unassign = Consumer.unsubscribe
        stop = Consumer.close
        highwater = Consumer.high_watermark
        partitions_for_topic = Consumer.partitions_for
        get_watermark_offsets = Consumer.end_offsets
        seek_to_committed = Consumer.committed
        store_offsets = Consumer.commit
        incremental_assign incremental_unassign = Consumer.assign
        topics list_topics = Admin.list_topics
        cluster_id = Admin.describe_cluster
        set_sasl_credentials = there is nothing to renew: a client is opened with its password
        bootstrap bootstrap_connected group_metadata DEFAULT_CONFIG \
            DEFAULT_SESSION_TIMEOUT_MS_PRE_KIP_735 memberid consumer_group_metadata \
            last_stable_offset last_poll_timestamp = none
    """),
    "Admin": _read("""
        list_consumer_groups = Admin.list_groups
        describe_consumer_groups = Admin.describe_groups
        delete_consumer_groups = Admin.delete_groups
        list_consumer_group_offsets = Admin.list_group_offsets
        alter_consumer_group_offsets = Admin.alter_group_offsets
        perform_leader_election = Admin.elect_leaders
        describe_configs = Admin.describe_topic_configs
        alter_configs reset_configs incremental_alter_configs = \
            Admin.incremental_alter_topic_configs
        list_partition_offsets = Admin.list_offsets
        describe_topic_partitions = Admin.describe_topics
        api_versions get_broker_version_data = Admin.describe_versions
        find_coordinator = Admin.describe_groups
        cluster_id = Admin.describe_cluster
        poll = there is nothing to call: calls return results
        alter_user_scram_credentials = Admin.upsert_user_scram_credentials
        set_sasl_credentials = there is nothing to renew: a client is opened with its password
        abort_transaction describe_producers describe_transactions find_hanging_transactions \
            list_transactions = there are no transactions
        wait_for_topics remove_group_members list_config_resources alter_replica_log_dirs \
            describe_metadata_quorum describe_features update_features DEFAULT_CONFIG = none
    """),
}

ARGUMENTS = _read("""
    timeout_ms timeout = timeout_s
    timestamp_ms = timestamp
    num_messages = max_records
    callback = on_committed
    asynchronous = Consumer.commit_async
    on_assign on_revoke on_lost = RebalanceListener
    pattern = topics
""")

CLASSES = _read("""
    KafkaProducer AIOKafkaProducer SerializingProducer = Producer
    KafkaConsumer AIOKafkaConsumer DeserializingConsumer = Consumer
    KafkaAdminClient AIOKafkaAdminClient AdminClient = Admin
    KafkaError KafkaException = KdistError
    KafkaConnectionError NoBrokersAvailable = NoBroker
    KafkaTimeoutError = DeliveryTimedOut
    MessageSizeTooLargeError = RecordTooLarge
    CommitFailedError = CommitFailed
    OffsetOutOfRangeError = OffsetOutOfRange
    NoOffsetForPartitionError = NoOffset
    ConsumerStoppedError = ConsumerClosed
    KafkaConfigurationError IllegalStateError IllegalArgumentError IllegalOperation = UserError
    TopicAlreadyExistsError UnknownTopicOrPartitionError = ApiError
""")


def hint(names: dict[str, str], name: str) -> str:
    """`: kdist has value_encoder for it`; an empty string if no other client has the name."""
    here = names.get(name.replace(".", "_") if name.islower() else name)
    if here is None:
        return ""
    is_ours = re.fullmatch(r"[\w.]+", here) and here != "none"
    return f": kdist has {here} for it" if is_ours else f": {_NONE if here == 'none' else here}"


class OtherNames:
    """The base of clients: what another library's client has in the place of a missing method."""

    if not TYPE_CHECKING:  # which would let any name pass

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__.removeprefix("Async")
            why = f"{kind!r} object has no attribute {name!r}{hint(METHODS.get(kind, {}), name)}"
            raise AttributeError(why, name=name, obj=self)


def understanding(function: Callable[P, T]) -> Callable[P, T]:
    """The function; a `TypeError` of its call says which of our arguments is meant."""

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> T:
        try:
            return function(*args, **named)
        except TypeError as error:
            _explain(error, function, args, named)
            raise

    @wraps(function)
    async def call_async(*args: P.args, **named: P.kwargs) -> Any:
        try:
            return await made(*args, **named)
        except TypeError as error:
            _explain(error, function, args, named)
            raise

    made: Any = function
    return cast(Callable[P, T], call_async) if inspect.iscoroutinefunction(function) else call


def _explain(
    error: TypeError, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    """Raise the error again with our names, if it is one of a call with another client's."""
    if type(error) is not TypeError:
        return
    if "bootstrap_servers" in named and len(args) > 1:
        why = "brokers come first, and topics are given to Consumer.subscribe"
        raise TypeError(f"{error}: {why}") from None
    ours = inspect.signature(function).parameters
    for name in named:
        here = ARGUMENTS.get(name, "")
        if name not in ours and (here in ours or not here.islower()):
            raise TypeError(f"{error}{hint(ARGUMENTS, name)}") from None
