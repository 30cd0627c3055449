"""Every command of every guide runs as it stands there, in the order printed.

What cannot run here, or is run by a test of its own, stands in ``ELSEWHERE`` with the reason. A row
that matches no command of its guide fails, and so does a guide that is not walked at all.
"""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from compat_harness.cluster import Cluster
from compat_harness.guide_shell import (
    COMMAND_SECONDS_MAX,
    ENDLESS,
    PASSWORD,
    GuideShell,
    Step,
    read_steps,
)
from compat_harness.reader_groups import create_reader_group
from compat_harness.server import TARGET_VARIABLE

from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.controller.controller_client import ControllerClient

pytestmark = [
    pytest.mark.proof,
    pytest.mark.compat,
    pytest.mark.timeout(590),
    pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="starts stores of its own"),
]

ROOT = Path(__file__).resolve().parent.parent
GUIDES = ROOT / "docs" / "guides"
TUTORIAL = ROOT / "docs" / "learn" / "tutorial.md"

ELSEWHERE = {
    "README.md": {
        'export PATH="$PWD/.venv/bin:$PATH"': "the tests use the interpreter that runs them",
    },
    "tutorial.md": {
        "pip install '.[spark]'": "make installs it with what the tests need",
    },
    "from-kafka.md": {
        "segstore pipeline ingest kafka://": "it needs a broker: spark/test_kafka.py",
    },
    "cluster.md": {
        'export PATH="$PWD/.venv/bin:$PATH"': "the tests use the interpreter that runs them",
        "segstore server --zookeeper zk1:2181": "three machines; deploy/one_machine.py runs it",
        "segstore controller --zookeeper zk1:2181": "three machines; deploy/one_machine.py runs it",
        "for part in ": "cluster/test_rolling_restart.py",
        "tar --create ": "cluster/test_backup.py",
        "mkdir restored": "cluster/test_backup.py",
        "tar --extract ": "cluster/test_backup.py",
        "make cluster ": "cluster/test_backup.py",
    },
    "command-line.md": {
        "segstore cluster status ": "it needs a cluster: tests/deploy/test_one_machine.py",
        "segstore cluster wait ": "it needs a cluster: cluster/test_rolling_restart.py",
        "segstore import demo/by-user ": "its events are JSON: commands/test_exports.py",
        "segstore import demo/events ": "its events are JSON: commands/test_exports.py",
        "segstore doctor ": "it may warn of this machine: commands/health/test_doctor.py",
        "segstore group show ": "it needs a client that reads: test_group_commands.py",
        "segstore group lag demo": "it needs a client that reads: test_group_commands.py",
        "segstore group seek ": "it needs a client that reads: test_group_commands.py",
    },
    "dashboards.md": {
        "promtool check rules ": "it comes with Prometheus: tests/pravega_admin/test_prometheus.py",
    },
    "original-names.md": {
        "export SEGSTORE_ORIGINAL_NAMES=1": "it is for the servers below",
        "HOST_IP=192.168.0.2 ": "an address of another machine; test_original_names.py",
        "ZK_URL=zk1:2181 ": "three machines; test_original_names.py",
    },
    "running.md": {
        "segstore standalone --host 0.0.0.0": "tests listen on this machine alone",
        "export AWS_ACCESS_KEY_ID": "the keys are the user's",
        "segstore standalone --data-dir ./data-s3 ": "it needs a bucket: tests/segstore/tiers/s3",
        "segstore standalone --data-dir ./data-hdfs ": "it needs an HDFS: compat-tests/hdfs",
    },
    "users.md": {
        "pass show bob ": "the keeper of passwords is the user's; commands/security/test_users.py",
    },
    "sizing.md": {
        "python -m benchmarks.bench_sizes ": "a benchmark: tests/benchmarks/test_bench_sizes.py",
    },
}
"""By guide: how a command begins that is not run here, and why, or which test runs it."""

WALKED_ELSEWHERE = {
    "console.md": "test_console.py",
    "install.md": "tests/test_packages.py",
    "spark.md": "test_spark_guide.py",
    "upgrade.md": "test_upgrades.py, cluster/test_rolling_upgrade.py",
}
PRODUCE_AND_CONSUME = """
import anyio


async def main():
    global print
    async with segstore_client.connect("tcp://127.0.0.1:9090") as store:
        await produce(store)
        send, receive = anyio.create_memory_object_stream(10_000)
        print = send.send_nowait
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consume, store)
            while await receive.receive() != b"two apples":
                pass
            tasks.cancel_scope.cancel()


anyio.run(main)
"""
"""Runs what the guide for users of Kafka defines, until the event was read."""
PASSWORDS = {"SEGSTORE_ADMIN_PASSWORD": PASSWORD, "SEGSTORE_PASSWORD": PASSWORD}
PRODUCTION = ("With systemd", "In containers", "On Kubernetes")
"""Parts of the guide to secure stores, each of which is about machines of its own."""
SHORTER = {
    "segstore bench self": " --appends 20000",
    "segstore bench self --workload throughput": " --appends 2000",
}
"""Options that shorten commands which take long, by the beginning of the command."""

