"""``segstore standalone`` and its parts, started as a user starts them, and killed."""

import ast
import json
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest
from foreign_servers.pauses import pause_process

from pravega_admin.serving.security_files import PASSWORD_VARIABLE
from segstore.testing.ports import free_ports
from segstore_client.blocking.event_reader import BlockingEventReader
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.scaling import plan_replacement
from segstore_client.controller.stream_settings import Scaling, StreamSettings
from segstore_client.positions import Position
from support.processes import is_running

if TYPE_CHECKING:
    from ..conftest import Standalone

KEYS = 7


def events_of(store: "Standalone", stream: str) -> list[bytes]:
    with (
        ControllerClient(store.controller) as controller,
        BlockingEventReader(controller, "demo", stream, end=Position.TAIL) as reader,
    ):
        events = []
        while (event := reader.next_event(timeout=60)) is not None:
            events.append(event.data)
        assert reader.is_finished
        return events


def assert_exactly_once_and_in_order(events: list[bytes], count: int) -> None:
    numbers = [int(event) for event in events]
    assert sorted(numbers) == list(range(count))
    for key in range(KEYS):
        of_key = [number for number in numbers if number % KEYS == key]
        assert of_key == sorted(of_key)


def create_stream(store: "Standalone", stream: str, segments: int) -> None:
    with ControllerClient(store.controller) as controller:
        if "demo" not in set(controller.list_scopes()):
            controller.create_scope("demo")
        controller.create_stream(
            "demo", stream, StreamSettings(Scaling(segment_count_min=segments))
        )


def write_numbers(
    store: "Standalone", stream: str, count: int, *, every: int, meanwhile: Callable[[], object]
) -> None:
    """Write ``count`` keyed events; ``meanwhile`` is called after every so many."""
    with (
        ControllerClient(store.controller) as controller,
        BlockingEventWriter(controller, "demo", stream) as writer,
    ):
        for number in range(count):
            writer.submit(b"%d" % number, key=f"key-{number % KEYS}")
            if number % every == every - 1:
                writer.send()
                meanwhile()


def test_it_says_where_to_connect_and_when_it_is_ready(store: "Standalone") -> None:
    text = "\n".join(store.output)
    assert f"controller     {store.controller}" in text
    assert f'controllerURI(URI.create("{store.controller}"))' in text
    assert "OpenMessaging" in text
    assert "http" not in text
    assert store.output[-1].startswith("segstore is ready in ")


def run_told_program(store: "Standalone", *before: str) -> str:
    """Run the Python that the store has printed, as it is, in a shell; return what it prints."""
    begin = next(i for i, line in enumerate(store.output) if line.startswith("import "))
    end = store.output.index("asyncio.run(main())")
    program = "\n".join(store.output[begin : end + 1])
    command = "\n".join([*before, shlex.join([sys.executable, "-c", program])])
    done = subprocess.run(
        ["bash", "-euc", command], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_program_that_it_prints_runs(store: "Standalone") -> None:
    create_stream(store, "of-a-program", 1)
    assert f'segstore_client.connect("{store.controller}")' in "\n".join(store.output)
    assert "demo" in ast.literal_eval(run_told_program(store))


def refuse_handshakes(port: int) -> None:
    """Connect to a port with TLS in each of the ways that it refuses; it hangs up after each."""
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    strange = ssl.create_default_context()
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), 30) as plain:
            plain.sendall(data)
            assert plain.recv(1000) == b""
    for context in (old, strange):
        with (
            socket.create_connection(("127.0.0.1", port), 30) as plain,
            pytest.raises(ssl.SSLError),
        ):
            context.wrap_socket(plain, server_hostname="localhost")


