"""Help uses the words of users, and shows all of them on a terminal of usual width."""

import re

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from pravega_admin import errors
from pravega_admin.errors import exit_code_of
from pravega_admin.output.help_pages import VALUE_NAMES
from pravega_admin.verbs import app
from segstore_client import TruncatedError
from segstore_client.errors import PravegaError

WIDTH = {"COLUMNS": "80", "TERMINAL_WIDTH": "80"}


def command_paths() -> list[list[str]]:
    """Return every verb and every group of verbs, with the root."""
    paths: list[list[str]] = [[]]
    found = []
    while paths:
        path = paths.pop()
        found.append(path)
        command = get_command(app)
        for name in path:
            command = command.commands[name]  # type: ignore[attr-defined]
        paths += [[*path, name] for name in getattr(command, "commands", ())]
    return found


@pytest.mark.parametrize("path", command_paths(), ids=" ".join)
def test_help_names_no_types_of_python_and_cuts_nothing(path: list[str]) -> None:
    shown = CliRunner(env=WIDTH).invoke(app, [*path, "--help"]).output
    assert not re.search(r"<\w+|list\[|…", shown), shown
    types = "|".join(re.escape(name) for name in VALUE_NAMES)
    assert not re.search(rf"^│.*--[\w-]+.*  ({types}|bool)  ", shown, re.MULTILINE), shown


def test_help_tells_each_exit_code_that_a_command_can_have() -> None:
    shown = " ".join(CliRunner(env=WIDTH).invoke(app, ["--help"]).output.split())
    told = {int(code) for code in re.findall(r"(\d+) [a-z]", shown.partition("Exit codes:")[2])}
    kinds: list[type[BaseException]] = [KeyboardInterrupt, PravegaError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert TruncatedError in kinds  # whatever else was imported in this process
    assert {exit_code_of(kind()) for kind in kinds} | {errors.EXIT_NO_ROOM} <= told
