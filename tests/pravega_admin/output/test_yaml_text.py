"""Values as YAML, read by a parser of others."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from pravega_admin.output.yaml_text import write_yaml

TEXTS = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs"))
) | st.sampled_from(
    [
        "null",
        "Yes",
        "on",
        "1",
        "1.5",
        "1e5",
        "-",
        "- a",
        "a: b",
        "#",
        "a #b",
        "~",
        "2026-01-01",
        "",
        "=",
        ".",
    ]
)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
)


@given(VALUES)
def test_a_parser_reads_the_same_value(value: Any) -> None:
    assert yaml.safe_load(write_yaml(value)) == value


def test_it_is_written_in_blocks() -> None:
    value = {"scope": "a", "tags": [], "segments": [{"id": 0, "low": 0.5}, {"id": 1, "low": None}]}
    assert write_yaml(value) == (
        "scope: a\ntags: []\nsegments:\n  - id: 0\n    low: 0.5\n  - id: 1\n    low: null\n"
    )
