"""Sets a reader group to other positions, in the steps of the official client's reset.

Owns: the order of these steps: the state says that the configuration changes, the controller gets
the new one, the state begins anew with it. Readers that are online then get the official client's
``ReinitializationRequiredException``, and have to be made again.

Invariants:
1. When this process ends between the steps, readers find the flag and take the controller's
   configuration; another seek begins from the first step. Held by
   ``test_a_seek_that_was_cut_off_is_done_by_the_next``.
2. When another client changes the state meanwhile, the steps are taken on the changed state. Held
   by ``test_a_seek_among_changes_of_readers_is_done``.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from pravega_blocking.controller_client import ControllerClient, Purpose
from pravega_blocking.cuts.segment_log import SegmentLog
from pravega_blocking.errors import ConflictError
from pravega_blocking.groups.state import open_state, read_state
from pravega_wire import controller_pb2 as pb
from pravega_wire.names import scoped_name
from pravega_wire.reader_groups.states import Cut, GroupSettings, encode_begun, encode_updating

ATTEMPTS_MAX = 20
"""Number of attempts to write a step: each may meet a change by a reader."""


def seek_group(
    controller: ControllerClient, scope: str, group: str, cuts: Mapping[str, Cut]
) -> int:
    """Let a group continue at stream cuts; return the new generation of its configuration.

    ``cuts`` has a bounded cut of each of the group's streams, by its scoped name.
    """
    with open_state(controller, scope, group, purpose=Purpose.READ_WRITE) as log:
        _append(log, encode_updating(), group)
        found = controller.group_settings(scope, group)
        changed = pb.ReaderGroupConfiguration()
        changed.CopyFrom(found)
        del changed.startingStreamCuts[:]
        for name, cut in cuts.items():
            changed.startingStreamCuts.append(_to_message(name, cut))
        generation = controller.update_group(scope, group, changed)
        settings = _to_settings(changed, generation)
        _append(log, encode_begun(settings, cuts), group)
    return generation


def _append(log: SegmentLog, revision: bytes, group: str) -> None:
    """Append a revision behind all that there are."""
    for _ in range(ATTEMPTS_MAX):
        read_state(log)
        if log.append(revision):
            return
    raise ConflictError(f"the readers of {group} change its state all the time: try again")


def _to_message(name: str, cut: Cut) -> pb.StreamCut:
    scope, _, stream = name.partition("/")
    return pb.StreamCut(streamInfo=pb.StreamInfo(scope=scope, stream=stream), cut=dict(cut))


def _to_settings(message: pb.ReaderGroupConfiguration, generation: int) -> GroupSettings:
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
