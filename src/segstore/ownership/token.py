"""The token of a container's owner. The owner's code asks it before it answers, writes or deletes.

Owns: ``OwnerToken``, which takes the steps of ``states.NEXT_STATES``, and the time for which a
proof of ownership is valid; docs/internals/ownership.md follows one hand-over, docs/adr/0364
explains why. A *proof* shows that no other owner had opened the log at the time when the proof
began.

Invariants:
1. A token is for one opening of a container by one process: a second opening is refused, so the
   token has one epoch. Held by ``test_every_pair_is_a_step_or_is_refused``.
2. When the last proof is older than ``PROOF_SECONDS``, an answer waits for a new proof. Held by
   ``test_an_answer_with_an_old_proof_waits_for_a_new_one``. A proof that takes longer counts only
   for answers that were known before it began. Held by
   ``test_a_slow_proof_counts_for_the_answers_that_were_known_before_it``.
3. When an owner has opened the log, it does not answer for ``TAKEOVER_SECONDS``, so that the proofs
   of the earlier owner are too old by then. Held by
   ``test_a_new_owner_answers_when_the_proofs_of_the_last_have_run_out``.
4. When a lock gives a log to one process alone, its owner is never in doubt and needs no proof.
   Held by ``test_a_log_with_one_process_is_never_in_doubt``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from segstore.errors import ContainerOfflineError, DataLogError
from segstore.ownership.states import (
    ENDED,
    IN_DOUBT,
    PERMISSIONS,
    OwnerEvent,
    OwnerState,
    Permission,
    next_state,
)
from segstore.tiers.api import OwnerProof

PROOF_SECONDS: Final = 0.1
"""Maximum age, in seconds, of a proof of ownership with which an answer is sent at once."""
TAKEOVER_SECONDS: Final = 0.125
"""Time, in seconds, between the opening of the log and the first answer of a new owner. It is
longer than ``PROOF_SECONDS`` because the clocks of two machines run differently. The recovery takes
most of it anyway."""
LOOK_SECONDS_MAX: Final = 1.0
"""Maximum time, in seconds, for reading the log's node. After it, an entry in the log is the proof.
"""


class OwnerToken:
    """The token of one owner. ``epoch`` is 0 until the log is opened."""

    def __init__(self) -> None:
        self.state = OwnerState.ABSENT
        self.epoch = 0
        self._proof: OwnerProof | None = None
        self._opened_at = 0.0
        self._proving = trio.Lock()

    def epoch_now(self) -> int:
        """Return the epoch under which the log was opened; 0 before that."""
        return self.epoch

    def may(self, permission: Permission) -> bool:
        """Return whether the owner has a permission in its present state."""
        return permission in PERMISSIONS[self.state]

    # ---- Steps -----------------------------------------------------------------------------------

    def assign(self) -> None:
        """Record that the container is assigned to this process."""
        self._step(OwnerEvent.ASSIGN)

    def open(self, epoch: int, proof: OwnerProof | None) -> None:
        """Record that the log was opened under an epoch. ``proof`` can prove later that no other
        owner has opened it; None if a lock makes that impossible."""
        self._step(OwnerEvent.OPEN)
        self.epoch, self._proof = epoch, proof
        self._opened_at = trio.current_time() if proof is not None else 0.0

    def claim(self) -> None:
        """Record that the epoch is claimed in tier 2."""
        self._step(OwnerEvent.CLAIM)

    def leave(self) -> None:
        """Record that the container is being handed over or stopped."""
        self._step(OwnerEvent.LEAVE)

    def fence(self) -> None:
        """Record that the epoch of a later owner was seen."""
        self._step(OwnerEvent.FENCE)

    def end(self) -> None:
        """Record that both tiers are closed."""
        self._step(OwnerEvent.END)

    def _step(self, event: OwnerEvent) -> None:
        self.state = next_state(self.state, event)

    # ---- Answers ---------------------------------------------------------------------------------

    async def wait_alone(self) -> None:
        """Wait until no earlier owner answers any more."""
        if self._proof is not None:
            await trio.sleep_until(self._opened_at + TAKEOVER_SECONDS)

    @property
    def may_answer(self) -> bool:
        """Return whether an answer that is known now may be sent at once."""
        proof = self._proof
        if proof is None:
            return True
        is_young = trio.current_time() - proof.owned_at < PROOF_SECONDS
        if is_young and self.state in IN_DOUBT:
            self._step(OwnerEvent.CONFIRM)
        elif not is_young and self.state in (OwnerState.OPENED, OwnerState.CLAIMED):
            self._step(OwnerEvent.DOUBT)
        return is_young and self.may(Permission.ANSWER)

    async def confirm(self, append: Callable[[], Awaitable[None]]) -> None:
        """Wait until an answer that is known now may be sent.

        If ZooKeeper does not say whether another owner has opened the log, ``append`` writes an
        entry, which bookies accept only from the last owner. Raises ``ContainerOfflineError`` when
        the container has another owner, or stops.
        """
        proof = self._proof
        if proof is None or self.may_answer:
            return
        asked = trio.current_time()
        async with self._proving:
            # A proof that another answer asked for counts for this one, too, if it began after this
            # answer was known.
            while self.state in IN_DOUBT and proof.owned_at < asked:
                await self._prove(proof, append)
        is_proved = proof.owned_at >= asked or self.may_answer
        if not is_proved or self.state in ENDED:
            raise ContainerOfflineError("the container has another owner, or stops")

    async def _prove(self, proof: OwnerProof, append: Callable[[], Awaitable[None]]) -> None:
        is_seen = False
        with trio.move_on_after(LOOK_SECONDS_MAX):
            try:
                is_seen = await proof.prove_owner()
            except DataLogError as error:
                self.fence()
                raise ContainerOfflineError(str(error)) from error
        if not is_seen:
            await append()
