"""Data directories of released versions: this one opens them, goes on, and opens them again."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.released_stores import archive_of, check, go_on, released_versions

if TYPE_CHECKING:
    from ..conftest import Standalone


@pytest.mark.parametrize("version", released_versions())
def test_the_store_of_a_release_is_opened_and_goes_on(
    new_store: Callable[[], Standalone], version: str
) -> None:
    directory = new_store().data_dir
    directory.mkdir()
    subprocess.run(
        ["tar", "--extract", "--sparse", "--file", archive_of(version), "--directory", directory],
        check=True,
    )
    for life in range(2):
        store = new_store()
        store.start()
        check(store.controller, added=10 * life)
        go_on(store.controller, added=10 * life, more=10)
        assert store.stop() == 0


def test_each_released_version_has_an_archive() -> None:
    text = (Path(__file__).resolve().parents[3] / "CHANGELOG.md").read_text()
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", text, re.MULTILINE)
    assert released_versions() == sorted(released)
