"""The OpenAPI document of the HTTP port, made of the table of routes.

Owns: the schemas of bodies and answers, and the document.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pravega_controller.http.documents import DAYS_MAX, INT_MAX, LONG_MAX
from pravega_controller.http.routes import Route
from pravega_controller.rules.streams import SEGMENTS_PER_STREAM_MAX, TAG_LENGTH_MAX, TAGS_MAX
from pravega_wire import names

VERSION: Final = "3.1.0"

_STRING: Final = {"type": "string"}
_NAME: Final = {
    "type": "string",
    "pattern": "^_?[A-Za-z0-9.-]+$",
    "maxLength": names.NAME_LENGTH_MAX,
    "not": {"enum": [".", ".."]},
}
_WHOLE: Final = {"type": "integer", "minimum": 0}
_BOOLEAN: Final = {"type": "boolean"}
_STRINGS: Final = {"type": "array", "items": _STRING}


def _up_to(largest: int, least: int = 0) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": largest}


def _object(required: Iterable[str] = (), **properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    names = list(required)
    return found | {"required": names} if names else found


def _refer(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _list_of(name: str) -> dict[str, Any]:
    return {"type": "array", "items": _refer(name)}


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of what may be left out of a body, or null in it."""
    return {"anyOf": [schema, {"type": "null"}]}


_TAGS: Final = {
    "type": "array",
    "items": {"type": "string", "maxLength": TAG_LENGTH_MAX},
    "maxItems": TAGS_MAX,
}
_SETTINGS: Final = {
    "scalingPolicy": _refer("ScalingPolicy"),
    "retentionPolicy": _refer("RetentionPolicy"),
    "timestampAggregationTimeout": _up_to(LONG_MAX),
    "rolloverSizeBytes": _up_to(LONG_MAX),
}
_WISHES: Final = {
    name: schema if name == "scalingPolicy" else _or_null(schema)
    for name, schema in {**_SETTINGS, "streamTags": _TAGS}.items()
}
_SEGMENTS: Final = _or_null(_up_to(SEGMENTS_PER_STREAM_MAX, 1))

SCHEMAS: Final[dict[str, Any]] = {
    "Error": _object(["error"], error=_STRING),
    "Boolean": _BOOLEAN,
    "Text": _STRING,
    "Scope": _object(["scopeName"], scopeName=_NAME),
    "Scopes": _object(scopes=_list_of("Scope")),
    "ScalingPolicy": {
        "anyOf": [
            _object(
                ["type"],
                type={"enum": ["FIXED_NUM_SEGMENTS"]},
                targetRate=_or_null(_up_to(INT_MAX)),
                scaleFactor=_or_null(_up_to(INT_MAX)),
                minSegments=_SEGMENTS,
            ),
            _object(
                ["type", "targetRate", "scaleFactor"],
                type={"enum": ["BY_RATE_IN_KBYTES_PER_SEC", "BY_RATE_IN_EVENTS_PER_SEC"]},
                targetRate=_up_to(INT_MAX, 1),
                scaleFactor=_up_to(INT_MAX, 1),
                minSegments=_SEGMENTS,
            ),
        ]
    },
    "RetentionPolicy": _object(
        ["type"],
        type={"enum": ["LIMITED_DAYS", "LIMITED_SIZE_MB"]},
        value=_or_null(_up_to(DAYS_MAX)),
        timeBasedRetention=_or_null(
            _object(
                days=_or_null(_up_to(DAYS_MAX)),
                hours=_or_null(_up_to(INT_MAX)),
                minutes=_or_null(_up_to(INT_MAX)),
            )
        ),
    ),
    "NewStream": _object(["streamName", "scalingPolicy"], streamName=_NAME, **_WISHES),
    "StreamSettings": _object(["scalingPolicy"], **_WISHES),
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

CREATED: Final = 201
NAME_FIELDS: Final = {"scope": "scopeName", "stream": "streamName"}
"""The fields of answers that have the names in paths."""
OTHER_STATUSES: Final = {
    401: "no user, or a wrong password or token",
    403: "the user has not the right",
    408: "the body comes too slowly",
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
    every = [each for methods in routes.values() for each in methods.values()]
    for maker in (each for each in every if each.success == CREATED):
        made = paths[maker.path][maker.method.lower()]["responses"][str(CREATED)]
        made["links"] = _links_from(maker, every)
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


def _identifier(route: Route) -> str:
    """Return the name of an operation, of which generated clients make one of a function."""
    words = re.findall(r"\w+", route.path.replace(":path", ""))
    return route.method.lower() + "".join(word[0].upper() + word[1:] for word in words)


def _links_from(maker: Route, routes: Iterable[Route]) -> dict[str, Any]:
    """Return the operations about what a route makes, whose names are in its answer."""
    told = SCHEMAS[maker.reply or ""]["properties"]
    known = {name: field for name, field in NAME_FIELDS.items() if field in told}
    return {
        _identifier(each): {
            "operationId": _identifier(each),
            "parameters": {name: f"$response.body#/{known[name]}" for name in _path_names(each)},
        }
        for each in routes
        if known.keys() == set(_path_names(each))
    }


def _path_names(route: Route) -> list[str]:
    """Return the names of the parameters of a path."""
    return re.findall(r"\{(\w+)", route.path)


def _operation(route: Route) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _STRING}
        for name in _path_names(route)
    ]
    parameters += [
        {
            "name": name,
            "in": "query",
            "description": each.text,
            "schema": each.schema,
            "required": each.required,
        }
        for name, each in (route.query or {}).items()
    ]
    operation: dict[str, Any] = {
        "operationId": _identifier(route),
        "summary": route.summary,
        "responses": _responses(route),
    }
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
