"""S3 servers that the tests of this directory share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from foreign_servers.s3 import (
    CREDENTIALS,
    make_bucket,
    moto_server,
    versitygw_path,
    versitygw_server,
)

HERE = Path(__file__).parent
SERVERS = {"moto", "versitygw"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use a server, by a fixture or a parameter of its name."""
    for item in items:
        if isinstance(item, pytest.Function) and HERE in item.path.parents:
            used = {*item.fixturenames}
            if hasattr(item, "callspec"):
                used |= {each for each in item.callspec.params.values() if isinstance(each, str)}
            if used & SERVERS:
                item.add_marker(pytest.mark.processes)


@pytest.fixture(scope="session")
def s3_credentials() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def moto(s3_credentials: None) -> Iterator[str]:
    """The URL of a moto server."""
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def versitygw(s3_credentials: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a versitygw server, where it is installed."""
    executable = versitygw_path()
    if executable is None:
        pytest.skip("versitygw is not installed")
    with versitygw_server(executable, Path(tmp_path_factory.mktemp("versitygw"))) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def new_bucket() -> Callable[[str], str]:
    """Makes a bucket on a server, and tells its name."""
    numbers = itertools.count(1)

    def make(endpoint: str) -> str:
        bucket = f"bucket-{next(numbers)}"
        make_bucket(endpoint, bucket)
        return bucket

    return make
