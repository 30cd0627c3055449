"""Stores on HDFS: where it is, who asks, and what a start says when it cannot be used."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from structlog.testing import capture_logs

from segstore.errors import (
    IdentityError,
    SegmentExistsError,
    StorageConfigurationError,
    StorageError,
    StorageUnreachableError,
)
from segstore.process.assembly import open_containers
from segstore.process.config import SegmentStoreConfig
from segstore.process.tier_two_vendors import VENDORS
from segstore.tiers.hdfs import opening
from segstore.tiers.hdfs.failures import HdfsRequestError
from segstore.tiers.hdfs.location import HdfsLocation, HdfsLocationError
from segstore.tiers.hdfs.opening import PROBE, Identity
from segstore.tiers.hdfs.settings import HdfsSettings
from segstore.tiers.hdfs.webhdfs import RepeatLimits
from support.faults.fake_hdfs import (
    CONF,
    FakeHdfs,
    Refusal,
    RequestFault,
    dead_address,
    fake_hdfs,
)
from support.log_lines import find_warnings

SETTINGS = HdfsSettings(user="somebody")


@pytest.fixture(autouse=True)
def quick_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = RepeatLimits(retry_seconds_max=0.5, pause_seconds_max=0.1)
    monkeypatch.setattr(opening, "START_LIMITS", limits)


@pytest.fixture
def hdfs() -> Iterator[FakeHdfs]:
    with fake_hdfs() as hdfs:
        yield hdfs


def config(path: Path, tier2: str, settings: HdfsSettings = SETTINGS) -> SegmentStoreConfig:
    return SegmentStoreConfig(data_dir=path, container_count=1, tier2=tier2, hdfs=settings)


def location_of(hdfs: FakeHdfs) -> str:
    return f"webhdfs://{','.join(hdfs.namenodes)}/stores/one"


async def serve(path: Path, tier2: str, settings: HdfsSettings = SETTINGS) -> None:
    """Start a store, let it make a segment with some bytes at its first start, and stop it."""
    async with (
        open_containers(config(path, tier2, settings)) as open_container,
        open_container(0) as container,
    ):
        with suppress(SegmentExistsError):
            await container.create_segment("s")
            await container.append("s", b"hello")
        read = await container.read("s", offset=0, length_max=10)
        assert bytes(read.data) == b"hello"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("webhdfs://nn/a", "webhdfs://nn:9870/a"),
        ("swebhdfs://nn/a/b/", "swebhdfs://nn:9871/a/b"),
        ("webhdfs://nn1:50070,10.0.0.2/a", "webhdfs://nn1:50070,10.0.0.2:9870/a"),
        ("webhdfs://[::1]:9870/a", "webhdfs://[::1]:9870/a"),
    ],
)
def test_a_location_names_namenodes_and_a_directory(text: str, canonical: str) -> None:
    assert str(HdfsLocation.parse(text)) == canonical
    assert str(HdfsLocation.parse(canonical)) == canonical
    assert (
        HdfsLocation.parse(text)
        .addresses[0]
        .startswith("https://" if text.startswith("s") else "http://")
    )


@pytest.mark.parametrize(
    "text",
    [
        "webhdfs://",
        "webhdfs://nn",
        "webhdfs://nn/",
        "webhdfs:///a",
        "webhdfs://nn:0/a",
        "webhdfs://nn:99999/a",
        "webhdfs://user@nn/a",
        "webhdfs://nn,/a",
        "webhdfs://nn/a//b",
        "webhdfs://nn/../a",
        "webhdfs://nn/a?b",
        "hdfs://nn:8020/a",
    ],
)
def test_what_is_no_location_is_refused(text: str) -> None:
    with pytest.raises(HdfsLocationError):
        HdfsLocation.parse(text)
    with pytest.raises(StorageConfigurationError, match="--tier2"):
        VENDORS["webhdfs"].parse(text)


def test_numbers_that_no_file_can_have_are_refused() -> None:
    for settings in ({"replication": 0}, {"block_bytes": 0}, {"unknown": 1}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(settings, HdfsSettings)


def test_the_user_is_the_settings_then_the_environments_then_the_systems() -> None:
    environment = {"HADOOP_USER_NAME": "hadoop"}
    assert Identity(SETTINGS, environment=environment)() == {"user.name": "somebody"}
    assert Identity(HdfsSettings(), environment=environment)() == {"user.name": "hadoop"}
    assert Identity(HdfsSettings(), environment={})()["user.name"]


def test_a_token_is_read_again_when_its_file_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "token"
    identity = Identity(HdfsSettings(user="x", token_file=str(file)))
    with pytest.raises(HdfsRequestError, match="token_file cannot be read"):
        identity()
    file.write_text("first\n")
    assert identity() == {"delegation": "first"}
    (tmp_path / "new").write_text("second\n")
    os.replace(tmp_path / "new", file)
    assert identity() == {"delegation": "second"}


async def test_a_start_says_that_the_user_has_no_name(
    hdfs: FakeHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container with a user of its own is an example."""
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME", "HADOOP_USER_NAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    with pytest.raises(StorageConfigurationError, match="give a user's name"):
        await serve(tmp_path, location_of(hdfs), HdfsSettings())


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "cannot be read"), (b"HDTS\x00\xff\xfe", "is no text"), (b"\n", "is empty")],
)
async def test_a_token_file_without_a_token_is_told(
    hdfs: FakeHdfs, tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StorageConfigurationError, match=sentence):
        await serve(tmp_path / "data", location_of(hdfs), HdfsSettings(token_file=str(file)))


