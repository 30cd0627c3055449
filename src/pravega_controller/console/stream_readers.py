"""The reader groups that read a stream.

Owns: ``find_readers``. A group's configuration names its streams, and only groups that keep events
from retention are recorded with the stream. So the groups of the stream's own scope are looked
through, seldom: a group of another scope that keeps nothing is not found.
"""

from __future__ import annotations

from typing import Final

from pravega_controller.console.looks import Looks, Track
from pravega_controller.console.scope_names import track_names
from pravega_controller.controller import Controller
from pravega_controller.errors import NotFoundError
from pravega_controller.store_client.segment_client import for_each

LOOK_SECONDS: Final = 30.0
"""Minimum time, in seconds, between two searches for the groups of a stream."""
GROUPS_READ_MAX: Final = 500
"""Maximum number of groups whose configuration is read for that."""

Group = tuple[str, str]
"""The scope and the name of a reader group."""


def track_readers(
    looks: Looks, controller: Controller, scope: str, stream: str
) -> Track[list[Group]]:
    """Return the track of the groups that read a stream."""

    async def take() -> list[Group]:
        return await find_readers(looks, controller, scope, stream)

    return looks.track(("readers", scope, stream), take, seconds_min=LOOK_SECONDS)


async def find_readers(
    looks: Looks, controller: Controller, scope: str, stream: str
) -> list[Group]:
    """Return the groups that read a stream, in order. Raises ``NotFoundError``."""
    subscribers = await controller.groups.subscribers(scope, stream)
    found = {(of, name) for of, _, name in (each.partition("/") for each in subscribers)}
    groups = (await track_names(looks, controller, scope).look())[-1].seen.groups

    async def read(name: str) -> None:
        try:
            group = await controller.groups.get(scope, name)
        except NotFoundError:
            return
        if (scope, stream) in group.record.configuration.streams:
            found.add((scope, name))

    await for_each(groups[:GROUPS_READ_MAX], read)
    return sorted(found)
