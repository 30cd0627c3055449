"""Pages that change a stream: each says first what will happen, and then does it.

Invariants:
1. When a page is asked for, nothing changes: a change needs its form. Held by
   ``test_asking_for_a_page_changes_nothing``.
2. When a user may not change a stream, no change is offered, and each is refused. Held by
   ``test_who_may_only_read_is_offered_no_change_and_refused``.
3. When a change was made, the page to which it leads says so. Held by
   ``test_each_change_is_told_in_one_sentence``.
4. When a stream is to be deleted, its name has to be written. Held by
   ``test_a_deletion_needs_the_name``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

import trio

from pravega_controller.console.looks import Look
from pravega_controller.console.outcomes import lead_with_outcome
from pravega_controller.console.pages.stream_pages import (
    STREAM,
    read_configuration,
    read_cut,
    stream_info,
)
from pravega_controller.console.rendering import path_to, show_bytes
from pravega_controller.console.routes import HtmlPage, Lead, PageAnswer, PageRequest, page
from pravega_controller.console.scope_names import names_subject
from pravega_controller.console.stream_numbers import (
    SegmentRow,
    StreamSeen,
    see_stream,
    segment_rows,
    stream_subject,
    track_stream,
)
from pravega_controller.errors import (
    InvalidRequestError,
    NotFoundError,
    ScalePreconditionError,
    StreamSealedError,
)
from pravega_controller.http.calls import Refusal
from pravega_wire import controller_pb2 as pb
from pravega_wire import names
from pravega_wire.stream_cut_text import encode_cut_text

SEGMENTS_MAX: Final = 500
"""Maximum number of segments that the page of a scale offers."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A change before it is made: what will happen, and what its form sends."""

    title: str
    verb: str
    """The text of the button."""
    action: str
    """The last part of the path that makes the change."""
    consequences: Sequence[str]
    fields: Mapping[str, str] = field(default_factory=dict)
    needs_name: bool = False
    obstacle: str | None = None
    """The reason for which the change cannot be made now."""
    remedy: str | None = None
    """The last part of the path of the change that removes the obstacle."""


async def may_change(request: PageRequest) -> bool:
    """Return whether the user may change the path's stream."""
    return await request.calls.may("sealStream", stream_info(request))


async def _begin(request: PageRequest) -> tuple[StreamSeen, list[SegmentRow]]:
    """Return the stream as it is now, if the user may change it."""
    await read_configuration(request)
    if not await may_change(request):
        raise Refusal(403, "You may read this stream, and not change it.")
    scope, stream = request.path["scope"], request.path["stream"]
    controller = request.calls.controller
    looks = await track_stream(request.looks, controller, scope, stream).look()
    # The last look may be a second old, and a change is about what there is now.
    seen = await see_stream(controller, scope, stream)
    return seen, segment_rows([*looks, Look(trio.current_time(), seen)])


def _show(request: PageRequest, plan: Plan) -> HtmlPage:
    return HtmlPage("change.html", {**request.path, "plan": plan})


def _lead(request: PageRequest, outcome: str) -> Lead:
    scope, stream = request.path["scope"], request.path["stream"]
    # The page that tells of the change shows the stream as it is after it.
    request.looks.renew(stream_subject(scope, stream))
    path = path_to("streams", scope, stream)
    return lead_with_outcome(path, outcome)


def _rate(rows: Sequence[SegmentRow]) -> list[str]:
    known = [row.rate for row in rows if row.rate is not None]
    if not known:
        return ["Whether somebody writes to it is not known yet: load the page again."]
    if not (written := sum(known)):
        return []
    return [f"Somebody writes to it now: {show_bytes(written)} each second."]


# ---- Scale ---------------------------------------------------------------------------------------


