"""Settings as they are declared."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from pravega_admin.errors import ConfigurationError
from pravega_admin.serving.declarations import (
    TABLES,
    Declaration,
    configuration_of,
    declarations_of,
)
from pravega_admin.serving.original_names import READERS
from pravega_admin.serving.serve import decode_path
from pravega_admin.serving.settings_file import read_settings
from segstore.process.config import (
    CACHE_BYTES_MIN,
    JOURNAL_FILE_BYTES_MIN,
    JOURNAL_INTERVAL_SECONDS_MAX,
    MIB,
)
from segstore.tiers.journal.settings import FILE_OVERHEAD_BYTES, INTERVAL_SECONDS_MAX

ALL = [each for table in TABLES for each in declarations_of(table)]
NUMBERS = [each for each in ALL if {int, float} & {each.kind, *get_args(each.kind)}]
NUMBERS_OF_FILES = [each for each in NUMBERS if each.option is None]
COMPANIONS: dict[str, dict[str, Any]] = {
    "segment_store.journal_file_bytes": {"journal_bytes_max": 512 * MIB},
    "segment_store.journal_bytes_max": {
        "journal_file_bytes": JOURNAL_FILE_BYTES_MIN,
        "active_segments_max": 1,
        "throttling": {"attributes_dirty_max": 1},
    },
}
"""Settings without which the least value of another one makes no sense."""
REQUIRED = {
    "segment_store": {"data_dir": "data"},
    "segment_store.cluster": {"zookeeper": "zk1:2181"},
    "controller.bearer": {"keys": "keys.json", "issuer": "i", "audience": "a"},
}
"""The settings that a table or a section needs, whatever else it has."""


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
    assert (found.option, found.least, found.most) == (None, CACHE_BYTES_MIN, None)


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


def is_tuple(declaration: Declaration) -> bool:
    return any(getattr(each, "__origin__", None) is tuple for each in (declaration.kind,))


def write(path: Path, declaration: Declaration, value: float) -> Path:
    table, name = declaration.path.rsplit(".", 1)
    path.write_text(f"[{table}]\n{name} = {value!r}\n")
    return path


def settings_with(declaration: Declaration, value: float) -> dict[str, Any]:
    """Return the settings of a table that have this value, and what it needs."""
    table, *sections = declaration.path.split(".")[:-1]
    settings = {**REQUIRED.get(table, {}), **COMPANIONS.get(declaration.path, {})}
    inner, place = settings, table
    for section in sections:
        place = f"{place}.{section}"
        inner[section] = {**REQUIRED.get(place, {}), **inner.get(section, {})}
        inner = inner[section]
    inner[declaration.name] = value
    return settings


@pytest.mark.parametrize("declaration", NUMBERS, ids=lambda each: each.path)
def test_a_number_has_a_minimum(declaration: Declaration) -> None:
    if not is_tuple(declaration):
        assert (declaration.least is None) != (declaration.above is None)


@pytest.mark.parametrize("declaration", NUMBERS_OF_FILES, ids=lambda each: each.path)
def test_a_number_beyond_its_bounds_is_refused_in_a_file(
    declaration: Declaration, tmp_path: Path
) -> None:
    wrong = [] if declaration.above is None else [declaration.above]
    wrong += [] if declaration.least is None else [declaration.least - 1]
    wrong += [] if declaration.most is None else [declaration.most + 1]
    for value in wrong:
        path = write(tmp_path / "settings.toml", declaration, value)
        with pytest.raises(ConfigurationError, match=rf"line 2: .*{declaration.name} has to be "):
            read_settings(path)


@pytest.mark.parametrize("declaration", NUMBERS, ids=lambda each: each.path)
def test_a_number_may_be_what_its_bounds_say(declaration: Declaration) -> None:
    """What checks of several settings refuse is no value that a page may show."""
    kind = configuration_of(declaration.path.partition(".")[0])
    bounds = [each for each in (declaration.least, declaration.most) if each is not None]
    for value in bounds:
        settings = settings_with(declaration, value)
        msgspec.convert(settings, kind, dec_hook=decode_path)


def test_the_bounds_of_the_journal_are_its_own() -> None:
    assert JOURNAL_FILE_BYTES_MIN == 2 * FILE_OVERHEAD_BYTES
    assert JOURNAL_INTERVAL_SECONDS_MAX == INTERVAL_SECONDS_MAX
