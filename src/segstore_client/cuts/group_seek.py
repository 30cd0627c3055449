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

from pravega_wire import controller_pb2 as pb
from pravega_wire.reader_groups.changes import Change, UpdateBegun, begin_group, encode_changes
from pravega_wire.reader_groups.settings import Cut
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.controller.group_configuration import from_message, to_cut_message
from segstore_client.cuts.group_state import open_state, read_state
from segstore_client.cuts.segment_log import SegmentLog
from segstore_client.errors import ConflictError

ATTEMPTS_MAX = 20
"""Number of attempts to write a step: each may meet a change by a reader."""


def seek_group(
    controller: ControllerClient, scope: str, group: str, cuts: Mapping[str, Cut]
) -> int:
    """Let a group continue at stream cuts; return the new generation of its configuration.

    ``cuts`` has a bounded cut of each of the group's streams, by its scoped name.
    """
    with open_state(controller, scope, group, purpose=Purpose.READ_WRITE) as log:
        _append(log, UpdateBegun(), group)
        found = controller.group_settings(scope, group)
        changed = pb.ReaderGroupConfiguration()
        changed.CopyFrom(found)
        del changed.startingStreamCuts[:]
        for name, cut in cuts.items():
            changed.startingStreamCuts.append(to_cut_message(name, cut))
        generation = controller.update_group(scope, group, changed)
        _append(log, begin_group(from_message(changed, generation), cuts), group)
    return generation


def _append(log: SegmentLog, change: Change, group: str) -> None:
    """Append a change behind all that there are."""
    revision = encode_changes([change])
    for _ in range(ATTEMPTS_MAX):
        read_state(log)
        if log.append(revision):
            return
    raise ConflictError(f"the readers of {group} change its state all the time: try again")