@page("GET", f"{STREAM}/scale")
async def plan_scale(request: PageRequest) -> PageAnswer:
    """Show scales of a stream, or say what one of them does."""
    seen, rows = await _begin(request)
    if "segments" not in request.query:
        shown = {"rows": rows[:SEGMENTS_MAX], "is_sealed": seen.is_sealed}
        return HtmlPage("scale.html", {**request.path, **shown})
    chosen = _choose(rows, request.query["segments"])
    low, high = chosen[0].segment.low, chosen[-1].segment.high
    if len(chosen) == 1:
        title, whole = f"Split segment {chosen[0].name}", "is sealed, and two segments replace it"
        ends = [low, (low + high) / 2, high]
    else:
        title, whole = f"Merge {len(chosen)} segments", "is sealed, and one segment replaces it"
        ends = [low, high]
    return _show(
        request,
        Plan(
            title,
            "Scale",
            "scale",
            [
                f"What has the keys from {low:.4g} to {high:.4g} now {whole}.",
                "Writers and readers follow by themselves, and events of a routing key stay in"
                " order.",
                "The events that are there stay where they are.",
                *_rate(chosen),
            ],
            {
                "sealed": ",".join(str(row.segment.segment_id) for row in chosen),
                "ranges": ",".join(map(repr, ends)),
            },
            obstacle="The stream is sealed." if seen.is_sealed else None,
        ),
    )


def _choose(rows: Sequence[SegmentRow], text: str) -> list[SegmentRow]:
    """Return segments that are neighbours, by their ids. Raises ``InvalidRequestError``."""
    wanted = set(text.split(","))
    chosen = [row for row in rows if str(row.segment.segment_id) in wanted]
    ends = [row.segment.high for row in chosen[:-1]]
    if len(chosen) != len(wanted) or ends != [row.segment.low for row in chosen[1:]]:
        if len(wanted) == 1:
            raise InvalidRequestError(f"segment {text} is not one of the stream's present segments")
        raise InvalidRequestError("these are no neighbours among the present segments")
    return chosen


@page("POST", f"{STREAM}/scale")
async def scale(request: PageRequest) -> PageAnswer:
    """Scale a stream."""
    try:
        sealed = [int(each) for each in request.form.get("sealed", "").split(",")]
        ends = [float(each) for each in request.form.get("ranges", "").split(",")]
        entry = pb.ScaleRequest.KeyRangeEntry
        message = pb.ScaleRequest(
            streamInfo=stream_info(request),
            sealedSegments=sealed,
            newKeyRanges=[entry(start=low, end=high) for low, high in pairwise(ends)],
            scaleTimestamp=request.calls.controller.now_ms(),
        )
    except ValueError:
        raise InvalidRequestError("the form names no segments") from None
    answer = await request.calls.call("scale", message)
    if answer.status == pb.ScaleResponse.PRECONDITION_FAILED:
        raise ScalePreconditionError(
            "The stream was scaled meanwhile, or its policy wants more segments than this leaves."
        )
    if answer.status != pb.ScaleResponse.STARTED:
        raise InvalidRequestError("The stream cannot be scaled like this.")
    return _lead(request, "scaled")


# ---- Seal, truncate, delete ----------------------------------------------------------------------


@page("GET", f"{STREAM}/seal")
async def plan_seal(request: PageRequest) -> PageAnswer:
    """Say what sealing a stream does."""
    seen, rows = await _begin(request)
    return _show(
        request,
        Plan(
            "Seal the stream",
            "Seal it for ever",
            "seal",
            [
                "Nobody can write to it any more. This cannot be undone.",
                "Open transactions are aborted.",
                "Its events stay, and readers come to an end after the last one.",
                *_rate(rows),
            ],
            obstacle="The stream is sealed already." if seen.is_sealed else None,
        ),
    )


@page("POST", f"{STREAM}/seal")
async def seal(request: PageRequest) -> PageAnswer:
    """Seal a stream."""
    _check(await request.calls.call("sealStream", stream_info(request)))
    return _lead(request, "sealed")


