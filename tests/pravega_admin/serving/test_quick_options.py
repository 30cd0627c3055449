"""The quick reading of ``standalone``'s options against the parser that it stands in for."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pravega_admin.commands import servers
from pravega_admin.serving import store_settings
from pravega_admin.serving.quick_options import FLAGS, READERS, VARIABLES, read_options
from pravega_admin.serving.version import VERSION
from pravega_admin.verbs import app

STANDALONE: Any = typer.main.get_command(app).commands["standalone"]  # type: ignore[attr-defined]
OPTIONS = {each.name: each for each in STANDALONE.params if each.name != "help"}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)


class Started(Exception):
    """The options that the parser made of the arguments."""


def parsed(arguments: list[str]) -> dict[str, Any] | None:
    """Return the options that the parser makes of arguments; None for a complaint or help."""

    def keep(options: dict[str, Any]) -> None:
        raise Started(options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(servers, "start_standalone", keep)
        try:
            STANDALONE.main(arguments, standalone_mode=False)
        except Started as started:
            return dict(started.args[0])
        except Exception:
            return None
    return None


def defaults() -> dict[str, Any]:
    found = parsed([])
    assert found is not None
    return found


def assert_read_alike(arguments: list[str]) -> None:
    quick = read_options(arguments)
    if quick is None:
        return
    slow = parsed(arguments)
    assert slow is not None, "the parser complains"
    for name, value in {**defaults(), **quick}.items():
        # A path is the same with a slash more: what reads the options makes a path of it later.
        expected = slow[name]
        found = Path(str(value)) if isinstance(expected, Path) else value
        assert found == expected, name


def test_every_option_of_the_parser_is_known_by_its_name() -> None:
    assert OPTIONS.keys() == READERS.keys() | FLAGS
    for name, option in OPTIONS.items():
        assert option.opts == ["--" + name.replace("_", "-")]
        assert not option.secondary_opts
        assert option.is_flag == (name in FLAGS)
        assert option.envvar == VARIABLES.get(name)


def test_the_settings_have_the_defaults_of_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(
        "pravega_admin.serving.standalone.run_standalone",
        lambda settings, began: started.append(settings),
    )
    store_settings.start_standalone({})
    store_settings.start_standalone(defaults())
    assert started[0] == started[1]


WORDS = st.one_of(
    st.sampled_from(
        ["--" + name.replace("_", "-") for name in OPTIONS]
        + ["--help", "-h", "--", "-", "--port", "--no-allow-insecure", "--data_dir", "---host"]
        + ["1", "0", "65535", "65536", "-1", "+1", " 1", "1_0", "4.5", "", "debug", "DEBUG"]
        + ["json", "text", "x", "s3://bucket/prefix", "9" * 30, "\u0661"]
    ),
    st.text(max_size=5),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(WORDS, st.tuples(WORDS, WORDS).map("=".join)).filter(lambda w: "\0" not in w),
        max_size=5,
    )
)
@example(["--controller-port", "9091", "--controller-port=9092"])
@example(["--data-dir", "x", "--log-level", "debug", "--allow-insecure"])
@example(["--data-dir=s3://bucket/prefix"])
def test_what_is_read_quickly_is_what_the_parser_reads(arguments: list[str]) -> None:
    assert_read_alike(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--data-dir", "somewhere", "--controller-port", "19090", "--segment-store-port=19091"],
        ["--host", "127.0.0.1", "--config", "settings.toml"],
        ["--controllers", "2"],
        ["--log-format", "json", "--log-level=warning", "--log-file", "log"],
        ["--tier2", "s3://b/p", "--s3-endpoint", "http://x", "--s3-region", "here"],
        ["--allow-insecure", "--published-address", "store", "--container-count", "8"],
        [],
    ],
)
def test_plain_arguments_are_read_quickly(arguments: list[str]) -> None:
    assert read_options(arguments) is not None
    assert_read_alike(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["more"],
        ["--controller-port", "0"],
        ["--controllers", "17"],
        ["--controller-port", "x"],
        ["--log-level", "loud"],
        ["--host"],
        ["--host", "--data-dir"],
        ["--allow-insecure=yes"],
        ["--unknown", "1"],
    ],
)
def test_doubtful_arguments_are_left_to_the_parser(arguments: list[str]) -> None:
    assert read_options(arguments) is None


def test_the_environment_speaks_for_options_that_are_not_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SEGSTORE_DATA_DIR", "there")
    monkeypatch.setenv("SEGSTORE_TIER2", "")
    assert read_options([]) == {"data_dir": "there"}
    assert read_options(["--data-dir", "here"]) == {"data_dir": "here"}
    assert_read_alike([])


@pytest.mark.processes
def test_a_failure_is_one_sentence_and_an_exit_code(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pravega_admin", "standalone"]
    arguments = ["--data-dir", str(tmp_path / "data"), "--s3-region", "here"]
    ended = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert (
        ended.stderr == "segstore: --s3-endpoint and --s3-region need --tier2 s3://BUCKET/PREFIX\n"
    )


def test_the_version_is_the_packages() -> None:
    assert importlib.metadata.version("segstore") == VERSION