def test_who_speaks_no_tls_makes_no_line_that_is_not_of_the_log(
    new_store: Callable[[], "Standalone"],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    monkeypatch.setenv(PASSWORD_VARIABLE, "of the administrator")
    store = new_store()
    store.is_secure = True
    store.start()
    refuse_handshakes(store.controller_port)
    assert capfd.readouterr().err == ""
    assert store.stop() == 0
    for line in store.log.read_text().splitlines():
        assert json.loads(line)["event"]


def test_the_program_that_a_secure_store_prints_runs_in_the_shell_that_it_prints(
    new_store: Callable[[], "Standalone"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "of the administrator")
    store = new_store()
    store.is_secure = True
    store.start()
    exports = [line[line.index("export ") :] for line in store.output if "  export " in line]
    assert len(exports) == 2
    told = run_told_program(store, *exports, "export SEGSTORE_PASSWORD='of the administrator'")
    assert ast.literal_eval(told) == ["_system"]


def test_with_a_port_of_http_it_says_where_the_console_is(
    new_store: Callable[[], "Standalone"],
) -> None:
    store = new_store()
    [store.http_port] = free_ports(1)
    store.start()
    address = f"http://127.0.0.1:{store.http_port}"
    text = "\n".join(store.output)
    assert f"  REST           {address}\n  console        {address}/console/\n" in text
    [told] = re.findall(r"console +(\S+)", text)
    with urlopen(told, timeout=60) as answer:
        # Nothing redirects: this is the console's own address.
        assert answer.url == told
        assert "<title>Overview" in answer.read().decode()


def test_nothing_is_lost_or_doubled_when_the_segment_store_is_killed(store: "Standalone") -> None:
    create_stream(store, "killed-store", 3)
    write_numbers(
        store, "killed-store", 3000, every=1000, meanwhile=lambda: store.kill("segment-store-0")
    )
    assert_exactly_once_and_in_order(events_of(store, "killed-store"), 3000)


def test_nothing_is_lost_or_doubled_when_the_controller_is_killed(store: "Standalone") -> None:
    create_stream(store, "killed-controller", 2)

    def kill_and_scale() -> None:
        store.kill("controller")
        deadline = time.monotonic() + 60
        while True:
            try:
                with ControllerClient(store.controller) as controller:
                    current = controller.current_segments("demo", "killed-controller").ranges
                    first = current[0]
                    middle = (first.low + first.high) / 2
                    controller.scale_stream(
                        "demo",
                        "killed-controller",
                        sealed=[first.segment_id],
                        ranges=[(first.low, middle), (middle, first.high)],
                        timeout=60,
                    )
                return
            except Exception:
                assert time.monotonic() < deadline
                time.sleep(0.1)

    write_numbers(store, "killed-controller", 2000, every=1000, meanwhile=kill_and_scale)
    assert_exactly_once_and_in_order(events_of(store, "killed-controller"), 2000)


def test_events_in_flight_follow_their_keys_through_scalings(store: "Standalone") -> None:
    create_stream(store, "scaling", 1)
    counts = iter([5, 1, 8, 3, 2])

    def scale() -> None:
        with ControllerClient(store.controller) as controller:
            plan = plan_replacement(
                controller.current_segments("demo", "scaling").ranges, next(counts)
            )
            controller.scale_stream(
                "demo", "scaling", sealed=plan.sealed, ranges=plan.ranges, timeout=60
            )

    write_numbers(store, "scaling", 5000, every=1000, meanwhile=scale)
    assert_exactly_once_and_in_order(events_of(store, "scaling"), 5000)


def test_a_reader_goes_on_when_the_segment_store_is_killed(store: "Standalone") -> None:
    create_stream(store, "tail", 2)
    with (
        ControllerClient(store.controller) as controller,
        BlockingEventReader(controller, "demo", "tail") as reader,
    ):
        assert reader.next_event(timeout=0.2) is None
        killed = store.kill("segment-store-0")
        write_numbers(store, "tail", 100, every=1000, meanwhile=lambda: None)
        seen = []
        while len(seen) < 100:
            event = reader.next_event(timeout=60)
            assert event is not None
            seen.append(event.data)
        assert_exactly_once_and_in_order(seen, 100)
    assert store.pid_of("segment-store-0") != killed


@pytest.mark.proof
def test_a_second_store_in_the_same_directory_is_refused(store: "Standalone") -> None:
    controller_port, segment_store_port = free_ports(2)
    command = [
        *(sys.executable, "-m", "pravega_admin", "standalone"),
        *("--data-dir", str(store.data_dir)),
        *("--controller-port", str(controller_port)),
        *("--segment-store-port", str(segment_store_port)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 78
    assert done.stdout == ""
    waiting, refusal = done.stderr.splitlines()
    assert store.process is not None
    use = f"data directory {store.data_dir} is in use by process {store.process.pid} (segstore"
    assert waiting.startswith(f"segstore: waiting: {use}")
    assert refusal.startswith(f"segstore: {use}")
    assert refusal.endswith("), which holds standalone.lock: end it, or name another directory")


def test_data_survives_a_gentle_end_and_a_brutal_one(
    new_store: Callable[[], "Standalone"],
) -> None:
    store = new_store()
    store.start()
    create_stream(store, "kept", 2)
    write_numbers(store, "kept", 1000, every=5000, meanwhile=lambda: None)
    children = [store.pid_of(part) for part in ("segment-store-0", "controller")]
    assert store.stop(signal.SIGTERM) == 0
    assert not any(map(is_running, children))
    assert list((store.data_dir / "run").iterdir()) == []

    store = new_store()
    store.start()
    assert_exactly_once_and_in_order(events_of(store, "kept"), 1000)
    children = [store.pid_of(part) for part in ("segment-store-0", "controller")]
    assert store.stop(signal.SIGKILL) == -signal.SIGKILL

    store = new_store()
    store.start()
    assert not any(map(is_running, children))
    assert_exactly_once_and_in_order(events_of(store, "kept"), 1000)
    assert store.stop(signal.SIGINT) == 0


def test_a_second_interrupt_ends_it_at_once(new_store: Callable[[], "Standalone"]) -> None:
    store = new_store()
    store.start()
    segment_store = store.pid_of("segment-store-0")
    pause_process(segment_store)
    assert store.process is not None
    store.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    started = time.monotonic()
    store.stop(signal.SIGINT)
    assert time.monotonic() - started < 9  # the drain would have taken 10
    assert not is_running(segment_store)


@pytest.mark.processes
def test_server_and_controller_run_one_by_one(tmp_path: Path) -> None:
    port, controller_port = free_ports(2)
    base = [sys.executable, "-m", "pravega_admin"]
    server = subprocess.Popen(
        [*base, "server", "--data-dir", str(tmp_path / "data"), "--port", str(port)],
        stderr=subprocess.DEVNULL,
    )
    controller = subprocess.Popen(
        [
            *(*base, "controller", "--port", str(controller_port)),
            *("--segment-store", f"127.0.0.1:{port}"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert controller.stderr is not None
        for line in controller.stderr:
            if "controller is ready" in line:
                break
        rest = threading.Thread(target=controller.stderr.read)
        rest.start()
        with ControllerClient(f"127.0.0.1:{controller_port}") as client:
            client.create_scope("demo")
            assert "demo" in set(client.list_scopes())
        for process in (controller, server):
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        rest.join()
        controller.stderr.close()
    finally:
        for process in (controller, server):
            process.kill()
            process.wait()
