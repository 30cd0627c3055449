"""The OpenAPI document of the HTTP port, made of the table of routes.

Owns: the schemas of bodies and answers, and the document.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pravega_controller.http.routes import Route

VERSION: Final = "3.1.0"

_STRING: Final = {"type": "string"}
_WHOLE: Final = {"type": "integer", "minimum": 0}
_BOOLEAN: Final = {"type": "boolean"}
_STRINGS: Final = {"type": "array", "items": _STRING}


def _object(required: Iterable[str] = (), **properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    names = list(required)
    return found | {"required": names} if names else found


def _refer(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _list_of(name: str) -> dict[str, Any]:
    return {"type": "array", "items": _refer(name)}


_SETTINGS: Final = {
    "scalingPolicy": _refer("ScalingPolicy"),
    "retentionPolicy": _refer("RetentionPolicy"),
    "timestampAggregationTimeout": _WHOLE,
    "rolloverSizeBytes": _WHOLE,
}

SCHEMAS: Final[dict[str, Any]] = {
    "Error": _object(["error"], error=_STRING),
    "Boolean": _BOOLEAN,
    "Text": _STRING,
    "Scope": _object(["scopeName"], scopeName=_STRING),
    "Scopes": _object(scopes=_list_of("Scope")),
    "ScalingPolicy": _object(
        ["type"],
        type={
            "enum": [
                "FIXED_NUM_SEGMENTS",
                "BY_RATE_IN_KBYTES_PER_SEC",
                "BY_RATE_IN_EVENTS_PER_SEC",
            ]
        },
        targetRate=_WHOLE,
        scaleFactor=_WHOLE,
        minSegments={"type": "integer", "minimum": 1},
    ),
    "RetentionPolicy": _object(
        ["type"],
        type={"enum": ["LIMITED_DAYS", "LIMITED_SIZE_MB"]},
        value=_WHOLE,
        timeBasedRetention=_object(days=_WHOLE, hours=_WHOLE, minutes=_WHOLE),
    ),
    "NewStream": _object(
        ["streamName", "scalingPolicy"], streamName=_STRING, streamTags=_STRINGS, **_SETTINGS
    ),
    "StreamSettings": _object(["scalingPolicy"], streamTags=_STRINGS, **_SETTINGS),
    "Stream": _object(
        ["scopeName", "streamName", "scalingPolicy", "tags"],
        scopeName=_STRING,
        streamName=_STRING,
        tags=_STRINGS,
        **_SETTINGS,
    ),
    "Streams": _object(["streams"], streams=_list_of("Stream")),
    "StreamState": _object(["streamState"], streamState={"enum": ["SEALED"]}),
    "ScaledSegment": _object(
        ["number", "epoch", "start", "keyStart", "keyEnd"],
        number=_WHOLE,
        epoch=_WHOLE,
        start=_WHOLE,
        keyStart={"type": "number"},
        keyEnd={"type": "number"},
    ),
    "ScalingEvent": _object(
        ["timestamp", "segments", "splits", "merges"],
        timestamp=_WHOLE,
        segments=_list_of("ScaledSegment"),
        splits=_WHOLE,
        merges=_WHOLE,
    ),
    "ScalingEvents": _list_of("ScalingEvent"),
    "ReaderGroups": _object(
        readerGroups={
            "type": "array",
            "items": _object(["readerGroupName"], readerGroupName=_STRING),
        }
    ),
    "ReaderGroup": _object(
        ["scopeName", "readerGroupName", "streamList", "onlineReaderIds"],
        scopeName=_STRING,
        readerGroupName=_STRING,
        streamList=_STRINGS,
        onlineReaderIds=_STRINGS,
    ),
    "HealthStatus": {"enum": ["UP", "DOWN"]},
    "HealthDetails": {"type": "object", "additionalProperties": _STRING},
    "Health": _object(
        ["name", "status", "readiness", "liveness", "details", "children"],
        name=_STRING,
        status=_refer("HealthStatus"),
        readiness=_BOOLEAN,
        liveness=_BOOLEAN,
        details=_refer("HealthDetails"),
        children={"type": "object", "additionalProperties": _refer("Health")},
    ),
}
"""The schemas of all bodies and answers, by name."""

OTHER_STATUSES: Final = {
    401: "no user, or a wrong password or token",
    403: "the user has not the right",
    413: "the body is too long",
    503: "segment stores do not answer",
}
"""Statuses that each route may answer with."""


def describe_routes(routes: Mapping[str, Mapping[str, Route]]) -> dict[str, Any]:
    """Return the document that describes these routes, which are by path and method."""
    paths = {
        path.replace(":path}", "}"): {
            method.lower(): _operation(each) for method, each in methods.items()
        }
        for path, methods in routes.items()
    }
    return {
        "openapi": VERSION,
        "info": {
            "title": "segstore",
            "version": "1",
            "description": "Scopes, streams, reader groups and the health of a controller.",
        },
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
        "security": [{}, {"basic": []}, {"bearer": []}],
    }


def _operation(route: Route) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _STRING}
        for name in re.findall(r"\{(\w+)", route.path)
    ]
    parameters += [
        {"name": name, "in": "query", "description": text, "schema": _STRING}
        for name, text in (route.query or {}).items()
    ]
    operation: dict[str, Any] = {"summary": route.summary, "responses": _responses(route)}
    if parameters:
        operation["parameters"] = parameters
    if route.request is not None:
        operation["requestBody"] = {"required": True, "content": _json(route.request)}
    return operation


def _responses(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, text in sorted({**OTHER_STATUSES, **route.statuses}.items()):
        response: dict[str, Any] = {"description": text}
        if status == route.success:
            if route.reply is not None:
                kind = "text/plain" if route.reply == "Text" else "application/json"
                response["content"] = {kind: {"schema": _refer(route.reply)}}
        else:
            response["content"] = _json("Error")
        found[str(status)] = response
    return found


def _json(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": _refer(schema)}}
