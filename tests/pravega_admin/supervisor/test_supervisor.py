"""The supervisor, with real processes."""

import contextlib
import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pravega_admin.errors import AdminError, ConfigurationError
from pravega_admin.serving.data_directory import open_run_directory
from pravega_admin.supervisor import supervisor as supervisor_module
from pravega_admin.supervisor.child_process import ChildProcess, ChildSpec, describe_exit, spawn
from pravega_admin.supervisor.run_directory import RunDirectory
from pravega_admin.supervisor.supervisor import START_ATTEMPTS, Supervisor
from support.processes import is_running
from support.rare_parameters import mark_rare

pytestmark = pytest.mark.processes

SECONDS_MAX = 60.0

SLEEPER = """
    import time
    from pravega_admin.supervisor.child_protocol import Verdict, announce, die_with_supervisor
    die_with_supervisor()
    announce(Verdict(is_ready=True))
    time.sleep(600)
"""


def child(name: str, source: str, *arguments: str, drain_seconds: float = 5.0) -> ChildSpec:
    command = (sys.executable, "-c", textwrap.dedent(source), *arguments)
    return ChildSpec(name, command, drain_seconds=drain_seconds)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RunDirectory]:
    with open_run_directory(tmp_path) as opened:
        yield opened


@pytest.fixture
def sentences() -> list[str]:
    return []


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def running(supervisor: Supervisor) -> Iterator[None]:
    """Run the supervisor: all children are ready inside the block, and are stopped at its end.

    They die with the thread that started them: it is the one that stops them, too.
    """
    ready = threading.Event()
    thread = threading.Thread(target=supervisor.run, kwargs={"on_ready": ready.set})
    thread.start()
    try:
        assert ready.wait(SECONDS_MAX)
        yield
    finally:
        supervisor.stop()
        thread.join(SECONDS_MAX)
    assert not thread.is_alive()


def never() -> None:
    pytest.fail("it was ready")


def pid_of(directory: RunDirectory, name: str) -> int | None:
    try:
        return int(Path(directory.path, f"{name}.pid").read_text())
    except (FileNotFoundError, ValueError):
        return None


def test_children_are_started_again_after_being_killed(
    directory: RunDirectory, sentences: list[str]
) -> None:
    specs = [child("one", SLEEPER), child("two", SLEEPER)]
    supervisor = Supervisor(specs, directory=directory, report=sentences.append)
    with running(supervisor):
        first, untouched = pid_of(directory, "one"), pid_of(directory, "two")
        assert first is not None
        os.kill(first, signal.SIGKILL)
        eventually(lambda: "one is back" in sentences)
        second = pid_of(directory, "one")
        assert second is not None
        assert second != first
        assert pid_of(directory, "two") == untouched
        assert sentences[0] == "one was killed by SIGKILL; starting it again"
    assert not is_running(second)
    assert pid_of(directory, "one") is None
    assert pid_of(directory, "two") is None


def test_what_dies_stays_down_if_it_is_wanted_so(
    directory: RunDirectory, sentences: list[str]
) -> None:
    specs = [child("one", SLEEPER), child("two", SLEEPER)]
    supervisor = Supervisor(specs, directory=directory, report=sentences.append, restarts=False)
    with running(supervisor):
        pids = [pid_of(directory, "one"), pid_of(directory, "two")]
        for pid in pids:
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: len(sentences) == 2)
        assert sorted(sentences) == [
            f"{name} was killed by SIGKILL; it stays down" for name in ("one", "two")
        ]
        assert pid_of(directory, "one") is None


def test_a_child_that_cannot_start_as_configured_ends_the_supervisor(
    directory: RunDirectory, sentences: list[str]
) -> None:
    refusing = """
        import sys
        from pravega_admin.supervisor.child_protocol import Verdict, announce
        announce(Verdict(is_ready=False, error="port 9 is in use"))
        sys.exit(78)
    """
    specs = [child("fine", SLEEPER), child("refusing", refusing)]
    started = [spawn(spec, directory) for spec in specs]
    fine = pid_of(directory, "fine")
    supervisor = Supervisor(specs, directory=directory, report=sentences.append, started=started)
    with pytest.raises(ConfigurationError, match=r"^port 9 is in use$"):
        supervisor.run(on_ready=never)
    assert fine is not None
    assert not is_running(fine)


