"""Some seeds of tokens that expire, and planted faults; more by ``make sim-tokens``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tokens.run import FailedSeedError, simulate

from pravega_security import delegation_tokens
from pravega_security.delegation_tokens import TokenMinter, TokenVerifier
from pravega_wire import commands as wire
from segstore.network import token_checks
from segstore.network.token_checks import EXPIRED, TokenChecks

SEEDS = range(6)
PLANTED_SEEDS = range(12)


def test_clients_go_on_with_new_tokens_and_nothing_is_lost() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        counts += simulate(seed).counts
    # What the seeds are for does happen in them.
    assert counts["event"] > 20 * len(SEEDS)
    assert counts["committed"] > len(SEEDS)
    assert counts["scale"] > 2
    assert counts["connection ended by an expired token"] > 5 * len(SEEDS)
    for kind in ("SetupAppend", "ReadSegment", "ReadTable", "UpdateTableEntries"):
        assert counts[f"{kind} refused, code {EXPIRED}"] > 3
    assert counts["rotation of keys"] > 1


def test_a_seed_is_replayed_step_by_step() -> None:
    first, second = simulate(1), simulate(1)
    assert first.lines == second.lines
    assert (first.trace_hash, first.step_count) == (second.trace_hash, second.step_count)


# ---- Planted faults ------------------------------------------------------------------------------


def plant_expired_tokens_that_count(patch: pytest.MonkeyPatch) -> None:
    """Accept each token that was signed, whenever."""
    real = TokenVerifier.verify

    def verify(self: TokenVerifier, token: str) -> Any:
        now, self._now = self._now, lambda: 0
        try:
            return real(self, token)
        finally:
            self._now = now

    patch.setattr(TokenVerifier, "verify", verify)


def plant_tokens_that_count_before_their_beginning(patch: pytest.MonkeyPatch) -> None:
    """Accept each token that was signed, however long before its beginning."""
    patch.setattr(delegation_tokens, "CLOCKS_APART_SECONDS", 2**50)


def plant_writers_that_outlive_their_tokens(patch: pytest.MonkeyPatch) -> None:
    """Check a writer's token at its setup, and never again."""
    patch.setattr(TokenChecks, "_watch", lambda self, writer_id, token: None)


def plant_renewed_tokens_that_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """Let a writer's connection end with the first token that it was set up with."""
    real = TokenChecks._watch

    def watch(self: TokenChecks, writer_id: bytes, token: str) -> None:
        if writer_id not in self._expiries:
            real(self, writer_id, token)

    patch.setattr(TokenChecks, "_watch", watch)


def plant_refusals_that_are_remembered(patch: pytest.MonkeyPatch) -> None:
    """Take each later token of a connection for as expired as the one that was."""
    real = TokenChecks._allows

    def allows(self: Any, request: Any, *arguments: Any) -> bool:
        if self in expired:
            self._send(wire.AuthTokenCheckFailed(request.request_id, "", EXPIRED))
            return False
        is_allowed = real(self, request, *arguments)
        if not is_allowed and self._verifier.now > 0:
            expired.append(self)
        return is_allowed

    expired: list[TokenChecks] = []
    patch.setattr(TokenChecks, "_allows", allows)


def plant_expiry_as_a_refusal_for_good(patch: pytest.MonkeyPatch) -> None:
    """Answer an expired token as a forged one is answered."""
    patch.setattr(token_checks, "EXPIRED", token_checks.CHECK_FAILED)


def plant_names_that_begin_alike(patch: pytest.MonkeyPatch) -> None:
    """Take a claim for all streams whose names begin with its own."""
    real = delegation_tokens._names_of

    def names_of(claim: str) -> Any:
        names = real(claim)
        beginnings = tuple(each.rstrip("/") for each in names.beginnings)
        return names._replace(beginnings=tuple(each[:3] for each in beginnings))

    patch.setattr(delegation_tokens, "_names_of", names_of)


def plant_a_master_token_that_is_not_minted_anew(patch: pytest.MonkeyPatch) -> None:
    """Let the controller go on with the first token of its own."""
    real = TokenMinter.mint_master

    def mint_master(self: TokenMinter) -> str:
        return self._master[0] or real(self)

    patch.setattr(TokenMinter, "mint_master", mint_master)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (plant_expired_tokens_that_count, "had expired"),
        (plant_tokens_that_count_before_their_beginning, "without a token for it"),
        (plant_writers_that_outlive_their_tokens, "after its token has expired"),
        (plant_renewed_tokens_that_are_ignored, "though no writer's token expired"),
        (plant_refusals_that_are_remembered, "had not expired"),
        (plant_expiry_as_a_refusal_for_good, "for good"),
        (plant_names_that_begin_alike, "without a token for it"),
        (plant_a_master_token_that_is_not_minted_anew, "clients do not end"),
    ],
)
def test_planted_faults_are_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    assert expected in find_failure()


def find_failure() -> str:
    """Find the first seed that fails, of some seeds; return its message."""
    for seed in PLANTED_SEEDS:
        try:
            simulate(seed)
        except FailedSeedError as error:
            return str(error).splitlines()[0]
    return "nothing"