@page("GET", f"{STREAM}/truncate")
async def plan_truncation(request: PageRequest) -> PageAnswer:
    """Say what truncating a stream does, at a cut or at its present end."""
    seen, rows = await _begin(request)
    scope, stream = request.path["scope"], request.path["stream"]
    name = names.scoped_name(scope, stream)
    text = request.query.get("cut", "")
    cut = read_cut(name, text) if text else _end_of(rows)
    deleted = await _count_bytes(request, cut)
    readers = await request.calls.controller.groups.subscribers(scope, stream)
    kept_for = [f"Reader groups that keep events from retention: {', '.join(readers)}."]
    return _show(
        request,
        Plan(
            "Truncate the stream",
            "Delete these events",
            "truncate",
            [
                f"{show_bytes(deleted)} of events before the "
                + ("cut" if text else "present end")
                + " are deleted. This cannot be undone.",
                "Readers that are before it go on behind it, and miss the events between.",
                *(kept_for if readers else []),
            ],
            {"cut": encode_cut_text(name, cut)} if cut else {},
            obstacle="The stream is sealed, so it can only be deleted." if seen.is_sealed else None,
        ),
    )


def _end_of(rows: Sequence[SegmentRow]) -> dict[int, int]:
    return {row.segment.segment_id: row.bounds.length for row in rows if row.bounds is not None}


async def _count_bytes(request: PageRequest, cut: Mapping[int, int]) -> int:
    """Return how many bytes lie before a cut. Raises ``InvalidRequestError`` for a wrong one."""
    scope, stream = request.path["scope"], request.path["stream"]
    controller = request.calls.controller
    if not cut:
        return 0
    head = await controller.streams.head(scope, stream)
    between = await controller.streams.segments_between(scope, stream, head, cut)
    identifiers = [each.segment_id for each in between]
    infos = await controller.segments.segment_infos(
        [names.segment_name(scope, stream, each) for each in identifiers]
    )
    return sum(
        max(0, min(cut.get(identifier, info.length), info.length) - info.start_offset)
        for identifier, info in zip(identifiers, infos, strict=True)
        if info is not None
    )


@page("POST", f"{STREAM}/truncate")
async def truncate(request: PageRequest) -> PageAnswer:
    """Truncate a stream."""
    name = names.scoped_name(request.path["scope"], request.path["stream"])
    cut = read_cut(name, request.form.get("cut", ""))
    message = pb.StreamCut(streamInfo=stream_info(request), cut=cut)
    _check(await request.calls.call("truncateStream", message))
    return _lead(request, "truncated")


@page("GET", f"{STREAM}/delete")
async def plan_deletion(request: PageRequest) -> HtmlPage:
    """Say what deleting a stream does."""
    seen, rows = await _begin(request)
    whole = await _count_bytes(request, _end_of(rows))
    return _show(
        request,
        Plan(
            "Delete the stream",
            "Delete it for ever",
            "delete",
            [f"{show_bytes(whole)} of events are deleted, and the stream. This cannot be undone."],
            needs_name=True,
            obstacle=None if seen.is_sealed else "The stream has to be sealed first.",
            remedy="seal",
        ),
    )


@page("POST", f"{STREAM}/delete")
async def delete(request: PageRequest) -> PageAnswer:
    """Delete a sealed stream, whose name was written."""
    info = stream_info(request)
    if request.form.get("name", "").strip() != info.stream:
        raise InvalidRequestError("The name that was written is not that of the stream.")
    answer = await request.calls.call("deleteStream", info)
    if answer.status == pb.DeleteStreamStatus.STREAM_NOT_FOUND:
        raise NotFoundError("There is no such stream.")
    if answer.status == pb.DeleteStreamStatus.STREAM_NOT_SEALED:
        # The page of the deletion leads to that of the seal.
        return replace(await plan_deletion(request), status=412)
    if answer.status != pb.DeleteStreamStatus.SUCCESS:
        raise Refusal(500, "The stream could not be deleted.")
    request.looks.forget(names_subject(info.scope))
    return lead_with_outcome(path_to("scopes", info.scope), "deleted", stream=info.stream)


def _check(answer: Any) -> None:
    if answer.status == pb.UpdateStreamStatus.STREAM_NOT_FOUND:
        raise NotFoundError("There is no such stream.")
    if answer.status == pb.UpdateStreamStatus.STREAM_SEALED:
        raise StreamSealedError("The stream is sealed.")
    if answer.status != pb.UpdateStreamStatus.SUCCESS:
        raise Refusal(500, "The stream could not be changed.")
