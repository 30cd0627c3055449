"""The reader groups that read a stream.

Owns: ``ReadersWatch``. A group's configuration names its streams, and only groups that keep events
from retention are recorded with the stream. So the groups of the stream's own scope are looked
through, seldom: a group of another scope that keeps nothing is not found.
"""

from __future__ import annotations

from math import inf
from typing import Final

import trio

from pravega_controller.console.looks import Looks, Track
from pravega_controller.console.scope_names import track_names
from pravega_controller.controller import Controller
from pravega_controller.errors import NotFoundError
from pravega_controller.store_client.segment_client import for_each

SEARCH_SECONDS: Final = 30.0
"""Time, in seconds, after which a group's configuration is read again."""
GROUPS_READ_MAX: Final = 500
"""Maximum number of groups whose configuration is read for that."""

Group = tuple[str, str]
"""The scope and the name of a reader group."""


class ReadersWatch:
    """Looks for the groups that read one stream."""

    def __init__(self, looks: Looks, controller: Controller, scope: str, stream: str) -> None:
        self._looks = looks
        self._controller = controller
        self._scope = scope
        self._stream = stream
        self._began = -inf
        self._does_read: dict[str, bool] = {}
        """For each group of the scope that was looked at, whether it reads the stream."""

    async def take(self) -> list[Group]:
        """Return the groups that are known by now, in order. Raises ``NotFoundError``."""
        now = trio.current_time()
        if now - self._began > SEARCH_SECONDS:
            self._began, self._does_read = now, {}
        groups = self._controller.groups
        subscribers = await groups.subscribers(self._scope, self._stream)
        names = await track_names(self._looks, self._controller, self._scope).look()
        wanted = names[-1].seen.groups[:GROUPS_READ_MAX]
        does_read = self._does_read

        async def read(name: str) -> None:
            try:
                configuration = (await groups.get(self._scope, name)).record.configuration
                does_read[name] = (self._scope, self._stream) in configuration.streams
            except NotFoundError:
                does_read[name] = False

        await for_each([each for each in wanted if each not in does_read], read)
        found = {(scope, name) for scope, _, name in (each.partition("/") for each in subscribers)}
        return sorted(found | {(self._scope, each) for each in wanted if does_read.get(each)})


def track_readers(
    looks: Looks, controller: Controller, scope: str, stream: str
) -> Track[list[Group]]:
    """Return the track of the groups that read a stream."""
    watch = ReadersWatch(looks, controller, scope, stream)
    return looks.track(("readers", scope, stream), watch.take)