LEASE_MS = 600_000
"""Lease of the transactions, in milliseconds: a busy machine takes long from one command to the
next."""
TRANSACTION = re.compile(r"00000000-0000-0000-0000-00000000000(\d)")


def is_elsewhere(guide: str, command: str) -> bool:
    return command.startswith(tuple(ELSEWHERE.get(guide, ())))


def steps_of(path: Path) -> list[Step]:
    """Return the commands of a page that are run here, and the settings files that they read."""
    steps = [step for step in read_steps(path) if step.kind in ("console", "toml")]
    return [step for step in steps if not is_elsewhere(path.name, step.text)]


def walk(shell: GuideShell, steps: list[Step], change: Callable[[str], str] = str) -> None:
    """Run the commands, and compare with the output that the guide shows."""
    for step in steps:
        if step.kind == "toml":
            shell.write_settings(step.text)
            continue
        began = time.monotonic()
        longest = max((each for each in SHORTER if step.text.startswith(each)), key=len, default="")
        command = change(step.text + SHORTER.get(longest, ""))
        if "--from tail" in command:
            with shell.running_beside(
                "while date; do sleep 0.1; done | segstore write demo/orders"
            ):
                printed = shell.take(command)
        else:
            printed = shell.take(command)
        print(f"{time.monotonic() - began:5.1f} s  {step.text}", flush=True)
        if step.expected:
            assert printed.splitlines()[-len(step.expected) :] == step.expected, step.text


@pytest.fixture
def shell(tmp_path: Path) -> GuideShell:
    directory = tmp_path / "empty"
    directory.mkdir()
    return GuideShell(directory)


def test_every_page_with_commands_is_walked_and_every_exception_exists() -> None:
    pages = {path.name: path for path in [ROOT / "README.md", TUTORIAL, *GUIDES.glob("*.md")]}
    walked = {"README.md", "cluster.md", "command-line.md", "recovering.md", "retention.md"}
    walked |= {"running.md", "scaling.md", "secure.md", "users.md", "certificates.md", "rest.md"}
    walked |= {"metrics.md", "dashboards.md", "tutorial.md", "back-up.md", "full-disks.md"}
    walked |= {"from-kafka.md", "python.md"}
    for name, path in pages.items():
        if name not in WALKED_ELSEWHERE:
            assert bool(steps_of(path)) == (name in walked), name
    for name, prefixes in ELSEWHERE.items():
        commands = [step.text for step in read_steps(pages[name])]
        unused = [each for each in prefixes if not any(one.startswith(each) for one in commands)]
        assert not unused, (name, unused)


def test_the_commands_of_the_readme(shell: GuideShell) -> None:
    with shell:
        shell.start_server(shell.with_free_ports("segstore standalone --data-dir ./made-run"))
        walk(shell, steps_of(ROOT / "README.md"))
        [program] = [
            step.text
            for step in read_steps(ROOT / "README.md")
            if step.kind == "python" and "import segstore_client" in step.text
        ]
        shell.run_python(program)
        assert shell.run("segstore read demo/greetings").split() == ["hello", "world", "hello"]


def test_the_commands_of_the_tutorial(shell: GuideShell) -> None:
    with shell:
        for step in read_steps(TUTORIAL):
            if step.kind == "python":
                assert shell.run_python(step.text).splitlines() == step.expected
            elif not is_elsewhere(TUTORIAL.name, step.text):
                walk(shell, [step])


def test_the_programs_of_the_guide_to_python(shell: GuideShell) -> None:
    guide = GUIDES / "python.md"
    with shell:
        shell.start_server(shell.with_free_ports(steps_of(guide)[0].text))
        for step in read_steps(guide):
            if step.kind == "python":
                assert shell.run_python(step.text).splitlines() == step.expected


def test_the_commands_of_the_guide_for_users_of_kafka(shell: GuideShell) -> None:
    with shell:
        shell.start_server(shell.with_free_ports("segstore standalone --data-dir ./data"))
        walk(shell, steps_of(GUIDES / "from-kafka.md"))
        [python] = [step for step in read_steps(GUIDES / "from-kafka.md") if step.kind == "python"]
        shell.run_python(f"{python.text}\n{PRODUCE_AND_CONSUME}")


