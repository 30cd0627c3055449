"""Options are checked before anything is read."""

from __future__ import annotations

import pytest

from pravega_blocking.addresses import DEFAULT_CONTROLLER
from pravega_spark.errors import OptionError
from pravega_spark.options import Options


def test_defaults_are_those_of_the_official_connector() -> None:
    options = Options.parse({"scope": "s", "stream": "t"})
    assert options.controller == DEFAULT_CONTROLLER
    assert options.name == "s/t"
    assert options.allow_create_scope
    assert options.allow_create_stream
    assert options.fail_on_data_loss
    assert options.max_bytes_per_trigger == 0


def test_names_are_taken_in_any_case_and_others_left_to_spark() -> None:
    options = Options.parse({"Scope": "s", "STREAM": "t", "checkpointLocation": "x"})
    assert options.name == "s/t"


def test_the_official_name_of_the_limit_works_too() -> None:
    given = {"scope": "s", "stream": "t", "approx_bytes_per_trigger": "10"}
    assert Options.parse(given).max_bytes_per_trigger == 10
    given["max_bytes_per_trigger"] = "20"
    assert Options.parse(given).max_bytes_per_trigger == 20


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "scope"),
        ({"scope": "s"}, "stream"),
        ({"scope": "s", "metadata": "StreamInfo"}, "stream"),
        ({"scope": "s", "metadata": "all"}, "metadata"),
        ({"scope": "s", "stream": "t", "fail_on_data_loss": "maybe"}, "fail_on_data_loss"),
        ({"scope": "s", "stream": "t", "min_partitions": "-1"}, "min_partitions"),
        ({"scope": "s", "stream": "t", "max_rows_per_trigger": "many"}, "max_rows_per_trigger"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Options.parse(given)
