"""The messages between a supervisor and its children.

Owns: the kinds of children, two environment variables, the line that a child writes when it is
ready or cannot start, and the tie that ends children with their supervisor.

    SEGSTORE_SUPERVISOR   the supervisor's process id
    SEGSTORE_READY_FD     a pipe; the child writes lines of JSON into it: {"ready": true} when it
                          serves, and {"error": "<one sentence>"} before it exits, with
                          "final": true if no later start can succeed

Supervisors start children from their main thread, because the kernel kills a child when the thread
that started it ends.

Invariants:
1. When a supervisor dies, by whatever signal, the kernel kills its children. Held by
   ``test_children_die_with_a_supervisor_that_is_killed``. A child that finds its supervisor already
   dead ends too. Held by ``test_a_supervisor_that_is_gone_before_the_child_asks_takes_it_along``.
"""

from __future__ import annotations

import json
import os
import signal

SUPERVISOR_VARIABLE = "SEGSTORE_SUPERVISOR"
READY_VARIABLE = "SEGSTORE_READY_FD"

SEGMENT_STORE = "segment-store"
CONTROLLER = "controller"
"""The kinds of children."""


class Verdict:
    """A child's message about its start; ``error`` is the sentence when it failed.

    ``is_final`` says that no later start can succeed, whatever comes back meanwhile.
    """

    # This is no dataclass, because the module ``dataclasses`` imports more than all else that a
    # supervisor has in memory.
    __slots__ = ("error", "is_final", "is_ready")

    def __init__(self, *, is_ready: bool, error: str | None = None, is_final: bool = False) -> None:
        self.is_ready = is_ready
        self.error = error
        self.is_final = is_final

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Verdict):
            return NotImplemented
        mine = (self.is_ready, self.error, self.is_final)
        return mine == (other.is_ready, other.error, other.is_final)

    __hash__ = None  # type: ignore[assignment]


def die_with_supervisor() -> None:
    """Ask the kernel to kill this process when its supervisor ends; no-op without a supervisor."""
    supervisor = os.environ.get(SUPERVISOR_VARIABLE)
    if supervisor is None:
        return
    from segstore.runtime.kernel import kill_with_parent

    kill_with_parent()
    if os.getppid() != int(supervisor):
        # The supervisor ended before the kernel was asked to send the signal.
        os.kill(os.getpid(), signal.SIGKILL)


def announce(verdict: Verdict) -> None:
    """Send the supervisor whether the child serves, or why it ends; no-op without a supervisor."""
    text = os.environ.get(READY_VARIABLE)
    if text is None:
        return
    fields: dict[str, object] = {"ready": True} if verdict.is_ready else {"error": verdict.error}
    if verdict.is_final:
        fields["final"] = True
    # The pipe stays open: a child that served for days may have to say why it ends.
    os.write(int(text), json.dumps(fields).encode() + b"\n")


def parse_verdict(line: bytes) -> Verdict:
    """Parse a child's message; return an empty ``Verdict`` for one that is not valid."""
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        return Verdict(is_ready=False)
    error = fields.get("error")
    return Verdict(
        is_ready=bool(fields.get("ready")),
        error=error if isinstance(error, str) else None,
        is_final=bool(fields.get("final")),
    )
