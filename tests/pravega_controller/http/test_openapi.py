"""The document that describes the HTTP port is about the routes that are there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pravega_controller.http.application as application
from pravega_controller.http.openapi import SCHEMAS, describe_routes
from pravega_controller.http.routes import ROUTES

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
