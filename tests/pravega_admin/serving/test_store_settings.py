"""Settings from options and from a file, together."""

from __future__ import annotations

from pravega_admin.serving.store_settings import join_tables, tier_2_settings


def test_a_section_may_be_set_by_options_and_by_a_file() -> None:
    options = tier_2_settings("s3://bucket", endpoint="https://s3.example.org", region=None)
    file = {"s3": {"ca_file": "/ca.pem"}, "scrub": {"bytes_per_second": 1}}
    assert join_tables(options, file) == {
        "tier2": "s3://bucket",
        "s3": {"endpoint_url": "https://s3.example.org", "region": None, "ca_file": "/ca.pem"},
        "scrub": {"bytes_per_second": 1},
    }
