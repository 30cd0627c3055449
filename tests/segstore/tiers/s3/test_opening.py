"""What users are told when tier 2 in S3 cannot be used, and how soon."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import boto3
import pytest
import trio

from segstore.config import S3Settings, SegmentStoreConfig
from segstore.data_directory import DataDirectory
from segstore.errors import StorageConfigurationError, StorageUnreachableError
from segstore.testing.faulty_http import FaultyHttpProxy, HttpFault
from segstore.tier_two import open_storage
from segstore.tiers.s3.location import S3Location, S3LocationError

NAME = "scope/stream/0.#epoch.0#1$00000000000000000000"


def config(directory: Path, tier2: str | None, endpoint: str | None) -> SegmentStoreConfig:
    return SegmentStoreConfig(data_dir=directory, tier2=tier2, s3=S3Settings(endpoint_url=endpoint))


async def start(
    directory: Path, tier2: str | None, endpoint: str | None = None, data: bytes = b""
) -> bytes:
    """Open tier 2 as a process does, write to a chunk when there is data, and read all of it."""
    settings = config(directory, tier2, endpoint)
    async with open_storage(settings, DataDirectory.open(directory)) as storage_of:
        storage = storage_of(lambda: 1)
        if data:
            await storage.write(NAME, offset=0, data=[data])
        length = (await storage.info(NAME)).length
        return await storage.read(NAME, offset=0, length=length)


async def test_a_store_finds_its_chunks_again(
    moto: str, new_bucket: Callable[[str], str], tmp_path: Path
) -> None:
    tier2 = f"s3://{new_bucket(moto)}/some/prefix"
    assert await start(tmp_path, tier2, moto, b"hello") == b"hello"
    assert await start(tmp_path, tier2 + "/", moto) == b"hello"
    assert not (tmp_path / "storage").exists()


async def test_it_works_with_a_server_that_checks_signatures(
    versitygw: str, new_bucket: Callable[[str], str], tmp_path: Path
) -> None:
    bucket = new_bucket(versitygw)
    assert await start(tmp_path, f"s3://{bucket}", versitygw, b"hello") == b"hello"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        with pytest.raises(StorageConfigurationError, match="credentials are missing or wrong"):
            await start(tmp_path, f"s3://{bucket}", versitygw)


async def test_a_prefix_belongs_to_one_store(
    moto: str, new_bucket: Callable[[str], str], tmp_path: Path
) -> None:
    bucket = new_bucket(moto)
    await start(tmp_path / "one", f"s3://{bucket}/a", moto, b"hello")
    with pytest.raises(StorageConfigurationError, match=r"belongs to another store \([0-9a-f]{32}"):
        await start(tmp_path / "two", f"s3://{bucket}/a", moto)
    # It is not bound to what it could not have.
    assert await start(tmp_path / "two", f"s3://{bucket}/b", moto, b"other") == b"other"


async def test_a_store_keeps_its_tier_2(
    moto: str, new_bucket: Callable[[str], str], tmp_path: Path
) -> None:
    bucket = new_bucket(moto)
    await start(tmp_path, f"s3://{bucket}/a", moto, b"hello")
    with pytest.raises(StorageConfigurationError, match=rf"start with --tier2 s3://{bucket}/a"):
        await start(tmp_path, None)
    with pytest.raises(StorageConfigurationError, match=rf"in s3://{bucket}/a/, not in s3://"):
        await start(tmp_path, f"s3://{bucket}/b", moto)


async def test_chunks_in_a_directory_are_not_left_behind(moto: str, tmp_path: Path) -> None:
    assert await start(tmp_path, None, data=b"hello") == b"hello"
    with pytest.raises(StorageConfigurationError, match="cannot be moved to S3"):
        await start(tmp_path, "s3://bucket", moto)


async def test_a_missing_bucket_is_named(moto: str, tmp_path: Path) -> None:
    with pytest.raises(StorageConfigurationError, match="there is no bucket no-such-bucket at"):
        await start(tmp_path, "s3://no-such-bucket/a", moto)


async def test_an_endpoint_where_nobody_listens_is_told_soon(
    s3_credentials: None, tmp_path: Path
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with trio.fail_after(20):
            with pytest.raises(StorageUnreachableError, match=f"{endpoint} cannot be reached"):
                await start(tmp_path, "s3://bucket/a", endpoint)


async def test_refused_credentials_are_told(
    moto: str, new_bucket: Callable[[str], str], tmp_path: Path
) -> None:
    proxy = FaultyHttpProxy(moto, next_fault=lambda _: HttpFault.BAD_KEY)
    async with trio.open_nursery() as nursery:
        endpoint = await nursery.start(proxy.run)
        with pytest.raises(
            StorageConfigurationError,
            match=r"credentials are missing or wrong \(InvalidAccessKeyId",
        ):
            await start(tmp_path, f"s3://{new_bucket(moto)}", endpoint)
        nursery.cancel_scope.cancel()


async def test_missing_credentials_are_told(moto: str, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.delenv(name)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        patch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        with pytest.raises(StorageConfigurationError, match="Unable to locate credentials"):
            await start(tmp_path / "data", "s3://bucket", moto)


async def test_a_bucket_that_may_not_be_written_is_told(
    moto: str, new_bucket: Callable[[str], str], tmp_path: Path
) -> None:
    proxy = FaultyHttpProxy(
        moto,
        next_fault=lambda each: HttpFault.FORBIDDEN if each.method == "PUT" else HttpFault.NONE,
    )
    async with trio.open_nursery() as nursery:
        endpoint = await nursery.start(proxy.run)
        with pytest.raises(StorageConfigurationError, match="do not allow to list, put"):
            await start(tmp_path, f"s3://{new_bucket(moto)}", endpoint)
        nursery.cancel_scope.cancel()


async def test_a_start_leaves_no_probe(
    moto: str, new_bucket: Callable[[str], str], tmp_path: Path
) -> None:
    bucket = new_bucket(moto)
    async with open_storage(
        config(tmp_path, f"s3://{bucket}/a", moto), DataDirectory.open(tmp_path)
    ):
        pass
    client = boto3.client("s3", endpoint_url=moto)
    found = client.list_objects_v2(Bucket=bucket)["Contents"]
    client.close()
    assert [each["Key"] for each in found] == ["a/segstore-store"]


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("s3://bucket", S3Location("bucket")),
        ("s3://bucket/", S3Location("bucket")),
        ("s3://my.bucket/a/b", S3Location("my.bucket", "a/b/")),
        ("s3://my.bucket/a/b/", S3Location("my.bucket", "a/b/")),
    ],
)
def test_a_location_is_read(text: str, location: S3Location) -> None:
    assert S3Location.parse(text) == location
    assert S3Location.parse(str(location)) == location


@pytest.mark.parametrize(
    "text",
    ["bucket", "s3:/bucket", "http://bucket", "s3://", "s3://a", "s3://bucket/a//b",
     "s3://bucket/../a", 's3://bucket/a"b', "s3://bucket/" + "a" * 200, "s3://buck et"],
)  # fmt: skip
def test_what_is_no_location_is_refused(text: str) -> None:
    with pytest.raises(S3LocationError, match=r".+"):
        S3Location.parse(text)
