"""Configurations of reader groups, between the controller and the group's state.

Owns: the two forms of a configuration, and the state in which a group begins with one.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from pravega_wire import controller_pb2 as pb
from pravega_wire.names import scoped_name
from pravega_wire.reader_groups.changes import GroupBegun, begin_group
from pravega_wire.reader_groups.settings import Cut, GroupSettings
from segstore_client.controller.controller_client import ControllerClient


def to_message(scope: str, group: str, settings: GroupSettings) -> pb.ReaderGroupConfiguration:
    """Return a group's configuration as the controller takes it."""
    return pb.ReaderGroupConfiguration(
        scope=scope,
        readerGroupName=group,
        groupRefreshTimeMillis=settings.refresh_ms,
        automaticCheckpointIntervalMillis=settings.checkpoint_ms,
        maxOutstandingCheckpointRequest=settings.outstanding_max,
        retentionType=settings.retention,
        generation=settings.generation or 0,
        readerGroupId=str(UUID(bytes=settings.identifier)),
        startingStreamCuts=[to_cut_message(name, cut) for name, cut in settings.starts.items()],
        endingStreamCuts=[to_cut_message(name, cut) for name, cut in settings.ends.items()],
    )


def from_message(message: pb.ReaderGroupConfiguration, generation: int) -> GroupSettings:
    """Return the configuration that a controller answers, as of a generation."""
    starts, ends = (
        {
            scoped_name(each.streamInfo.scope, each.streamInfo.stream): dict(each.cut)
            for each in cuts
        }
        for cuts in (message.startingStreamCuts, message.endingStreamCuts)
    )
    return GroupSettings(
        starts=starts,
        ends=ends,
        checkpoint_ms=message.automaticCheckpointIntervalMillis,
        refresh_ms=message.groupRefreshTimeMillis,
        outstanding_max=message.maxOutstandingCheckpointRequest,
        retention=message.retentionType,
        generation=generation,
        identifier=UUID(message.readerGroupId).bytes,
    )


def to_cut_message(name: str, cut: Cut) -> pb.StreamCut:
    """Return a stream cut of a scoped name, as the controller takes it."""
    scope, _, stream = name.partition("/")
    return pb.StreamCut(streamInfo=pb.StreamInfo(scope=scope, stream=stream), cut=dict(cut))


def find_begin(controller: ControllerClient, settings: GroupSettings) -> GroupBegun:
    """Return the state in which a group begins: an unbounded cut is the head of its stream."""
    starts: Mapping[str, Cut] = {
        name: cut or controller.head_segments(*name.split("/", 1)).offsets
        for name, cut in settings.starts.items()
    }
    return begin_group(settings, starts)


def find_configured(controller: ControllerClient, scope: str, group: str) -> GroupBegun:
    """Return the state in which a group begins with the configuration that the controller has."""
    message = controller.group_settings(scope, group)
    return find_begin(controller, from_message(message, message.generation))
