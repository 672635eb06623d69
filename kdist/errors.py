"""The error table, and the exceptions that carry its rows.

`Error` is Kafka's table of error codes: one row per code with its name, whether a client may try again,
and a sentence for people. An exception here is one of three kinds (docs/principles.md, "Three kinds of
wrong"): a peer's or user's mistake (`ApiError`, `ProtocolError`, `UserError`), a disk that refuses
(`DiskFull`) or fails (`DiskFailed`). Bugs are assertions and have no class.

Source of codes and retriability: the Apache Kafka protocol guide, "Error codes".
"""

from __future__ import annotations

import enum
from typing import Any, Self


class Error(enum.IntEnum):
    """A row of the table: `Error.NOT_LEADER_OR_FOLLOWER.code`, `.retriable`, `.sentence`."""

    retriable: bool
    sentence: str

    def __new__(cls, code: int, retriable: bool, sentence: str) -> Self:
        row = int.__new__(cls, code)
        row._value_ = code
        row.retriable = retriable
        row.sentence = sentence
        return row

    @classmethod
    def of(cls, code: int) -> Error:
        """The row of a code off the wire; a code this table lacks reads as UNKNOWN_SERVER_ERROR."""
        try:
            return cls(code)  # type: ignore[call-arg]
        except ValueError:
            return cls.UNKNOWN_SERVER_ERROR

    # fmt: off
    UNKNOWN_SERVER_ERROR = -1, False, "The server failed in a way it has no code for."
    NONE = 0, False, "No error."
    OFFSET_OUT_OF_RANGE = 1, False, "The offset is outside the range that the partition holds."
    CORRUPT_MESSAGE = 2, True, "The records fail their checksum, size or format check."
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "This server does not host the topic or partition."
    INVALID_FETCH_SIZE = 4, False, "The fetch size is invalid."
    LEADER_NOT_AVAILABLE = 5, True, "The partition has no leader, as while one is being elected."
    NOT_LEADER_OR_FOLLOWER = 6, True, "This broker is not the leader, or not a replica, of the partition."
    REQUEST_TIMED_OUT = 7, True, "The request timed out."
    BROKER_NOT_AVAILABLE = 8, False, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, True, "The replica is not available."
    MESSAGE_TOO_LARGE = 10, False, "The record batch is larger than the server accepts."
    STALE_CONTROLLER_EPOCH = 11, False, "The request comes from a controller that was replaced."
    OFFSET_METADATA_TOO_LARGE = 12, False, "The metadata of the committed offset is too large."
    NETWORK_EXCEPTION = 13, True, "The server disconnected before an answer came."
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "The coordinator is still loading its state."
    COORDINATOR_NOT_AVAILABLE = 15, True, "The coordinator is not available."
    NOT_COORDINATOR = 16, True, "This broker is not the coordinator."
    INVALID_TOPIC_EXCEPTION = 17, False, "The topic's name is invalid, or the topic does not allow the operation."
    RECORD_LIST_TOO_LARGE = 18, False, "The record batches together are larger than a segment."
    NOT_ENOUGH_REPLICAS = 19, True, "Fewer replicas are in sync than min.insync.replicas asks for."
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True, "The records were written to fewer in-sync replicas than asked for."
    INVALID_REQUIRED_ACKS = 21, False, "The acks of the produce request are not -1, 0 or 1."
    ILLEGAL_GENERATION = 22, False, "The generation id is not the group's current one."
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "The member's protocols do not fit those of the group."
    INVALID_GROUP_ID = 24, False, "The group id is invalid."
    UNKNOWN_MEMBER_ID = 25, False, "The group's coordinator does not know this member."
    INVALID_SESSION_TIMEOUT = 26, False, "The session timeout is outside the range the broker allows."
    REBALANCE_IN_PROGRESS = 27, False, "The group is rebalancing: join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "The committed offset's record is too large."
    TOPIC_AUTHORIZATION_FAILED = 29, False, "Not authorized to use the topic."
    GROUP_AUTHORIZATION_FAILED = 30, False, "Not authorized to use the group."
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "Not authorized for the cluster."
    INVALID_TIMESTAMP = 32, False, "The record's timestamp is outside the accepted range."
    UNSUPPORTED_SASL_MECHANISM = 33, False, "The broker does not support this SASL mechanism."
    ILLEGAL_SASL_STATE = 34, False, "The request is not valid in this SASL state."
    UNSUPPORTED_VERSION = 35, False, "The version of the API is not supported."
    TOPIC_ALREADY_EXISTS = 36, False, "A topic of this name exists already."
    INVALID_PARTITIONS = 37, False, "The number of partitions is invalid."
    INVALID_REPLICATION_FACTOR = 38, False, "The replication factor is below 1 or above the number of brokers."
    INVALID_REPLICA_ASSIGNMENT = 39, False, "The replica assignment is invalid."
    INVALID_CONFIG = 40, False, "The configuration is invalid."
    NOT_CONTROLLER = 41, True, "This broker is not the controller."
    INVALID_REQUEST = 42, False, "The request is not valid."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "The log's message format does not support the operation."
    POLICY_VIOLATION = 44, False, "The request violates a policy."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "The producer's sequence number does not follow its last one."
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "The producer's sequence number was seen before."
    INVALID_PRODUCER_EPOCH = 47, False, "The producer's epoch is older than the current one."
    INVALID_TXN_STATE = 48, False, "The transaction is not in a state that allows the operation."
    INVALID_PRODUCER_ID_MAPPING = 49, False, "The producer id does not belong to this transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, False, "The transaction timeout is larger than the broker allows."
    CONCURRENT_TRANSACTIONS = 51, True, "Another operation on this transaction is under way."
    TRANSACTION_COORDINATOR_FENCED = 52, False, "The transaction coordinator was replaced."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "Not authorized to use the transactional id."
    SECURITY_DISABLED = 54, False, "Security features are off on this broker."
    OPERATION_NOT_ATTEMPTED = 55, False, "Not attempted, as another part of the batch failed."
    KAFKA_STORAGE_ERROR = 56, True, "The disk under the partition is full or failed."
    LOG_DIR_NOT_FOUND = 57, False, "The log directory is not one of the broker's."
    SASL_AUTHENTICATION_FAILED = 58, False, "SASL authentication failed."
    UNKNOWN_PRODUCER_ID = 59, False, "The partition knows nothing of this producer id."
    REASSIGNMENT_IN_PROGRESS = 60, False, "A reassignment of the partition is under way."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "Delegation tokens are off."
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "The delegation token is not known."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, "The delegation token belongs to someone else."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, False, "Delegation tokens cannot be asked for on this connection."
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "Not authorized to use the delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, False, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, False, "The principal type is not supported."
    NON_EMPTY_GROUP = 68, False, "The group has members."
    GROUP_ID_NOT_FOUND = 69, False, "The group does not exist."
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "The fetch session is not known."
    INVALID_FETCH_SESSION_EPOCH = 71, True, "The fetch session's epoch is not the expected one."
    LISTENER_NOT_FOUND = 72, True, "The leader has no listener of the name the request came in on."
    TOPIC_DELETION_DISABLED = 73, False, "Deleting topics is off."
    FENCED_LEADER_EPOCH = 74, True, "The leader epoch of the request is older than the broker's."
    UNKNOWN_LEADER_EPOCH = 75, True, "The leader epoch of the request is newer than the broker's."
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "The client's API version does not support this compression codec."
    STALE_BROKER_EPOCH = 77, False, "The broker epoch is old: the broker has re-registered since."
    OFFSET_NOT_AVAILABLE = 78, True, "The leader's high watermark has not caught up after its election."
    MEMBER_ID_REQUIRED = 79, False, "The member must join again with the member id it was given."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "The preferred leader is not available."
    GROUP_MAX_SIZE_REACHED = 81, False, "The group has as many members as the broker allows."
    FENCED_INSTANCE_ID = 82, False, "Another member has taken this static instance id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "No replica that may become leader is available."
    ELECTION_NOT_NEEDED = 84, True, "The partition needs no leader election."
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "No reassignment is under way."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "The group is subscribed to the topic."
    INVALID_RECORD = 87, False, "A record failed validation on the broker."
    UNSTABLE_OFFSET_COMMIT = 88, True, "Offsets of an open transaction are not decided yet."
    THROTTLING_QUOTA_EXCEEDED = 89, True, "A quota is exceeded: try again later."
    PRODUCER_FENCED = 90, False, "A newer producer has the same transactional id."
    RESOURCE_NOT_FOUND = 91, False, "The resource does not exist."
    DUPLICATE_RESOURCE = 92, False, "The resource exists already."
    UNACCEPTABLE_CREDENTIAL = 93, False, "The credential does not meet the criteria."
    INCONSISTENT_VOTER_SET = 94, False, "The voter set is not the expected one."
    INVALID_UPDATE_VERSION = 95, False, "The update's version is invalid."
    FEATURE_UPDATE_FAILED = 96, False, "The feature could not be updated."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "The forwarded principal could not be read."
    SNAPSHOT_NOT_FOUND = 98, False, "The snapshot does not exist."
    POSITION_OUT_OF_RANGE = 99, False, "The position is outside the snapshot."
    UNKNOWN_TOPIC_ID = 100, True, "This server does not host a topic of this id."
    DUPLICATE_BROKER_REGISTRATION = 101, False, "A broker of this id is registered already."
    BROKER_ID_NOT_REGISTERED = 102, False, "No broker of this id is registered."
    INCONSISTENT_TOPIC_ID = 103, True, "The topic id is not the one in the log."
    INCONSISTENT_CLUSTER_ID = 104, False, "The cluster id is not this cluster's."
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "The transactional id is not known."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "The fetch session mixes topic ids and names."
    INELIGIBLE_REPLICA = 107, False, "A replica named for the ISR may not be in it."
    NEW_LEADER_ELECTED = 108, False, "The change of the ISR elected a new leader."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "The offset has moved to tiered storage."
    FENCED_MEMBER_EPOCH = 110, False, "The member's epoch is fenced: rejoin."
    UNRELEASED_INSTANCE_ID = 111, False, "The static instance id is still in use by another member."
    UNSUPPORTED_ASSIGNOR = 112, False, "The group does not support the assignor."
    STALE_MEMBER_EPOCH = 113, False, "The member's epoch is stale: try again with the new one."
    MISMATCHED_ENDPOINT_TYPE = 114, False, "The request went to the wrong kind of endpoint."
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "The endpoint type is not supported."
    UNKNOWN_CONTROLLER_ID = 116, False, "The controller id is not known."
    UNKNOWN_SUBSCRIPTION_ID = 117, False, "The telemetry subscription is not known."
    TELEMETRY_TOO_LARGE = 118, False, "The telemetry push is too large."
    INVALID_REGISTRATION = 119, False, "The registration is invalid."
    TRANSACTION_ABORTABLE = 120, False, "The transaction met an error and must be aborted."
    INVALID_RECORD_STATE = 121, False, "The record's state does not allow the operation."
    SHARE_SESSION_NOT_FOUND = 122, True, "The share session is not known."
    INVALID_SHARE_SESSION_EPOCH = 123, True, "The share session's epoch is invalid."
    FENCED_STATE_EPOCH = 124, False, "The share coordinator's state epoch does not match."
    INVALID_VOTER_KEY = 125, False, "The voter key is not the expected one."
    DUPLICATE_VOTER = 126, False, "The voter is part of the set already."
    VOTER_NOT_FOUND = 127, False, "The voter is not part of the set."
    INVALID_REGULAR_EXPRESSION = 128, False, "The regular expression is invalid."
    REBOOTSTRAP_REQUIRED = 129, False, "The client's metadata is stale: bootstrap anew."
    # fmt: on

    @property
    def code(self) -> int:
        """The code on the wire."""
        return int(self)


