"""The guide to the original's commands has each of them, and names commands of ours that exist."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from pravega_admin.verbs import app

GUIDE = Path(__file__).parents[2] / "docs/guides/original-commands.md"
COMMANDS = tomllib.loads(Path(__file__).with_name("original_commands.toml").read_text())
VERDICTS = ("same", "better", "missing", "not applicable")
CODE = re.compile(r"`([^`]+)`")


def rows_of(heading: str) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the table below a heading."""
    text = GUIDE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    for line in text.splitlines():
        if line.startswith("| `"):
            first, second, third = (cell.strip() for cell in line.strip("|").split("|"))
            yield first, second, third


def commands_in(cell: str) -> list[str]:
    """Return the commands of a cell; the group is said once in it."""
    group, found = "", []
    for text in CODE.findall(cell):
        words = text.split()
        if words[0] in {each for one in COMMANDS.values() for each in one}:
            group, *words = words
        found.append(f"{group} {words[0]}")
    return found


@pytest.mark.parametrize("line", COMMANDS)
def test_each_command_of_the_original_has_a_row(line: str) -> None:
    told = Counter(each for first, _, _ in rows_of(line) for each in commands_in(first))
    expected = [f"{group} {name}" for group, names in COMMANDS[line].items() for name in names]
    assert told == Counter(expected)


def test_the_number_of_commands_is_that_of_the_original() -> None:
    counts = {line: sum(map(len, groups.values())) for line, groups in COMMANDS.items()}
    assert counts == {"pravega-cli": 20, "pravega-admin": 49}


@pytest.mark.parametrize("line", COMMANDS)
def test_each_row_has_a_verdict_and_a_reason(line: str) -> None:
    for first, second, third in rows_of(line):
        verdict = next((each for each in VERDICTS if third.startswith(each)), None)
        assert verdict is not None, (first, third)
        rest = third.removeprefix(verdict)
        assert rest == "" or rest[0] in ",:;", (first, third)
        if verdict in ("missing", "not applicable"):
            assert rest.startswith(":"), (first, third)
        else:
            assert "`segstore " in second, (first, second)


@pytest.mark.parametrize("line", COMMANDS)
def test_each_command_of_ours_exists(line: str) -> None:
    root = typer.main.get_command(app)
    for _, second, _ in rows_of(line):
        for text in re.findall(r"`segstore ([^`]+)`", second):
            command, words = root, text.split()
            while getattr(command, "commands", None):
                found = command.get_command(None, words[0])  # type: ignore[attr-defined]
                assert found is not None, text
                command, words = found, words[1:]
            options = {option for one in command.params for option in one.opts}
            for word in words:
                assert not word.startswith("-") or word in options, text
