"""Texts of stream cuts, beside those that the official client writes."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_wire.names import segment_id
from pravega_wire.stream_cut_text import (
    TEXT_BYTES_MAX,
    StreamCutTextError,
    decode_cut_text,
    encode_cut_text,
)

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "compat-tests" / "golden" / "records.json").read_text("ascii")
)
INT32 = st.integers(0, 2**31 - 1)
CUTS = st.dictionaries(st.builds(segment_id, INT32, INT32), st.integers(-1, 2**63 - 1), min_size=1)


def packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode())).decode()


@pytest.mark.parametrize("case", GOLDEN["stream_cuts"], ids=lambda case: len(case["cut"]))
def test_official_texts_are_read_and_ours_say_the_same(case: dict[str, Any]) -> None:
    name = f"{case['scope']}/{case['stream']}"
    cut = {int(segment): offset for segment, offset in case["cut"].items()}
    assert decode_cut_text(case["text"]) == (name, cut)
    # The bytes of a compressed text are the compressor's own affair.
    ours, theirs = (
        gzip.decompress(base64.b64decode(text))
        for text in (encode_cut_text(name, cut), case["text"])
    )
    assert ours == theirs


@given(CUTS)
def test_a_cut_survives_its_text(cut: dict[int, int]) -> None:
    assert decode_cut_text(encode_cut_text("s/t", cut)) == ("s/t", cut)


@given(st.text(max_size=60))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(StreamCutTextError):
        decode_cut_text(text)


@pytest.mark.parametrize(
    "plain",
    ["", "1:s/t:0:0:0", "0:s/t:0:0", "0:s/t:0,1:0:0", "0:s/t:a:0:0", "0:s/t:-1:0:0", "0:s/t:::"],
)
def test_what_is_packed_is_checked_too(plain: str) -> None:
    with pytest.raises(StreamCutTextError):
        decode_cut_text(packed(plain))


def test_a_short_text_does_not_become_a_long_one() -> None:
    with pytest.raises(StreamCutTextError, match="too long"):
        decode_cut_text(packed("0:s/t:" + "0" * (TEXT_BYTES_MAX + 1) + ":0:0"))
