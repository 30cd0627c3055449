"""The command line's arguments, refusals and messages. No server is running here."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pravega_admin import cli
from pravega_admin.errors import EXIT_INTERRUPTED
from pravega_admin.verbs import HELP, PLACES, app
from segstore.testing.ports import free_ports

NOBODY = "tcp://127.0.0.1:9"
"""The discard port: nobody listens there."""


def invoke(*arguments: str, input: bytes | None = None) -> Result:
    return CliRunner().invoke(
        app, list(arguments), input=input, env={"SEGSTORE_CONTROLLER": NOBODY}
    )


def leaf_commands() -> list[list[str]]:
    import typer.main

    root = typer.main.get_command(app)
    found: list[list[str]] = []
    pending = [([], root)]
    while pending:
        path, command = pending.pop()
        children = getattr(command, "commands", None)
        if children is None:
            found.append(path)
        else:
            pending.extend(([*path, name], child) for name, child in children.items())
    return sorted(found)


def test_every_verb_is_there() -> None:
    assert [" ".join(path) for path in leaf_commands()] == [
        "bench self",
        "certificate create",
        "certificate show",
        "check controller",
        "check segment-store",
        "cluster status",
        "cluster wait",
        "config print",
        "controller",
        "doctor",
        "export",
        "generate grafana-dashboard",
        "generate prometheus-alerts",
        "group delete",
        "group describe",
        "group lag",
        "group list",
        "group seek",
        "group show",
        "import",
        "pipeline archive",
        "pipeline compact",
        "pipeline ingest",
        "pipeline replay",
        "pipeline stats",
        "profile delete",
        "profile list",
        "profile set",
        "profile show",
        "read",
        "recover",
        "scope create",
        "scope delete",
        "scope list",
        "scrub",
        "server",
        "standalone",
        "stream create",
        "stream delete",
        "stream describe",
        "stream list",
        "stream scale",
        "stream seal",
        "stream truncate",
        "stream update",
        "table create",
        "table delete",
        "table describe",
        "table entries",
        "table get",
        "table list",
        "table put",
        "table remove",
        "token create",
        "token rotate",
        "token show",
        "top",
        "transaction abort",
        "transaction commit",
        "transaction describe",
        "transaction list",
        "user add",
        "user grant",
        "user list",
        "user passwd",
        "user remove",
        "user revoke",
        "version",
        "write",
    ]


@pytest.mark.parametrize("path", leaf_commands(), ids=" ".join)
def test_every_verb_explains_itself(path: list[str]) -> None:
    result = invoke(*path, "--help")
    assert result.exit_code == 0, result.output
    assert f"segstore {' '.join(path)}" in result.output.replace("root", "segstore")


def test_an_interrupt_while_modules_are_imported_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "run_with_checked_streams", interrupt)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == EXIT_INTERRUPTED
    assert capsys.readouterr() == ("", "")


def test_help_names_the_exit_codes() -> None:
    result = invoke("--help")
    assert "Exit codes" in result.output


@pytest.mark.processes
def test_help_imports_neither_grpc_nor_trio_nor_servers() -> None:
    """Each of them takes longer than all that the list of verbs needs."""
    source = """
import sys
from pravega_admin.verbs import HELP, PLACES, app
sys.argv = ["segstore", "--help"]
try:
    app(prog_name="segstore")
except SystemExit:
    pass
