"""Groups the Java suites that run together on one server.

Owns: the groups, what servers they need, and the JVMs that run them.

Most suites share a server and run side by side. Those that ask for another server, or harm it, are
a group of their own. A JVM runs all suites of a group that the session wants of one client version.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from compat_harness.calls import CallCounter
from compat_harness.java import NEWEST, JavaClient, SuiteRun, TestLine
from compat_harness.server import Server

QUICK = """\
[segment_store.auto_scale]
sample_seconds = 0.25
window_seconds = [1.0, 2.0, 4.0, 8.0]
cooldown_seconds = 2.0
mute_seconds = 2.0
expiry_seconds = 8.0

[controller]
request_poll_seconds = 0.2
idle_segment_seconds = 20.0
retention_period_seconds = 0.5
watermark_period_seconds = 0.5
"""
"""A store that does by itself within seconds what it usually does within minutes."""


class Target(Protocol):
    """A server that suites run on."""

    @property
    def controller_uri(self) -> str:
        """Return the address of its controller."""


@dataclass(frozen=True, slots=True)
class Group:
    """Suites that run together, so many side by side, on a server with these settings (TOML)."""

    name: str
    side_by_side: int
    seconds_max: float
    settings: str = ""


PLAIN = Group("plain", side_by_side=4, seconds_max=900.0)
POLICIES = Group("policies", side_by_side=3, seconds_max=400.0, settings=QUICK)
KILLS = Group("kills", side_by_side=9, seconds_max=700.0)

GROUPS = {
    "AutoScaleTest": POLICIES,
    "RetentionTest": POLICIES,
    "WatermarkTest": POLICIES,
    "KillTest": KILLS,
    "KeyValueTableKillTest": KILLS,
}
"""The suites that are not ``PLAIN``."""

ONLY_OURS = {
    "AutoScaleTest": "the original measures rates over two to twenty minutes",
    "RetentionTest": "the original looks at retention once a minute at best",
    "NamesTest": "the original accepts the names that are refused here",
    "KillTest": "the original's standalone server keeps nothing on disk",
    "KeyValueTableKillTest": "the original's standalone server keeps nothing on disk",
}
"""Suites that are not run on a server that the session cannot configure, and why."""

# The longest begin first: the others fill the gaps.
SLOWEST = ("TransactionTest", "ReaderGroupTest", "LargeEventTest", "StateSynchronizerTest")


def group_of(suite: str) -> Group:
    """Return the group that a suite belongs to."""
    return GROUPS.get(suite, PLAIN)


def name_run(version: str, group: Group) -> str:
    """Return the name of all that one process has to run: ``PLAIN`` and ``POLICIES`` run
    together."""
    return f"java {version} kills" if group is KILLS else f"java {version}"


class SuiteRuns:
    """The JVMs and servers of a session, each started when the first suite of it is waited for."""

    def __init__(
        self,
        directory: Path,
        target: Target | None,
        properties: dict[str, str],
        *,
        count_calls: bool,
    ) -> None:
        """Take ``count_calls``: note the controller's RPCs that the newest client's tests reach."""
        self._directory = directory
        self._target = target
        self._properties = properties
        self._count_calls = count_calls
        self._counters: dict[tuple[str, str], CallCounter] = {}
        self._stack = ExitStack()
        self._servers: dict[str, Target] = {}
        self._runs: dict[tuple[str, str], SuiteRun] = {}

    def run_of(self, version: str, suite: str, wanted: Sequence[str]) -> SuiteRun:
        """Return the JVM that runs a suite, with all wanted ones of its group.

        Those of ``POLICIES`` mostly wait: they run beside the plain ones.
        """
        group = group_of(suite)
        if (version, group.name) not in self._runs:
            together = (PLAIN, POLICIES) if group in (PLAIN, POLICIES) else (group,)
            for each in together:
                self._start(version, each, wanted)
        return self._runs[version, group.name]

    def _start(self, version: str, group: Group, wanted: Sequence[str]) -> None:
        names = [name for name in wanted if group_of(name) is group]
        if not names:
            return
        names.sort(key=lambda name: (name not in SLOWEST, name))
        server = self._server(group)
        properties = {**self._properties, "controller": server.controller_uri}
        if isinstance(server, Server):
            properties["processes"] = str(server.data_dir / "run")
        if self._count_calls and version == NEWEST and group is not KILLS:
            upstream = server.controller_uri.removeprefix("tcp://")
            counter = self._stack.enter_context(CallCounter(upstream))
            for name in names:
                properties[f"controller.{name}"] = counter.listen(name)
                self._counters[version, name] = counter
        run = JavaClient.build(version).run_suites(
            names,
            self._directory / f"{version}-{group.name}",
            side_by_side=group.side_by_side,
            seconds_max=group.seconds_max,
            properties=properties,
        )
        self._stack.callback(run.stop)
        self._runs[version, group.name] = run

    def calls_of(
        self, version: str, suite: str, tests: Sequence[TestLine]
    ) -> list[tuple[str, ...]]:
        """Return the RPCs that were answered to each test; none where they are not counted."""
        counter = self._counters.get((version, suite))
        if counter is None:
            return [() for _ in tests]
        return counter.calls_of(suite, [test.started for test in tests])

    def _server(self, group: Group) -> Target:
        """Return the session's target, or a server of our own that the group has for itself."""
        if self._target is not None:
            return self._target
        if group.name not in self._servers:
            directory = self._directory / f"server-{group.name}"
            directory.mkdir()
            options = []
            if group.settings:
                settings = directory / "settings.toml"
                settings.write_text(group.settings)
                options.append(f"--config={settings}")
            self._servers[group.name] = self._stack.enter_context(Server(directory, options))
        return self._servers[group.name]

    def close(self) -> None:
        """End all JVMs and servers."""
        self._stack.close()