def test_the_commands_of_the_guide_to_full_disks(shell: GuideShell) -> None:
    with shell:
        shell.start_server(shell.with_free_ports("segstore standalone --data-dir ./data"))
        shell.run("segstore scope create demo && segstore stream create demo/logs --segments 1")
        shell.run("segstore stream create demo/old --segments 1")
        shell.run("seq 1000 | segstore write demo/logs")
        walk(shell, steps_of(GUIDES / "full-disks.md"))
        assert shell.run("segstore read demo/logs") == ""
        assert shell.run("segstore stream list demo -o csv") == "scope,stream\ndemo,logs\n"


class Load:
    """A thread that writes the numbers from 1 on, and waits for the store to keep each."""

    def __init__(self, controller_uri: str, stream: str) -> None:
        self.acknowledged = 0
        self._uri, self._stream = controller_uri, stream
        self._ends = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """Let the writer end, and raise what has ended it before."""
        self._ends.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def wait_for(self, number: int) -> None:
        """Wait until the store has acknowledged a number."""
        deadline = time.monotonic() + COMMAND_SECONDS_MAX
        while self.acknowledged < number:
            assert self._thread.is_alive(), self._error
            assert time.monotonic() < deadline, self.acknowledged
            time.sleep(0.05)

    def _run(self) -> None:
        try:
            with (
                ControllerClient(self._uri) as client,
                BlockingEventWriter(
                    client, "demo", self._stream, patience=COMMAND_SECONDS_MAX
                ) as writer,
            ):
                while not self._ends.is_set():
                    writer.submit(str(self.acknowledged + 1).encode(), key="one")
                    writer.flush()
                    self.acknowledged += 1
        except Exception as error:
            self._error = error


def numbers_up_to(last: int) -> list[str]:
    return [str(number) for number in range(1, last + 1)]


def test_a_store_is_backed_up_restored_and_moved_under_load(shell: GuideShell) -> None:
    """The writer goes on after the backup; what it was told before is in what is restored."""
    steps = steps_of(GUIDES / "back-up.md")
    with shell:
        shell.start_server(shell.with_free_ports("segstore standalone --data-dir ./data"))
        shell.run("segstore scope create demo && segstore stream create demo/numbers")
        with Load(shell.controller_uri, "numbers") as load:
            load.wait_for(100)
            shell.stop_servers()
            stopped_at = load.acknowledged
            walk(shell, [step for step in steps if step.heading == "Back up"])
            load.wait_for(stopped_at + 100)
            load.end()
            written = shell.run("segstore read demo/numbers").split()
            assert written == numbers_up_to(load.acknowledged)
        walk(shell, [step for step in steps if step.heading == "Restore"])
        restored = shell.run("segstore read demo/numbers").split()
        assert restored == numbers_up_to(len(restored))
        assert stopped_at <= len(restored) <= stopped_at + 1
        shell.stop_servers()
        walk(shell, [step for step in steps if step.heading == "Move"])
        assert shell.run("segstore read demo/numbers").split() == restored
        shell.run("seq 5 | segstore write demo/numbers")


def test_the_commands_of_the_guide_to_the_command_line(shell: GuideShell) -> None:
    """Transactions and a reader group are made by a client, since the command line makes none."""
    for name in ("orders.txt", "orders.csv", "app.log"):
        (shell.directory / name).write_text("1,customer-7,apples\n2,customer-8,pears\n" * 10)
    begun: list[uuid.UUID] = []

    def act_as_client(command: str) -> str:
        with ControllerClient(shell.controller_uri) as client:
            while TRANSACTION.search(command) and len(begun) < 2:
                transaction = client.begin_transaction("demo", "orders", LEASE_MS)
                begun.append(uuid.UUID(bytes=transaction.identifier))
            if command == "segstore group list demo":
                create_reader_group(client, "demo", "readers", "orders")
        return TRANSACTION.sub(lambda found: str(begun[int(found[1]) - 1]), command)

    with shell:
        shell.start_server(shell.with_free_ports("segstore standalone --data-dir ./data"))
        walk(shell, steps_of(GUIDES / "command-line.md"), act_as_client)


@pytest.mark.parametrize("guide", ["retention.md", "scaling.md"])
def test_the_commands_of_a_guide_to_streams(guide: str, shell: GuideShell) -> None:
    with shell:
        shell.start_server(shell.with_free_ports("segstore standalone --data-dir ./data"))
        shell.run("segstore scope create demo")
        walk(shell, steps_of(GUIDES / guide))


def test_the_commands_of_the_guide_to_running(shell: GuideShell) -> None:
    with shell:
        for step in steps_of(GUIDES / "running.md"):
            walk(shell, [step])
            if not step.text.startswith("segstore server"):
                shell.run("segstore scope create served --if-not-exists")


