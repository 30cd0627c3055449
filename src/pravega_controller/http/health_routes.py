"""Routes about the health of the controller, and the two that Kubernetes asks.

Owns: their answers. Nobody has to log in for them, except for the details.

``/ready`` and ``/live`` answer 503 when it is not so, with the reasons as plain text: the original
has no such path, and answers 200 in any case.
"""

from __future__ import annotations

from typing import Any, Final

from pravega_controller.errors import NotFoundError
from pravega_controller.http.calls import Refusal
from pravega_controller.http.health import HealthOf
from pravega_controller.http.routes import HttpRequest, route
from pravega_wire import controller_pb2 as pb

HEALTH: Final = "/v1/health"
NO_PART: Final = "the controller has no such part"
STATUSES: Final = {200: "the answer", 404: NO_PART}


@route("GET", "/ping", {200: "the controller answers"})
async def ping(request: HttpRequest) -> None:
    """Answer."""


@route("GET", "/live", {200: "the controller answers"})
async def tell_liveness(request: HttpRequest) -> None:
    """Answer, for a liveness probe of Kubernetes."""


@route("GET", "/ready", {200: "the controller is ready", 503: "it is not ready, for these reasons"})
async def tell_readiness(request: HttpRequest) -> None:
    """Tell by the status whether the controller is ready, for a readiness probe of Kubernetes."""
    found = await request.health.look()
    if not found.is_ready:
        raise Refusal(503, "; ".join(found.reasons()))


@route("GET", HEALTH, {200: "the tree"}, reply="Health")
@route("GET", f"{HEALTH}/{{part:path}}", STATUSES, reply="Health")
async def describe_health(request: HttpRequest) -> Any:
    """Describe the health of the controller, or of one of its parts, with its parts."""
    return (await _find(request)).document()


@route("GET", f"{HEALTH}/status", STATUSES, reply="HealthStatus")
@route("GET", f"{HEALTH}/status/{{part:path}}", STATUSES, reply="HealthStatus")
async def tell_status(request: HttpRequest) -> Any:
    """Tell the status of the controller, or of one of its parts, in a word."""
    return (await _find(request)).document()["status"]


@route("GET", f"{HEALTH}/readiness", STATUSES, reply="Boolean")
@route("GET", f"{HEALTH}/readiness/{{part:path}}", STATUSES, reply="Boolean")
async def tell_part_readiness(request: HttpRequest) -> Any:
    """Tell whether the controller, or one of its parts, is ready."""
    return (await _find(request)).is_ready


@route("GET", f"{HEALTH}/liveness", STATUSES, reply="Boolean")
@route("GET", f"{HEALTH}/liveness/{{part:path}}", STATUSES, reply="Boolean")
async def tell_part_liveness(request: HttpRequest) -> Any:
    """Tell whether the controller, or one of its parts, is alive."""
    await _find(request)
    return True


@route("GET", f"{HEALTH}/details", STATUSES, reply="HealthDetails")
@route("GET", f"{HEALTH}/details/{{part:path}}", STATUSES, reply="HealthDetails")
async def tell_details(request: HttpRequest) -> Any:
    """Tell the details of the controller, or of one of its parts."""
    # It needs the same right as the details: to read the root.
    await request.calls.permit("listScopes", pb.ScopesRequest())
    return (await _find(request)).document()["details"]


async def _find(request: HttpRequest) -> HealthOf:
    found = (await request.health.look()).find(request.path.get("part", ""))
    if found is None:
        raise NotFoundError(NO_PART)
    return found