async def test_a_store_keeps_its_history_and_is_started_again(
    hdfs: FakeHdfs, tmp_path: Path
) -> None:
    for _ in range(2):
        await serve(tmp_path, location_of(hdfs))
    assert any(path.startswith("/stores/one/s.S-") for path in hdfs.files)
    assert all(path.startswith("/stores/one/") for path in hdfs.files)
    assert {query["user.name"] for query in hdfs.queries} == {"somebody"}


async def test_a_store_goes_on_when_its_namenode_has_moved(hdfs: FakeHdfs, tmp_path: Path) -> None:
    await serve(tmp_path, location_of(hdfs))
    moved = f"webhdfs://{dead_address()},{hdfs.namenodes[0]}/stores/one"
    await serve(tmp_path, moved)
    with pytest.raises(IdentityError, match="and it is not there"):
        await serve(tmp_path, f"webhdfs://{hdfs.namenodes[0]}/stores/other")
    with pytest.raises(StorageConfigurationError, match="not in s3://"):
        await serve(tmp_path, "s3://bucket/prefix")


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_first_start_that_is_stopped_halfway_keeps_no_store_out(
    hdfs: FakeHdfs, tmp_path: Path, is_killed: bool
) -> None:
    if is_killed:
        hdfs.plan("DELETE", *[RequestFault(refusal=Refusal("IOException"))] * 100)
    with trio.CancelScope() as scope:
        token = trio.lowlevel.current_trio_token()
        stop = RequestFault(first=lambda: token.run_sync_soon(scope.cancel), is_answered=True)
        hdfs.plan("APPEND", stop)
        await serve(tmp_path, location_of(hdfs))
    assert scope.cancelled_caught
    left = [path for path in hdfs.files if PROBE in path]
    assert len(left) == is_killed
    hdfs.forget_faults()
    await serve(tmp_path, location_of(hdfs))


async def test_settings_reach_the_files(hdfs: FakeHdfs, tmp_path: Path) -> None:
    settings = HdfsSettings(user="somebody", replication=2, block_bytes=1 << 20)
    await serve(tmp_path, location_of(hdfs), settings)
    created = [query for query in hdfs.queries if query["op"] == "CREATE"]
    assert {(query["replication"], query["blocksize"]) for query in created} == {("2", "1048576")}
    assert {query["permission"] for query in created} == {"600"}


async def test_datanodes_that_do_not_sync_are_refused(hdfs: FakeHdfs, tmp_path: Path) -> None:
    hdfs.sync_on_close = "false"
    with pytest.raises(StorageConfigurationError, match=r"set it to true in hdfs-site\.xml"):
        await serve(tmp_path / "refused", location_of(hdfs))
    with fake_hdfs() as other:
        other.sync_on_close = "false"
        risky = HdfsSettings(user="somebody", requires_sync=False)
        await serve(tmp_path / "risky", location_of(other), risky)


