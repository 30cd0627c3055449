"""The options of a segment store that is a member of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from pravega_admin.commands.recover import recover
from pravega_admin.errors import ConfigurationError
from pravega_admin.serving.serve import decode_path
from pravega_admin.serving.store_settings import member_settings, start_standalone, tier_2_settings
from segstore.process.config import SegmentStoreConfig
from segstore_client.errors import UsageError

NOTHING: dict[str, Any] = {"zookeeper": None, "replicas": None, "name": None, "published": None}


def test_a_store_on_its_own_has_no_such_settings() -> None:
    assert member_settings({}, **NOTHING) is None


def test_options_and_the_settings_file_make_one_configuration() -> None:
    given = {**NOTHING, "zookeeper": "a:2181,b:2181", "replicas": "3/2/2", "name": "test"}
    member = member_settings({"session_seconds": 4.0}, **given)
    tier = tier_2_settings("/mnt/shared", endpoint=None, region=None, is_shared=True)
    options = {"data_dir": "data", "container_count": 1000, "cluster": member, **tier}
    config = msgspec.convert(options, SegmentStoreConfig, dec_hook=decode_path)
    assert config.storage_dir == Path("/mnt/shared")
    assert config.cluster is not None
    assert config.cluster.zookeeper == "a:2181,b:2181"
    assert config.cluster.replicas == (3, 2, 2)
    assert config.cluster.session_seconds == 4.0
    assert config.cluster.name == "test"


@pytest.mark.parametrize(
    ("file", "given", "what"),
    [
        ({}, {"name": "test"}, "needs --zookeeper"),
        ({"session_seconds": 4.0}, {}, "needs --zookeeper"),
        ({}, {"zookeeper": "a:1", "replicas": "3/2"}, "three numbers"),
        ({}, {"zookeeper": "a:1", "replicas": "3/2/x"}, "three numbers"),
        ({"zookeeper": "b:1"}, {"zookeeper": "a:1"}, "an option set zookeeper"),
    ],
)
def test_what_does_not_fit_is_refused(
    file: dict[str, Any], given: dict[str, Any], what: str
) -> None:
    with pytest.raises((UsageError, ConfigurationError), match=what):
        member_settings(file, **{**NOTHING, **given})


def test_replicas_that_no_log_can_have_are_refused() -> None:
    member = member_settings({}, **{**NOTHING, "zookeeper": "a:1", "replicas": "2/3/2"})
    with pytest.raises(msgspec.ValidationError, match="2/3/2"):
        msgspec.convert(
            {"data_dir": "data", "cluster": member}, SegmentStoreConfig, dec_hook=decode_path
        )


def test_a_member_that_listens_on_all_addresses_publishes_one() -> None:
    given = {**NOTHING, "zookeeper": "a:1"}
    settings = {"data_dir": "data", "host": "0.0.0.0"}
    with pytest.raises(msgspec.ValidationError, match="--publish HOST:PORT"):
        msgspec.convert(
            {**settings, "cluster": member_settings({}, **given)},
            SegmentStoreConfig,
            dec_hook=decode_path,
        )
    published = member_settings({}, **{**given, "published": ("store-1", 12345)})
    config = msgspec.convert(
        {**settings, "cluster": published}, SegmentStoreConfig, dec_hook=decode_path
    )
    assert config.cluster is not None
    assert config.cluster.published == ("store-1", 12345)


def test_a_standalone_store_is_no_member(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[segment_store.cluster]\nzookeeper = "a:1"\n')
    with pytest.raises(ConfigurationError, match="no member of a cluster"):
        start_standalone({"config": str(file)})


def test_recover_says_that_it_is_not_for_members_of_a_cluster(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text('[segment_store.cluster]\nzookeeper = "a:2181"\n')
    with pytest.raises(ConfigurationError, match="logs are on bookies"):
        recover(data_dir=tmp_path, container_count=4, config=settings)
    with pytest.raises(ConfigurationError, match="a member of a cluster has none"):
        recover(data_dir=tmp_path / "missing", container_count=4)
