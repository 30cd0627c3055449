"""The examples of HACKING.md, each made in a copy of the sources: the product takes it at once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from segstore.testing.ports import free_ports

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(
    r"^```\w+\n(?:#|//) (\S+?)(?:, in (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL
)

pytestmark = pytest.mark.processes


class Copy:
    """A copy of the sources, in which an example is made."""

    def __init__(self, folder: Path, heading: str) -> None:
        self.src = folder / "src"
        self.changed: list[str] = []
        for source in (ROOT / "src").rglob("*"):
            if source.is_file():
                target = self.src / source.relative_to(ROOT / "src")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(source)
        text = (ROOT / "HACKING.md").read_text()
        _, _, section = text.partition(f"## {heading}\n")
        for place, scope, code in _BLOCK.findall(section.partition("\n## ")[0]):
            self.change(place, scope, code)

    def change(self, place: str, scope: str, code: str) -> None:
        """Add code to a file: at its end, or at the end of the fields or methods of a scope."""
        path = self.src.parent / place
        old = path.read_text() if path.exists() else ""
        if scope:
            imports = "".join(re.findall(r"^from .*\n", code, re.MULTILINE))
            body = textwrap.indent(code.removeprefix(imports), "    ")
            match = re.search(
                rf"^(?:class|service) {scope}\b.*\n(?:(?! {{4}}(?:@|def )) .*\n|\n)*",
                old,
                re.M,
            )
            assert match is not None, f"{place} has no {scope}"
            new = (
                f"{old[: match.start()]}{imports}{match[0].rstrip()}\n{body}\n{old[match.end() :]}"
            )
        else:
            new = f"{old}\n\n{code}" if old else code
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(new)
        self.changed.append(place)

    def run(self, source: str, *arguments: str) -> str:
        """Run Python with the copy, and return what it prints."""
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(source), *arguments],
            env={**os.environ, "PYTHONPATH": str(self.src), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=self.src,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def make_table(self) -> str:
        """Return the page of settings that ``make pages`` would write."""
        return self.run(
            f"import sys; sys.path.append({str(ROOT / 'tests' / 'pages')!r});"
            "from setting_tables import *; print(table_of_settings('segment_store'))"
        )


def test_a_setting_is_one_file(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "Add a setting")
    assert copy.changed == ["src/segstore/process/config.py"]
    assert (
        "| `greeting_seconds` | `2.5` | s | 0 |  | file | Time, in seconds, for which"
        in copy.make_table()
    )
    file = tmp_path / "settings.toml"
    file.write_text("[segment_store]\ngreeting_seconds = 4.5\n")
    printed = copy.run(
        """
        import sys
        from pathlib import Path
        from pravega_admin.serving.original_names import translate
        from pravega_admin.serving.serve import read_config
        from pravega_admin.serving.settings_file import read_settings
        from segstore.process.config import SegmentStoreConfig

        store = read_settings(Path(sys.argv[1]))["segment_store"]
        config = read_config("segment store", SegmentStoreConfig, {"data_dir": "x", **store})
        names = {"JAVA_OPTS": "-Dpravegaservice.greeting=7"}
        print(config.greeting_seconds, translate("segment-store", names, None).settings)
        """,
        str(file),
    )
    assert printed == "4.5 {'segment_store': {'greeting_seconds': 7.0}}\n"


def test_an_option_of_a_setting_is_one_word_more(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "Add a setting")
    path = copy.src / "segstore/process/config.py"
    new = 'extra={"option": "--greeting-seconds", "original": "pravegaservice.greeting'
    path.write_text(path.read_text().replace('extra={"original": "pravegaservice.greeting', new))
    file = tmp_path / "settings.toml"
    file.write_text("[segment_store]\ngreeting_seconds = 4.5\n")
    printed = copy.run(
        """
        import sys
        from typer.testing import CliRunner
        from pravega_admin.commands import servers
        from pravega_admin.verbs import app

        servers._serve = lambda kind, settings, **others: print(settings["greeting_seconds"])
        data = f"--data-dir={sys.argv[1]}-data"
        for arguments in (["--greeting-seconds=4", data], ["--help"], ["--config", sys.argv[1]]):
            print(CliRunner().invoke(app, ["server", sys.argv[2], *arguments]).output)
        """,
        str(file),
        f"--port={free_ports(1)[0]}",
    )
    assert printed.startswith("4.0\n")
    assert re.search(r"--greeting-seconds +NUMBER \[x>=0\] +Time, in seconds", printed)
    assert "line 2: it sets greeting_seconds, which is an option" in printed


def test_a_vendor_of_tier_2_is_a_folder_and_an_entry(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "Add a tier 2")
    folder, entry = copy.changed
    assert folder.startswith("src/segstore/tiers/shelf/")
    assert entry == "src/segstore/process/tier_two_vendors.py"
    assert "### `[segment_store.shelf]`" in copy.make_table()
    file = tmp_path / "settings.toml"
    file.write_text("[segment_store.shelf]\nboards = 4\n")
    printed = copy.run(
        """
        import sys
        from pathlib import Path
        import trio
        from pravega_admin.commands.servers import Tier2Option
        from pravega_admin.serving.serve import read_config
        from pravega_admin.serving.settings_file import read_settings
        from pravega_admin.serving.store_settings import tier_2_settings
        from segstore.process.assembly import open_containers
        from segstore.process.config import SegmentStoreConfig
        from segstore.tiers.shelf import _shelves

        store = read_settings(Path(sys.argv[1]))["segment_store"]
        tier = tier_2_settings("shelf://UPPER", endpoint=None, region=None)
        settings = {"data_dir": sys.argv[1] + "-data", "container_count": 1, **tier, **store}
        config = read_config("segment store", SegmentStoreConfig, settings)

        async def main() -> None:
            async with open_containers(config) as open_container, open_container(0) as container:
                await container.create_segment("s")
                await container.append("s", b"hello")

        trio.run(main)
        [(location, chunks)] = _shelves.items()
        names = [each.name for each in trio.run(chunks.list_chunks, "s.S-")]
        print(config.shelf.boards, location, len(names))
        print(Tier2Option.__metadata__[0].help)
        """,
        str(file),
    )
    assert "4 shelf://upper 1\n" in printed
    assert "a shelf (shelf://NAME)" in printed


@pytest.mark.proof
def test_a_call_of_the_controller_is_two_files(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "Add a call of the controller")
    assert copy.changed == [
        "src/pravega_wire/controller.proto",
        "src/pravega_controller/rpc/handlers.py",
    ]
    for made in (copy.src / "pravega_wire").glob("controller_pb2.py*"):
        made.unlink()
    printed = copy.run(
        """
        import grpc, sys, trio
        from grpc_tools import protoc

        made = ["-I.", "--python_out=.", "--pyi_out=."]
        assert protoc.main(["protoc", *made, "pravega_wire/controller.proto"]) == 0
        from pravega_controller.rpc.service import SERVICE, ControllerServer
        from pravega_wire import controller_pb2 as pb

        def call(port: int) -> pb.ExistsResponse:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                invoke = channel.unary_unary(
                    f"/{SERVICE.full_name}/greetScope",
                    request_serializer=lambda message: message.SerializeToString(),
                    response_deserializer=pb.ExistsResponse.FromString,
                )
                return invoke(pb.ScopeInfo(scope="s"), timeout=60)

        async def main() -> None:
            server = ControllerServer("127.0.0.1", 0)
            port = server.listen()
            async with trio.open_nursery() as calls:
                server.start(object(), calls)
                print((await trio.to_thread.run_sync(call, port)).exists)
                await server.stop(calls, drain_seconds=0)

        trio.run(main)
        """
    )
    assert printed == "True\n"


def test_a_command_of_the_wire_protocol_is_two_files(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "Add a command of the wire protocol")
    assert copy.changed == [
        "src/pravega_wire/commands.py",
        "src/segstore/network/handlers.py",
    ]
    printed = copy.run(
        f"""
        import sys
        import trio
        from pravega_wire.codec import encode
        from pravega_wire.commands import Greet
        from pravega_wire.connection import Connection, Role
        from segstore.network.connection import HANDLERS

        [request] = Connection(Role.SERVER).receive_data(encode(Greet(7, "you")))
        reply = trio.run(HANDLERS[type(request)].handle, None, request)
        print(Connection(Role.CLIENT).receive_data(encode(reply)))
        sys.path.append({str(ROOT / "tests" / "pages")!r})
        from wire_tables import table_of_commands
        print(table_of_commands())
        """
    )
    assert "[Greeted(request_id=7, greeting='Hello you')]" in printed
    assert "| -80 | Greet | Q | request_id: int64, name: text |" in printed
