from __future__ import annotations

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.errors import TooFewDescriptorsError
from segstore.runtime.descriptors import (
    KEPT_FILES_MAX,
    KEPT_FILES_MIN,
    LIMIT_MIN,
    descriptor_limit,
    share_out,
)


@given(st.integers(LIMIT_MIN, 1 << 20))
def test_connections_never_get_what_the_rest_needs(limit: int) -> None:
    shares = share_out(limit)
    assert 0 < shares.connections <= limit - limit // 2 or limit > 2 * (limit - shares.connections)
    assert limit - shares.connections >= min(limit // 2, 400)
    assert KEPT_FILES_MIN <= shares.kept_files <= KEPT_FILES_MAX
    assert share_out(limit + 1).connections >= shares.connections


def test_a_usual_limit_leaves_connections_most_of_it() -> None:
    assert share_out(20_000).connections > 19_000
    assert share_out(20_000).kept_files == KEPT_FILES_MAX
    assert share_out(256).connections == 128


def test_a_low_limit_leaves_half_to_connections_and_fewer_files_to_tier_2() -> None:
    for limit in (LIMIT_MIN, 500):
        shares = share_out(limit)
        assert shares.connections == limit // 2
        assert shares.kept_files < KEPT_FILES_MAX


def test_too_low_a_limit_is_refused_with_what_to_do() -> None:
    with pytest.raises(TooFewDescriptorsError, match=r"100 files .* needs 128: raise the limit"):
        share_out(100)


def test_the_limit_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert descriptor_limit() >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0
    monkeypatch.setattr(
        resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    )
    assert descriptor_limit() >= 1 << 16