async def test_a_datanode_that_does_not_tell_whether_it_syncs_is_a_warning(
    hdfs: FakeHdfs, tmp_path: Path
) -> None:
    hdfs.sync_on_close = None
    with capture_logs() as logs:
        await serve(tmp_path, location_of(hdfs))
    [warning] = find_warnings(logs)
    assert "does not tell whether it syncs what it closes" in warning


@pytest.mark.parametrize("value", ["TRUE", " true\n"])
async def test_the_sync_setting_is_read_as_hadoop_reads_it(
    hdfs: FakeHdfs, tmp_path: Path, value: str
) -> None:
    hdfs.sync_on_close = value
    await serve(tmp_path, location_of(hdfs))


@pytest.mark.parametrize(
    ("operation", "fault"),
    [
        ("CREATE", RequestFault(redirect=dead_address())),
        (CONF, RequestFault()),
        (CONF, RequestFault(refusal=Refusal("NullPointerException", status=500))),
    ],
)
@pytest.mark.parametrize("times", [1, 1000])
async def test_a_look_at_the_sync_setting_that_fails_lets_no_store_start(
    hdfs: FakeHdfs, tmp_path: Path, operation: str, fault: RequestFault, times: int
) -> None:
    """A look that fails once is repeated, and then the setting is known."""
    await serve(tmp_path, location_of(hdfs))
    hdfs.sync_on_close = "false"
    # The claim of the directory is created before.
    before = [RequestFault(redirect=hdfs.datanode)] if operation == "CREATE" else []
    hdfs.plan(operation, *before, *[fault] * times)
    kind = StorageConfigurationError if times == 1 else StorageUnreachableError
    with pytest.raises(kind):
        await serve(tmp_path, location_of(hdfs))


async def test_a_look_at_the_sync_setting_that_fails_is_a_warning_where_syncs_are_not_required(
    hdfs: FakeHdfs, tmp_path: Path
) -> None:
    hdfs.plan(CONF, *[RequestFault()] * 1000)
    risky = HdfsSettings(user="somebody", requires_sync=False)
    with capture_logs() as logs:
        await serve(tmp_path, location_of(hdfs), risky)
    [warning] = find_warnings(logs)
    assert "cannot find out whether DataNodes sync" in warning


@pytest.mark.parametrize(
    ("refusal", "kind", "sentence"),
    [
        (Refusal("AccessControlException"), StorageConfigurationError, "hdfs dfs -chown"),
        (Refusal("SecurityException", status=401), StorageConfigurationError, "token_file"),
        (Refusal("NSQuotaExceededException"), StorageConfigurationError, "quota"),
        (Refusal("StandbyException"), StorageUnreachableError, "name all of them"),
        (
            Refusal("UnsupportedOperationException", "x", 400, "java.lang"),
            StorageConfigurationError,
            "cannot",
        ),
    ],
)
async def test_a_start_says_what_is_wrong(
    hdfs: FakeHdfs, tmp_path: Path, refusal: Refusal, kind: type[StorageError], sentence: str
) -> None:
    hdfs.plan("MKDIRS", *[RequestFault(refusal=refusal)] * 1000)
    with pytest.raises(kind, match=sentence):
        await serve(tmp_path, location_of(hdfs))


async def test_a_start_without_hdfs_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorageUnreachableError, match=r"dfs\.namenode\.http-address"):
        await serve(tmp_path, f"webhdfs://{dead_address()}/stores/one")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of 127.0.0.1, signed by itself, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = tmp_path / "certificate.pem"
    path.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
    return path


async def test_everything_goes_over_tls_when_the_location_says_so(
    certificate: Path, tmp_path: Path
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with fake_hdfs(tls=tls) as hdfs:
        location = f"swebhdfs://{hdfs.namenodes[0]}/stores/one"
        trusting = HdfsSettings(user="somebody", ca_file=str(certificate))
        await serve(tmp_path / "one", location, trusting)
        with pytest.raises(StorageConfigurationError, match=r"TLS: .*certificate"):
            await serve(tmp_path / "two", location, SETTINGS)


@pytest.mark.parametrize("content", [None, "", "no certificate"])
async def test_certificates_that_cannot_be_read_are_told(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    settings = HdfsSettings(ca_file=str(file))
    with pytest.raises(StorageConfigurationError, match=r"ca\.pem cannot be read"):
        await serve(tmp_path / "data", "swebhdfs://127.0.0.1:1/stores/one", settings)
