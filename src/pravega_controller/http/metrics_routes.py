"""Routes of the metrics, for Prometheus: ours, and the path at which the original has its own."""

from __future__ import annotations

from pravega_controller.http.metrics import gather_metrics
from pravega_controller.http.routes import HttpRequest, PlainText, route
from pravega_metrics.exposition import CONTENT_TYPE, render
from pravega_wire import controller_pb2 as pb


@route("GET", "/metrics", {200: "the readings, as text of Prometheus"}, reply="Text")
@route("GET", "/prometheus", {200: "the readings, as text of Prometheus"}, reply="Text")
async def tell_metrics(request: HttpRequest) -> PlainText:
    """Tell what the controller measures, and the segment stores; see the guide of metrics."""
    # Names of streams are labels, so its need is that of a list: to read the root.
    await request.calls.permit("listScopes", pb.ScopesRequest())
    health = await request.health.look()
    sources = await gather_metrics(
        request.calls.controller, is_ready=health.is_ready, name=request.health.address
    )
    return PlainText(render(sources), CONTENT_TYPE)