class KdistError(Exception):
    """The base of every exception that kdist raises on purpose. Its text is one sentence that a
    person can act on.

    It can be pickled and copied, to be passed between processes.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls `__init__` with `args`; but subclasses take the parts of the text, and
        # `args` has the text.
        return _rebuild, (type(self), self.args), self.__dict__


def _rebuild(kind: type[KdistError], args: tuple[Any, ...]) -> KdistError:
    return kind.__new__(kind, *args)


class UserError(KdistError):
    """A flag, file or setting a person gave is wrong; the command line prints it and exits non-zero."""


class WrongType(UserError, TypeError):
    """An argument of a call is of the wrong type, and no other will do."""


class CorruptFile(UserError):
    """A checkpoint, snapshot or properties file whose content is not in its format.

    Files that can be rebuilt from the log (checkpoints, epochs, snapshots) are: callers catch this.
    For others, as `meta.properties`, it reaches the user, so it is a `UserError`. It is no
    `DiskFailed`, since the disk did answer, and its other files are still trusted.
    """

    def __init__(self, path: str, line: int | None, reason: str) -> None:
        """`line` counts from 1; None for a binary file or for the file as a whole."""
        where = path if line is None else f"{path}, line {line}"
        super().__init__(f"{where}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


class ProtocolError(KdistError):
    """A peer sent bytes that violate the protocol. The connection is closed."""


DETAIL_CHARS_MAX = 4_000  # at most four bytes each; a protocol string has up to 32,767 bytes


class ApiError(KdistError):
    """A row of the error table, raised where a request or partition is answered with that error.

    `detail` is the text without the row's name: for people, and for responses that carry the code.
    It is cut to `DETAIL_CHARS_MAX`, as it may quote a request and must fit a string of the response.
    """

    def __init__(self, error: Error, detail: str = "") -> None:
        self.detail = detail[:DETAIL_CHARS_MAX] or error.sentence
        super().__init__(f"{error.name}: {self.detail}")
        self.error = error


class CorruptRecords(ApiError):
    """Record bytes that fail a checksum, size or format check."""

    def __init__(self, detail: str) -> None:
        super().__init__(Error.CORRUPT_MESSAGE, detail)


class PoisonousRequest(KdistError):
    """A bug that a request met before it changed anything: it costs that request, not the broker.

    Raised from the exception that nobody expected, by the steps of a write that come before it.
    """


class DiskFull(ApiError):
    """The filesystem has no room for the write, none of which counts; reads and deletes still work."""

    def __init__(self, path: str) -> None:
        super().__init__(Error.KAFKA_STORAGE_ERROR, f"no space left to write {path}")
        self.path = path


class OutOfDescriptors(DiskFull):
    """The process or host has no file descriptor left; treated as a full disk until some are closed."""

    def __init__(self, path: str) -> None:
        ApiError.__init__(self, Error.KAFKA_STORAGE_ERROR, f"no descriptor left to open {path}")
        self.path = path


class DiskFailed(KdistError):
    """The disk failed a call. Nothing on it is trusted from here on: the broker exits with status 74."""

    EXIT_STATUS = 74  # sysexits.h EX_IOERR; the systemd unit does not restart on it

    def __init__(self, path: str, cause: OSError) -> None:
        super().__init__(f"the disk under {path} failed: {cause.strerror or cause}")
        self.path = path
