"""Options that are made of declarations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
import typer
from msgspec import Meta
from typer.testing import CliRunner, Result

from pravega_admin.serving import declarations
from pravega_admin.serving.setting_options import with_settings


class Section(msgspec.Struct, frozen=True):
    depth: Annotated[int, Meta(ge=1, le=9, extra={"option": "--depth"})] = 3
    """How deep it is."""


class Configuration(msgspec.Struct, frozen=True):
    host: Annotated[str, Meta(extra={"option": "--host", "metavar": "ADDRESS"})] = "here"
    """Where it is."""
    other: Annotated[
        tuple[str, int] | None, Meta(extra={"option": "--other", "variable": "OTHER_PLACE"})
    ] = None
    """Where the other one is."""
    own: Annotated[str, Meta(extra={"option": "--own"})] = "x"
    """An option that the verb itself has."""
    hidden: Annotated[int, Meta(extra={"option": ""})] = 0
    """Set by what starts it."""
    plain: Path = Path()
    """A setting of the file."""
    section: Section = Section()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Result, dict[str, Any]]]:
    monkeypatch.setattr(declarations, "configuration_of", lambda table: Configuration)
    declarations.declarations_of.cache_clear()
    seen: dict[str, Any] = {}

    def verb(
        ctx: typer.Context,
        given: dict[str, Any],
        own: Annotated[str, typer.Option("--own")] = "",
    ) -> None:
        """Keep what it is given."""
        seen.update(given=given, own=own)

    app = typer.Typer()
    app.command()(with_settings(verb, "segment_store"))

    def invoke(*arguments: str, **variables: str) -> tuple[Result, dict[str, Any]]:
        return CliRunner().invoke(app, list(arguments), env=variables), seen

    yield invoke
    declarations.declarations_of.cache_clear()


def test_options_become_settings(run: Any) -> None:
    done, seen = run("--own", "y", "--depth", "4", "--other", "there:1", "--host=everywhere")
    assert done.exit_code == 0, done.output
    assert seen == {
        "own": "y",
        "given": {"host": "everywhere", "other": ("there", 1), "section": {"depth": 4}},
    }


def test_a_section_is_set_only_when_an_option_is_given(run: Any) -> None:
    done, seen = run(OTHER_PLACE="there:2")
    assert done.exit_code == 0, done.output
    assert seen["given"] == {"host": "here", "other": ("there", 2)}


def test_help_says_what_is_declared(run: Any) -> None:
    done, _ = run("--help", COLUMNS="200")
    for text in ("ADDRESS", "Where it is.", "[default: here]", "OTHER_PLACE", "1<=x<=9"):
        assert text in done.output
    assert "--hidden" not in done.output
    assert "--plain" not in done.output


def test_bounds_are_those_that_are_declared(run: Any) -> None:
    done, _ = run("--depth", "10")
    assert done.exit_code == 2
    assert "--depth" in done.output


def test_a_parameter_without_an_option_has_that_of_its_setting(run: Any) -> None:
    seen: dict[str, Any] = {}

    def verb(
        ctx: typer.Context,
        *,
        own: Annotated[str, typer.Option("--own", help="Another meaning.")] = "",
        host: str,
        depth: int,
        plain: str = "",
    ) -> None:
        """Keep what it is given."""
        seen.update(own=own, host=host, depth=depth, plain=plain)

    app = typer.Typer()
    app.command()(with_settings(verb, "segment_store"))
    assert CliRunner().invoke(app, ["--depth", "4", "--own", "y"]).exit_code == 0
    assert seen == {"own": "y", "host": "here", "depth": 4, "plain": ""}
    assert CliRunner().invoke(app, ["--depth", "10"]).exit_code == 2
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    for text in ("ADDRESS", "Where it is.", "How deep it is.", "1<=x<=9", "Another meaning."):
        assert text in shown
    assert "--other" not in shown
