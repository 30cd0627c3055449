"""The upgrade of one machine from the newest release to this version, and the way back.

Owns: the proof of the sections "One machine" and "Going back" of the guide to upgrades. Its
commands run as they are printed, in a directory with both versions.

How: one test changes the version under load, of the official Java client and of segstore's own of
both versions; the store is stopped, or killed. The other one lets each version read what either has
made, and go on with it: streams with their epochs, transactions, tables and reader groups.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from compat_harness.group_steps import GroupSteps, open_group
from compat_harness.guide_shell import GuideShell, Step, read_steps
from compat_harness.java import NEWEST, JavaClient
from compat_harness.own_load import OwnLoad
from compat_harness.released_versions import Environments, clean_environment
from compat_harness.server import TARGET_VARIABLE
from test_kill_nine import ACKED_BEFORE_FIRST_KILL, Workload, judge, running_workload

from support.released_stores import check, fill, go_on

pytestmark = [
    pytest.mark.proof,
    pytest.mark.compat,
    pytest.mark.no_second_try,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="starts stores of its own"),
    # The first one builds the old version, the others use it.
    pytest.mark.xdist_group("upgrades"),
]

GUIDE = Path(__file__).resolve().parent.parent / "docs" / "guides" / "upgrade.md"
UPGRADE, GO_BACK = "One machine", "Going back"
CHANGES = ((UPGRADE, "new"), (GO_BACK, "old"), (UPGRADE, "new"))
"""The parts of the guide that are followed in turn, and which version serves afterwards."""
MORE = 10
EVENTS = 20


class UpgradedStore:
    """A store in a directory with both versions, as the guide has it; the old one serves first."""

    def __init__(self, directory: Path, environments: Environments) -> None:
        directory.mkdir()
        for place in (environments.old, environments.new):
            (directory / place.name).symlink_to(place)
        self._environments = environments
        self._steps = read_steps(GUIDE)
        self.shell = GuideShell(directory)
        self.shell.environment = clean_environment(self.shell.environment)
        self.controller = self.shell.controller_uri

    def __enter__(self) -> UpgradedStore:
        self._take([step for step in self._steps if step.heading == GO_BACK])
        assert self._serving() == {"old"}
        return self

    def __exit__(self, *error: object) -> None:
        self.shell.close()

    def follow(self, heading: str, version: str, *, kill: bool = False) -> None:
        """Stop the store, or kill it, and run the commands of a part of the guide; that version
        serves afterwards."""
        if kill:
            os.kill(self._pids()["standalone"], signal.SIGKILL)
        self.shell.stop_servers()
        journals = list((self.shell.directory / "data").glob("journal-*/identity.toml"))
        released = {"is_released = true" in journal.read_text() for journal in journals}
        assert released == {not kill}
        self._take([step for step in self._steps if step.heading == heading])
        assert self._serving() == {version}

    def _take(self, steps: list[Step]) -> None:
        commands = [step.text for step in steps if step.kind == "console"]
        assert len(commands) >= 2, steps
        for command in commands:
            self.shell.take(command)

    def _serving(self) -> set[str]:
        """Return the environments in which the processes of the store run."""
        pids = self._pids()
        assert set(pids) == {"standalone", "segment-store-0", "controller"}
        return {self._environments.name_of(pid) for pid in pids.values()}

    def _pids(self) -> dict[str, int]:
        files = (self.shell.directory / "data" / "run").glob("*.pid")
        return {file.stem: int(file.read_text()) for file in files}


@pytest.fixture
def store(tmp_path: Path, environments: Environments) -> Iterator[UpgradedStore]:
    with UpgradedStore(tmp_path / "empty", environments) as store:
        yield store


def test_each_environment_has_its_version(environments: Environments, tmp_path: Path) -> None:
    shell = GuideShell(tmp_path)
    shell.environment = clean_environment(shell.environment)
    program = "import _fast.crc, pravega_admin, segstore; print(_fast.crc.__file__);"
    program += "print(pravega_admin.__file__); print(segstore.__file__)"
    source = Path(__file__).resolve().parent.parent / "src"
    for place, root in ((environments.old, environments.old), (environments.new, source)):
        files = shell.run(f"{place}/bin/python -c '{program}'").split()
        assert len(files) == 3
        assert all(Path(file).is_relative_to(root) for file in files), files


@pytest.mark.parametrize(
    ("program", "kill"),
    [
        ("KillNineWorkload", False),
        ("KillNineWorkload", True),
        ("TransactionKillNineWorkload", False),
        ("KeyValueTableWorkload", False),
    ],
)
def test_a_store_is_upgraded_and_taken_back_under_load(
    program: str, kill: bool, store: UpgradedStore, environments: Environments, tmp_path: Path
) -> None:
    """With ``kill``, each version also recovers what the other one had in its journal only."""
    directory = tmp_path / "workload"
    client = JavaClient.build(NEWEST)
    with (
        running_workload(client, store.controller, directory, program=program) as workload,
        OwnLoad(
            store.controller, tmp_path / "own", environments.programs, store.shell.environment
        ) as own,
    ):
        workload.wait_until_acked(ACKED_BEFORE_FIRST_KILL)
        for heading, version in CHANGES:
            store.follow(heading, version, kill=kill)
            wait_for_progress(workload, own)
        workload.finish()
        own.finish()
    if program != "KeyValueTableWorkload":  # which judges by itself what it is answered
        judge(directory)


def wait_for_progress(workload: Workload, own: OwnLoad) -> None:
    """Wait until every client has more acknowledgements than now."""
    workload.wait_until_acked(workload.acked() + 1)
    own.wait_for_progress()


def test_what_each_version_made_the_other_reads_and_goes_on_with(store: UpgradedStore) -> None:
    client = JavaClient.build(NEWEST)
    added: dict[str, int] = {}
    groups: dict[str, GroupSteps] = {}
    read: dict[str, list[int]] = {}
    written: dict[str, int] = {}
    with ExitStack() as stack:

        def make(version: str) -> None:
            fill(store.controller, scope=f"made-by-{version}")
            added[f"made-by-{version}"] = 0
            steps = open_group(client, store.controller, f"group-of-{version}", segments=2)
            groups[version] = stack.enter_context(steps)
            written[version] = 0
            write(version)
            # The other version finds a group that has read half of what is there.
            read[version] = groups[version].read(EVENTS // 2)

        def write(version: str) -> None:
            line = f"write {written[version]} {EVENTS} {written[version] + 1}"
            assert groups[version].step(line) == "written"
            written[version] += EVENTS

        make("old")
        for heading, version in CHANGES:
            store.follow(heading, version)
            for scope, before in added.items():
                check(store.controller, scope=scope, added=before)
                go_on(store.controller, scope=scope, added=before, more=MORE)
                added[scope] = before + MORE
                check(store.controller, scope=scope, added=before + MORE)
            for maker, group in groups.items():
                write(maker)
                read[maker] += group.read(EVENTS)
            if version not in groups:
                make(version)
        for maker, group in groups.items():
            read[maker] += group.read(written[maker] - len(read[maker]))
            assert sorted(read[maker]) == list(range(written[maker]))
