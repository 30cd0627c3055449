"""The messages between a supervisor and its children.

Owns: the kinds of children, two environment variables, the line that a child writes when it is
ready or cannot start, and the tie that ends children with their supervisor.

    SEGSTORE_SUPERVISOR   the supervisor's process id
    SEGSTORE_READY_FD     a pipe; the child writes lines of JSON into it: {"ready": true} when it
                          serves, and {"error": "<one sentence>"} before it exits

Invariants:
1. If a supervisor dies, in whatever way, the kernel kills its children. Supervisors must start
   children from their main thread: the kernel watches the thread that forked.
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

_PR_SET_PDEATHSIG = 1


class Verdict:
    """A child's message about its start; ``error`` is the sentence when it failed."""

    # No dataclass: those import more than all the rest that a supervisor has in memory.
    __slots__ = ("error", "is_ready")

    def __init__(self, *, is_ready: bool, error: str | None = None) -> None:
        self.is_ready = is_ready
        self.error = error

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Verdict):
            return NotImplemented
        return (self.is_ready, self.error) == (other.is_ready, other.error)

    __hash__ = None  # type: ignore[assignment]


def die_with_supervisor() -> None:
    """Ask the kernel to kill this process when its supervisor ends; no-op without a supervisor."""
    supervisor = os.environ.get(SUPERVISOR_VARIABLE)
    if supervisor is None:
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != int(supervisor):
        # It died before we asked.
        os.kill(os.getpid(), signal.SIGKILL)


def announce(verdict: Verdict) -> None:
    """Send the supervisor whether the child serves, or why it ends; no-op without a supervisor."""
    text = os.environ.get(READY_VARIABLE)
    if text is None:
        return
    fields: dict[str, object] = {"ready": True} if verdict.is_ready else {"error": verdict.error}
    # The pipe stays open: a child that served for days may have to say why it ends.
    os.write(int(text), json.dumps(fields).encode() + b"\n")


def parse_verdict(line: bytes) -> Verdict:
    """Parse a child's message; an empty one means that the child died."""
    try:
        fields = json.loads(line)
    except ValueError:
        return Verdict(is_ready=False)
    return Verdict(is_ready=bool(fields.get("ready")), error=fields.get("error"))
