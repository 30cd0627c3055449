"""The token of an owner: when its answers may leave."""

from __future__ import annotations

from math import inf

import pytest
import trio
import trio.testing

from segstore.errors import ContainerOfflineError, DataLogError
from segstore.ownership.states import OwnerState, RefusedStepError
from segstore.ownership.token import (
    LOOK_SECONDS_MAX,
    PROOF_SECONDS,
    TAKEOVER_SECONDS,
    OwnerToken,
)


class Proof:
    """A proof of ownership that takes a while, and the looks at it."""

    def __init__(self) -> None:
        self.owned_at = trio.current_time()
        self.look_count = 0
        self.is_lost = False
        self.is_seen = True
        self.seconds = 0.5 * PROOF_SECONDS

    async def prove_owner(self) -> bool:
        self.look_count += 1
        began = trio.current_time()
        await trio.sleep(self.seconds)
        if self.is_lost:
            raise DataLogError("another owner has opened the log")
        if self.is_seen:
            self.owned_at = began
        return self.is_seen


def opened(proof: Proof | None) -> OwnerToken:
    token = OwnerToken()
    token.assign()
    token.open(7, proof)
    return token


async def never() -> None:
    raise AssertionError("no entry is needed")


async def test_a_log_with_one_process_is_never_in_doubt(
    autojump_clock: trio.testing.MockClock,
) -> None:
    token = opened(None)
    await token.wait_alone()
    assert trio.current_time() == 0
    await trio.sleep(1000)
    assert token.may_answer
    await token.confirm(never)
    assert (token.epoch_now(), token.state) == (7, OwnerState.OPENED)


async def test_an_answer_with_an_old_proof_waits_for_a_new_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    proof = Proof()
    token = opened(proof)
    token.claim()
    assert token.may_answer
    await trio.sleep(2 * PROOF_SECONDS)
    assert not token.may_answer
    assert token.state is OwnerState.CLAIMED_IN_DOUBT
    await token.confirm(never)
    assert proof.look_count == 1
    assert token.may_answer
    assert token.state is OwnerState.CLAIMED


async def test_answers_that_wait_together_share_a_proof(
    autojump_clock: trio.testing.MockClock,
) -> None:
    proof = Proof()
    token = opened(proof)
    await trio.sleep(1)
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(token.confirm, never)
    assert proof.look_count == 1


async def test_a_slow_proof_counts_for_the_answers_that_were_known_before_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    proof = Proof()
    proof.seconds = 3 * PROOF_SECONDS
    token = opened(proof)
    await trio.sleep(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(token.confirm, never)
        await trio.sleep(PROOF_SECONDS)
        # It was known after the first look had begun: that tells nothing of it.
        nursery.start_soon(token.confirm, never)
    assert proof.look_count == 2


async def test_who_has_lost_the_container_answers_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    proof = Proof()
    token = opened(proof)
    await trio.sleep(1)
    proof.is_lost = True
    for _ in range(2):
        with pytest.raises(ContainerOfflineError):
            await token.confirm(never)
    assert token.state is OwnerState.FENCED
    assert not token.may_answer


@pytest.mark.parametrize("seconds", [0.0, inf])
async def test_an_entry_proves_it_where_zookeeper_does_not_tell(
    seconds: float, autojump_clock: trio.testing.MockClock
) -> None:
    proof = Proof()
    token = opened(proof)
    await trio.sleep(1)
    proof.is_seen, proof.seconds = False, seconds

    async def append() -> None:
        sent_at = trio.current_time()
        await trio.sleep(0.01)
        proof.owned_at = sent_at

    asked = trio.current_time()
    await token.confirm(append)
    assert token.may_answer
    assert trio.current_time() - asked < LOOK_SECONDS_MAX + 0.1


async def test_a_new_owner_answers_when_the_proofs_of_the_last_have_run_out(
    autojump_clock: trio.testing.MockClock,
) -> None:
    proof = Proof()
    last = opened(proof)
    token = opened(Proof())
    await token.wait_alone()
    assert trio.current_time() == TAKEOVER_SECONDS > PROOF_SECONDS
    assert not last.may_answer


async def test_an_owner_that_stops_while_it_is_in_doubt_refuses(
    autojump_clock: trio.testing.MockClock,
) -> None:
    proof = Proof()
    token = opened(proof)
    await trio.sleep(1)
    assert not token.may_answer
    token.leave()
    with pytest.raises(ContainerOfflineError):
        await token.confirm(never)
    token.end()
    assert token.state is OwnerState.GONE
    token.fence()
    assert token.state is OwnerState.GONE
    with pytest.raises(RefusedStepError):
        token.claim()
