"""Opens tier 2 in S3, and checks within seconds whether it can be used.

Owns: the boto3 client's configuration, the checks at the start, and the sentence for users about
each failure. The first start of a store tries each kind of request that is needed later, on a probe
object that is part of no chunk. Later starts only check that the bucket can be listed.

Invariants:
1. When the first start succeeds, its probe object is gone. Held by
   ``test_a_start_leaves_its_identity_and_no_probe``.
2. When a first start is killed and leaves its probe, later starts and listings of chunks succeed.
   Held by ``test_a_probe_that_a_killed_start_left_is_in_nobodys_way``.
3. When the credentials do not allow writes, the first start fails with a sentence about it. Held by
   ``test_a_bucket_that_may_not_be_written_is_told``.
"""

from __future__ import annotations

import os
import random
import ssl
from collections.abc import Callable
from typing import Final

import structlog
import trio
from botocore.exceptions import BotoCoreError

from segstore.errors import StorageConfigurationError, StorageError, StorageUnreachableError
from segstore.tiers.s3.failures import FailureKind, S3Failure, S3RequestError
from segstore.tiers.s3.location import S3Location
from segstore.tiers.s3.objects import (
    CONNECT_SECONDS_MAX,
    READ_SECONDS_MAX,
    THREADS_MAX,
    ObjectStore,
    RetryLimits,
    S3Client,
)
from segstore.tiers.s3.settings import S3Settings
from segstore.tiers.s3.storage import S3ChunkStorage, S3Tier

START_LIMITS: Final = RetryLimits(attempts_max=2, retry_seconds_max=5.0)
OLD_UPLOAD_SECONDS: Final = 3600.0
CLEANUP_SECONDS_MAX: Final = 5.0
PROBE: Final = "segstore-probe"
DEFAULT_REGION: Final = "us-east-1"

logger = structlog.get_logger(__name__)