def test_the_commands_of_the_guide_to_recovering(shell: GuideShell) -> None:
    with shell:
        shell.start_server(shell.with_free_ports("segstore standalone --data-dir ./data"))
        shell.run("segstore scope create demo && segstore stream create demo/orders --segments 1")
        shell.run("seq 1000 | segstore write demo/orders")
        shell.stop_servers()
        walk(shell, steps_of(GUIDES / "recovering.md"))
        shell.start_server(shell.with_free_ports("segstore standalone --data-dir ./data"))
        assert shell.run("segstore read demo/orders").split() == [str(n) for n in range(1, 1001)]


def test_the_commands_of_the_guide_to_secure_stores(tmp_path: Path, shell: GuideShell) -> None:
    shell.environment |= PASSWORDS
    first = shell.directory
    with shell:
        for step in steps_of(GUIDES / "secure.md"):
            shell.directory = tmp_path / step.heading if step.heading in PRODUCTION else first
            shell.directory.mkdir(exist_ok=True)
            walk(shell, [step])
            if step.text.startswith("segstore user add bob "):
                shell.run("seq 3 | segstore write demo/orders")
                read = shell.run("SEGSTORE_USER=bob segstore read demo/orders")
                assert read.split() == ["1", "2", "3"], "the guide says that Bob may read now"
            if step.text == "segstore token show security/token.key":
                shown = shell.run(step.text)
                assert "next" not in shown, shown
                assert [line.split()[0] for line in shown.splitlines()[-2:]] == [
                    "current",
                    "previous",
                ], shown
                # The servers take the new key and tell it, and clients notice nothing.
                shell.run("segstore scope list --ca security/ca.pem")
                logs = first.parent.glob(f"{first.name}-server-*.log")
                told = [path for path in logs if "token keys changed" in path.read_text()]
                assert len(told) >= 2, told


def test_the_commands_of_the_guide_to_users(shell: GuideShell) -> None:
    """The server starts once there are users; it knows the later changes without another start."""
    shell.environment |= PASSWORDS
    (shell.directory / "secret").touch(mode=0o600)
    (shell.directory / "secret").write_text("another password of alice\n")
    with shell:
        for step in steps_of(GUIDES / "users.md"):
            if step.heading == "Passwords" and "SEGSTORE_CA" not in shell.environment:
                shell.take("segstore standalone --secure --data-dir ./data")
                shell.take("export SEGSTORE_CONTROLLER=tls://localhost:9090")
                shell.take("export SEGSTORE_CA=$PWD/data/security/ca.pem")
            if step.text == "segstore user remove alice":
                shell.run(
                    "for scope in demo shared; do segstore scope create $scope"
                    " --user alice --password-file ./secret; done"
                )
            walk(shell, [step])
        shell.run("segstore stream create demo/orders --user bob")
        shell.run("segstore stream create demo/salaries --user bob")
        for user, act in (
            ("bob", "stream describe demo/salaries"),
            ("bob", "stream create shared/orders"),
            ("alice", "scope list"),
        ):
            said = shell.run(f"! segstore {act} --user {user}")
            assert "has no permission" in said or "password is wrong" in said, said


def test_the_commands_of_the_guide_to_certificates(shell: GuideShell) -> None:
    with shell:
        walk(shell, steps_of(GUIDES / "certificates.md"))
        log = shell.directory.with_name(f"{shell.directory.name}-server-0.log").read_text()
        assert 'segstore_client.connect("tls://localhost:' in log, log
        assert "tcp://" not in log, log
        access = "--controller tls://localhost:9090 --ca security/ca.pem"
        shell.take(f"segstore scope create demo {access}")
        shell.take(f"segstore stream create demo/orders {access}")
        shell.take(f"seq 3 | segstore write demo/orders {access}")
        assert shell.take(f"segstore read demo/orders {access}").split() == ["1", "2", "3"]


def test_the_commands_of_the_guide_to_rest(shell: GuideShell) -> None:
    shell.environment |= PASSWORDS
    with shell:
        for step in steps_of(GUIDES / "rest.md"):
            walk(shell, [step])


def test_the_commands_of_the_guides_to_metrics(shell: GuideShell) -> None:
    with shell:
        walk(shell, steps_of(GUIDES / "metrics.md"))
        walk(shell, steps_of(GUIDES / "dashboards.md"))


def test_the_commands_of_the_guide_to_clusters(tmp_path: Path) -> None:
    steps = steps_of(GUIDES / "cluster.md")
    # The writer and the reader of the guide stay in terminals of their own while parts are killed.
    endless = [step for step in steps if ENDLESS.search(step.text)]
    steps.sort(key=endless.__contains__)
    with Cluster(tmp_path) as cluster:
        variables = {"SEGSTORE_CONTROLLER": cluster.controller_uris}
        with GuideShell(tmp_path, variables) as shell:
            walk(shell, steps)
