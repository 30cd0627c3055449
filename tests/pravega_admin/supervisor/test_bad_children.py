"""Children of every bad kind: the supervisor goes on, and a stop ends everything in time."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from pravega_admin.serving.data_directory import open_run_directory
from pravega_admin.supervisor.child_process import ChildSpec
from pravega_admin.supervisor.run_directory import SUPERVISOR, RunDirectory
from pravega_admin.supervisor.supervisor import Supervisor
from support.processes import is_running
from support.rare_parameters import mark_rare

pytestmark = pytest.mark.processes

SECONDS_MAX = 60.0
DRAIN_SECONDS = 1.0
READY = """
import os, signal, sys, time
from pravega_admin.supervisor.child_protocol import Verdict, announce, die_with_supervisor
die_with_supervisor()
pipe = int(os.environ["SEGSTORE_READY_FD"])
"""
STAYS = "announce(Verdict(is_ready=True)); time.sleep(600)"
FORKS = """
if os.fork() == 0:
    {before}
    with open(sys.argv[1], "a") as file:
        file.write(str(os.getpid()) + " ")
    time.sleep(600)
    os._exit(0)
while not os.path.exists(sys.argv[1]) or not os.path.getsize(sys.argv[1]):
    time.sleep(0.01)
"""
"""Leaves a process that holds the pipe, and says which in a file."""
BAD_CHILDREN = {
    "leaves a process that holds the pipe": FORKS.format(before="os.setsid()") + STAYS,
    "ignores signals": "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + STAYS,
    "is stopped": "announce(Verdict(is_ready=True)); os.kill(os.getpid(), signal.SIGSTOP)",
    "fills the pipe with lines": (
        "announce(Verdict(is_ready=True))\n"
        "while True: os.write(pipe, b'{\"ready\": true}\\n' * 1000)"
    ),
    "fills the pipe without a line": (
        "announce(Verdict(is_ready=True))\n"
        "try:\n    while True: os.write(pipe, b'x' * 10_000)\n"
        "except OSError: time.sleep(600)"
    ),
    "closes the pipe": "announce(Verdict(is_ready=True)); os.close(pipe); time.sleep(600)",
    "is a zombie's parent": "if os.fork() == 0: os._exit(0)\n" + STAYS,
}
"""What a child does after its first steps, by its kind."""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RunDirectory]:
    with open_run_directory(tmp_path / "data") as opened:
        yield opened


def child(name: str, source: str, *arguments: str, log_path: Path | None = None) -> ChildSpec:
    command = (sys.executable, "-c", READY + textwrap.dedent(source), *arguments)
    log = None if log_path is None else str(log_path)
    return ChildSpec(name, command, drain_seconds=DRAIN_SECONDS, log_path=log)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def supervised(
    directory: RunDirectory, sentences: list[str], *specs: ChildSpec
) -> Iterator[threading.Event]:
    """Supervise inside the block; the event is set when all serve. A stop ends all in time."""
    supervisor = Supervisor(list(specs), directory=directory, report=sentences.append, lasts=True)
    ready = threading.Event()
    # A daemon: one that stands still fails the test, and does not hang it.
    thread = threading.Thread(target=supervisor.run, kwargs={"on_ready": ready.set}, daemon=True)
    thread.start()
    try:
        yield ready
    finally:
        supervisor.stop()
        # Others may use the machine; a child that is waited for takes ten minutes.
        thread.join(len(specs) * DRAIN_SECONDS + SECONDS_MAX / 2)
    assert not thread.is_alive()
    assert [each.stem for each in Path(directory.path).glob("*.pid")] == [SUPERVISOR]


def pid_of(directory: RunDirectory, name: str) -> int:
    pid = 0

    def is_there() -> bool:
        nonlocal pid
        file = Path(directory.path, f"{name}.pid")
        pid = int(file.read_text() or 0) if file.exists() else 0
        return pid > 0

    eventually(is_there)
    return pid


@contextmanager
def ended_at_last(note: Path) -> Iterator[None]:
    """End the processes that have left their group and that no supervisor can know: one of each
    life."""
    try:
        yield
    finally:
        for pid in map(int, note.read_text().split() if note.exists() else ()):
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("kind", mark_rare(BAD_CHILDREN, 2))
def test_a_bad_child_delays_neither_the_others_nor_a_stop(
    directory: RunDirectory, tmp_path: Path, kind: str
) -> None:
    sentences: list[str] = []
    note = tmp_path / "note"
    specs = child("good", STAYS), child("bad", BAD_CHILDREN[kind], str(note))
    with ended_at_last(note), supervised(directory, sentences, *specs) as ready:
        assert ready.wait(SECONDS_MAX)
        first = {name: pid_of(directory, name) for name in ("bad", "good")}
        for pid in first.values():
            os.kill(pid, signal.SIGKILL)
        for name, pid in first.items():
            eventually(partial(sentences.__contains__, f"{name} is back"))
            assert f"{name} was killed by SIGKILL; starting it again" in sentences
            assert pid_of(directory, name) != pid
    assert sentences.count("bad is back") == 1


def test_what_a_child_has_started_ends_with_it(directory: RunDirectory, tmp_path: Path) -> None:
    sentences: list[str] = []
    note = tmp_path / "note"
    spec = child("one", FORKS.format(before="pass") + STAYS, str(note))
    with supervised(directory, sentences, spec) as ready:
        assert ready.wait(SECONDS_MAX)
        left = int(note.read_text())
        note.unlink()
        os.kill(pid_of(directory, "one"), signal.SIGKILL)
        eventually(lambda: not is_running(left))
        eventually(lambda: "one is back" in sentences)
        left = int(note.read_text())
    eventually(lambda: not is_running(left))


def test_a_child_that_ends_at_once_is_told_with_its_last_lines_and_tried_again(
    directory: RunDirectory, tmp_path: Path
) -> None:
    sentences: list[str] = []
    starts, log = tmp_path / "starts", tmp_path / "log"
    log.write_text("of an earlier life\n")
    ending = """
        with open(sys.argv[1], "a") as file:
            file.write(f"{time.monotonic()}\\n")
        with open(sys.argv[2], "a") as log:
            log.write("an \\x1b[31merror\\n\\tat some.Frame(Frame.java:7)\\nits cause\\n")
        sys.exit(3)
    """
    ends = child("ends", ending, str(starts), str(log), log_path=log)
    with supervised(directory, sentences, child("good", STAYS), ends) as ready:
        eventually(lambda: starts.exists() and len(starts.read_text().split()) >= 6)
        assert not ready.is_set()
        good = pid_of(directory, "good")
        assert is_running(good)
    lines = "\n    an  [31merror\n    its cause"
    assert sentences[:3] == [
        f"ends ended with exit code 3; starting it again{lines}",
        f"ends ended with exit code 3; starting it again in 0.1 s{lines}",
        "ends ended with exit code 3; starting it again in 0.2 s",
    ]
    times = [float(text) for text in starts.read_text().split()]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(pause >= 0.1 * 2**number for number, pause in enumerate(pauses[1:5]))
    assert not any("is back" in sentence for sentence in sentences)


def test_a_child_that_serves_and_ends_again_and_again_is_not_told_as_back(
    directory: RunDirectory, tmp_path: Path
) -> None:
    """Earlier each of its lives was told as its return, and all of them as ready."""
    sentences: list[str] = []
    lives = tmp_path / "lives"
    fickle = """
        with open(sys.argv[1], "a") as file:
            file.write("life ")
        announce(Verdict(is_ready=True))
        if len(open(sys.argv[1]).read().split()) < 5:
            sys.exit(1)
        time.sleep(600)
    """
    never = child("never", "time.sleep(600)")
    with supervised(directory, sentences, child("fickle", fickle, str(lives)), never) as ready:
        eventually(lambda: len(lives.read_text().split() if lives.exists() else []) == 5)
        assert not any("is back" in sentence for sentence in sentences)
        eventually(lambda: "fickle is back" in sentences)
        assert not ready.is_set()
    assert sentences.count("fickle is back") == 1


def test_a_part_that_refuses_to_start_ends_no_other_and_its_reason_is_told(
    directory: RunDirectory, tmp_path: Path
) -> None:
    """A tier 2 that is away for seconds made a store refuse, which ended the whole cluster."""
    sentences: list[str] = []
    mount = tmp_path / "mount"
    refusing = """
        if not os.path.exists(sys.argv[1]):
            announce(Verdict(is_ready=False, error="tier 2 is not there"))
            sys.exit(78)
        announce(Verdict(is_ready=True))
        time.sleep(600)
    """
    store = child("store", refusing, str(mount))
    with supervised(directory, sentences, child("good", STAYS), store) as ready:
        good = pid_of(directory, "good")
        refusal = "store ended with exit code 78: tier 2 is not there; starting it again"
        eventually(lambda: sum(each.startswith(refusal) for each in sentences) >= 3)
        mount.touch()
        assert ready.wait(SECONDS_MAX)
        assert pid_of(directory, "good") == good


def test_a_store_that_served_is_tried_again_when_it_is_refused_what_may_come_back(
    directory: RunDirectory, tmp_path: Path
) -> None:
    sentences: list[str] = []
    lives = tmp_path / "lives"
    served = """
        with open(sys.argv[1], "a") as file:
            file.write("life ")
        if len(open(sys.argv[1]).read().split()) in (2, 3):
            announce(Verdict(is_ready=False, error="tier 2 is not there"))
            sys.exit(78)
        announce(Verdict(is_ready=True))
        time.sleep(600)
    """
    supervisor = Supervisor(
        [child("store", served, str(lives))], directory=directory, report=sentences.append
    )
    ready = threading.Event()
    thread = threading.Thread(target=supervisor.run, kwargs={"on_ready": ready.set}, daemon=True)
    thread.start()
    try:
        assert ready.wait(SECONDS_MAX)
        os.kill(pid_of(directory, "store"), signal.SIGKILL)
        eventually(lambda: "store is back" in sentences)
    finally:
        supervisor.stop()
        thread.join(SECONDS_MAX)
    assert not thread.is_alive()


@pytest.mark.proof
def test_a_stop_takes_no_longer_for_many_bad_children_than_for_one(
    directory: RunDirectory, tmp_path: Path
) -> None:
    """Earlier each child had its time after the one before: twelve that ignored the request took
    twelve times as long."""
    drain_seconds = 2.0
    sentences: list[str] = []
    note = tmp_path / "note"
    ignoring = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    sources = [ignoring + source for source in BAD_CHILDREN.values()] * 2
    specs = [
        child(f"{kind}-{number}", source, str(note))
        for kind in ("store", "controller")
        for number, source in enumerate(sources)
    ]
    for spec in specs:
        spec.drain_seconds = drain_seconds
    with ended_at_last(note):
        with supervised(directory, sentences, *specs) as ready:
            assert ready.wait(SECONDS_MAX)
            pids = [pid_of(directory, spec.name) for spec in specs]
            began = time.monotonic()
        took = time.monotonic() - began
        assert not any(map(is_running, pids))
    assert all("does not end by itself; killing it" in sentence for sentence in sentences)
    # One that writes to the pipe of a supervisor that ends is ended by that.
    assert len(sentences) >= len(specs) - sum("os.write" in source for source in sources) * 2
    # Two kinds, and a machine that others use; one after the other they take 40 s.
    assert 2 * drain_seconds <= took < 10 * drain_seconds


def test_a_second_ctrl_c_kills_all_at_once(directory: RunDirectory) -> None:
    program = """
        import sys
        from pravega_admin.supervisor.child_process import ChildSpec
        from pravega_admin.supervisor.run_directory import RunDirectory
        from pravega_admin.supervisor.supervise import end_by_signals
        from pravega_admin.supervisor.supervisor import Supervisor
        path, lock, source = sys.argv[1:]
        command = (sys.executable, "-c", source)
        specs = [ChildSpec(f"part-{number}", command, 600.0) for number in range(4)]
        supervisor = Supervisor(specs, directory=RunDirectory(path, int(lock)), report=print)
        end_by_signals(supervisor)
        supervisor.run(on_ready=lambda: print("ready", flush=True))
    """
    source = READY + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + STAYS
    lock = directory.lock_descriptor
    command = [sys.executable, "-c", textwrap.dedent(program), directory.path, str(lock), source]
    with subprocess.Popen(
        command, pass_fds=[lock], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        pids = [pid_of(directory, f"part-{number}") for number in range(4)]
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline().startswith("stopping; press Ctrl-C again")
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 0
    assert not any(map(is_running, pids))


@pytest.mark.proof
def test_what_is_done_once_is_tried_until_it_ends_well_and_the_others_wait(
    directory: RunDirectory, tmp_path: Path
) -> None:
    sentences: list[str] = []
    tries, log = tmp_path / "tries", tmp_path / "log"
    work = """
        with open(sys.argv[1], "a") as file:
            file.write("try ")
        if len(open(sys.argv[1]).read().split()) < 4:
            with open(sys.argv[2], "a") as file:
                file.write("no server answers\\n")
            sys.exit(1)
    """
    once = child("once", work, str(tries), str(log), log_path=log)
    once.once = True
    late = child("late", 'open(sys.argv[1], "a").write("late ")\n' + STAYS, str(tries))
    specs = child("early", STAYS), once, late
    with supervised(directory, sentences, *specs) as ready:
        assert ready.wait(SECONDS_MAX)
        os.kill(pid_of(directory, "early"), signal.SIGKILL)
        eventually(lambda: "early is back" in sentences)
    assert tries.read_text().split() == ["try"] * 4 + ["late"]
    assert sentences[0] == ("once ended with exit code 1; starting it again\n    no server answers")