def test_a_child_that_is_never_ready_is_given_up(
    directory: RunDirectory, sentences: list[str]
) -> None:
    supervisor = Supervisor(
        [child("broken", "raise SystemExit(3)")], directory=directory, report=sentences.append
    )
    with pytest.raises(AdminError, match="broken cannot start: it ended with exit code 3"):
        supervisor.run(on_ready=never)
    assert len(sentences) == 3


def test_a_child_that_ignores_the_request_to_end_is_killed(
    directory: RunDirectory, sentences: list[str]
) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + textwrap.dedent(
        SLEEPER
    )
    supervisor = Supervisor(
        [child("stubborn", stubborn, drain_seconds=0.2)],
        directory=directory,
        report=sentences.append,
    )
    with running(supervisor):
        pid = pid_of(directory, "stubborn")
    assert pid is not None
    assert not is_running(pid)
    assert sentences == ["stubborn does not end by itself; killing it"]


@pytest.mark.parametrize("lacking", mark_rare([errno.EAGAIN, errno.ENOMEM], 1))
def test_a_child_that_cannot_be_started_for_a_while_is_tried_again(
    directory: RunDirectory,
    sentences: list[str],
    monkeypatch: pytest.MonkeyPatch,
    lacking: int,
) -> None:
    supervisor = Supervisor([child("one", SLEEPER)], directory=directory, report=sentences.append)
    start, refusals = supervisor_module.start_child_process, 0

    def start_after_a_while(*arguments: Any, **options: Any) -> ChildProcess:
        nonlocal refusals
        if (refusals := refusals + 1) <= START_ATTEMPTS + 1:
            raise OSError(lacking, os.strerror(lacking))
        return start(*arguments, **options)

    with running(supervisor):
        monkeypatch.setattr(supervisor_module, "start_child_process", start_after_a_while)
        first = pid_of(directory, "one")
        assert first is not None
        os.kill(first, signal.SIGKILL)
        eventually(lambda: "one is back" in sentences)
        assert pid_of(directory, "one") not in (None, first)
    reason = f"one cannot be started now: {os.strerror(lacking)}; trying again"
    assert sentences.count(reason) == START_ATTEMPTS + 1


def test_a_child_that_never_could_be_started_ends_the_supervisor(
    directory: RunDirectory, sentences: list[str]
) -> None:
    spec = ChildSpec("one", ("/nowhere/python",))
    supervisor = Supervisor([spec], directory=directory, report=sentences.append)
    with pytest.raises(AdminError, match=r"cannot be started: No such file or directory$"):
        supervisor.run(on_ready=never)


