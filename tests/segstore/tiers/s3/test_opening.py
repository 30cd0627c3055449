"""Messages to users when tier 2 in S3 cannot be used, and the time until they come."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import boto3
import pytest
import trio
import trustme
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from segstore.errors import (
    IdentityError,
    IdentityProblem,
    StorageConfigurationError,
    StorageUnreachableError,
)
from segstore.ownership.claims import owned
from segstore.ownership.data_directory import DataDirectory
from segstore.process.config import SegmentStoreConfig
from segstore.process.tier_two import open_storage
from segstore.tiers.s3.location import S3Location, S3LocationError
from segstore.tiers.s3.settings import S3Settings
from segstore.tiers.vendor import StorageOfOwner
from support.faults.faulty_http import FaultyHttpProxy, HttpFault, HttpRequest

NAME = "scope/stream/0.#epoch.0#1$00000000000000000000"


def config(directory: Path, tier2: str | None, endpoint: str | None) -> SegmentStoreConfig:
    return SegmentStoreConfig(data_dir=directory, tier2=tier2, s3=S3Settings(endpoint_url=endpoint))


async def start(
    directory: Path, tier2: str | None, endpoint: str | None = None, data: bytes = b""
) -> bytes:
    """Open tier 2 as a process does, write to a chunk when there is data, and read all of it."""
    settings = config(directory, tier2, endpoint)
    async with opened(settings) as storage_of:
        storage = storage_of(lambda: 1)
        if data:
            await storage.write(NAME, offset=0, data=[data])
        length = (await storage.info(NAME)).length
        return bytes(await storage.read(NAME, offset=0, length=length))


@asynccontextmanager
async def opened(settings: SegmentStoreConfig) -> AsyncIterator[StorageOfOwner]:
    directory = DataDirectory.open(settings.data_dir)
    with directory.lock_journal(0):
        async with open_storage(settings, directory) as tier, owned(directory, tier, [0]):
            yield (await tier.open([0]))[0]


@pytest.mark.proof
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
    with pytest.raises(IdentityError, match=r"belongs to another store \([0-9a-f]{32}") as caught:
        await start(tmp_path / "two", f"s3://{bucket}/a", moto)
    assert caught.value.problem is IdentityProblem.FOREIGN
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
    with pytest.raises(StorageConfigurationError, match="cannot be moved to s3:"):
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
        with trio.fail_after(60):
            with pytest.raises(StorageUnreachableError, match=f"{endpoint} cannot be reached"):
                await start(tmp_path, "s3://bucket/a", endpoint)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (HttpFault.BAD_KEY, r"credentials are missing or wrong \(InvalidAccessKeyId"),
        (
            HttpFault.SKEWED,
            "clocks of this machine and of {endpoint} differ too much: set this machine's",
        ),
    ],
)
async def test_refused_requests_are_told(
    fault: HttpFault,
    sentence: str,
    moto: str,
    new_bucket: Callable[[str], str],
    tmp_path: Path,
) -> None:
    proxy = FaultyHttpProxy(moto, next_fault=lambda _: fault)
    async with trio.open_nursery() as nursery:
        endpoint = await nursery.start(proxy.run)
        with pytest.raises(StorageConfigurationError, match=sentence.format(endpoint=endpoint)):
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


async def objects_in(endpoint: str, bucket: str) -> list[str]:
    client = boto3.client("s3", endpoint_url=endpoint)
    found = client.list_objects_v2(Bucket=bucket).get("Contents", ())
    client.close()
    await trio.lowlevel.checkpoint()
    return [each["Key"] for each in found]


async def test_a_start_leaves_its_identity_and_no_probe(
    moto: str, new_bucket: Callable[[str], str], tmp_path: Path
) -> None:
    bucket = new_bucket(moto)
    for turn in (1, 2):
        async with opened(config(tmp_path, f"s3://{bucket}/a", moto)):
            pass
        chunks = {key.partition(".chunk/")[0] for key in await objects_in(moto, bucket)}
        store_id = DataDirectory.open(tmp_path).store_id
        claim, made = sorted(chunks)
        assert claim.startswith(f"a/_system/store$claim-0-{turn:010d}-")
        assert made == f"a/_system/store$identity-{store_id}"


async def test_a_first_start_that_is_cancelled_leaves_no_probe_and_the_next_one_succeeds(
    moto: str, new_bucket: Callable[[str], str], tmp_path: Path
) -> None:
    bucket = new_bucket(moto)
    first = trio.CancelScope()

    def end_first_start(request: HttpRequest) -> HttpFault:
        if request.method == "GET" and "segstore-probe" in request.target:
            first.cancel()
        return HttpFault.NONE

    proxy = FaultyHttpProxy(moto, next_fault=end_first_start)
    async with trio.open_nursery() as nursery:
        endpoint = await nursery.start(proxy.run)
        with first:
            await start(tmp_path, f"s3://{bucket}", endpoint, b"hello")
        nursery.cancel_scope.cancel()
    assert first.cancelled_caught
    assert await objects_in(moto, bucket) == []
    assert await start(tmp_path, f"s3://{bucket}", moto, b"hello") == b"hello"


async def test_a_probe_that_a_killed_start_left_is_in_nobodys_way(
    moto: str, new_bucket: Callable[[str], str], tmp_path: Path
) -> None:
    bucket = new_bucket(moto)
    client = boto3.client("s3", endpoint_url=moto)
    client.put_object(Bucket=bucket, Key="segstore-probe-0123456789abcdef", Body=b"left")
    client.close()
    assert await start(tmp_path, f"s3://{bucket}", moto, b"hello") == b"hello"


async def test_an_emptied_prefix_is_refused(
    moto: str, new_bucket: Callable[[str], str], tmp_path: Path
) -> None:
    bucket = new_bucket(moto)
    await start(tmp_path, f"s3://{bucket}/a", moto, b"hello")
    client = boto3.client("s3", endpoint_url=moto)
    for key in await objects_in(moto, bucket):
        client.delete_object(Bucket=bucket, Key=key)
    client.close()
    with pytest.raises(IdentityError, match=f"in s3://{bucket}/a/, and it is not there") as caught:
        await start(tmp_path, f"s3://{bucket}/a", moto)
    assert caught.value.problem is IdentityProblem.MISSING
    assert await objects_in(moto, bucket) == []


async def test_a_copy_of_a_running_store_gets_nothing(
    moto: str, new_bucket: Callable[[str], str], tmp_path: Path
) -> None:
    bucket = new_bucket(moto)
    tier2 = f"s3://{bucket}/a"
    one, copy = tmp_path / "one", tmp_path / "copy"
    await start(one, tier2, moto, b"hello")
    async with opened(config(one, tier2, moto)):
        shutil.copytree(one, copy)
        with pytest.raises(IdentityError, match="which may use it still") as caught:
            await start(copy, tier2, moto)
        assert caught.value.problem is IdentityProblem.CLAIMED
    assert await start(one, tier2, moto) == b"hello"
    # Of copies that were made after a clean stop one may go on.
    shutil.rmtree(copy)
    shutil.copytree(one, copy)
    assert await start(copy, tier2, moto) == b"hello"
    with pytest.raises(IdentityError, match="was used since by the store in") as caught:
        await start(one, tier2, moto)
    assert caught.value.problem is IdentityProblem.CLAIMED


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


@pytest.fixture(scope="module")
def secure_moto(
    s3_credentials: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    """A server of S3 over TLS: its URL, and the file of the CA that it is checked with."""
    directory = tmp_path_factory.mktemp("security")
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(directory / "ca.pem"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(tls)
    served = make_server(
        "127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), ssl_context=tls
    )
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    try:
        yield f"https://127.0.0.1:{served.server_port}", directory / "ca.pem"
    finally:
        served.shutdown()
        thread.join()
        served.server_close()


async def test_the_server_is_checked_with_the_ca_that_is_named(
    secure_moto: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, ca = secure_moto
    boto3.client("s3", endpoint_url=url, verify=str(ca)).create_bucket(Bucket="secure")

    def settings(name: str, ca_file: Path | None) -> SegmentStoreConfig:
        given = None if ca_file is None else str(ca_file)
        s3 = S3Settings(endpoint_url=url, ca_file=given)
        return SegmentStoreConfig(data_dir=tmp_path / name, tier2=f"s3://secure/{name}", s3=s3)

    async with opened(settings("one", ca)) as storage_of:
        await storage_of(lambda: 1).write(NAME, offset=0, data=[b"hello"])
    with pytest.raises(StorageConfigurationError, match="CERTIFICATE_VERIFY_FAILED"):
        async with opened(settings("two", None)):
            pass
    # Without the setting, boto3's own variable decides.
    monkeypatch.setenv("AWS_CA_BUNDLE", str(ca))
    async with opened(settings("three", None)):
        pass


@pytest.mark.parametrize("content", [None, "", "no certificate"])
async def test_certificates_that_cannot_be_read_are_told(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    s3 = S3Settings(endpoint_url="https://127.0.0.1:1", ca_file=str(file))
    config = SegmentStoreConfig(data_dir=tmp_path / "data", tier2="s3://bucket", s3=s3)
    with pytest.raises(StorageConfigurationError, match=r"ca\.pem cannot be read"):
        async with opened(config):
            pass
