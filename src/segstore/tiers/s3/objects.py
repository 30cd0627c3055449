"""Sends requests for the objects of one bucket, and repeats those that fail.

Owns: ``ObjectStore``, which runs calls of a boto3 client in threads, and the limits on the time and
the number of attempts. There are ``THREADS_MAX`` threads for reads and as many for the rest; a
pause between two attempts needs no thread. boto3 itself repeats nothing.

Invariants:
1. When a put is repeated because its answer was lost, the object exists once. A key is used for one
   object only, so an object that exists already is compared and not replaced. Held by
   ``test_a_put_that_is_tried_again_is_there_once``.
2. When another process has put another object under the key, the put fails. Held by
   ``test_two_owners_of_one_epoch_are_noticed``.
3. When a request keeps failing, the number of attempts is limited. Held by
   ``test_a_request_is_tried_only_so_often``.
4. When a multipart upload fails, it is aborted. Held by
   ``test_a_join_that_fails_loses_nothing_and_leaves_no_upload``.
5. When a killed process has left a multipart upload, ``abort_old_uploads`` aborts it. Held by
   ``test_what_a_killed_process_began_to_upload_is_aborted``.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Protocol, TypeVar

import structlog
import trio

from segstore.errors import StorageError
from segstore.runtime.parallel import run_parallel
from segstore.tiers.s3.failures import (
    REQUEST_ERRORS,
    FailureKind,
    S3FullError,
    S3RequestError,
    TruncatedBodyError,
    failure_of,
)

T = TypeVar("T")

THREADS_MAX = 16
CONNECT_SECONDS_MAX = 3.0
READ_SECONDS_MAX = 15.0
ABORT_SECONDS_MAX = 5.0
PARALLEL_COPIES_MAX = 8

logger = structlog.get_logger(__name__)


class S3Client(Protocol):
    """The used methods of boto3's low-level client."""

    def put_object(self, **arguments: Any) -> Mapping[str, Any]: ...
    def get_object(self, **arguments: Any) -> Mapping[str, Any]: ...
    def head_object(self, **arguments: Any) -> Mapping[str, Any]: ...
    def delete_object(self, **arguments: Any) -> Mapping[str, Any]: ...
    def list_objects_v2(self, **arguments: Any) -> Mapping[str, Any]: ...
    def create_multipart_upload(self, **arguments: Any) -> Mapping[str, Any]: ...
    def upload_part_copy(self, **arguments: Any) -> Mapping[str, Any]: ...
    def complete_multipart_upload(self, **arguments: Any) -> Mapping[str, Any]: ...
    def abort_multipart_upload(self, **arguments: Any) -> Mapping[str, Any]: ...
    def list_multipart_uploads(self, **arguments: Any) -> Mapping[str, Any]: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """Limits on the time and the attempts of a request."""

    attempts_max: int = 8
    retry_seconds_max: float = 30.0
    pause_seconds_min: float = 0.1
    pause_seconds_max: float = 5.0


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object in a listing."""

    key: str
    length: int


class RunRequest(Protocol):
    """Runs a blocking request. Simulations replace it by a function without threads."""

    async def __call__(
        self, call: Callable[[], T], limiter: trio.CapacityLimiter, abandon: bool, /
    ) -> T:
        """Run ``call`` and return its result. With ``abandon`` a cancellation returns at once,
        while the call continues."""
        ...


async def run_in_thread(call: Callable[[], T], limiter: trio.CapacityLimiter, abandon: bool) -> T:
    """Run a request in a thread."""
    return await trio.to_thread.run_sync(call, limiter=limiter, abandon_on_cancel=abandon)


class ObjectStore:
    """The objects of a bucket whose keys begin with ``prefix``; keys are given without it."""

    def __init__(
        self,
        client: S3Client,
        *,
        bucket: str,
        prefix: str,
        random: Callable[[], float],
        limits: RetryLimits = RetryLimits(),
        page_objects_max: int = 1000,
        run_request: RunRequest = run_in_thread,
    ) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix
        self._random = random
        self._limits = limits
        self._page_objects_max = page_objects_max
        self._run_request = run_request
        self._limiter = trio.CapacityLimiter(THREADS_MAX)
        self._read_limiter = trio.CapacityLimiter(THREADS_MAX)
        self._can_put_if_none = True

    @property
    def prefix(self) -> str:
        """Return the prefix of all objects' keys in the bucket."""
        return self._prefix

    def __str__(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}"

    def close(self) -> None:
        """Close the client's connections."""
        self._client.close()

    async def put(self, key: str, body: bytes, metadata: Mapping[str, str]) -> None:
        """Store an object that must not exist yet, unless an earlier attempt of this call has
        stored it.

        Raises ``StorageError`` if another object has the key.
        """

        def put() -> None:
            digest = hashlib.md5(body, usedforsecurity=False).digest()
            condition = {"IfNoneMatch": "*"} if self._can_put_if_none else {}
            self._client.put_object(
                **self._named(key),
                Body=body,
                ContentMD5=base64.b64encode(digest).decode("ascii"),
                ContentType="application/octet-stream",
                Metadata=dict(metadata),
                **condition,
            )

        try:
            await self._request(f"put {key}", put)
        except S3RequestError as error:
            if error.failure.kind is FailureKind.UNSUPPORTED and self._can_put_if_none:
                logger.warning("S3 has no conditional puts: it does without", tier2=str(self))
                self._can_put_if_none = False
                await self._request(f"put {key}", put)
            elif error.failure.kind is FailureKind.EXISTS:
                await self._check_is_ours(key, len(body), metadata)
            else:
                raise

    async def get(self, key: str, *, offset: int, length: int, object_length: int) -> bytes:
        """Read exactly ``length`` bytes at ``offset``. Raises ``StorageError`` if the object has
        not ``object_length`` bytes."""
        assert 0 <= offset < offset + length <= object_length

        def get() -> bytes:
            arguments = self._named(key)
            if length < object_length:
                arguments["Range"] = f"bytes={offset}-{offset + length - 1}"
            answer = self._client.get_object(**arguments)
            with closing(answer["Body"]) as stream:
                body: bytes = stream.read()
            if length < object_length:
                expected = f"bytes {offset}-{offset + length - 1}/{object_length}"
                got = answer.get("ContentRange")
            else:
                expected, got = f"{length} bytes", f"{answer['ContentLength']} bytes"
            if got != expected:
                raise StorageError(
                    f"{self}{key} is damaged: S3 answered with {got}, not with {expected}"
                )
            if len(body) != length:
                raise TruncatedBodyError(f"{len(body)} bytes came, not {length}")
            return body

        return await self._request(f"read {key}", get, limiter=self._read_limiter)

    async def metadata(self, key: str) -> tuple[int, Mapping[str, str]]:
        """Return an object's length and metadata."""

        def head() -> tuple[int, Mapping[str, str]]:
            answer = self._client.head_object(**self._named(key))
            return answer["ContentLength"], answer.get("Metadata", {})

        return await self._request(f"look up {key}", head, limiter=self._read_limiter)

    async def delete(self, key: str) -> None:
        """Delete an object. A missing object is not an error."""

        def delete() -> None:
            self._client.delete_object(**self._named(key))

        try:
            await self._request(f"delete {key}", delete)
        except S3RequestError as error:
            if error.failure.kind is not FailureKind.MISSING:
                raise

    async def delete_all(self, keys: Sequence[str]) -> None:
        """Delete objects at the same time. If some deletions fail, raise one of their errors at the
        end."""
        failures: list[StorageError] = []

        async def delete(key: str) -> None:
            try:
                await self.delete(key)
            except StorageError as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for key in keys:
                nursery.start_soon(delete, key)
        if failures:
            raise failures[0]

    async def list_all(self, prefix: str) -> list[FoundObject]:
        """Return all objects whose keys begin with ``prefix``, sorted by key."""
        found: list[FoundObject] = []
        token: str | None = None

        def page() -> Mapping[str, Any]:
            arguments: dict[str, Any] = {
                "Bucket": self._bucket,
                "Prefix": self._prefix + prefix,
                "MaxKeys": self._page_objects_max,
            }
            if token is not None:
                arguments["ContinuationToken"] = token
            return self._client.list_objects_v2(**arguments)

        while True:
            answer = await self._request(
                f"list {prefix or 'everything'}", page, limiter=self._read_limiter
            )
            found.extend(
                FoundObject(each["Key"].removeprefix(self._prefix), each["Size"])
                for each in answer.get("Contents", ())
            )
            if not answer.get("IsTruncated"):
                return found
            token = answer["NextContinuationToken"]

    async def join(
        self, key: str, parts: Sequence[FoundObject], metadata: Mapping[str, str]
    ) -> None:
        """Join several objects to one in the server. Each has 5 MiB or more."""
        upload = await self._request(
            f"begin to join {key}",
            lambda: self._client.create_multipart_upload(
                **self._named(key),
                ContentType="application/octet-stream",
                Metadata=dict(metadata),
            )["UploadId"],
        )
        done = False
        try:
            tags = await self._copy_parts(key, upload, parts)
            length = sum(part.length for part in parts)
            await self._complete(key, upload, tags, length, metadata)
            done = True
        finally:
            if not done:
                with trio.move_on_after(ABORT_SECONDS_MAX, shield=True):
                    await self._abort(key, upload)

    async def abort_old_uploads(self, *, older_than_seconds: float) -> int:
        """Abort uploads that are older than this; return their number."""

        def listed() -> Mapping[str, Any]:
            return self._client.list_multipart_uploads(Bucket=self._bucket, Prefix=self._prefix)

        answer = await self._request("list unfinished uploads", listed)
        # Compute ages by the server's clock, because this machine's may be wrong.
        now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        limit = now - datetime.timedelta(seconds=older_than_seconds)
        old = [each for each in answer.get("Uploads", ()) if each["Initiated"] <= limit]
        for each in old:
            await self._abort(each["Key"].removeprefix(self._prefix), each["UploadId"])
        return len(old)

    async def _copy_parts(self, key: str, upload: str, parts: Sequence[FoundObject]) -> list[str]:
        tags = [""] * len(parts)

        async def copy(index: int) -> None:
            def copy_part() -> str:
                answer = self._client.upload_part_copy(
                    **self._named(key),
                    UploadId=upload,
                    PartNumber=index + 1,
                    CopySource=self._named(parts[index].key),
                )
                tag: str = answer["CopyPartResult"]["ETag"]
                return tag

            tags[index] = await self._request(f"join {key}", copy_part)

        await run_parallel(range(len(parts)), copy, tasks_max=PARALLEL_COPIES_MAX)
        return tags

    async def _complete(
        self,
        key: str,
        upload: str,
        tags: Sequence[str],
        length: int,
        metadata: Mapping[str, str],
    ) -> None:
        parts = [{"PartNumber": index + 1, "ETag": tag} for index, tag in enumerate(tags)]
        try:
            await self._request(
                f"end joining {key}",
                lambda: self._client.complete_multipart_upload(
                    **self._named(key), UploadId=upload, MultipartUpload={"Parts": parts}
                ),
            )
        except S3RequestError as error:
            # An earlier attempt completed the upload, and its answer was lost.
            if error.failure.kind is not FailureKind.MISSING:
                raise
        await self._check_is_ours(key, length, metadata)

    async def _abort(self, key: str, upload: str) -> None:
        try:
            await self._request(
                f"abort joining {key}",
                lambda: self._client.abort_multipart_upload(**self._named(key), UploadId=upload),
            )
        except S3RequestError as error:
            if error.failure.kind is not FailureKind.MISSING:
                logger.warning("an upload is left in S3", tier2=str(self), error=str(error))

    async def _check_is_ours(self, key: str, length: int, metadata: Mapping[str, str]) -> None:
        found = await self.metadata(key)
        if found != (length, dict(metadata)):
            raise StorageError(
                f"{self}{key} was written by another process, which has {found[0]} bytes there: is"
                " another store using this bucket and prefix?"
            )

    async def _request(
        self,
        what: str,
        call: Callable[[], T],
        *,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        """Repeat a call until it succeeds, until an error that another attempt cannot help, or
        until the limits are reached."""
        deadline = trio.current_time() + self._limits.retry_seconds_max
        pause = self._limits.pause_seconds_min
        attempt = 1
        while True:
            try:
                # A cancelled read need not be waited for; a change must be, so that its outcome is
                # known.
                return await self._run_request(
                    call, limiter or self._limiter, limiter is self._read_limiter
                )
            except REQUEST_ERRORS as error:
                failure = failure_of(error)
                late = attempt >= self._limits.attempts_max or trio.current_time() > deadline
                if late or not failure.is_worth_another_try:
                    times = "" if attempt == 1 else f" ({attempt} tries)"
                    sentence = f"tier 2 in {self} cannot {what}{times}: {failure.reason}"
                    if failure.kind is FailureKind.FULL:
                        reason = f"tier 2 in {self} is full: {failure.reason}"
                        raise S3FullError(sentence, failure, reason) from error
                    raise S3RequestError(sentence, failure) from error
            await trio.sleep(pause * (0.5 + self._random() / 2))
            pause = min(2 * pause, self._limits.pause_seconds_max)
            attempt += 1

    def _named(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._bucket, "Key": self._prefix + key}