@pytest.mark.proof
def test_a_pid_file_that_cannot_be_written_is_written_later(
    directory: RunDirectory, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor([child("one", SLEEPER)], directory=directory, report=sentences.append)
    write, is_full = directory.write_pid, False

    def write_when_there_is_space(name: str, pid: int) -> None:
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(name, pid)

    monkeypatch.setattr(directory, "write_pid", write_when_there_is_space)
    with running(supervisor):
        first = pid_of(directory, "one")
        assert first is not None
        is_full = True
        os.kill(first, signal.SIGKILL)
        eventually(lambda: "one is back" in sentences)
        eventually(lambda: sentences.count("one has no pid file yet: No space left on device") > 1)
        assert pid_of(directory, "one") is None
        is_full = False
        eventually(lambda: pid_of(directory, "one") is not None)


def test_a_child_that_served_says_why_it_cannot_go_on(
    directory: RunDirectory, sentences: list[str]
) -> None:
    served = """
        import sys
        from pravega_admin.supervisor.child_protocol import Verdict, announce
        announce(Verdict(is_ready=True))
        announce(Verdict(is_ready=False, error="the journal is damaged", is_final=True))
        sys.exit(78)
    """
    supervisor = Supervisor([child("one", served)], directory=directory, report=sentences.append)
    with pytest.raises(ConfigurationError, match=r"^the journal is damaged$"):
        supervisor.run(on_ready=lambda: None)


def test_children_end_the_last_one_first(
    directory: RunDirectory, sentences: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "ends"
    gentle = """
        import signal, sys, time
        from pravega_admin.supervisor.child_protocol import Verdict, announce, die_with_supervisor
        def end(number, frame):
            with open(sys.argv[2], "a") as log:
                log.write(sys.argv[1] + "\\n")
            sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        die_with_supervisor()
        announce(Verdict(is_ready=True))
        time.sleep(600)
    """
    specs = [child(name, gentle, name, str(log)) for name in ("store", "controller")]
    supervisor = Supervisor(specs, directory=directory, report=sentences.append)
    with running(supervisor):
        pass
    assert log.read_text().split() == ["controller", "store"]


@pytest.mark.proof
def test_the_pauses_between_starts_grow(
    directory: RunDirectory, sentences: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "starts"
    fickle = """
        import sys, time
        from pravega_admin.supervisor.child_protocol import Verdict, announce
        with open(sys.argv[1], "a") as log:
            log.write(f"{time.monotonic()}\\n")
            is_first = log.tell() < 30
        announce(Verdict(is_ready=True))
        if is_first:
            # Long enough for the supervisor to see that all serve.
            time.sleep(1)
        sys.exit(1)
    """
    supervisor = Supervisor(
        [child("fickle", fickle, str(log))], directory=directory, report=sentences.append
    )
    with running(supervisor):
        eventually(lambda: log.exists() and len(log.read_text().split()) >= 5)
    starts = [float(text) for text in log.read_text().split()]
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert gaps[1] >= 0.1
    assert gaps[2] >= 0.2


def test_children_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    source = """
        import sys, textwrap
        from pathlib import Path
        from pravega_admin.serving.data_directory import open_run_directory
        from pravega_admin.supervisor.child_process import ChildSpec
        from pravega_admin.supervisor.supervisor import Supervisor
        with open_run_directory(Path(sys.argv[1])) as directory:
            command = (sys.executable, "-c", textwrap.dedent(sys.argv[2]))
            specs = [ChildSpec("one", command), ChildSpec("two", command)]
            supervisor = Supervisor(specs, directory=directory, report=print)
            supervisor.run(on_ready=lambda: print("ready", flush=True))
    """
    command = [sys.executable, "-c", textwrap.dedent(source), str(tmp_path), SLEEPER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "ready\n"
        pids = [int((tmp_path / "run" / f"{name}.pid").read_text()) for name in ("one", "two")]
        assert all(map(is_running, pids))
        supervisor.kill()
    deadline = time.monotonic() + SECONDS_MAX
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with open_run_directory(tmp_path):
        pass


def test_no_child_has_the_lock_of_the_directory(directory: RunDirectory, tmp_path: Path) -> None:
    """Earlier all had it, and one that did not end kept every later start away for good."""
    supervisor = Supervisor([child("one", SLEEPER)], directory=directory, report=print)
    with running(supervisor):
        pid = int((tmp_path / "run" / "one.pid").read_text())
        held = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()}
        assert held
        assert str(tmp_path / "standalone.lock") not in held


def test_output_of_children_goes_to_the_log_file(
    directory: RunDirectory, sentences: list[str], tmp_path: Path
) -> None:
    talkative = "import sys; print('out'); print('err', file=sys.stderr)\n" + textwrap.dedent(
        SLEEPER
    )
    path = tmp_path / "log"
    with path.open("ab", buffering=0) as log:
        supervisor = Supervisor(
            [child("talkative", talkative)],
            directory=directory,
            report=sentences.append,
            log_file=log.fileno(),
        )
        with running(supervisor):
            eventually(lambda: "err" in path.read_text())


def test_a_child_without_a_supervisor_runs_all_the_same() -> None:
    source = """
        from pravega_admin.supervisor.child_protocol import Verdict, announce, die_with_supervisor
        die_with_supervisor()
        announce(Verdict(is_ready=True))
        print("fine")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "fine\n"


def test_a_supervisor_that_is_gone_before_the_child_asks_takes_it_along() -> None:
    source = """
        from pravega_admin.supervisor.child_protocol import die_with_supervisor
        die_with_supervisor()
        print("survived")
    """
    environment = {**os.environ, "SEGSTORE_SUPERVISOR": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == ""


def test_verdicts_read_back_what_children_say() -> None:
    from pravega_admin.supervisor.child_protocol import Verdict, parse_verdict

    assert parse_verdict(b'{"ready": true}\n') == Verdict(is_ready=True)
    refusal = json.dumps({"error": "no"}).encode()
    assert parse_verdict(refusal) == Verdict(is_ready=False, error="no")
    loss = json.dumps({"error": "no", "final": True}).encode()
    assert parse_verdict(loss) == Verdict(is_ready=False, error="no", is_final=True)
    for nonsense in (b"[]", b"7", b"\xff", b'{"error": 7}'):
        assert parse_verdict(nonsense) == Verdict(is_ready=False)
    assert parse_verdict(b"") == Verdict(is_ready=False)


def test_exits_are_described() -> None:
    assert describe_exit(3) == "ended with exit code 3"
    assert describe_exit(-9) == "was killed by SIGKILL"
    assert describe_exit(-40) == "was killed by signal 40"


def test_starting_a_child_imports_no_event_loop() -> None:
    source = "import sys, pravega_admin.serving.standalone; print('trio' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_a_supervisor_has_little_in_memory() -> None:
    source = "import sys, pravega_admin.supervisor.supervise; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    heavy = {"asyncio", "dataclasses", "inspect", "pathlib", "ssl", "subprocess", "trio", "typer"}
    assert loaded & heavy == set()
    assert not any(name.partition(".")[0] == "segstore" for name in loaded)


@pytest.mark.proof
def test_another_program_in_the_same_process_goes_on_with_the_children(tmp_path: Path) -> None:
    source = """
        import os, sys, textwrap, time
        from pathlib import Path
        from pravega_admin.supervisor.child_process import ChildSpec, spawn
        from pravega_admin.serving.data_directory import open_run_directory
        from pravega_admin.supervisor.supervise import become_supervisor
        with open_run_directory(Path(sys.argv[1])) as directory:
            spec = ChildSpec("one", (sys.executable, "-c", textwrap.dedent(sys.argv[2])))
            process = spawn(spec, directory)
            become_supervisor(
                [spec], [process], directory=directory, log_file=None, welcome="hello", began=0.0
            )
    """
    command = [sys.executable, "-c", textwrap.dedent(source), str(tmp_path), SLEEPER]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as supervisor:
        assert supervisor.stdout is not None
        assert [supervisor.stdout.readline() for _ in range(2)] == ["hello\n", "\n"]
        assert supervisor.stdout.readline().startswith("segstore is ready in ")
        with (
            pytest.raises(ConfigurationError, match=rf"in use.*process {supervisor.pid}"),
            open_run_directory(tmp_path),
        ):
            pytest.fail("opened twice")
        pid = int((tmp_path / "run" / "one.pid").read_text())
        os.kill(pid, signal.SIGKILL)
        supervisor.send_signal(signal.SIGTERM)
        _, sentences = supervisor.communicate(timeout=SECONDS_MAX)
    assert supervisor.returncode == 0
    assert "stopping; press Ctrl-C again to stop at once" in sentences
    assert sentences.splitlines()[-1] == "stopped"
    assert list((tmp_path / "run").iterdir()) == []
    assert not is_running(pid)


@pytest.mark.parametrize("debug", [False, True])
def test_a_traceback_is_shown_after_the_exec_when_it_is_asked_for(
    tmp_path: Path, debug: bool
) -> None:
    source = f"""
        import sys
        from pathlib import Path
        from pravega_admin.supervisor.child_process import ChildSpec, spawn
        from pravega_admin.serving.data_directory import open_run_directory
        from pravega_admin.supervisor.supervise import become_supervisor
        with open_run_directory(Path(sys.argv[1])) as directory:
            spec = ChildSpec("one", (sys.executable, "-c", "raise SystemExit(78)"))
            process = spawn(spec, directory)
            become_supervisor(
                [spec], [process], directory=directory, log_file=None, welcome="hello", began=0.0,
                debug={debug},
            )
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 78
    assert ("Traceback (most recent call last)" in done.stderr) is debug
    assert "one" in done.stderr


def test_a_supervisor_that_is_stopped_while_it_ends_writes_to_no_closed_pipe(
    directory: RunDirectory, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor([], directory=directory, report=sentences.append)
    thread = threading.Thread(target=supervisor.run, kwargs={"on_ready": lambda: None})
    write = os.write

    def write_slowly(descriptor: int, data: bytes) -> int:
        """Wake the supervisor, and write once more when it has had the time to close the pipe."""
        write(descriptor, data)
        thread.join(0.5)
        return write(descriptor, data)

    thread.start()
    monkeypatch.setattr(supervisor_module.os, "write", write_slowly)
    supervisor.stop()
    thread.join()
    supervisor.stop()
