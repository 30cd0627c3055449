"""Settings as they are declared."""

from __future__ import annotations

import inspect
import re

import pytest

from pravega_admin.serving.declarations import TABLES, Declaration, declarations_of
from pravega_admin.serving.original_names import READERS
from segstore.process.config import MIB

ALL = [each for table in TABLES for each in declarations_of(table)]


def find(path: str) -> Declaration:
    [found] = [each for each in ALL if each.path == path]
    return found


def test_a_setting_is_found_with_all_that_is_declared() -> None:
    found = find("segment_store.cache_bytes_max")
    assert (found.kind, found.default) == (int, 512 * MIB)
    assert found.meaning.startswith("Maximum memory, in bytes, for segments' bytes and pages of")
    assert found.original.split() == [
        "pravegaservice.cache.size.max",
        "pravegaservice.cacheMaxSize",
    ]
    assert (found.option, found.least) == (None, None)


def test_settings_of_sections_and_of_both_kinds_of_servers_are_found() -> None:
    assert find("segment_store.cluster.session_seconds").value == "seconds_of_milliseconds"
    assert find("segment_store.hdfs.requires_sync").default is True
    assert find("segment_store.data_dir").default is inspect.Parameter.empty
    assert find("controller.port").parameter == "port"
    assert find("controller.port").most == 65535


@pytest.mark.parametrize("declaration", ALL, ids=lambda each: each.path)
def test_a_setting_has_a_meaning_and_names_that_can_be_used(declaration: Declaration) -> None:
    assert declaration.meaning.endswith(".")
    assert declaration.option is None or re.fullmatch(r"(--[a-z0-9-]+)?", declaration.option)
    assert declaration.value is None or declaration.value in READERS


def test_no_two_settings_have_one_name_of_the_original() -> None:
    for table in TABLES:
        names = [name for each in declarations_of(table) for name in each.original.split()]
        assert len(names) == len(set(names))
