"""The subject of a run, and the faults that harm it: a single store, or a cluster.

Owns: ``Subject``, ``FaultTable``, and the pause of a process.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from foreign_servers.pauses import pause_process

from segstore_client.access.settings import build_access, read_environment
from segstore_client.controller.controller_client import ControllerClient

S = TypeVar("S")


class FaultTable(dict[str, tuple[Callable[[S], None], int]], Generic[S]):
    """Name -> a fault, which harms what it is given and heals it again, and how often it is drawn
    beside the others."""

    def enter(
        self, name: str, *, weight: int
    ) -> Callable[[Callable[[S], None]], Callable[[S], None]]:
        """Enter the decorated function."""

        def enter(fault: Callable[[S], None]) -> Callable[[S], None]:
            assert name not in self, f"there is a fault {name!r}"
            self[name] = (fault, weight)
            return fault

        return enter

    def around(self, site: S) -> dict[str, tuple[Callable[[], None], int]]:
        """Return the faults of one site."""
        return {name: (partial(fault, site), weight) for name, (fault, weight) in self.items()}


@dataclass(frozen=True, slots=True)
class Subject:
    """The cluster that runs, and the faults that can be made in it.

    ``controllers`` has the addresses for clients, ``left_out`` the faults that cannot be made here
    and why. ``variables`` of the environment tell clients who they are, and whom to trust.
    ``report`` returns a sentence about the whole run, and whether what it says is right.
    """

    controllers: Sequence[str]
    faults: Mapping[str, tuple[Callable[[], None], int]]
    store_pids: Callable[[], Iterable[int]]
    left_out: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    report: Callable[[], tuple[str, bool]] | None = None

    def open_client(self) -> ControllerClient:
        """Return a client of the first controller."""
        access = build_access([read_environment(self.variables)])
        return ControllerClient(self.controllers[0], access=access)


OpenSubject = Callable[[Path, random.Random], AbstractContextManager[Subject]]
"""Runs something that keeps its files in a directory, for the time of the block."""


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """Stop a process inside the block, unless it is killed there."""
    pause_process(pid)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
