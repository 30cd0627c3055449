import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from foreign_servers.peer import PeerFailedError
from foreign_servers.process_tree import Meter
from foreign_servers.processes import ServerProcess

from segstore.testing.ports import free_ports

Start = Callable[[str], ServerProcess]

WORKING_CHILD = """
import os, subprocess, sys, time
child = '''
import os, time
while time.process_time() < 0.4: pass
with open("data", "wb") as file:
    file.write(bytes(3 << 20))
    os.fsync(file.fileno())
'''
subprocess.run([sys.executable, "-c", child], check=True)
print("worked", flush=True)
time.sleep(60)
"""

STUBBORN_CHILD = """
import signal, subprocess, sys, time
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
child += "print('stubborn', flush=True); time.sleep(60)"
subprocess.run([sys.executable, "-c", child])
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started = []

    def start_python(code: str) -> ServerProcess:
        server = ServerProcess([sys.executable, "-c", code], directory=tmp_path)
        started.append(server)
        return server

    yield start_python
    for server in started:
        server.stop()


def test_usage_includes_children_that_have_ended(start: Start) -> None:
    server = start(WORKING_CHILD)
    with Meter(server.processes, interval_seconds=0.02) as meter:
        server.wait_for_text("worked", seconds_max=30)
    usage = server.processes.usage()
    assert usage.process_count == 1
    # The kernel counts a process's time in ticks of 10 ms, and cuts off what is no whole one.
    assert usage.cpu_seconds >= 0.35
    assert usage.written_bytes >= 3 << 20
    whole = meter.total()
    assert whole.cpu_seconds >= 0.35
    assert whole.resident_bytes_peak > usage.resident_bytes > 1 << 20


def test_cost_of_a_part_is_less_than_of_the_whole(start: Start) -> None:
    server = start(
        "import time\nwhile time.process_time() < 0.6: pass\nprint('done', flush=True)\n"
        "time.sleep(60)"
    )
    started = time.time()
    with Meter(server.processes, interval_seconds=0.02) as meter:
        server.wait_for_text("done", seconds_max=30)
    ended = time.time()
    middle = (started + ended) / 2
    first = meter.cost(start_epoch=started, end_epoch=middle)
    second = meter.cost(start_epoch=middle, end_epoch=ended)
    assert first.cpu_seconds > 0
    assert second.cpu_seconds > 0
    assert first.cpu_seconds + second.cpu_seconds == pytest.approx(
        meter.total().cpu_seconds, abs=0.05
    )


def test_stopping_ends_descendants_that_ignore_the_request(start: Start) -> None:
    server = start(STUBBORN_CHILD)
    server.wait_for_text("stubborn", seconds_max=30)
    assert len(server.processes.process_ids()) == 2
    server.stop()
    assert server.processes.process_ids() == []


def test_a_server_that_exits_is_reported_with_its_last_words(start: Start) -> None:
    server = start("raise SystemExit('no disk')")
    (port,) = free_ports(1)
    with pytest.raises(PeerFailedError, match="exited with 1: no disk"):
        server.wait_for_port(port, seconds_max=30)


def test_a_port_that_never_accepts_is_reported(start: Start) -> None:
    server = start("print('still here', flush=True); import time; time.sleep(60)")
    server.wait_for_text("still", seconds_max=30)
    (port,) = free_ports(1)
    with pytest.raises(PeerFailedError, match=f"port {port} did not accept.*still here"):
        server.wait_for_port(port, seconds_max=0.05)
