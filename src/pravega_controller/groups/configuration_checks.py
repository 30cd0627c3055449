"""Refuses configurations that no reader group can have.

Owns: ``ConfigurationChecks``, which asks for the streams of a configuration and checks its cuts.

Invariants:
1. When a bound is no cut of its stream, the configuration is refused.
   Held by ``test_a_group_keeps_its_bounds_as_they_came``.
2. When the stream of a bound is gone, the bound is accepted: a group may outlive its streams.
   Held by ``test_bounds_of_streams_that_are_gone_stay``.
3. When no record can have the configuration, it is refused before anything is stored.
   Held by ``test_a_group_keeps_its_configuration_when_the_new_one_can_never_be``.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from pravega_controller.errors import (
    EpochDroppedError,
    InvalidRequestError,
    InvalidStreamCutError,
    NotFoundError,
)
from pravega_controller.metadata.records import NamedCut, ReaderGroupConfiguration, encode
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.rules.streams import StreamCut
from pravega_controller.store_client.segment_client import for_each
from pravega_controller.streams.cut_checks import CutChecks
from pravega_wire import names

RETENTION_TYPES = range(3)
CONFIGURATION_BYTES_MAX = 500_000
"""Maximum length of an encoded configuration, in bytes. While a configuration is replaced, a record
contains the old and the new one, and must fit one value of a table."""

log = structlog.get_logger(__name__)


def validate_group_configuration(configuration: ReaderGroupConfiguration) -> None:
    """Raise ``InvalidRequestError`` if no group can have this configuration."""
    if configuration.retention_type not in RETENTION_TYPES:
        raise InvalidRequestError(f"there is no retention type {configuration.retention_type}")
    if configuration.rollover_bytes < 0:
        raise InvalidRequestError(
            f"the rollover size cannot be {configuration.rollover_bytes} bytes"
        )
    size = len(encode(configuration))
    if size > CONFIGURATION_BYTES_MAX:
        raise InvalidRequestError(
            f"the reader group's configuration takes {size} bytes, and at most "
            f"{CONFIGURATION_BYTES_MAX} can be stored: name fewer streams or segments"
        )


class ConfigurationChecks:
    """Compares configurations with the streams that they name."""

    def __init__(self, store: MetadataStore, cuts: CutChecks) -> None:
        self._store = store
        self._cuts = cuts

    async def find_missing(self, streams: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the streams that do not exist."""
        missing: list[tuple[str, str]] = []

        async def check(stream: tuple[str, str]) -> None:
            try:
                await self._store.streams.read(*stream)
            except NotFoundError:
                missing.append(stream)

        await for_each(streams, check)
        return sorted(missing)

    async def check_cuts(self, configuration: ReaderGroupConfiguration) -> None:
        """Raise ``InvalidStreamCutError`` if a bound is no cut of its stream.

        Bounds of streams that do not exist are accepted; the group's readers will get an error.
        """
        ends = {(each.scope, each.stream): each.cut for each in configuration.ending_cuts}

        async def check(bound: NamedCut, end: StreamCut | None) -> None:
            try:
                stream = await self._store.streams.read(bound.scope, bound.stream)
                await self._cuts.check(stream, bound.cut, end=end)
            except EpochDroppedError:
                log.debug("a bound long before the head", scope=bound.scope, stream=bound.stream)
            except NotFoundError:
                log.debug("a bound of a missing stream", scope=bound.scope, stream=bound.stream)
            except InvalidStreamCutError as error:
                name = names.scoped_name(bound.scope, bound.stream)
                raise InvalidStreamCutError(f"no cut of stream {name}: {error}") from error

        for bound in filter(_names_segments, configuration.starting_cuts):
            await check(bound, ends.get((bound.scope, bound.stream)))
        for bound in filter(_names_segments, configuration.ending_cuts):
            await check(bound, None)


def _names_segments(bound: NamedCut) -> bool:
    return bool(bound.cut)