def boto3_client(settings: S3Settings, *, read_seconds_max: float = READ_SECONDS_MAX) -> S3Client:
    """Return a client with the credentials that boto3 finds. Its own retries are off. Raises
    ``StorageConfigurationError`` if the file of certificates cannot be read."""
    if settings.ca_file is not None:
        try:
            ssl.create_default_context(cafile=settings.ca_file)
        except OSError as error:
            raise StorageConfigurationError(
                f"tier 2 in S3: ca_file {settings.ca_file} cannot be read: {error}"
            ) from error
    import boto3
    from botocore.config import Config

    session = boto3.session.Session()
    has_endpoint = bool(
        settings.endpoint_url
        or os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL")
    )
    client: S3Client = session.client(
        "s3",
        endpoint_url=settings.endpoint_url,
        region_name=settings.region or session.region_name or DEFAULT_REGION,
        # None leaves it to the environment and to boto3.
        verify=settings.ca_file,
        config=Config(
            connect_timeout=CONNECT_SECONDS_MAX,
            read_timeout=read_seconds_max,
            max_pool_connections=2 * THREADS_MAX,
            retries={"total_max_attempts": 1, "mode": "standard"},
            # Most servers but Amazon's have no host names for buckets.
            s3={"addressing_style": "path" if has_endpoint else "auto"},
            # Content-MD5 and the store's own checksums work with all servers; boto3's do not.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )
    return client


class OpenedS3:
    """A prefix that can be listed. Whether it belongs to this store is not known yet."""

    def __init__(
        self,
        tier: S3Tier,
        trial: ObjectStore,
        explain: Callable[[S3RequestError], StorageError],
    ) -> None:
        self.tier = tier
        self._trial = trial
        self._explain = explain

    async def open(self) -> Callable[[Callable[[], int]], S3ChunkStorage]:
        """Return the function that makes the chunk storage of an owner. Call this when the prefix
        is known to belong to this store."""
        try:
            aborted = await self._trial.abort_old_uploads(older_than_seconds=OLD_UPLOAD_SECONDS)
            if aborted:
                logger.info("aborted unfinished uploads", tier2=str(self._trial), count=aborted)
        except S3RequestError as error:
            logger.warning("cannot look for unfinished uploads", error=str(error))
        return self.tier.owned_by

    async def try_everything(self) -> None:
        """Check that a new store can use the prefix. Raises ``StorageError`` with a sentence for
        users."""
        try:
            await _try_everything(self._trial, os.urandom(8).hex())
        except S3RequestError as error:
            raise self._explain(error) from error


async def open_s3(location: S3Location, settings: S3Settings) -> OpenedS3:
    """Open a prefix. Raises ``StorageConfigurationError`` or ``StorageUnreachableError`` with a
    sentence for users."""
    try:
        client = boto3_client(settings)
    except (BotoCoreError, ValueError) as error:
        raise StorageConfigurationError(f"tier 2 in {location}: {error}") from error

    def objects(limits: RetryLimits) -> ObjectStore:
        return ObjectStore(
            client,
            bucket=location.bucket,
            prefix=location.prefix,
            random=random.random,
            limits=limits,
        )

    def explain(error: S3RequestError) -> StorageError:
        return _explained(error.failure, location, settings)

    trial = objects(START_LIMITS)
    try:
        # The answer to a listing names the reason, such as a missing bucket; that to a HEAD does
        # not.
        await trial.list_all(PROBE)
    except S3RequestError as error:
        client.close()
        raise explain(error) from error
    except BaseException:
        client.close()
        raise
    return OpenedS3(S3Tier(objects(RetryLimits())), trial, explain)


async def _try_everything(objects: ObjectStore, nonce: str) -> None:
    """Put, find, read and delete an object."""
    key, body = f"{PROBE}-{nonce}", nonce.encode()
    await objects.put(key, body, {})
    try:
        found = [each.key for each in await objects.list_all(key)]
        if found != [key]:
            raise StorageConfigurationError(
                f"tier 2 in {objects} does not list an object that was just put there: this store"
                " needs an S3 whose listings are consistent"
            )
        read = await objects.get(key, offset=0, length=len(body), object_length=len(body))
        if read != body:
            raise StorageConfigurationError(f"tier 2 in {objects} returns other bytes than put")
        await objects.delete(key)
    except BaseException:
        # Shielded because the start may have been cancelled; its own error is raised.
        with trio.move_on_after(CLEANUP_SECONDS_MAX, shield=True):
            try:
                await objects.delete(key)
            except S3RequestError as error:
                logger.warning("a probe is left in tier 2", tier2=str(objects), error=str(error))
        raise


def _explained(failure: S3Failure, location: S3Location, settings: S3Settings) -> StorageError:
    where = f"tier 2 in {location}"
    endpoint = settings.endpoint_url or "Amazon S3"
    match failure.kind:
        case FailureKind.UNREACHABLE | FailureKind.TRY_AGAIN:
            return StorageUnreachableError(
                f"{where}: {endpoint} cannot be reached or does not work: {failure.reason}"
            )
        case FailureKind.NO_BUCKET | FailureKind.MISSING:
            return StorageConfigurationError(
                f"{where}: there is no bucket {location.bucket} at {endpoint}"
            )
        case FailureKind.CREDENTIALS:
            return StorageConfigurationError(
                f"{where}: the credentials are missing or wrong ({failure.reason}); they are looked"
                " for like the AWS command line does: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,"
                " ~/.aws, an instance's role"
            )
        case FailureKind.CLOCK:
            return StorageConfigurationError(
                f"{where}: the clocks of this machine and of {endpoint} differ too much: set this"
                f" machine's clock ({failure.reason})"
            )
        case FailureKind.FORBIDDEN:
            return StorageConfigurationError(
                f"{where}: the credentials do not allow to list, put, read and delete objects"
                f" there ({failure.reason})"
            )
        case FailureKind.FULL:
            return StorageConfigurationError(f"{where} is full: {failure.reason}")
        case FailureKind.REGION:
            return StorageConfigurationError(
                f"{where}: the bucket is in another region ({failure.reason}); name it with"
                " --s3-region"
            )
        case _:
            return StorageConfigurationError(f"{where} cannot be used: {failure.reason}")
