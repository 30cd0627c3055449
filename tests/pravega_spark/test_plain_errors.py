"""Errors leave the data source as one sentence."""

from __future__ import annotations

import traceback

import pytest

from pravega_spark.plain_errors import told_plainly
from segstore_client.errors import UnavailableError


@told_plainly
def fail() -> None:
    try:
        raise OSError("a page of gRPC")
    except OSError as error:
        raise UnavailableError("no controller answers") from error


def test_an_error_is_told_first_and_without_its_causes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnavailableError) as caught:
        fail()
    assert capsys.readouterr().err == "pravega: no controller answers\n"
    told = "".join(traceback.format_exception(caught.value))
    assert "gRPC" not in told
    assert told.endswith("UnavailableError: no controller answers\n")
