"""Names of resources, as accounts files and tokens have them."""

from __future__ import annotations

from pravega_security.resources import (
    Level,
    key_value_table_resource,
    reader_group_resource,
    resource_kept_for,
    stream_resource,
)
from pravega_wire.names import mark_stream, reader_group_stream


def test_resources_have_the_originals_names() -> None:
    assert stream_resource("s", "t") == "prn::/scope:s/stream:t"
    assert reader_group_resource("s", "g") == "prn::/scope:s/reader-group:g"
    assert key_value_table_resource("s", "k") == "prn::/scope:s/key-value-table:k"


def test_a_stream_that_clients_keep_counts_as_what_it_is_kept_for() -> None:
    assert resource_kept_for("s", reader_group_stream("g")) == reader_group_resource("s", "g")
    assert resource_kept_for("s", mark_stream("t")) == stream_resource("s", "t")
    assert resource_kept_for("s", "_other") == stream_resource("s", "_other")


def test_a_greater_level_includes_the_smaller_ones() -> None:
    assert Level.NONE < Level.READ < Level.READ_UPDATE
    assert [level.name for level in Level] == ["NONE", "READ", "READ_UPDATE"]