slow = {"grpc", "trio", "structlog", "google", "segstore", "pravega_controller", "asyncio"}
found = {name for name in sys.modules if name.split(".")[0] in slow}
found |= {name for name in sys.modules if name.startswith("pravega_admin.commands.")}
print("IMPORTED", sorted(found))
"""
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert "Move data between streams" in done.stdout
    assert done.stdout.splitlines()[-1] == "IMPORTED []"


def test_the_list_of_verbs_says_what_each_verb_says() -> None:
    import typer.main

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert HELP.keys() == PLACES.keys()
    for name, sentence in HELP.items():
        told = commands[name].help.partition("\n\n")[0].replace("\n", " ")
        assert sentence == told, name


def test_the_version_is_that_of_the_distribution() -> None:
    from importlib.metadata import version

    assert invoke("version").stdout.strip() == version("segstore")
    assert invoke("--version").stdout.strip() == version("segstore")


@pytest.mark.parametrize(
    "arguments",
    [
        ["scope", "list"],
        ["stream", "describe", "a/b"],
        ["read", "a/b"],
        ["write", "a/b"],
        ["stream", "scale", "a/b", "--segments", "3"],
    ],
    ids=" ".join,
)
def test_an_absent_controller_is_one_sentence_and_exit_code_5(arguments: list[str]) -> None:
    result = invoke(*arguments, input=b"")
    assert result.exit_code == 5
    assert result.stdout == ""
    assert result.stderr.strip().splitlines()[-1] == (
        "segstore: no controller answers at 127.0.0.1:9: nothing listens there"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["stream", "describe", "nothing"], "write SCOPE/STREAM"),
        (["stream", "describe", "a/b/c"], "write SCOPE/STREAM"),
        (["stream", "truncate", "a/b"], "either --tail or --cut"),
        (["stream", "truncate", "a/b", "--tail", "--cut", "0:0"], "either --tail or --cut"),
        (["stream", "truncate", "a/b", "--cut", "0"], "such as 0:4096"),
        (["stream", "truncate", "a/b", "--cut", "x:1"], "not a number"),
        (["stream", "scale", "a/b"], "say how to scale"),
        (["stream", "scale", "a/b", "--segments", "2", "--split", "0"], "say how to scale"),
        (["stream", "scale", "a/b", "--merge", "0,x"], "not a number"),
        (["stream", "create", "a/b", "--retention-time", "soon"], "a duration such as"),
        (["stream", "create", "a/b", "--retention-size", "much"], "a size such as"),
        (["stream", "create", "a/b", "--retention-max", "1d"], "needs --retention-time"),
        (
            ["stream", "create", "a/b", "--retention-time", "1d", "--retention-size", "1GB"],
            "by time or by size",
        ),
        (
            ["stream", "create", "a/b", "--retention-time", "2d", "--retention-max", "1d"],
            "less than the minimum",
        ),
        (
            ["stream", "create", "a/b", "--scale-by-events", "1", "--scale-by-kbytes", "1"],
            "by events or by kbytes",
        ),
        (["stream", "create", "a/b", "--scale-factor", "2"], "--scale-factor needs"),
        (["write", "a/b", "--key", "k", "--key-field", "1"], "either --key or --key-field"),
        (["write", "a/b", "--key-field", "1", "--delimiter", ""], "must not be empty"),
        (["scope", "list", "--controller", "http://x:1"], "not a controller address"),
        (["scope", "list", "--controller", "tcp://x:y"], "not a controller address"),
        (
            ["scope", "list", "--user", "a:b", "--password-file", "-"],
            "cannot be the name of a user",
        ),
        (["scope", "list", "--user", "a"], "user a has no password"),
        (["scope", "list", "--token-file", "/nowhere"], "token file /nowhere cannot be read"),
        (["scope", "list", "--ca", "/nowhere"], "CA file /nowhere cannot be read"),
        (["scope", "list", "--profile", "x"], "there is no profile x"),
        (["controller", "--segment-store", "nowhere"], "not HOST:PORT"),
        (["controller", "--zookeeper", "a:1,b"], "not HOST:PORT"),
        (["controller", "--cluster", "c"], "--cluster needs --zookeeper"),
        (
            ["controller", "--zookeeper", "a:1", "--segment-store", "b:2"],
            "a controller without --zookeeper",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(arguments: list[str], sentence: str) -> None:
    result = invoke(*arguments, input=b"x\n")
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("segstore: ")
    assert sentence in line


@pytest.mark.parametrize(
    "arguments",
    [
        ["stream", "create"],
        ["stream", "create", "a/b", "--segments", "0"],
        ["read", "a/b", "--from", "middle"],
        ["scope", "list", "-o", "xml"],
        ["standalone", "--controller-port", "70000"],
        ["unknown"],
    ],
    ids=" ".join,
)
def test_what_the_parser_refuses_exits_with_2(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_a_missing_input_file_exits_with_3(tmp_path: Path) -> None:
    result = invoke("write", "a/b", str(tmp_path / "absent"))
    assert result.exit_code == 3
    assert "there is no file" in result.stderr


def test_debug_shows_where_it_failed() -> None:
    result = invoke("--debug", "scope", "list")
    assert result.exception is not None
    assert type(result.exception).__name__ == "UnavailableError"


def test_a_host_that_others_reach_is_refused(tmp_path: Path) -> None:
    for verb in ("standalone", "server"):
        result = invoke(verb, "--host", "0.0.0.0", "--data-dir", str(tmp_path / "data"))
        assert result.exit_code == 78
        (line,) = result.stderr.splitlines()
        assert "--allow-insecure" in line
    assert not (tmp_path / "data").exists()


def test_a_port_in_use_is_one_sentence_and_exit_code_78(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        [free] = map(str, free_ports(1))
        options = ("--controller-port", "--segment-store-port")
        for option, other in (options, options[::-1]):
            ports = (option, port, other, free)
            result = invoke("standalone", *ports, "--data-dir", str(tmp_path / "data"))
            assert result.exit_code == 78
            (line,) = result.stderr.splitlines()
            assert f"port {port} on 127.0.0.1 is in use" in line
            assert option in line
        result = invoke("server", "--port", port, "--data-dir", str(tmp_path / "data"))
        assert result.exit_code == 78
        assert f"port {port} on 127.0.0.1 is in use" in result.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[segment_store]\nport = 1\n", "settings.toml, line 2: it sets port, which is an option"),
        ("[other]\n", "line 1: 'other': only tables segment_store and controller"),
        ("\n[segment_stor]\n", "line 2: 'segment_stor': only tables"),
        ("segment_store = 1\n", "line 1: 'segment_store': only tables"),
        ("not toml", "is not TOML"),
        (
            "[controller]\n\nretention_perod_seconds = 3\n",
            "line 3: [controller] has no setting retention_perod_seconds;"
            " did you mean retention_period_seconds?",
        ),
        (
            "[segment_store]\ncache_bytes_max = 1_000_000_000\n[segment_store.scrub]\n"
            "# A comment.\nbyte_per_second = 3\n",
            "line 5: [segment_store.scrub] has no setting byte_per_second;"
            " did you mean bytes_per_second?",
        ),
        (
            "[segment_store]\nbytes_per_second = 3\n",
            "line 2: [segment_store] has no setting bytes_per_second; [segment_store.scrub] has it",
        ),
        (
            "[segment_store]\nscrub.bytes_per_second = '3'\n",
            "line 2: scrub.bytes_per_second: Expected `int`, got `str`",
        ),
        (
            "[segment_store]\nscrub = {bytes_per_second = -3}\n",
            "line 2: scrub.bytes_per_second has to be at least 0",
        ),
        ("[segment_store]\ncache_bytes_max = 1\n", "cache_bytes_max has to be at least"),
        *(
            (
                f"[segment_store]\n[segment_store.cluster.{table}]\n{half} = 'own.pem'\n",
                f"line 2: cluster.{table}: a certificate and its key are set together",
            )
            for table in ("bookie_tls", "zookeeper_tls")
            for half in ("certificate", "key")
        ),
    ],
)
def test_a_settings_file_that_makes_no_sense_is_refused(
    tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    result = invoke("standalone", "--config", str(path), "--data-dir", str(tmp_path / "data"))
    assert result.exit_code == 78
    (line,) = result.stderr.splitlines()
    assert sentence in line
    assert not (tmp_path / "data").exists()


def test_process_start_is_in_the_recent_past() -> None:
    from pravega_admin.serving.store_settings import process_began

    assert 0 < time.monotonic() - process_began() < 24 * 3600
