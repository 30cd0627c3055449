"""The document that describes the HTTP port is about the routes that are there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from hypothesis import assume, example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import pravega_controller.http.application as application
from pravega_controller.errors import InvalidRequestError
from pravega_controller.http.documents import stream_document, stream_message
from pravega_controller.http.openapi import SCHEMAS, describe_routes
from pravega_controller.http.routes import ROUTES
from pravega_controller.rpc.messages import to_configuration
from pravega_controller.rules.streams import validate_configuration
from pravega_wire.names import InvalidNameError, validate_name

assert application.ROUTE_MODULES
DOCUMENT = describe_routes(ROUTES)


def references(value: Any) -> Iterator[str]:
    return (found for found in re.findall(r"#/components/schemas/(\w+)", json.dumps(value)))


def test_each_schema_is_there_and_used() -> None:
    assert set(references(DOCUMENT)) == set(SCHEMAS)


def test_each_operation_has_its_parameters_and_statuses() -> None:
    for path, methods in DOCUMENT["paths"].items():
        for operation in methods.values():
            assert operation["summary"].endswith(".")
            in_path = {
                each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"
            }
            assert in_path == set(re.findall(r"\{(\w+)\}", path))
            assert {"401", "403", "503"} < set(operation["responses"])


def test_each_operation_has_a_name_of_its_own() -> None:
    named = [each["operationId"] for each in operations()]
    assert len({*named}) == len(named)
    assert {"getV1ScopesScopeStreamsStream", "postV1Scopes", "getV1HealthStatusPart"} < {*named}


def test_what_is_made_is_linked_with_what_can_be_done_with_it() -> None:
    by_name = {each["operationId"]: each for each in operations()}
    for name, count in (("postV1Scopes", 5), ("postV1ScopesScopeStreams", 5)):
        links = by_name[name]["responses"]["201"]["links"]
        assert len(links) == count
        for each in links.values():
            wanted = by_name[each["operationId"]]["parameters"]
            assert {*each["parameters"]} == {one["name"] for one in wanted if one["in"] == "path"}


NUMBERS = st.none() | st.sampled_from(
    [-1, 0, 1, 1.0, 1.5, 5_000, 5_001, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 1e300, True, "1"]
)
PARTS = st.dictionaries(st.sampled_from(["days", "hours", "minutes"]), NUMBERS)
SCALINGS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["FIXED_NUM_SEGMENTS", "BY_RATE_IN_EVENTS_PER_SEC", "BY_RATE_IN_KBYTES_PER_SEC", "X", 1]
        )
    },
    optional={"targetRate": NUMBERS, "scaleFactor": NUMBERS, "minSegments": NUMBERS},
)
RETENTIONS = st.fixed_dictionaries(
    {"type": st.sampled_from(["LIMITED_DAYS", "LIMITED_SIZE_MB", None])},
    optional={"value": NUMBERS, "timeBasedRetention": st.none() | PARTS | NUMBERS},
)
TAGS = st.none() | st.lists(st.sampled_from(["", "a", "a" * 255, "a" * 256]), max_size=3)
BODIES = st.fixed_dictionaries(
    {"scalingPolicy": SCALINGS},
    optional={
        "retentionPolicy": st.none() | RETENTIONS | NUMBERS,
        "streamTags": TAGS | st.just(["a"] * 127) | st.just(["a"] * 128),
        "timestampAggregationTimeout": NUMBERS,
        "rolloverSizeBytes": NUMBERS,
    },
)
FIXED = {"type": "FIXED_NUM_SEGMENTS"}


@given(BODIES)
@example({"scalingPolicy": {**FIXED, "targetRate": -1}})
@example(
    {
        "scalingPolicy": FIXED,
        "retentionPolicy": {
            "type": "LIMITED_DAYS",
            "value": 1,
            "timeBasedRetention": {"days": -1},
        },
    }
)
@example({"scalingPolicy": {**FIXED, "minSegments": 2.0}})
def test_a_configuration_is_taken_if_its_schema_says_so(body: dict[str, Any]) -> None:
    try:
        message = stream_message("s", "t", body)
        validate_configuration(to_configuration(message))
        is_taken = True
        assert is_of("Stream", stream_document(message))
    except InvalidRequestError:
        is_taken = False
    assert is_of("StreamSettings", body) == is_taken, body


@given(st.text(st.sampled_from("aZ0._-/ \n\u00e9"), max_size=4) | st.just("a" * 256))
@example(".")
@example("..")
@example("a\n")
@example("_")
def test_a_name_is_taken_if_its_schema_says_so(name: str) -> None:
    # In Python, unlike in JSON Schema, "$" of a pattern is also before a last line feed.
    assume(not name.endswith("\n"))
    try:
        is_taken = validate_name(name) == name
    except InvalidNameError:
        is_taken = False
    assert is_of("Scope", {"scopeName": name}) == is_taken


def operations() -> list[dict[str, Any]]:
    return [each for methods in DOCUMENT["paths"].values() for each in methods.values()]


def is_of(schema: str, value: object) -> bool:
    whole = {"$ref": f"#/components/schemas/{schema}", "components": {"schemas": SCHEMAS}}
    return Draft202012Validator(whole).is_valid(value)
