"""Real stores that are started on tiers which are missing or another store's."""

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from foreign_servers.s3 import CREDENTIALS, make_bucket, moto_server

from pravega_admin.errors import EXIT_CONFIGURATION
from segstore.testing.ports import free_ports

from .conftest import Standalone
from .serving.test_standalone import (
    assert_exactly_once_and_in_order,
    create_stream,
    events_of,
    write_numbers,
)

pytestmark = [pytest.mark.proof, pytest.mark.processes]

EVENT_COUNT = 500
SECONDS_MAX = 60


class Store(Standalone):
    """A store with more options."""

    def __init__(self, data_dir: Path, *options: str) -> None:
        super().__init__(data_dir)
        self.options = options

    @property
    def command(self) -> list[str]:
        return [*super().command, *self.options]

    def live(self, *, writes: bool = False) -> None:
        """Start, see that all events are there, and stop."""
        self.start()
        try:
            if writes:
                create_stream(self, "events", 2)
                write_numbers(
                    self, "events", EVENT_COUNT, every=EVENT_COUNT, meanwhile=lambda: None
                )
            assert_exactly_once_and_in_order(events_of(self, "events"), EVENT_COUNT)
            assert self.stop() == 0
        finally:
            self.close()

    def wait_until_back(self, killed: int) -> None:
        """Wait until the segment store listens again, in another process than the killed one."""
        deadline = time.monotonic() + SECONDS_MAX
        while self.pid_of("segment-store-0") == killed:
            time.sleep(0.01)
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.segment_store_port)).close()
                return
            except ConnectionRefusedError:
                assert time.monotonic() < deadline, "the segment store does not come back"
                time.sleep(0.05)

    def refused(self) -> str:
        """Return the one sentence with which a start ends, of the whole store and of the server
        alone."""
        [port] = free_ports(1)
        server = [
            *(sys.executable, "-m", "pravega_admin", "server"),
            *("--data-dir", str(self.data_dir), "--port", str(port), *self.options),
        ]
        sentences = set()
        for command in (self.command, server):
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                timeout=SECONDS_MAX,
            )
            assert done.returncode == EXIT_CONFIGURATION
            assert "Traceback" not in done.stderr
            *_, last = done.stderr.splitlines()
            assert done.stderr.count("segstore: ") == 1
            sentences.add(last)
        [sentence] = sentences
        return sentence


def settings(path: Path, storage: Path) -> str:
    """Write the option that names a directory for tier 2, and return its argument."""
    path.write_text(f'[segment_store]\nstorage_dir = "{storage}"\n')
    return f"--config={path}"


def test_a_start_without_the_directory_of_tier_2_loses_nothing(tmp_path: Path) -> None:
    storage, away = tmp_path / "disk" / "tier-2", tmp_path / "away"
    option = settings(tmp_path / "settings.toml", storage)
    Store(tmp_path / "data", option).live(writes=True)
    storage.rename(away)
    assert f"in {storage}, and it is not there" in Store(tmp_path / "data", option).refused()
    storage.mkdir()  # the place where it is mounted
    assert f"in {storage}, and it is not there" in Store(tmp_path / "data", option).refused()
    assert list(storage.iterdir()) == []
    storage.rmdir()
    away.rename(storage)
    Store(tmp_path / "data", option).live()


def test_two_stores_never_use_one_directory(tmp_path: Path) -> None:
    option = settings(tmp_path / "settings.toml", tmp_path / "tier-2")
    one = Store(tmp_path / "one", option)
    one.start()
    try:
        create_stream(one, "events", 2)
        write_numbers(one, "events", EVENT_COUNT, every=EVENT_COUNT, meanwhile=lambda: None)
        assert "belongs to another store" in Store(tmp_path / "two", option).refused()
        shutil.copytree(
            tmp_path / "one",
            tmp_path / "copy",
            ignore=shutil.ignore_patterns("*.new", "run"),
        )
        assert "which may use it still" in Store(tmp_path / "copy", option).refused()
        # A killed server is started again in its place.
        one.wait_until_back(one.kill("segment-store-0"))
        assert_exactly_once_and_in_order(events_of(one, "events"), EVENT_COUNT)
        assert one.stop() == 0
    finally:
        one.close()
    assert "is older than tier 2" in Store(tmp_path / "copy", option).refused()
    Store(tmp_path / "one", option).live()


def test_a_prefix_in_s3_is_refused_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with moto_server() as endpoint:
        make_bucket(endpoint, "bucket")
        options = ["--tier2=s3://bucket/a", f"--s3-endpoint={endpoint}"]
        Store(tmp_path / "one", *options).live(writes=True)
        shutil.copytree(tmp_path / "one", tmp_path / "copy")
        assert "belongs to another store" in Store(tmp_path / "two", *options).refused()
        Store(tmp_path / "one", *options).live()
        assert "which was used since by" in Store(tmp_path / "copy", *options).refused()
        # A bucket that lost everything.
        make_bucket(endpoint, "empty")
        note = tmp_path / "one" / "segstore.toml"
        text = note.read_text()
        note.write_text(text.replace("s3://bucket/a/", "s3://empty/a/"))
        empty = ["--tier2=s3://empty/a", f"--s3-endpoint={endpoint}"]
        assert "in s3://empty/a/, and it is not there" in Store(tmp_path / "one", *empty).refused()
        note.write_text(text)
        Store(tmp_path / "one", *options).live()
