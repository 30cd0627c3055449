"""Words of other tools, and options before the verb."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from pravega_admin.output.other_words import OPTIONS, move_options
from pravega_admin.verbs import app


@pytest.mark.parametrize(
    ("arguments", "moved"),
    [
        (["stream", "list"], ["stream", "list"]),
        (["-c", "x:1", "stream", "list"], ["stream", "list", "-c", "x:1"]),
        (["--controller=x:1", "list", "--", "-a"], ["list", "--controller=x:1", "--", "-a"]),
        (["--debug", "-o", "json", "list", "a"], ["--debug", "list", "a", "-o", "json"]),
        (["-o"], ["-o"]),
        (["--help"], ["--help"]),
        ([], []),
    ],
    ids=str,
)
def test_options_of_a_group_move_behind_the_verb(arguments: list[str], moved: list[str]) -> None:
    assert move_options(arguments) == moved


@pytest.mark.parametrize(
    "arguments",
    [
        ["--controller", "nowhere:x", "stream", "list"],
        ["stream", "--controller", "nowhere:x", "list"],
        ["stream", "list", "--controller", "nowhere:x"],
    ],
    ids=" ".join,
)
def test_options_may_stand_before_the_verb(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "'nowhere:x' is not a controller address" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["stream", "create", "a/b", "--partitions", "3"], "--segments"),
        (["read", "a/b", "--from-beginning"], "--from head"),
        (["group", "seek", "a/b", "--to-latest"], "--to tail"),
        (["write", "--topic", "a"], "SCOPE/STREAM"),
        (["topic", "create", "a"], "say stream"),
        (["consume", "a"], "say read"),
        (["stream", "ls"], "say list"),
    ],
    ids=str,
)
def test_words_of_kafka_are_answered_with_ours(arguments: list[str], answer: str) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    assert result.exit_code == 2
    assert answer in result.stderr
    assert "Possible options" not in result.stderr
    assert result.stdout == ""


def test_no_word_of_ours_is_refused() -> None:
    """A table has partitions, in its own right."""
    result = CliRunner().invoke(app, ["table", "create", "--partitions", "0", "a/b"])
    assert "there is no" not in result.stderr
    assert all(name.startswith("--") for name in OPTIONS)
