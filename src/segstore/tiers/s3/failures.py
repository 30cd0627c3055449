"""Classifies failed S3 requests: whether to try again, and what to tell users.

Owns: ``S3Failure`` and the table of error codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ProxyConnectionError,
    SSLError,
)
from botocore.parsers import ResponseParserError

from segstore.errors import StorageError, StorageFullError

REQUEST_ERRORS: tuple[type[Exception], ...] = (
    BotoCoreError,
    ClientError,
    ResponseParserError,
    OSError,
    MemoryError,
)
"""The errors that a request of boto3 raises."""


class FailureKind(Enum):
    """The treatment of a failed request."""

    UNREACHABLE = auto()
    """The server was not reached; another attempt may help."""
    TRY_AGAIN = auto()
    """The request may have been executed or not; another attempt may help."""
    MISSING = auto()
    """The object or upload does not exist."""
    EXISTS = auto()
    """The object of a conditional put exists already."""
    UNSUPPORTED = auto()
    """The server does not support this kind of request."""
    NO_BUCKET = auto()
    CREDENTIALS = auto()
    FORBIDDEN = auto()
    REGION = auto()
    FULL = auto()
    """A quota or the server's disks are full."""
    CLOCK = auto()
    """The clocks of this machine and of the server differ too much for signatures."""
    REFUSED = auto()
    """Any other error that another attempt cannot help."""


_KINDS = {
    "NoSuchBucket": FailureKind.NO_BUCKET,
    "NoSuchKey": FailureKind.MISSING,
    "NoSuchUpload": FailureKind.MISSING,
    "NotFound": FailureKind.MISSING,
    "404": FailureKind.MISSING,
    "PreconditionFailed": FailureKind.EXISTS,
    "412": FailureKind.EXISTS,
    "ConditionalRequestConflict": FailureKind.TRY_AGAIN,
    "OperationAborted": FailureKind.TRY_AGAIN,
    "SlowDown": FailureKind.TRY_AGAIN,
    "RequestTimeout": FailureKind.TRY_AGAIN,
    "BadDigest": FailureKind.TRY_AGAIN,
    "XAmzContentSHA256Mismatch": FailureKind.TRY_AGAIN,
    "IncompleteBody": FailureKind.TRY_AGAIN,
    "Throttling": FailureKind.TRY_AGAIN,
    "ThrottlingException": FailureKind.TRY_AGAIN,
    "TooManyRequests": FailureKind.TRY_AGAIN,
    "QuotaExceeded": FailureKind.FULL,
    "InsufficientStorage": FailureKind.FULL,
    "XMinioAdminBucketQuotaExceeded": FailureKind.FULL,
    "XMinioStorageFull": FailureKind.FULL,
    "NotImplemented": FailureKind.UNSUPPORTED,
    "InvalidAccessKeyId": FailureKind.CREDENTIALS,
    "SignatureDoesNotMatch": FailureKind.CREDENTIALS,
    "ExpiredToken": FailureKind.CREDENTIALS,
    "InvalidToken": FailureKind.CREDENTIALS,
    "AccessDenied": FailureKind.FORBIDDEN,
    "RequestTimeTooSkewed": FailureKind.CLOCK,
    "403": FailureKind.FORBIDDEN,
    "PermanentRedirect": FailureKind.REGION,
    "AuthorizationHeaderMalformed": FailureKind.REGION,
    "IllegalLocationConstraintException": FailureKind.REGION,
    "301": FailureKind.REGION,
}


@dataclass(frozen=True, slots=True)
class S3Failure:
    """The kind of a failure, and the reason in one line."""

    kind: FailureKind
    reason: str

    @property
    def is_worth_another_try(self) -> bool:
        """Return whether the same request may succeed now or soon."""
        return self.kind in (FailureKind.TRY_AGAIN, FailureKind.UNREACHABLE)


class S3RequestError(StorageError):
    """Raised when a request to S3 has failed and is not repeated any more."""

    def __init__(self, message: str, failure: S3Failure) -> None:
        super().__init__(message)
        self.failure = failure


class S3FullError(S3RequestError, StorageFullError):
    """Raised when S3 is full."""

    def __init__(self, message: str, failure: S3Failure, reason: str) -> None:
        S3RequestError.__init__(self, message, failure)
        self.reason = reason


class TruncatedBodyError(OSError):
    """Raised when an answer has fewer bytes than requested."""


def failure_of(error: Exception) -> S3Failure:
    """Return the kind and reason of an error that a request raised."""
    if isinstance(error, ClientError):
        return _failure_of_answer(error)
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return S3Failure(FailureKind.CREDENTIALS, str(error))
    if isinstance(error, (EndpointConnectionError, ConnectTimeoutError, ProxyConnectionError)):
        return S3Failure(FailureKind.UNREACHABLE, str(error))
    if isinstance(
        error, (HTTPClientError, IncompleteReadError, ResponseParserError, OSError, MemoryError)
    ) and not isinstance(error, SSLError):
        return S3Failure(FailureKind.TRY_AGAIN, str(error) or type(error).__name__)
    return S3Failure(FailureKind.REFUSED, str(error) or type(error).__name__)


def _failure_of_answer(error: ClientError) -> S3Failure:
    answer = error.response
    code = str(answer.get("Error", {}).get("Code", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    message = answer.get("Error", {}).get("Message") or error
    reason = f"{code or status}: {message}"
    kind = _KINDS.get(code)
    if kind is None:
        if status == 501:
            kind = FailureKind.UNSUPPORTED
        elif status == 507:
            kind = FailureKind.FULL
        elif status in (408, 429) or status >= 500:
            kind = FailureKind.TRY_AGAIN
        else:
            kind = _KINDS.get(str(status), FailureKind.REFUSED)
    if kind is FailureKind.CLOCK:
        shown = (
            answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "another time")
        )
        reason += f"; the server's clock shows {shown}"
    return S3Failure(kind, reason)
