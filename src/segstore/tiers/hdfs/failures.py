"""Classifies failed requests to HDFS: whether to try again, and what to tell users.

Owns: ``HdfsFailure`` and the table of the Java exceptions in answers of NameNodes and DataNodes.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import msgspec
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, SSLError
from urllib3.util.ssl_match_hostname import CertificateError

from segstore.errors import StorageError, StorageFullError

REASON_CHARACTERS_MAX: Final = 500
REQUEST_ERRORS: Final[tuple[type[Exception], ...]] = (HTTPError, OSError, MemoryError)
"""The errors that sending a request raises."""
INVALID_JSON: Final[tuple[type[Exception], ...]] = (msgspec.DecodeError, UnicodeDecodeError)
"""The errors that decoding an answer raises."""
_CERTIFICATE_ERRORS: Final = (ssl.SSLCertVerificationError, CertificateError)


class HdfsFailureKind(Enum):
    """The treatment of a failed request."""

    UNREACHABLE = auto()
    """The server was not reached, so the request was not executed; another attempt may help."""
    STANDBY = auto()
    """This NameNode is not active, or not yet: ask another one."""
    TRY_AGAIN = auto()
    """The request may have been executed or not; another attempt may help."""
    BUSY = auto()
    """Another request has the file open for writing, or HDFS has not closed it yet after such a
    request."""
    UNREADABLE_END = auto()
    """The DataNode that wrote the file's end has died. HDFS has to close the file before it can be
    read."""
    MISSING = auto()
    """The file or directory does not exist."""
    EXISTS = auto()
    """The file exists already, or the directory is not empty."""
    CREDENTIALS = auto()
    FORBIDDEN = auto()
    FULL = auto()
    """A quota is used up."""
    REFUSED = auto()
    """Any other error that another attempt cannot help."""


_KINDS: Final = {
    "StandbyException": HdfsFailureKind.STANDBY,
    "ObserverRetryOnActiveException": HdfsFailureKind.STANDBY,
    "RetriableException": HdfsFailureKind.STANDBY,
    "AlreadyBeingCreatedException": HdfsFailureKind.BUSY,
    "RecoveryInProgressException": HdfsFailureKind.BUSY,
    "CannotObtainBlockLengthException": HdfsFailureKind.UNREADABLE_END,
    "FileNotFoundException": HdfsFailureKind.MISSING,
    "FileAlreadyExistsException": HdfsFailureKind.EXISTS,
    "PathIsNotEmptyDirectoryException": HdfsFailureKind.EXISTS,
    "AccessControlException": HdfsFailureKind.FORBIDDEN,
    "AuthorizationException": HdfsFailureKind.FORBIDDEN,
    "SecurityException": HdfsFailureKind.CREDENTIALS,
    "AuthenticationException": HdfsFailureKind.CREDENTIALS,
    "InvalidToken": HdfsFailureKind.CREDENTIALS,
    "QuotaExceededException": HdfsFailureKind.FULL,
    "DSQuotaExceededException": HdfsFailureKind.FULL,
    "NSQuotaExceededException": HdfsFailureKind.FULL,
    "ParentNotDirectoryException": HdfsFailureKind.REFUSED,
    "InvalidPathException": HdfsFailureKind.REFUSED,
    "FSLimitException": HdfsFailureKind.REFUSED,
    "PathComponentTooLongException": HdfsFailureKind.REFUSED,
    "MaxDirectoryItemsExceededException": HdfsFailureKind.REFUSED,
    "SnapshotAccessControlException": HdfsFailureKind.REFUSED,
    "UnresolvedPathException": HdfsFailureKind.REFUSED,
    "RpcNoSuchMethodException": HdfsFailureKind.REFUSED,
    "RpcNoSuchProtocolException": HdfsFailureKind.REFUSED,
    "ChecksumException": HdfsFailureKind.TRY_AGAIN,
    "DiskErrorException": HdfsFailureKind.TRY_AGAIN,
    "DiskOutOfSpaceException": HdfsFailureKind.TRY_AGAIN,
}
_PASSING_PACKAGES: Final = (
    "java.io.",
    "java.net.",
    "java.nio.",
    "org.apache.hadoop.hdfs.",
    "org.apache.hadoop.ipc.",
    "org.apache.hadoop.net.",
)
"""Java packages: their exceptions, unless listed above, report problems of disks, networks and
servers that may pass. WebHDFS answers 403 for them, as for missing permissions."""
_AGAIN: Final = frozenset(
    {
        HdfsFailureKind.UNREACHABLE,
        HdfsFailureKind.STANDBY,
        HdfsFailureKind.TRY_AGAIN,
        HdfsFailureKind.BUSY,
        HdfsFailureKind.UNREADABLE_END,
    }
)
_STATUSES: Final = {
    401: HdfsFailureKind.CREDENTIALS,
    403: HdfsFailureKind.FORBIDDEN,
    404: HdfsFailureKind.MISSING,
    408: HdfsFailureKind.TRY_AGAIN,
    429: HdfsFailureKind.TRY_AGAIN,
}
_NESTED: Final = ("StandbyException", "AlreadyBeingCreatedException", "RecoveryInProgressException")
"""Exceptions that some versions wrap in another one, whose message has their name."""
_UNREADABLE: Final = "Cannot obtain block length"


@dataclass(frozen=True, slots=True)
class HdfsFailure:
    """The kind of a failure, and the reason in one line."""

    kind: HdfsFailureKind
    reason: str

    @property
    def is_worth_another_try(self) -> bool:
        """Return whether the same request may succeed now or soon."""
        return self.kind in _AGAIN


class HdfsRequestError(StorageError):
    """Raised when a request to HDFS has failed."""

    def __init__(self, message: str, failure: HdfsFailure) -> None:
        super().__init__(message)
        self.failure = failure


class HdfsFullError(HdfsRequestError, StorageFullError):
    """Raised when a quota of HDFS is used up."""

    def __init__(self, message: str, failure: HdfsFailure, reason: str) -> None:
        HdfsRequestError.__init__(self, message, failure)
        self.reason = reason


class _RemoteException(msgspec.Struct):
    exception: str = ""
    class_name: str = msgspec.field(name="javaClassName", default="")
    message: str | None = ""


class _ErrorBody(msgspec.Struct):
    remote: _RemoteException = msgspec.field(name="RemoteException")


def failure_of_error(error: Exception) -> HdfsFailure:
    """Return the kind and reason of an error of a request that got no answer."""
    reason = _one_line(str(error) or type(error).__name__)
    if isinstance(error, (NewConnectionError, ConnectTimeoutError)):
        return HdfsFailure(HdfsFailureKind.UNREACHABLE, reason)
    if isinstance(error, SSLError):
        # A server that ends within a handshake is an SSLError, too.
        is_final = any(isinstance(each, _CERTIFICATE_ERRORS) for each in error.args)
        kind = HdfsFailureKind.REFUSED if is_final else HdfsFailureKind.TRY_AGAIN
        return HdfsFailure(kind, f"TLS: {reason}")
    return HdfsFailure(HdfsFailureKind.TRY_AGAIN, reason)


def failure_of_answer(status: int, body: bytes) -> HdfsFailure:
    """Return the kind and reason of an answer that is not a success."""
    try:
        remote = msgspec.json.decode(body, type=_ErrorBody).remote
    except INVALID_JSON:
        kind = HdfsFailureKind.TRY_AGAIN if status >= 500 else HdfsFailureKind.REFUSED
        return HdfsFailure(_STATUSES.get(status, kind), f"HTTP status {status}")
    message = remote.message or ""
    if _UNREADABLE in message:
        kind = HdfsFailureKind.UNREADABLE_END
    elif nested := next((each for each in _NESTED if each in message), None):
        kind = _KINDS[nested]
    elif remote.exception in _KINDS:
        kind = _KINDS[remote.exception]
    elif status >= 500 or remote.class_name.startswith(_PASSING_PACKAGES):
        kind = HdfsFailureKind.TRY_AGAIN
    else:
        kind = HdfsFailureKind.REFUSED
    return HdfsFailure(kind, _one_line(f"{remote.exception}: {message}"))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:REASON_CHARACTERS_MAX]
